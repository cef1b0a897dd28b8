/* DESIGN: what a client is to do, taken over from the caller's options once, checked, and owned: so that it can be
 * done again (reconnection) and on another thread (names, authorities). Counted by reference; nothing in it
 * changes but the TLS context, which the first preparation that ends well brings along. */
#ifndef KILN_WSIO_PLAN_H
#define KILN_WSIO_PLAN_H

#include "wsio/proxy.h"
#include "wsio/carrier.h"
#include "ws/handshake.h"
#include "ws/ws.h"

#include <netdb.h>
#include <stdatomic.h>

struct kiln_ws_options;

enum { PLAN_LIST_MAX = 64 }; /* subprotocols, and headers */

struct plan {
    atomic_int references;
    struct url url;
    struct proxy_url proxy;
    bool has_proxy;
    struct tls_files tls;
    const char *server_name;
    SSL_CTX *context;
    struct ws_client_request request;
    const char *protocols[PLAN_LIST_MAX];
    struct ws_header headers[PLAN_LIST_MAX + 1]; /* with Authorization */
    struct ws_buffer authorization;
    char *texts[2 * PLAN_LIST_MAX + 16]; /* what the above points into */
    size_t text_count;
};

/* NULL: `error` tells. */
struct plan *plan_create(const char *url, const struct kiln_ws_options *options, char error[URL_ERROR_MAX]);
void plan_release(struct plan *plan);

/* What takes its time, for a thread that may block: names become addresses, authorities are read. */
struct preparation {
    struct plan *plan; /* a reference */
    SSL_CTX *context; /* a reference, for the plan: preparation_settle(); NULL: it had one, or needs none */
    bool has_context; /* the plan's, when this began: other threads do not look into it */
    struct addrinfo *addresses;
    char error[URL_ERROR_MAX]; /* "": all is well */
};

/* Done already, without blocking? An address needs no name server. */
bool preparation_at_once(struct preparation *preparation);
void preparation_run(struct preparation *preparation);
/* Its two parts: authorities (false: an error), names. */
bool preparation_trust(struct preparation *preparation);
void preparation_look_up(struct preparation *preparation);
/* Where the plan is used: its result becomes the plan's. */
void preparation_settle(struct preparation *preparation);
void preparation_free(struct preparation *preparation);

/* The same on another thread (resolver.c); `fd` becomes readable at its end. It is closed when the caller takes the result or
 * gives it up, never later by the thread: an event loop that has forgotten it hears of it no more. */
struct resolver;
struct resolver *resolver_start(struct plan *plan);
int resolver_fd(const struct resolver *resolver);
int *resolver_watcher(struct resolver *resolver); /* as wslink_watcher() */
bool resolver_is_done(const struct resolver *resolver);
/* Its result moves to the caller, then it is freed. */
void resolver_finish(struct resolver *resolver, struct preparation *to);
/* Nobody wants the result any more; the thread frees it when it comes. */
void resolver_abandon(struct resolver *resolver);

#endif
