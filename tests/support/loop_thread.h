/* A loop on a thread of its own, for tests. */
#ifndef KILN_TESTS_SUPPORT_LOOP_THREAD_H
#define KILN_TESTS_SUPPORT_LOOP_THREAD_H

#include "loop/coroutine.h"
#include "loop/loop.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

struct loop_thread {
    struct loop *loop;
    pthread_t thread;
};

static inline void *loop_thread_main(void *arg)
{
    struct loop *loop = arg;
    loop_run(loop);
    coroutine_pool_trim(loop, 0);
    return NULL;
}

static inline void loop_thread_start(struct loop_thread *t)
{
    t->loop = loop_create(3);
    if (t->loop == NULL || pthread_create(&t->thread, NULL, loop_thread_main, t->loop) != 0) {
        abort();
    }
}

static inline void loop_thread_stop(struct loop_thread *t)
{
    loop_stop(t->loop);
    pthread_join(t->thread, NULL);
    loop_destroy(t->loop);
}

/* Runs fn(arg) on the loop's thread and waits for it. */
struct loop_call {
    struct task task;
    void (*fn)(void *arg);
    void *arg;
    sem_t done;
};

static inline void loop_call_run(struct task *task)
{
    struct loop_call *call = CONTAINER_OF(task, struct loop_call, task);
    call->fn(call->arg);
    sem_post(&call->done);
}

static inline void loop_thread_call(struct loop_thread *t, void (*fn)(void *), void *arg)
{
    struct loop_call call = {.task = {.run = loop_call_run}, .fn = fn, .arg = arg};
    sem_init(&call.done, 0, 0);
    loop_post(t->loop, &call.task);
    while (sem_wait(&call.done) != 0) {
    }
    sem_destroy(&call.done);
}

#endif
