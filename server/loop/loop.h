/* DESIGN: one loop per worker thread; everything a connection or request owns belongs
 * to exactly one loop and is touched only on that loop's thread. Other threads reach a
 * loop through its mailbox alone. One iteration: wait, deliver ready descriptors, run
 * due timers, run posted messages, run deferred tasks, announce quiescence.
 * The backend (backend.h) waits and delivers; by epoll. */
#ifndef KILN_LOOP_LOOP_H
#define KILN_LOOP_LOOP_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>

struct loop;
struct config;

/* ---- descriptors ------------------------------------------------------------------ */
enum {
    LOOP_READ = 1,
    LOOP_WRITE = 2,
    LOOP_ERROR = 4, /* reported only */
    LOOP_EXCLUSIVE = 8, /* listeners: one loop is woken, not all */
    LOOP_EDGE = 16, /* connections: see loop_watch_again() */
    LOOP_HANGUP = 32, /* reported with LOOP_EDGE only: the peer will send no more */
};

struct watch {
    int fd;
    uint32_t wanted; /* LOOP_READ | LOOP_WRITE, and how */
    void (*on_ready)(struct watch *watch, uint32_t ready);
};

/* Level-triggered unless LOOP_EDGE is wanted. False with errno set when the kernel refuses (limits). */
bool loop_watch_add(struct loop *loop, struct watch *watch);
bool loop_watch_change(struct loop *loop, struct watch *watch, uint32_t wanted);
/* With LOOP_EDGE readiness is reported when it begins, once. Whoever stops before the kernel said
 * EAGAIN (or received or sent less than was asked for) calls this, and what is ready by then is
 * reported again in the next iteration, after everybody else's turn. */
bool loop_watch_again(struct loop *loop, struct watch *watch);
/* Safe at any time, also for watches that are ready in the running iteration. */
void loop_watch_remove(struct loop *loop, struct watch *watch);

/* ---- timers ------------------------------------------------------------------------ */
/* Lives inside its owner. Precision: one millisecond tick. */
struct timer {
    void (*fire)(struct timer *timer);
    uint64_t due_ms; /* loop_now_ms() scale */
    uint32_t heap_index; /* 0: not running */
};

void timer_start(struct loop *loop, struct timer *timer, uint64_t delay_ms);
void timer_stop(struct loop *loop, struct timer *timer);
static inline bool timer_is_running(const struct timer *timer)
{
    return timer->heap_index != 0;
}

/* ---- time ---------------------------------------------------------------------------- */
/* Monotonic milliseconds, read once per iteration. */
uint64_t loop_now_ms(const struct loop *loop);
/* Wall clock seconds, once per iteration. */
int64_t loop_wall_seconds(const struct loop *loop);
/* The value of the Date header (29 bytes), formatted once a second. */
const char *loop_http_date(const struct loop *loop);

/* ---- tasks ---------------------------------------------------------------------------- */
/* Lives inside its owner; runs once on the loop's thread. */
struct task {
    struct task *next;
    void (*run)(struct task *task);
};

/* From the loop's own thread: runs at the end of this iteration. */
void loop_defer(struct loop *loop, struct task *task);
/* What is deferred runs before the next event of this iteration: much memory waits for it. */
void loop_hurry(struct loop *loop);
/* From any thread; wakes the loop. */
void loop_post(struct loop *loop, struct task *task);

/* ---- life ------------------------------------------------------------------------------- */
struct loop *loop_create(unsigned index);
/* Runs on the calling thread until loop_stop(); registers it as an epoch reader. */
void loop_run(struct loop *loop);
/* Any thread. */
void loop_stop(struct loop *loop);
void loop_destroy(struct loop *loop);

/* The loop that runs on this thread, NULL elsewhere. */
struct loop *loop_self(void);
unsigned loop_index(const struct loop *loop);

/* Room for what other rooms keep per loop: one pointer per slot. */
enum loop_slot {
    LOOP_SLOT_ACCEPT,
    LOOP_SLOT_CONNECTIONS,
    LOOP_SLOT_OUTPUT,
    LOOP_SLOT_REQUESTS,
    LOOP_SLOT_COROUTINES,
    LOOP_SLOT_CONFIG,
    LOOP_SLOT_METRICS,
    LOOP_SLOT_LOG,
    LOOP_SLOT_ISOLATION,
    LOOP_SLOT_TLS,
    LOOP_SLOT_WEBSOCKETS,
    LOOP_SLOT_COUNT
};
void loop_slot_set(struct loop *loop, enum loop_slot slot, void *value);
void *loop_slot(const struct loop *loop, enum loop_slot slot);

#endif
