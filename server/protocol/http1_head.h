/* DESIGN: from the bytes of one whole head to a request. llhttp judges the whole of
 * it; around it stand the checks that RFC 9112 leaves to the server and those that llhttp leaves
 * to its user: exact request line, one header per line, one Host, Content-Length or
 * Transfer-Encoding but never both, "chunked" and nothing else. header_lines.c then takes the
 * names and values out, which are left where they lie in the request's arena. */
#ifndef KILN_PROTOCOL_HTTP1_HEAD_H
#define KILN_PROTOCOL_HTTP1_HEAD_H

#include "request/request.h"

enum body_framing { BODY_NONE, BODY_LENGTH, BODY_CHUNKED };

struct http1_head {
    enum body_framing framing;
    bool keep_alive; /* as the client wishes */
    bool upgrade; /* Connection: upgrade */
};

/* `bytes` is the head with its empty line in the request's arena, `lines` their number (two at
 * least); HEADER_LINES_SLACK bytes behind it are readable.
 * Returns 0, or the status to refuse it with; then the request holds no more than its
 * method and target, and the connection must close. */
int http1_head_parse(struct request *req, char *bytes, size_t len, unsigned lines, struct http1_head *head);

/* A trailer section with its empty line: fills req->trailers. 0 or 400. */
int http1_trailers_parse(struct request *req, const char *bytes, size_t len, unsigned lines);

#endif
