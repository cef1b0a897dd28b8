/* DESIGN: how the session calls of the SDK reach the sessions: by one function for all of them, so that they can
 * be carried to another process. In a worker that is sessions/session.h; the process of an isolated endpoint
 * asks its worker, which alone has the store, and which knows for which request it is asked. */
#ifndef KILN_ENDPOINT_SESSION_ACCESS_H
#define KILN_ENDPOINT_SESSION_ACCESS_H

#include "base/buffer.h"
#include "sessions/session.h"

struct kiln_context;
struct request;

enum session_op {
    SESSION_OP_GET,
    SESSION_OP_GET_ALL,
    SESSION_OP_ID,
    SESSION_OP_SET,
    SESSION_OP_REMOVE,
    SESSION_OP_INCREMENT,
    SESSION_OP_RENEW,
    SESSION_OP_DESTROY,
    SESSION_OP_COUNT
};

struct session_call {
    enum session_op op;
    struct str key;
    struct str value; /* of SET: JSON */
    int64_t number; /* of INCREMENT: by how much, then the sum */
    struct buffer text; /* what GET, GET_ALL and ID found; freed by the caller */
};

struct session_access {
    /* May wait, as the SDK's calls may. Not after kiln_run has returned. */
    enum session_result (*call)(struct kiln_context *ctx, struct session_call *call);
    /* The response head is about to leave: adds what it needs. On the loop. */
    void (*head)(struct kiln_context *ctx);
};

/* Set once, before any endpoint runs; a worker's unless it is. */
extern const struct session_access *session_access;

/* Does the call on a session. May wait. */
enum session_result session_call_run(struct session *session, struct session_call *call);
/* Begins with a request's session: nothing is looked at yet. False when out of memory. */
bool session_of_request(struct session *session, struct sessions *service, struct request *req, bool secure);
/* Adds the session's Set-Cookie when it needs one. */
void session_head(struct session *session, struct request *req);

#endif
