/* Content codings: what a client accepts, and the compressors. */
#ifndef KILN_ANSWER_COMPRESS_H
#define KILN_ANSWER_COMPRESS_H

#include "base/buffer.h"
#include "base/str.h"
#include "config/config.h"

/* In our order of preference: at equal weight the denser one is sent. */
enum coding { CODING_BROTLI, CODING_ZSTD, CODING_GZIP, CODING_IDENTITY, CODING_COUNT };

struct coding_info {
    struct str name; /* in Content-Encoding */
    struct str suffix; /* of a precompressed sibling: ".br" */
    struct str mark; /* in entity tags: "-br" */
};
extern const struct coding_info coding_infos[CODING_COUNT];

/* The codings that a client takes, best first. Empty: not even identity. */
struct accepted_codings {
    uint8_t count;
    uint8_t order[CODING_COUNT]; /* enum coding */
};

/* Value of Accept-Encoding, ptr NULL when there is none (then identity alone, although RFC
 * 9110 would let us send anything: who does not name a coding rarely knows one). */
void accept_encoding_parse(struct str value, struct accepted_codings *out);
/* The same, remembering the last few values of the thread: browsers all send alike. */
const struct accepted_codings *accept_encoding_cached(struct str value);
bool coding_is_accepted(const struct accepted_codings *accepted, enum coding coding);

/* Appends the coded form of `data` to `out`, which is empty; false when it would not be
 * smaller than the original or memory is short. Deterministic for one version of the
 * libraries. Takes its time: not for a loop thread. `text` tells brotli's model. */
bool compress_bytes(enum coding coding, enum compression_level level, bool text, const uint8_t *data, size_t len,
                    struct buffer *out);

#endif
