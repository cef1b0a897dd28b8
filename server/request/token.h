/* What may stand in headers (RFC 9110): names of headers and cookies are tokens, values are text. */
#ifndef KILN_REQUEST_TOKEN_H
#define KILN_REQUEST_TOKEN_H

#include "base/str.h"

bool token_has_char(char c);
/* At least one byte, and nothing but bytes of a token. */
bool token_is_valid(struct str s);
/* No control characters but the tab. */
bool field_value_is_valid(struct str value);

#endif
