/* DESIGN: how an endpoint's kiln_socket runs. The handshake is an ordinary request up to the answer: its
 * context is there for headers, cookies and the session, and kiln_socket is called in a coroutine of
 * the request's loop (never on the pool: a socket may live for hours). The 101 goes out when the
 * endpoint accepts, which its first send or receive does; until then it may refuse, and the client
 * gets a proper HTTP answer.
 *
 * Two forms, each a struct ws_owner:
 * - blocking (socket_inbox.c): messages queue in an inbox, kiln_ws_recv and its like suspend the
 *   coroutine. Stack, context and request live as long as kiln_socket runs.
 * - callbacks (socket_handler.c): kiln_socket names them with kiln_ws_handle and returns; stack, context
 *   and request go, struct kiln_ws stays. Callbacks run on the loop's own stack, under a crash guard.
 * Either way the socket holds its module, so old code stays mapped until its last socket is closed.
 *
 * RequestTimeout is the limit of one slice: of what runs between two waits, or of one callback. */
#ifndef KILN_ENDPOINT_SOCKET_H
#define KILN_ENDPOINT_SOCKET_H

#include "endpoint/context.h"
#include "protocol/websocket.h"
#include "ws/handshake.h"

struct kiln_ws_handler;

/* What a request has beside its context while kiln_socket runs; in the request's arena. */
struct context_socket {
    struct kiln_ws *ws;
    struct ws_text key;
    const char *protocol; /* chosen */
    const struct kiln_ws_handler *handler; /* kiln_ws_handle was called */
    bool refused;
    int refusal; /* status of it */
    const char *detail;
    int accepted; /* KILN_OK, or why it could not be; 1: not tried */
    struct inbox *inbox;
};

/* The request asks for a WebSocket (and the endpoint has kiln_socket): runs it. The module is held. */
bool socket_is_wanted(const struct request *req);
void socket_run(struct kiln_context *ctx);

/* Sends the 101 unless it was sent; a kiln_result. In the coroutine, or on a pool thread for it. */
int socket_accept(struct kiln_context *ctx);
/* The same for callbacks, which begin when kiln_socket has returned. KILN_LATE: messages may have come. */
int socket_accept_for(struct kiln_context *ctx, const struct kiln_ws_handler *handler);
struct ws_headers socket_headers(const struct request *req);

/* socket_inbox.c */
extern const struct ws_owner socket_inbox_owner;
struct inbox *inbox_create(struct kiln_context *ctx, struct kiln_ws *ws);
void inbox_free(struct inbox *inbox);
/* NULL: the socket has callbacks. */
struct kiln_context *inbox_context(const struct kiln_ws *ws);

/* socket_handler.c */
extern const struct ws_owner socket_handler_owner;
/* kiln_socket has returned: callbacks begin, with `open`. */
void handler_begin(struct kiln_ws *ws, const struct kiln_ws_handler *handler);

/* One for both: after this the module may go. On the loop's thread. */
void socket_let_module_go(struct kiln_ws *ws);

#endif
