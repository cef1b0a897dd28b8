/* Framing of text/event-stream (WHATWG HTML, server-sent events). Pure functions. */
#ifndef KILN_REQUEST_SSE_H
#define KILN_REQUEST_SSE_H

#include "base/buffer.h"

/* Appends one event. `event` and `id` may be STR_NONE. Every line of data becomes a data field,
 * whatever ends it (LF, CR or CRLF). False, with nothing appended, when event or id has a line break,
 * or id a NUL; false too when out of memory (out->failed). */
bool sse_append_event(struct buffer *out, struct str event, struct str id, struct str data);
bool sse_append_ping(struct buffer *out);
bool sse_append_retry(struct buffer *out, unsigned milliseconds);

#endif
