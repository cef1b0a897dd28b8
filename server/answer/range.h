/* DESIGN: byte ranges (RFC 9110 14) as arithmetic: a header and a size in, disjoint parts
 * out. What a client can make us send is bounded whatever it asks for: at most RANGE_MAX
 * specs are looked at, and parts that overlap or touch become one, so that the parts together
 * are never more than the file. */
#ifndef KILN_ANSWER_RANGE_H
#define KILN_ANSWER_RANGE_H

#include "base/str.h"

enum { RANGE_MAX = 32 }; /* more specs than this: the header is ignored */

struct byte_range {
    uint64_t first;
    uint64_t length;
};

struct range_set {
    unsigned count;
    struct byte_range parts[RANGE_MAX];
};

enum range_result {
    RANGE_IGNORED, /* no byte ranges, malformed, or too many: the whole file, 200 */
    RANGE_PARTS, /* 206 */
    RANGE_BEYOND, /* well-formed and nothing of it lies in the file: 416 */
};

enum range_result range_parse(struct str header, uint64_t size, struct range_set *out);

#endif
