/* Percent coding of RFC 3986. Pure functions over bytes. */
#ifndef KILN_REQUEST_PERCENT_H
#define KILN_REQUEST_PERCENT_H

#include "base/buffer.h"

/* Appends with everything but letters, digits and - . _ ~ as %XX. */
bool percent_encode(struct buffer *out, struct str text);
/* Bytes that percent_encode makes of it. */
size_t percent_encoded_length(struct str text);
/* The same into `out`, which has room for percent_encoded_length(text); returns the length. */
size_t percent_encode_to(char *out, struct str text);
/* Decodes %XX into `out` (room for text.len; may be text.ptr itself). False for a broken escape. */
bool percent_decode(char *out, struct str text, size_t *len);

#endif
