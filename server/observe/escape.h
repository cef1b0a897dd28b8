/* Text that came from outside, made safe for a line of a log: whatever it holds, it can
 * neither end the line, nor forge a field, nor drive a terminal. */
#ifndef KILN_OBSERVE_ESCAPE_H
#define KILN_OBSERVE_ESCAPE_H

#include "base/str.h"

/* Each writes at most `room` bytes to `out`, whole characters at a time, returns how many,
 * and leaves in *text what did not fit. Nothing is NUL-terminated. */

/* For people: UTF-8 stays, line feeds become \n, other control bytes \xhh. */
size_t escape_text(char *out, size_t room, struct str *text);
/* For a quoted field of the Combined format: printable ASCII stays, " and \ get a
 * backslash, everything else becomes \xhh. */
size_t escape_quoted(char *out, size_t room, struct str *text);
/* For the inside of a JSON string: always valid UTF-8, invalid bytes become U+FFFD. */
size_t escape_json(char *out, size_t room, struct str *text);

#endif
