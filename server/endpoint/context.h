/* DESIGN: one run of an endpoint for one request; what `kiln_context *` points to. It lives in
 * the request's arena and holds the request (request_hold) and the module until kiln_run
 * has returned. kiln_run runs either as a coroutine on the request's loop or as a plain call
 * on a pool thread. Whatever touches the request's protocol side happens on the loop's
 * thread: on the loop the call is direct; on a pool thread it is carried over by
 * context_on_loop() while the thread sleeps. While kiln_run runs on the pool, the loop does
 * not touch the arena, the response headers or the body buffer of the request.
 *
 * Body bytes are gathered in `out` until they exceed a limit or kiln_flush; what is small
 * leaves with its Content-Length in one write together with the head. */
#ifndef KILN_ENDPOINT_CONTEXT_H
#define KILN_ENDPOINT_CONTEXT_H

#include "endpoint/crash.h"
#include "endpoint/loader.h"
#include "loop/pool.h"
#include "loop/waiter.h"
#include "request/request.h"

enum { CONTEXT_MAGIC = 0x4b435458 };

enum {
    CONTEXT_GATHER = 65536, /* body bytes above which the response streams by itself */
    CONTEXT_OUTPUT_HIGH = 262144, /* unsent bytes above which a write waits for the client */
};

struct context_body; /* sdk_body.c: the request body as the endpoint reads it */
struct context_session; /* sdk_session.c */
struct context_socket; /* socket.h: kiln_socket instead of kiln_run */

struct kiln_context {
    uint32_t magic;
    int last_result; /* for kiln_last_result */
    struct request *req;
    struct endpoint *endpoint;
    struct module *module;
    bool on_pool;
    bool crashed; /* its code must not run again, not even what it deferred */
    bool streaming; /* head is sent */
    bool finished; /* the response was completed by a call (send_file, error) */
    bool closed; /* kiln_run has returned */
    bool length_set; /* kiln_content_length */
    bool secure; /* the connection is encrypted */
    bool upgraded; /* a WebSocket: RequestTimeout is the limit of each slice, not of the whole */
    _Atomic bool gone; /* the client has left; calls return KILN_GONE */
    _Atomic bool expired; /* RequestTimeout has passed: waits end with KILN_TIMEOUT */
    _Atomic bool leaving; /* its FIN came: waits end with KILN_GONE, writes still go out */
    int status; /* copied to the request when the head is sent: the log may read that at any time */
    uint64_t length;
    uint64_t written;
    uint64_t slice_began; /* pace.h */
    uint64_t run_delay; /* at that time, on trial */
    uint64_t deadline; /* pace_ticks() when RequestTimeout is over; WATCHDOG_NEVER */
    struct timer timer; /* the same for waits and for the pool; loop */
    bool pooled; /* kiln_run is the pool's */
    bool on_trial;
    bool abandoned; /* answered while the pool still has it; loop */
    struct {
        char *data; /* in the arena */
        size_t len;
        size_t cap;
    } out;
    /* The wait in progress, so that the client's leaving can end it. */
    struct waiter *waiting;
    void (*cancel)(struct kiln_context *ctx); /* on the loop's thread */
    void *wait_state;
    struct context_body *body;
    struct context_session *session;
    struct context_socket *socket; /* NULL: an ordinary request */
    void *query; /* sdk_request.c: parsed once */
    void *cookies;
    const char *directory; /* of the endpoint's file, once asked for */
    struct crash_guard guard;
    struct buffer crash_page; /* for DebugPages */
    struct pool_job job;
    struct task finish_task;
    int returned; /* by kiln_run on the pool */
    struct endpoint_waiter build_waiter;
    void *away; /* its home's own, where kiln_run runs elsewhere (home.h) */
};

struct kiln_context *context_check(const struct kiln_context *ctx);
/* Of the endpoint code that runs on this thread now, also in a function that it gave to kiln_offload. NULL: none,
 * or a callback of a WebSocket. */
struct kiln_context *context_current(void);

/* Runs fn(ctx, arg) on the request's loop thread and returns when it has returned. On the loop
 * that is a plain call. */
void context_on_loop(struct kiln_context *ctx, void (*fn)(struct kiln_context *ctx, void *arg), void *arg);

/* A wait: start(ctx, arg) runs on the loop's thread and arranges that context_wake(ctx) is
 * called there once (it may be called by start itself). cancel (may be NULL: not cancellable)
 * runs there when the client leaves; it must stop what start began and make context_wake
 * be called. Returns when woken. */
void context_wait(struct kiln_context *ctx, void (*start)(struct kiln_context *ctx, void *arg),
                  void (*cancel)(struct kiln_context *ctx), void *arg);
void context_wake(struct kiln_context *ctx);

/* Around a sleep that is not a context_wait: what passes between them is not held against the
 * endpoint as time that it blocked its loop (nothing on the pool), and a fault is the server's.
 * The guard that was armed goes from one to the other. */
struct crash_guard *context_slice_end(struct kiln_context *ctx);
void context_slice_begin(struct kiln_context *ctx, struct crash_guard *guard);

/* Between calls that need not wait: an endpoint that is busy with them for long, since its client takes all it is sent, lets
 * the others of its loop have their turn. */
void context_take_turns(struct kiln_context *ctx);

/* RequestTimeout begins. */
void context_time_start(struct kiln_context *ctx);
/* What a wait that was ended from outside returns: KILN_TIMEOUT or KILN_GONE. */
int context_interrupted(const struct kiln_context *ctx);

/* Output (context.c). All return a kiln_result. */
int context_write(struct kiln_context *ctx, const void *data, size_t len);
/* Room for len bytes at the end of the gathered body, NULL past the limits; then context_added. */
char *context_reserve(struct kiln_context *ctx, size_t len);
int context_added(struct kiln_context *ctx, size_t len);
/* Sends head and what is gathered, waits while too much is unsent. */
int context_flush(struct kiln_context *ctx);

/* request->on_gone and on_peer_eof of a running endpoint. */
void context_on_gone(struct request *req);
void context_on_peer_eof(struct request *req);

/* After crash_run() caught one in code of ctx: nothing of its module runs for this request any more,
 * the worker asks for a successor, the log gets the stack, crash_page is filled if it is wanted. On
 * the pool, or in the request's coroutine, which sleeps meanwhile. */
void context_crashed(struct kiln_context *ctx, const char *doing);
/* The same without a page, when the response is over; on the loop's thread, without waiting. */
void context_crashed_late(struct kiln_context *ctx, const char *doing);

/* crash_guard.lost of a run: its client, and those of its loop, are told; the crash is counted and logged. */
void context_lost(struct crash_guard *guard);

/* After kiln_run: completes the response. On the loop's thread. */
void context_finish(struct kiln_context *ctx, int returned);
/* Then: a deferred function that kept the context gets errors from its calls and waits for nothing,
 * since it may run where waiting would stop the loop. */
void context_close(struct kiln_context *ctx);

#endif
