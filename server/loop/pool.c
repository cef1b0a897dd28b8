#include "loop/pool.h"

#include "base/check.h"
#include "observe/log.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* GUARD: as below coroutines. The C library's one page is skipped by a frame that is larger, and what lies behind
 * it is another thread's stack. */
enum { IDLE_SECONDS = 10, SERVER_THREADS = 16, ENDPOINT_NICE = 19, STACK = 1 << 20, GUARD = 65536 };

/* Submitting takes no lock: a thread that gives way may be off the processor for long while it holds
 * one, and a loop must not wait for that. Jobs are pushed to a stack and counted by a semaphore;
 * the threads of the lane turn the stack around under a lock of their own. */
struct lane {
    _Atomic(struct pool_job *) inbox; /* newest first */
    sem_t work; /* one for each job, and some to end threads */
    _Atomic unsigned queued;
    _Atomic unsigned threads;
    _Atomic unsigned idle;
    _Atomic unsigned limit;
    pthread_mutex_t lock;
    struct pool_job *first; /* oldest first */
    bool yields; /* its threads give way to the loops */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the end */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static struct lane server = {.lock = PTHREAD_MUTEX_INITIALIZER, .limit = SERVER_THREADS, .yields = false};
static struct lane endpoints = {.lock = PTHREAD_MUTEX_INITIALIZER, .limit = 4, .yields = true};
static _Atomic bool stopping;
static _Thread_local bool is_worker;

bool pool_is_worker(void)
{
    return is_worker;
}

static struct pool_job *take(struct lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    if (lane->first == NULL) {
        struct pool_job *job = atomic_exchange_explicit(&lane->inbox, NULL, memory_order_acquire);
        while (job != NULL) {
            struct pool_job *next = job->next;
            job->next = lane->first;
            lane->first = job;
            job = next;
        }
    }
    struct pool_job *job = lane->first;
    if (job != NULL) {
        lane->first = job->next;
        atomic_fetch_sub(&lane->queued, 1);
    }
    pthread_mutex_unlock(&lane->lock);
    return job;
}

/* NULL when the thread has been idle too long, or the pool stops and nothing is queued. */
static struct pool_job *wait_for_job(struct lane *lane)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += IDLE_SECONDS;
    atomic_fetch_add(&lane->idle, 1);
    int result;
    do {
        result = sem_timedwait(&lane->work, &until);
    } while (result != 0 && errno == EINTR);
    atomic_fetch_sub(&lane->idle, 1);
    if (result != 0) {
        /* Whoever counted on this thread has posted before: one of us two sees the other. */
        atomic_thread_fence(memory_order_seq_cst);
        result = sem_trywait(&lane->work);
    }
    return result == 0 ? take(lane) : NULL;
}

/* A computation must not take the processor from a loop that has a request to answer. */
static void give_way(void)
{
    const struct sched_param none = {0};
    /* 0 is this thread; the process of an isolated endpoint may name no other. */
    sched_setscheduler(0, SCHED_BATCH, &none);
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + ENDPOINT_NICE);
}

static void *pool_main(void *arg)
{
    struct lane *lane = arg;
    is_worker = true;
    pthread_setname_np(pthread_self(), "pool"); /* not that of the loop which happened to want one more */
    if (lane->yields) {
        give_way();
    }
    for (struct pool_job *job = wait_for_job(lane); job != NULL; job = wait_for_job(lane)) {
        job->run(job);
    }
    if (atomic_load(&stopping)) {
        sem_post(&lane->work); /* the next one ends, too */
    }
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&lane->threads, 1);
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void make_semaphores(void)
{
    CHECK(sem_init(&server.work, 0, 0) == 0 && sem_init(&endpoints.work, 0, 0) == 0);
}

void pool_start(unsigned max_threads)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_semaphores);
    atomic_store(&endpoints.limit, max_threads > 0 ? max_threads : 1);
    atomic_store(&stopping, false);
}

static void add_thread(struct lane *lane)
{
    if (atomic_fetch_add(&lane->threads, 1) >= atomic_load(&lane->limit)) {
        atomic_fetch_sub(&lane->threads, 1);
        return;
    }
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK + GUARD);
    pthread_attr_setguardsize(&attr, GUARD);
    pthread_t thread;
    int error = pthread_create(&thread, &attr, pool_main, lane);
    pthread_attr_destroy(&attr);
    if (error != 0 && atomic_fetch_sub(&lane->threads, 1) == 1) {
        log_error("cannot start a pool thread: %s; requests that need one wait until it works", strerror(error));
    }
}

static void submit(struct lane *lane, struct pool_job *job)
{
    unsigned waiting = atomic_fetch_add(&lane->queued, 1) + 1;
    struct pool_job *head = atomic_load_explicit(&lane->inbox, memory_order_relaxed);
    do {
        job->next = head;
    } while (!atomic_compare_exchange_weak(&lane->inbox, &head, job));
    sem_post(&lane->work); /* from here on the job may be gone */
    atomic_thread_fence(memory_order_seq_cst);
    if (waiting > atomic_load(&lane->idle) && atomic_load(&lane->threads) < atomic_load(&lane->limit)) {
        add_thread(lane);
    }
}

void pool_submit(struct pool_job *job)
{
    submit(&server, job);
}

void pool_submit_endpoint(struct pool_job *job)
{
    submit(&endpoints, job);
}

static void end_threads(struct lane *lane)
{
    sem_post(&lane->work); /* each thread that ends passes it on */
    while (atomic_load(&lane->threads) > 0) {
        pthread_cond_wait(&ended, &lock);
    }
    while (sem_trywait(&lane->work) == 0) {
    }
}

void pool_stop(void)
{
    atomic_store(&stopping, true);
    pthread_mutex_lock(&lock);
    end_threads(&server);
    end_threads(&endpoints);
    pthread_mutex_unlock(&lock);
}

void pool_counts(unsigned *alive, unsigned *waiting)
{
    *alive = atomic_load(&server.threads) + atomic_load(&endpoints.threads);
    *waiting = atomic_load(&server.queued) + atomic_load(&endpoints.queued);
}
