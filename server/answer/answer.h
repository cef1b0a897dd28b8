/* DESIGN: one vtable per way of answering, so that no caller asks what kind a thing is.
 * start() takes the request: it answers at once or later, by response_* calls, exactly
 * once. The request's path, node and config are set. */
#ifndef KILN_ANSWER_ANSWER_H
#define KILN_ANSWER_ANSWER_H

#include "request/request.h"

struct answer {
    const char *name; /* as shown in the log: "static", "endpoint", "listing" */
    /* Value of Allow for 405 and OPTIONS; NULL: the answer takes every method itself. */
    const char *allow;
    bool tunnels; /* it looks at req->tunnel; such requests never reach others */
    void (*start)(struct request *req);
};

extern const struct answer answer_static_file; /* static_file.c */
extern const struct answer answer_listing; /* listing.c */
extern const struct answer answer_endpoint; /* endpoint.c: .so, ._c, later ._wasm */

/* What a request for a WebSocket is told where there is none. */
extern const char answer_no_websocket[];

/* error_page.c: body of an error answer in HTML or, when the client prefers it, plain text or
 * JSON. `detail` may be NULL; it is escaped. The site's own error404.html comes first. */
void error_page_send(struct request *req, int status, const char *detail);

/* For a method that req->answer->allow does not name: OPTIONS gets 204 with Allow, any other
 * 405 with Allow. True: answered. GET and HEAD pass when they are in `allow`. */
bool answer_refuse_method(struct request *req, const char *allow);

#endif
