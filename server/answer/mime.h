/* Media types by file extension, and which of them are worth compressing. */
#ifndef KILN_ANSWER_MIME_H
#define KILN_ANSWER_MIME_H

#include "base/buffer.h"
#include "base/str.h"

#define MIME_DEFAULT STR("application/octet-stream")

/* The part after the last dot of the last path segment; "" when there is none, also for
 * names that only begin with a dot. */
struct str path_extension(struct str path);
/* Lower-cased into `out`; false when it does not fit, and then it is no known extension. */
bool extension_lower(struct str extension, char out[16], struct str *lower);

/* `extension` in lower case, without the dot. ptr NULL: not in the table. */
struct str mime_lookup(struct str extension);
/* Rows of the table, for tests. */
size_t mime_row(size_t index, struct str *extension, struct str *type);

/* True when `type` (parameters ignored) matches a pattern of the list: "text/html",
 * "text/" followed by a star, or two stars for everything. */
bool media_type_in(struct str type, const struct str *patterns, size_t count);

/* Appends `attachment; filename="..."; filename*=UTF-8''...`: an ASCII fallback in which
 * whatever could end the quotes or confuse a file system is '_', and the exact name when
 * the two differ. */
void content_disposition_append(struct buffer *out, struct str filename);

#endif
