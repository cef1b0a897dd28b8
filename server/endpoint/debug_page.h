/* The pages of DebugPages: what went wrong with an endpoint, with the source around the line.
 * They have no script and load nothing. */
#ifndef KILN_ENDPOINT_DEBUG_PAGE_H
#define KILN_ENDPOINT_DEBUG_PAGE_H

#include "base/buffer.h"

/* A file below the web root without the root; others whole. */
struct str debug_page_path(const char *path, const char *web_root);

/* Up to and with the heading, which is `name` and the text `heading`; the title likewise. */
void debug_page_begin(struct buffer *html, struct str name, const char *title, const char *heading);
/* "hello/index._c:12", without the line when it is 0. */
void debug_page_place(struct buffer *html, const char *file, unsigned line, const char *web_root);
/* The lines around this one; nothing when the file cannot be read. The caller knows that it may be shown. */
void debug_page_source(struct buffer *html, const char *file, unsigned line);
/* `text` stands in the footer. */
void debug_page_end(struct buffer *html, const char *text);

#endif
