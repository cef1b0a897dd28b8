/* Shared by loop.c, timer.c and the backend; beside them only tests include it, which drive
 * a loop by hand. */
#ifndef KILN_LOOP_LOOP_PRIVATE_H
#define KILN_LOOP_LOOP_PRIVATE_H

#include "loop/loop.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LOOP_MAGIC = 0x4c4f4f50, LOOP_EVENTS = 256 };

struct timer_entry {
    uint64_t due_ms;
    struct timer *timer;
};

struct loop {
    uint32_t magic;
    unsigned index;
    uint64_t now_ms;
    int64_t wall_seconds;
    char date[32];

    /* timer.c: a 4-ary heap, entry 0 unused */
    struct timer_entry *heap;
    uint32_t heap_count;
    uint32_t heap_cap;

    /* tasks of this iteration, oldest first */
    struct task *deferred;
    struct task **deferred_tail;

    void *slots[LOOP_SLOT_COUNT];
    bool stopping; /* loop thread only */
    bool hurries; /* loop_hurry() */

    /* backend */
    int poll_fd;
    int ready_count; /* events of the running batch; entries become NULL when removed */
    int ready_next;
    struct watch *ready[LOOP_EVENTS];
    uint32_t ready_events[LOOP_EVENTS];

    /* mailbox: a stack that any thread pushes to; on its own cache line */
    _Alignas(64) _Atomic(struct task *) mail;
    _Atomic bool asleep; /* the loop may be in epoll_wait: a poster must wake it */
    struct watch wake;
};

/* loop.c: every deferred task, those included that they defer. */
void loop_run_deferred(struct loop *loop);

/* timer.c */
/* Milliseconds until the first timer is due; 0 when it is, UINT64_MAX when none runs. */
uint64_t timers_wait_ms(const struct loop *loop);
void timers_run(struct loop *loop);

#endif
