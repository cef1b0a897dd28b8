#include "loop/waiter.h"

#include "loop/coroutine.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static void resume(struct task *task)
{
    struct waiter *waiter = CONTAINER_OF(task, struct waiter, task);
    coroutine_resume(waiter->co);
}

void waiter_init(struct waiter *waiter, struct loop *loop)
{
    waiter->task.run = resume;
    waiter->loop = loop;
    waiter->co = coroutine_self();
    atomic_init(&waiter->woken, 0);
}

void waiter_wait(struct waiter *waiter)
{
    if (waiter->co != NULL) {
        /* Resumed exactly once, by the task that waiter_wake queued. */
        coroutine_suspend();
        return;
    }
    while (atomic_load_explicit(&waiter->woken, memory_order_acquire) == 0) {
        syscall(SYS_futex, &waiter->woken, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    }
}

static void wake_thread(struct waiter *waiter)
{
    /* The waiter may be gone as soon as it sees `woken`; a futex wake on a stale address
     * is harmless, since it only makes a sleeper look again. */
    _Atomic uint32_t *word = &waiter->woken;
    atomic_store_explicit(word, 1, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void waiter_wake(struct waiter *waiter)
{
    if (waiter->co != NULL) {
        loop_defer(waiter->loop, &waiter->task);
    } else {
        wake_thread(waiter);
    }
}

void waiter_wake_remote(struct waiter *waiter)
{
    if (waiter->co != NULL) {
        loop_post(waiter->loop, &waiter->task);
    } else {
        wake_thread(waiter);
    }
}
