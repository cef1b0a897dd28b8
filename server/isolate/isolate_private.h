/* What the home (isolate.c), the manager (manager.c) and the loops (relay.c) share. */
#ifndef KILN_ISOLATE_PRIVATE_H
#define KILN_ISOLATE_PRIVATE_H

#include "base/list.h"
#include "endpoint/context.h"
#include "endpoint/endpoint.h"
#include "isolate/isolate.h"
#include "isolate/wire.h"
#include "supervisor/backoff.h"

#include <sys/types.h>

enum { ISOLATE_MAGIC = 0x69736f6c };

/* One counter for each loop, alone on its cache line: the number of the last request that the host has
 * begun with there. The host writes it, so its value is only ever compared. */
struct begun {
    _Alignas(64) _Atomic uint64_t number;
};

/* What a loop knows of an isolate; touched on that loop alone. */
struct berth {
    _Alignas(64) struct channel *channel; /* NULL: none, or its host is to be left */
    struct list waiting; /* relays */
    struct isolate *isolate;
    _Atomic(struct loop *) loop; /* once one waited */
    struct task wake_task;
    _Atomic bool wake_posted;
};

/* What a loop may ask of the manager; bits of isolate->asked. */
enum ask { ASK_START = 1, ASK_LOOK = 2, ASK_OVERDUE = 4 };

struct isolate {
    uint32_t magic;
    _Atomic unsigned references;
    _Atomic unsigned asked;
    _Atomic unsigned failures; /* hosts in a row that could not start */
    _Atomic uint64_t last_use_ms; /* loop_now_ms() */
    struct module *module; /* valid until closing */
    char *file; /* for messages */
    int object; /* a sealed copy of the build */
    struct cJSON *sources; /* what it was made from: may be shown when it crashes */
    unsigned loops;
    /* Under the lock of manager.c. */
    struct list node;
    struct host *host; /* the one that gets new requests: starting or ready */
    struct backoff backoff;
    uint64_t start_at_ms; /* 0: not due */
    bool closing;
    struct build_result *first; /* a builder waits for the first host's words */
    bool first_known;
    bool first_ok;
    struct berth berths[];
};

enum host_state { HOST_STARTING, HOST_READY, HOST_LEAVING, HOST_STOPPING };

struct host {
    _Atomic unsigned references;
    _Atomic unsigned live; /* requests on its channels */
    _Atomic bool left; /* gets no more */
    _Atomic bool overdue; /* does not answer */
    struct isolate *isolate;
    struct begun *begun;
    unsigned id;
    /* Under the lock of manager.c. */
    struct list node;
    enum host_state state;
    pid_t pid; /* 0: not yet told */
    int control; /* -1: closed */
    int log; /* -1: closed */
    uint64_t started_ms;
    uint64_t ready_ms;
    uint64_t kill_at_ms; /* 0: never */
    bool ended; /* the supervisor has said so */
    bool killed_by_us;
    bool crashed; /* it told of a crash */
    int end_signal;
    char end[128];
    uint64_t eof_ms; /* when its control socket ended; 0: it has not */
    unsigned messages;
    unsigned log_room; /* lines that it may still log in this second */
    unsigned log_dropped;
    struct buffer log_rest; /* the beginning of a line */
    int channels[ENDPOINT_MAX_LOOPS]; /* our ends, until a loop takes its own; -1 */
};

/* ---- isolate.c: references --------------------------------------------------------------------- */
void isolate_ref(struct isolate *isolate);
void isolate_unref(struct isolate *isolate);
void host_ref(struct host *host);
void host_unref(struct host *host);
/* The isolate of a module. */
struct isolate *isolate_of(const struct module *module);

/* ---- manager.c -------------------------------------------------------------------------------- */
/* On a builder thread: waits until its first host is ready. False with the reason in `result`. */
bool manager_add(struct isolate *isolate, struct build_result *result);
void manager_remove(struct isolate *isolate);
/* Nothing is posted to this loop any more. */
void manager_forget_loop(const struct loop *loop);
/* The host that is ready, with a reference, and its socket for this loop (-1: taken before). NULL: there is none, and
 * the manager was asked for one. */
struct host *isolate_take_host(struct isolate *isolate, unsigned loop, int *fd);
void isolate_ask(struct isolate *isolate, enum ask what);
/* A loop found the host's socket closed or what came over it broken (`why`, else NULL). */
void host_lost(struct host *host, const char *why);

/* ---- relay.c --------------------------------------------------------------------------------- */
/* home->start */
void relay_start(struct kiln_context *ctx);
/* Once for each berth. */
void relay_berth_init(struct berth *berth, struct isolate *isolate);
/* Wakes what waits there; any thread. */
void relay_wake(struct isolate *isolate, unsigned loop);

#endif
