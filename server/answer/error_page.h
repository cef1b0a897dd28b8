/* The built-in error page, for those who must not try the site's own again. */
#ifndef KILN_ANSWER_ERROR_PAGE_H
#define KILN_ANSWER_ERROR_PAGE_H

#include "base/buffer.h"

struct request;

/* As error_page_send(), without the site's own page. */
void error_page_builtin(struct request *req, int status, const char *detail);

/* The colours and fonts that our pages share, as the start of a style element's text. */
extern const char page_style[];
/* Headers that our HTML pages carry: nothing may be loaded from them or run in them. */
void page_headers_add(struct request *req);
/* Sends the buffer as the whole body and frees it; 500 without a body when it has failed. */
void page_send_buffer(struct request *req, struct buffer *page, struct str type);

#endif
