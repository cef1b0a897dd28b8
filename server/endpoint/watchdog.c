#include "endpoint/watchdog.h"

#include "base/check.h"
#include "base/epoch.h"
#include "endpoint/crash.h"
#include "endpoint/loader.h"
#include "endpoint/lost_thread.h"
#include "endpoint/pace.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "supervisor/worker.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOK_MS = 100,
    AGAIN_MS = 10, /* while a thread is past its time */
    PATIENCE = 200, /* signals */
};

static struct watchdog_slot nobody = {.deadline = WATCHDOG_NEVER};
_Thread_local struct watchdog_slot *watchdog_self = &nobody;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list; a thread in it is alive */
static pthread_cond_t wake;
static struct watchdog_slot *slots;
static unsigned stuck;
static unsigned lost;
static bool stopping;
static bool running;
static pthread_t thread;
static pthread_key_t slot_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- slots -------------------------------------------------------------------------------- */

static void thread_ends(void *arg)
{
    struct watchdog_slot *slot = arg;
    watchdog_self = &nobody;
    pthread_mutex_lock(&lock);
    for (struct watchdog_slot **at = &slots; *at != NULL; at = &(*at)->next) {
        if (*at == slot) {
            *at = slot->next;
            break;
        }
    }
    stuck -= slot->stuck;
    pthread_mutex_unlock(&lock);
    free(slot);
}

static void make_key(void)
{
    CHECK(pthread_key_create(&slot_key, thread_ends) == 0);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

void watchdog_thread_ready(void)
{
    if (LIKELY(watchdog_self != &nobody)) {
        return;
    }
    pthread_once(&once, make_key);
    struct watchdog_slot *slot = aligned_alloc(64, (sizeof *slot + 63) & ~(size_t)63);
    if (slot == NULL) {
        return; /* this thread is then not watched */
    }
    memset(slot, 0, sizeof *slot);
    atomic_init(&slot->deadline, WATCHDOG_NEVER);
    slot->tid = (pid_t)syscall(SYS_gettid);
    pthread_setspecific(slot_key, slot);
    pthread_mutex_lock(&lock);
    slot->next = slots;
    slots = slot;
    pthread_mutex_unlock(&lock);
    watchdog_self = slot;
}

bool watchdog_is_over(void)
{
    return pace_ticks() >= atomic_load_explicit(&watchdog_self->deadline, memory_order_relaxed);
}

uint64_t watchdog_time(unsigned ms)
{
    return atomic_exchange(&watchdog_self->deadline, pace_ticks() + ms * pace_ticks_per_ms);
}

void watchdog_time_back(uint64_t deadline)
{
    atomic_store_explicit(&watchdog_self->deadline, deadline, memory_order_relaxed);
}

void watchdog_lose(struct crash_guard *guard)
{
    if (watchdog_self == &nobody) {
        abort(); /* nobody would see it */
    }
    watchdog_leave();
    atomic_store_explicit(&watchdog_self->lost, guard, memory_order_release);
    for (;;) {
        pause();
    }
}

unsigned watchdog_lost(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = lost;
    pthread_mutex_unlock(&lock);
    return count;
}

unsigned watchdog_stuck(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = stuck;
    pthread_mutex_unlock(&lock);
    return count;
}

/* ---- looking ------------------------------------------------------------------------------- */

static void give_up(struct watchdog_slot *slot, struct endpoint *endpoint)
{
    slot->stuck = true;
    stuck++;
    metric_add(METRIC_ENDPOINT_STUCK, 1);
    log_error("%s does not return after RequestTimeout and cannot be stopped where it is, outside of its own code; "
              "the worker is replaced",
              endpoint_file(endpoint).ptr);
    worker_replace("an endpoint does not return");
}

/* The lock is held. True when the slot is past its time. */
static bool look_at(struct watchdog_slot *slot, uint64_t now)
{
    uint64_t deadline = atomic_load_explicit(&slot->deadline, memory_order_acquire);
    struct endpoint *endpoint = atomic_load_explicit(&slot->endpoint, memory_order_relaxed);
    if (deadline > now) {
        stuck -= slot->stuck;
        slot->stuck = false;
        slot->overdue = 0;
        return false;
    }
    if (slot->overdue != deadline) {
        slot->overdue = deadline;
        slot->tries = 0;
    }
    if (slot->tries < PATIENCE) {
        slot->tries++;
        syscall(SYS_tgkill, getpid(), slot->tid, crash_timeout_signal());
    } else if (!slot->stuck && atomic_load_explicit(&slot->deadline, memory_order_acquire) == deadline) {
        give_up(slot, endpoint);
    }
    return !slot->stuck;
}

/* The lock is held, except while the lost thread is told of, which takes it, too. */
static void tell_lost(void)
{
    for (struct watchdog_slot *slot = slots; slot != NULL; slot = slot->next) {
        struct crash_guard *guard = atomic_load_explicit(&slot->lost, memory_order_acquire);
        if (guard == NULL || slot->lost_told) {
            continue;
        }
        slot->lost_told = true;
        pthread_mutex_unlock(&lock);
        lost_thread_tell(guard);
        pthread_mutex_lock(&lock);
        lost++; /* the slot is there still: its thread never ends */
    }
}

static void wait_ms(unsigned ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!stopping && pthread_cond_timedwait(&wake, &lock, &until) != ETIMEDOUT) {
    }
}

static void *watchdog_main(void *arg)
{
    (void)arg;
    prctl(PR_SET_NAME, "watchdog", 0, 0, 0);
    epoch_register();
    pthread_mutex_lock(&lock);
    while (!stopping) {
        bool again = false;
        uint64_t now = pace_ticks();
        for (struct watchdog_slot *slot = slots; slot != NULL; slot = slot->next) {
            again = look_at(slot, now) || again;
        }
        tell_lost();
        epoch_offline();
        wait_ms(again ? AGAIN_MS : LOOK_MS);
        epoch_online();
    }
    pthread_mutex_unlock(&lock);
    epoch_unregister();
    return NULL;
}

bool watchdog_start(void)
{
    pthread_once(&once, make_key);
    stopping = false;
    int error = pthread_create(&thread, NULL, watchdog_main, NULL);
    if (error != 0) {
        log_error("cannot start the watchdog thread: %s", strerror(error));
        return false;
    }
    running = true;
    return true;
}

void watchdog_stop(void)
{
    if (!running) {
        return;
    }
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    running = false;
}
