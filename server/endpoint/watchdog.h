/* DESIGN: stops endpoint code that does not come back. A thread that runs some announces in its own
 * slot, by plain stores, of what endpoint it is and when the request's time (RequestTimeout) is
 * over; when the code returns or waits, it takes that back. No lock, no system call.
 *
 * The watchdog thread looks at all slots a few times a second. A thread past its time gets a
 * signal of its own (tgkill). The handler (crash.c) runs on that thread, so it may look at what
 * the thread does: only while the interrupted instruction lies in the endpoint's own module it
 * leaves the endpoint, by the same landing that a crash takes: there no lock of the C library or
 * the server is held. Otherwise it marks the run as overdue, which the next call of the SDK sees
 * and leaves by itself; sleep(3) and its like are interrupted by the signal anyway. When for
 * PATIENCE nothing of that helped, the worker asks for a successor and is killed once
 * it has drained: what hangs in a library or in the kernel cannot be unwound.
 *
 * The timers of requests that wait (context.c) and of those on the pool, whose client gets its 504
 * while the thread may still hang, are the loop's. */
#ifndef KILN_ENDPOINT_WATCHDOG_H
#define KILN_ENDPOINT_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct crash_guard;
struct endpoint;

#define WATCHDOG_NEVER UINT64_MAX

struct watchdog_slot {
    _Alignas(64) _Atomic uint64_t deadline; /* pace_ticks(); WATCHDOG_NEVER: nothing runs, or without end */
    _Atomic(struct endpoint *) endpoint; /* stays under base/epoch.h as long as its deadline stands */
    pid_t tid;
    struct watchdog_slot *next;
    _Atomic(struct crash_guard *) lost; /* of the crash that this thread was given up for */
    /* the watchdog's own */
    uint64_t overdue; /* the deadline that was found to be over */
    unsigned tries;
    bool stuck;
    bool lost_told;
};

/* A slot that nobody looks at until watchdog_thread_ready() was called on the thread. */
extern _Thread_local struct watchdog_slot *watchdog_self;

/* Once a thread, cheap afterwards. */
void watchdog_thread_ready(void);

static inline void watchdog_enter(struct endpoint *endpoint, uint64_t deadline)
{
    struct watchdog_slot *slot = watchdog_self;
    atomic_store_explicit(&slot->endpoint, endpoint, memory_order_relaxed);
    atomic_store_explicit(&slot->deadline, deadline, memory_order_release);
}

static inline void watchdog_leave(void)
{
    atomic_store_explicit(&watchdog_self->deadline, WATCHDOG_NEVER, memory_order_relaxed);
}

/* The calling thread's slice is past its time; async-signal-safe. */
bool watchdog_is_over(void);

/* Another deadline for what follows, from now on; returns the one that watchdog_time_back gives back. */
uint64_t watchdog_time(unsigned ms);
void watchdog_time_back(uint64_t deadline);
/* Gives the calling thread up (lost_thread.h). */
_Noreturn void watchdog_lose(struct crash_guard *guard);

/* A worker's. False after a log line. */
bool watchdog_start(void);
void watchdog_stop(void);
/* Threads that did not come back whatever was tried: nobody can wait for them. */
unsigned watchdog_stuck(void);
/* Threads that were given up and whose clients have been told. */
unsigned watchdog_lost(void);

#endif
