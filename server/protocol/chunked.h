/* DESIGN: a strict decoder of the chunked coding (RFC 9112 7.1), incremental and without
 * memory of its own: data is handed on as it lies. Only CRLF ends a line; a chunk extension
 * holds no control byte and is bounded; a size that overflows, is empty or has anything
 * but hexadecimal digits ends the body. Trailers are left to the caller: the decoder stops
 * behind the last chunk's size line. */
#ifndef KILN_PROTOCOL_CHUNKED_H
#define KILN_PROTOCOL_CHUNKED_H

#include <stddef.h>
#include <stdint.h>

enum chunked_result {
    CHUNKED_MORE, /* all input used; the body goes on */
    CHUNKED_DATA, /* *data and *data_len are body bytes; call again with the rest */
    CHUNKED_TRAILERS, /* the last chunk; what follows is the trailer section */
    CHUNKED_BAD, /* malformed: 400 */
    CHUNKED_TOO_LARGE /* a size or extension beyond the limits: 413 or 400 */
};

struct chunked {
    uint64_t left; /* of the running chunk */
    uint16_t extension_bytes;
    uint8_t digits;
    uint8_t state;
};

#define CHUNKED_START ((struct chunked){0})

/* Consumes from *input; *used says how much. */
enum chunked_result chunked_next(struct chunked *chunked, const uint8_t *input, size_t len, size_t *used,
                                 const uint8_t **data, size_t *data_len);

#endif
