#include "supervisor/worker_loops.h"

#include "base/arena.h"
#include "config/config.h"
#include "connection/conn.h"
#include "isolate/isolate.h"
#include "connection/tls.h"
#include "loop/config_hold.h"
#include "loop/coroutine.h"
#include "loop/pool.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "protocol/websocket.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOPS_MAX = 64, STACK = 1 << 20 };

struct worker_loop {
    pthread_t thread;
    struct loop *loop;
    struct config *config; /* at the start of the thread */
    _Atomic bool lost;
};

struct broadcast {
    struct list node;
    void (*on_loop)(struct loop *loop, void *arg);
    void (*done)(void *arg);
    void *arg;
    _Atomic unsigned left;
    struct part {
        struct task task;
        struct broadcast *broadcast;
        struct loop *loop;
        _Atomic bool done;
    } parts[LOOPS_MAX];
};

static struct worker_loop loops[LOOPS_MAX];
static unsigned loop_count;
static _Atomic unsigned lost_count;
static struct list under_way = {&under_way, &under_way};
static int wake_fd = -1;

static void *loop_main(void *arg)
{
    struct worker_loop *self = arg;
    char name[16];
    snprintf(name, sizeof name, "loop %u", loop_index(self->loop));
    pthread_setname_np(pthread_self(), name);
    arena_pool_open();
    metrics_attach(loop_index(self->loop));
    config_hold_set(self->loop, self->config);
    loop_run(self->loop);
    isolation_loop_end(self->loop);
    access_log_loop_end(self->loop);
    conn_loop_free(self->loop);
    websocket_loop_free(self->loop);
    tls_loop_free(self->loop);
    coroutine_pool_trim(self->loop, 0);
    config_hold_clear(self->loop);
    arena_pool_drain();
    return NULL;
}

static bool start_thread(struct worker_loop *loop)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setstacksize(&attributes, STACK);
    int error = pthread_create(&loop->thread, &attributes, loop_main, loop);
    pthread_attr_destroy(&attributes);
    errno = error;
    return error == 0;
}

bool worker_loops_start(unsigned count, struct config *config)
{
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0 || count > LOOPS_MAX) {
        log_error("cannot start %u threads: %s", count, wake_fd < 0 ? strerror(errno) : "64 is the most");
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        loops[i] = (struct worker_loop){.loop = loop_create(i), .config = config};
        bool ok = loops[i].loop != NULL && start_thread(&loops[i]);
        if (!ok) {
            log_error("cannot start thread %u: %s", i + 1, strerror(errno));
            if (loops[i].loop != NULL) {
                loop_destroy(loops[i].loop);
            }
            worker_loops_stop();
            return false;
        }
        loop_count = i + 1;
    }
    return true;
}

void worker_loops_stop(void)
{
    for (unsigned i = 0; i < loop_count; i++) {
        loop_stop(loops[i].loop);
    }
    for (unsigned i = 0; i < loop_count; i++) {
        pthread_join(loops[i].thread, NULL);
    }
    worker_loops_collect();
    /* A job that outlives its loop would post its result to freed memory. */
    pool_stop();
    for (unsigned i = 0; i < loop_count; i++) {
        loop_destroy(loops[i].loop);
    }
    loop_count = 0;
    close(wake_fd);
    wake_fd = -1;
}

unsigned worker_loops_count(void)
{
    return loop_count;
}

void worker_loops_post(unsigned index, struct task *task)
{
    loop_post(loops[index].loop, task);
}

static void wake(void)
{
    uint64_t one = 1;
    ssize_t ignored = write(wake_fd, &one, sizeof one);
    (void)ignored;
}

void worker_loops_lose(struct loop *loop)
{
    conn_lose_all(loop);
    metric_add(METRIC_REQUESTS_ACTIVE, -metric_of_loop(METRIC_REQUESTS_ACTIVE, loop_index(loop)));
    for (unsigned i = 0; i < loop_count; i++) {
        if (loops[i].loop == loop && !atomic_exchange(&loops[i].lost, true)) {
            atomic_fetch_add(&lost_count, 1);
        }
    }
    wake();
}

static void run_part(struct task *task)
{
    struct part *part = CONTAINER_OF(task, struct part, task);
    struct broadcast *broadcast = part->broadcast;
    broadcast->on_loop(part->loop, broadcast->arg);
    atomic_store_explicit(&part->done, true, memory_order_release);
    /* The first thread may free it once the last one has counted down. */
    if (atomic_fetch_sub_explicit(&broadcast->left, 1, memory_order_acq_rel) <= 1 + atomic_load(&lost_count)) {
        wake();
    }
}

/* On every loop that still runs. */
static bool is_over(const struct broadcast *broadcast)
{
    for (unsigned i = 0; i < loop_count; i++) {
        if (!atomic_load_explicit(&broadcast->parts[i].done, memory_order_acquire) && !atomic_load(&loops[i].lost)) {
            return false;
        }
    }
    return true;
}

void worker_loops_broadcast(void (*on_loop)(struct loop *loop, void *arg), void (*done)(void *arg), void *arg)
{
    struct broadcast *broadcast = calloc(1, sizeof *broadcast);
    CHECK(broadcast != NULL);
    *broadcast = (struct broadcast){.on_loop = on_loop, .done = done, .arg = arg};
    atomic_init(&broadcast->left, loop_count);
    list_append(&under_way, &broadcast->node);
    for (unsigned i = 0; i < loop_count; i++) {
        broadcast->parts[i] = (struct part){.task.run = run_part, .broadcast = broadcast, .loop = loops[i].loop};
        loop_post(loops[i].loop, &broadcast->parts[i].task);
    }
}

bool worker_loops_idle(void)
{
    return list_is_empty(&under_way);
}

int worker_loops_wake_fd(void)
{
    return wake_fd;
}

void worker_loops_collect(void)
{
    uint64_t count;
    ssize_t ignored = read(wake_fd, &count, sizeof count);
    (void)ignored;
    LIST_EACH(node, &under_way) {
        struct broadcast *broadcast = LIST_ENTRY(node, struct broadcast, node);
        unsigned left = atomic_load_explicit(&broadcast->left, memory_order_acquire);
        if (left == 0 || (atomic_load(&lost_count) > 0 && is_over(broadcast))) {
            list_remove(&broadcast->node);
            if (broadcast->done != NULL) {
                broadcast->done(broadcast->arg);
            }
            if (left == 0) {
                free(broadcast); /* else it lies in the mail of a loop that is lost */
            }
        }
    }
}
