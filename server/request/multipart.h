/* DESIGN: multipart/form-data of RFC 7578, pulled event by event from pieces of any size.
 * Content is never gathered: it is handed on as slices of the caller's own bytes (or of the
 * delimiter, for the few bytes that looked like its beginning). Only the headers of the running part
 * are kept, bounded. Strict where parsers differ: lines end with CRLF, a delimiter is followed by
 * blanks and CRLF or by "--", header names are tokens, no folded headers, no control characters.
 * The delimiter begins with CR, which cannot occur in it again, so a mismatch never needs to go back
 * more than the bytes held. */
#ifndef KILN_REQUEST_MULTIPART_H
#define KILN_REQUEST_MULTIPART_H

#include "base/buffer.h"

enum {
    MULTIPART_BOUNDARY_MAX = 70, /* RFC 2046 */
    MULTIPART_HEAD_MAX = 8192, /* bytes of one part's headers */
    MULTIPART_HEADERS_MAX = 16, /* headers of one part */
};

enum multipart_event {
    MULTIPART_MORE, /* the input is used up */
    MULTIPART_PART, /* headers of the next part are complete */
    MULTIPART_BYTES, /* content of the running part in *out, valid until the input or the parser changes */
    MULTIPART_PART_END,
    MULTIPART_END, /* the closing delimiter; what follows is ignored */
    MULTIPART_MALFORMED,
    MULTIPART_TOO_LARGE, /* a part's headers */
    MULTIPART_NO_MEMORY,
};

struct multipart_header {
    struct str name;
    struct str value;
};

struct multipart {
    /* Of the running part; valid from MULTIPART_PART until the next one or the end. */
    struct multipart_header headers[MULTIPART_HEADERS_MAX];
    unsigned header_count;
    struct str name; /* field name; "" when there is none */
    struct str filename; /* ptr NULL: not a file; path and control characters removed */
    struct str content_type; /* ptr NULL: none sent */
    /* Private. */
    char delimiter[MULTIPART_BOUNDARY_MAX + 5]; /* CR LF - - boundary NUL */
    size_t delimiter_len;
    size_t matched; /* bytes of the delimiter seen so far... */
    size_t held_from; /* ...of which those before this were never in the content */
    uint8_t state;
    struct buffer head; /* raw headers of the running part */
    struct buffer decoded; /* name and filename, decoded */
};

/* The boundary parameter of a Content-Type "multipart/form-data"; false for another type or a
 * boundary that is missing, too long or has characters that cannot be. */
bool multipart_boundary(struct str content_type, struct str *boundary, char storage[MULTIPART_BOUNDARY_MAX]);
void multipart_init(struct multipart *mp, struct str boundary);
/* Takes bytes from *input. */
enum multipart_event multipart_next(struct multipart *mp, struct str *input, struct str *out);
/* True once the closing delimiter was seen: a body that ends before is malformed. */
bool multipart_is_complete(const struct multipart *mp);
void multipart_free(struct multipart *mp);

/* multipart_head.c: fills headers, name, filename and content_type from mp->head. */
enum multipart_event multipart_parse_head(struct multipart *mp);
/* A parameter of a header value such as Content-Disposition or Content-Type, unquoted and appended to
 * `out`: 1 found, 0 absent, -1 malformed or out of memory. */
int header_parameter(struct str value, struct str name, struct buffer *out);

#endif
