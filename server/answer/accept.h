/* What of our own pages a client prefers to get: HTML, JSON or plain text. */
#ifndef KILN_ANSWER_ACCEPT_H
#define KILN_ANSWER_ACCEPT_H

#include "base/str.h"

enum page_type { PAGE_HTML, PAGE_JSON, PAGE_TEXT };

/* By the value of Accept, ptr NULL when there is none. HTML unless another one has a
 * greater weight. */
enum page_type page_type_preferred(struct str accept);

#endif
