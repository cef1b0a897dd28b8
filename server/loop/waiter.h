/* DESIGN: the one primitive with which endpoint code waits. On a loop thread the waiting
 * coroutine suspends; on a pool thread the thread sleeps. The side that completes the wait
 * need not know which: waiter_wake() on the loop's thread (or, where said, any thread).
 * A woken coroutine continues at the end of the loop's iteration, never inside the caller of
 * waiter_wake, so protocol code needs no defence against re-entry. */
#ifndef KILN_LOOP_WAITER_H
#define KILN_LOOP_WAITER_H

#include "loop/loop.h"

#include <stdatomic.h>

struct coroutine;

struct waiter {
    struct task task; /* first: resumes the coroutine */
    struct loop *loop;
    struct coroutine *co; /* NULL: a pool thread sleeps on `woken` */
    _Atomic uint32_t woken;
};

/* Before the operation that will wake it is started. */
void waiter_init(struct waiter *waiter, struct loop *loop);
/* Returns once waiter_wake was called. */
void waiter_wait(struct waiter *waiter);
/* From the loop's thread, exactly once per waiter_init. */
void waiter_wake(struct waiter *waiter);
/* From any thread. */
void waiter_wake_remote(struct waiter *waiter);

#endif
