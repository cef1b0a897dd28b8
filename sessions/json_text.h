/* Is a text one JSON value that any parser will read back the same way? */
#ifndef KILN_SESSIONS_JSON_TEXT_H
#define KILN_SESSIONS_JSON_TEXT_H

#include "base/str.h"

bool json_text_is_valid(struct str json);
/* An integer of 64 bits in its one plain form: no fraction, exponent, plus or leading zero. */
bool json_text_integer(struct str json, int64_t *out);

/* Writes at most 20 bytes; returns the length. */
size_t json_text_print_integer(int64_t value, char *out);

#endif
