#include "loop/loop.h"

#include "base/epoch.h"
#include "loop/backend.h"
#include "loop/loop_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static _Thread_local struct loop *self;

struct loop *loop_self(void)
{
    return self;
}

unsigned loop_index(const struct loop *loop)
{
    return loop->index;
}

uint64_t loop_now_ms(const struct loop *loop)
{
    return loop->now_ms;
}

int64_t loop_wall_seconds(const struct loop *loop)
{
    return loop->wall_seconds;
}

const char *loop_http_date(const struct loop *loop)
{
    return loop->date;
}

void loop_slot_set(struct loop *loop, enum loop_slot slot, void *value)
{
    loop->slots[slot] = value;
}

void *loop_slot(const struct loop *loop, enum loop_slot slot)
{
    return loop->slots[slot];
}

static void put_two(char *at, int value)
{
    at[0] = (char)('0' + value / 10);
    at[1] = (char)('0' + value % 10);
}

/* Not strftime: the names must not depend on the locale an endpoint may have set. */
static void format_date(char out[32], int64_t seconds)
{
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t t = (time_t)seconds;
    struct tm tm;
    gmtime_r(&t, &tm);
    memcpy(out, "Sun, 00 Jan 0000 00:00:00 GMT", 30);
    memcpy(out, days + (size_t)tm.tm_wday * 3, 3);
    put_two(out + 5, tm.tm_mday);
    memcpy(out + 8, months + (size_t)tm.tm_mon * 3, 3);
    put_two(out + 12, (tm.tm_year + 1900) / 100);
    put_two(out + 14, (tm.tm_year + 1900) % 100);
    put_two(out + 17, tm.tm_hour);
    put_two(out + 20, tm.tm_min);
    put_two(out + 23, tm.tm_sec);
}

static void update_time(struct loop *loop)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    loop->now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (now.tv_sec != loop->wall_seconds) {
        loop->wall_seconds = now.tv_sec;
        format_date(loop->date, now.tv_sec);
    }
}

static void on_wake(struct watch *watch, uint32_t ready)
{
    (void)ready;
    uint64_t count;
    while (read(watch->fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

struct loop *loop_create(unsigned index)
{
    struct loop *loop = aligned_alloc(64, (sizeof *loop + 63) & ~(size_t)63);
    if (loop == NULL) {
        return NULL;
    }
    *loop = (struct loop){.magic = LOOP_MAGIC, .index = index};
    loop->deferred_tail = &loop->deferred;
    atomic_init(&loop->mail, NULL);
    atomic_init(&loop->asleep, false);
    update_time(loop);
    loop->wake = (struct watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .wanted = LOOP_READ, .on_ready = on_wake};
    if (loop->wake.fd < 0) {
        free(loop);
        return NULL;
    }
    if (!backend_open(loop)) {
        close(loop->wake.fd);
        free(loop);
        return NULL;
    }
    if (!loop_watch_add(loop, &loop->wake)) {
        backend_close(loop);
        close(loop->wake.fd);
        free(loop);
        return NULL;
    }
    return loop;
}

void loop_destroy(struct loop *loop)
{
    CHECK(loop->magic == LOOP_MAGIC);
    backend_close(loop);
    close(loop->wake.fd);
    free(loop->heap);
    loop->magic = 0;
    free(loop);
}

void loop_defer(struct loop *loop, struct task *task)
{
    task->next = NULL;
    *loop->deferred_tail = task;
    loop->deferred_tail = &task->next;
}

void loop_hurry(struct loop *loop)
{
    loop->hurries = true;
}

void loop_post(struct loop *loop, struct task *task)
{
    struct task *head = atomic_load_explicit(&loop->mail, memory_order_relaxed);
    do {
        task->next = head;
    } while (!atomic_compare_exchange_weak(&loop->mail, &head, task));
    /* Sequentially consistent with the loop's "asleep, then look at the mail": one of
     * the two sees the other. */
    if (head == NULL && atomic_load(&loop->asleep)) {
        uint64_t one = 1;
        while (write(loop->wake.fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
}

static bool take_mail(struct loop *loop)
{
    if (atomic_load_explicit(&loop->mail, memory_order_relaxed) == NULL) {
        return false;
    }
    struct task *stack = atomic_exchange_explicit(&loop->mail, NULL, memory_order_acquire);
    struct task *oldest = NULL;
    while (stack != NULL) {
        struct task *next = stack->next;
        stack->next = oldest;
        oldest = stack;
        stack = next;
    }
    while (oldest != NULL) {
        struct task *task = oldest;
        oldest = task->next;
        loop_defer(loop, task);
    }
    return true;
}

void loop_run_deferred(struct loop *loop)
{
    /* What a task defers runs in the same pass: nothing waits for the next event. */
    while (loop->deferred != NULL) {
        struct task *task = loop->deferred;
        loop->deferred = task->next;
        if (loop->deferred == NULL) {
            loop->deferred_tail = &loop->deferred;
        }
        task->run(task);
    }
}

static int wait_time(const struct loop *loop)
{
    uint64_t ms = timers_wait_ms(loop);
    if (ms == UINT64_MAX) {
        return -1;
    }
    return ms > 60000 ? 60000 : (int)ms;
}

static void wait_for_events(struct loop *loop)
{
    int timeout = wait_time(loop);
    atomic_store(&loop->asleep, true);
    if (atomic_load(&loop->mail) != NULL) {
        timeout = 0;
    }
    epoch_offline();
    backend_wait(loop, timeout);
    epoch_online();
    atomic_store_explicit(&loop->asleep, false, memory_order_relaxed);
}

void loop_run(struct loop *loop)
{
    CHECK(self == NULL);
    self = loop;
    epoch_register();
    while (!loop->stopping) {
        wait_for_events(loop);
        update_time(loop);
        while (loop->ready_next < loop->ready_count) {
            int i = loop->ready_next++;
            struct watch *watch = loop->ready[i];
            if (watch != NULL) {
                watch->on_ready(watch, loop->ready_events[i]);
            }
            if (UNLIKELY(loop->hurries)) {
                loop->hurries = false;
                loop_run_deferred(loop);
            }
        }
        timers_run(loop);
        take_mail(loop);
        loop_run_deferred(loop);
    }
    take_mail(loop);
    loop_run_deferred(loop);
    epoch_unregister();
    self = NULL;
}

struct stop_task {
    struct task task;
    struct loop *loop;
};

static void stop_now(struct task *task)
{
    struct stop_task *stop = CONTAINER_OF(task, struct stop_task, task);
    stop->loop->stopping = true;
    free(stop);
}

void loop_stop(struct loop *loop)
{
    struct stop_task *stop = malloc(sizeof *stop);
    CHECK(stop != NULL);
    *stop = (struct stop_task){.task.run = stop_now, .loop = loop};
    loop_post(loop, &stop->task);
}
