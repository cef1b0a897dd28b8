/* A file as the body of an answer; answer/answer.h has the usual way in. */
#ifndef KILN_ANSWER_STATIC_FILE_H
#define KILN_ANSWER_STATIC_FILE_H

#include "request/request.h"

/* Answers with the node's file whatever the status (a site's error404.html with 404): no
 * conditions, no ranges, no validators for other than 200. False: the file cannot be had,
 * nothing was sent. */
bool static_file_send(struct request *req, const struct site_node *node, unsigned status);

#endif
