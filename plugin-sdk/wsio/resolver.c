/* DESIGN: preparations on threads. There are as many as there is work for, up to THREADS: a loop that connects to one name
 * ten thousand times asks for no ten thousand threads. They end when nothing is left to do, so a program that has
 * connected has none of them. What nobody wants any more when its turn comes is passed over.
 *
 * The end of the program: OpenSSL frees what it has in a function of atexit(3), and a lookup may take long. So threads
 * pass a gate to what belongs to OpenSSL; it is closed before, once nobody is inside.
 *
 * fork(2): the child has none of the threads; what the parent had begun stays the parent's. */
#include "wsio/plan.h"

#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { THREADS = 64 };

struct resolver {
    struct preparation preparation;
    atomic_int holders; /* the queue, or the thread, and whoever started it */
    atomic_bool done;
    pthread_mutex_t lock; /* of fd */
    int fd; /* -1: nobody listens any more */
    int watcher; /* as of a carrier */
    struct resolver *next;
};

static struct {
    pthread_mutex_t lock;
    struct resolver *first;
    struct resolver **last;
    unsigned threads;
    unsigned inside; /* of them past the gate */
    bool closed; /* the gate, for ever */
    pthread_cond_t left;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &queue.first, .left = PTHREAD_COND_INITIALIZER};

static void let_go(struct resolver *resolver)
{
    if (atomic_fetch_sub(&resolver->holders, 1) == 1) {
        preparation_free(&resolver->preparation);
        pthread_mutex_destroy(&resolver->lock);
        free(resolver);
    }
}

/* The caller's side leaves. */
static void leave(struct resolver *resolver)
{
    pthread_mutex_lock(&resolver->lock);
    if (resolver->watcher > 0) {
        epoll_ctl(resolver->watcher - 1, EPOLL_CTL_DEL, resolver->fd, NULL);
    }
    close(resolver->fd);
    resolver->fd = -1;
    pthread_mutex_unlock(&resolver->lock);
    let_go(resolver);
}

/* ---- the gate ------------------------------------------------------------------------------------------------ */

static void enter(void)
{
    pthread_mutex_lock(&queue.lock);
    while (queue.closed) {
        pthread_cond_wait(&queue.left, &queue.lock);
    }
    queue.inside++;
    pthread_mutex_unlock(&queue.lock);
}

static void leave_gate(void)
{
    pthread_mutex_lock(&queue.lock);
    queue.inside--;
    pthread_cond_broadcast(&queue.left);
    pthread_mutex_unlock(&queue.lock);
}

/* With the lock held. */
static void wait_for_inside(void)
{
    while (queue.inside > 0) {
        pthread_cond_wait(&queue.left, &queue.lock);
    }
}

static void close_gate(void)
{
    pthread_mutex_lock(&queue.lock);
    wait_for_inside();
    queue.closed = true;
    pthread_mutex_unlock(&queue.lock);
}

/* ---- threads ----------------------------------------------------------------------------------------------- */

/* NULL: nothing is left, and the thread does not count any more. */
static struct resolver *take(void)
{
    pthread_mutex_lock(&queue.lock);
    struct resolver *resolver = queue.first;
    if (resolver != NULL) {
        queue.first = resolver->next;
        queue.last = queue.first != NULL ? queue.last : &queue.first;
    } else {
        queue.threads--;
    }
    pthread_mutex_unlock(&queue.lock);
    return resolver;
}

static void *run(void *arg)
{
    struct resolver *resolver;
    (void)arg;
    while ((resolver = take()) != NULL) {
        if (atomic_load(&resolver->holders) > 1) {
            enter();
            bool ok = preparation_trust(&resolver->preparation);
            leave_gate();
            if (ok) {
                preparation_look_up(&resolver->preparation);
            }
        }
        pthread_mutex_lock(&resolver->lock);
        atomic_store(&resolver->done, true);
        if (resolver->fd >= 0) {
            eventfd_write(resolver->fd, 1);
        }
        pthread_mutex_unlock(&resolver->lock);
        enter();
        let_go(resolver);
        leave_gate();
    }
    enter();
    OPENSSL_thread_stop();
    leave_gate();
    return NULL;
}

/* With the queue's lock. */
static bool start_thread(void)
{
    sigset_t all;
    sigset_t before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    int result = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result != 0) {
        return false;
    }
    pthread_detach(thread);
    queue.threads++;
    return true;
}

/* False: there is no thread, and none could be started. */
static bool enqueue(struct resolver *resolver)
{
    pthread_mutex_lock(&queue.lock);
    bool ok = (queue.threads < THREADS && start_thread()) || queue.threads > 0;
    if (ok) {
        *queue.last = resolver;
        queue.last = &resolver->next;
    }
    pthread_mutex_unlock(&queue.lock);
    return ok;
}

/* ---- fork ---------------------------------------------------------------------------------------------------- */

/* Nobody is past the gate: locks that its thread held would never be let go in the child. */
static void before_fork(void)
{
    pthread_mutex_lock(&queue.lock);
    wait_for_inside();
}

static void after_fork(void)
{
    pthread_mutex_unlock(&queue.lock);
}

static void in_child(void)
{
    queue.first = NULL;
    queue.last = &queue.first;
    queue.threads = 0;
    pthread_cond_init(&queue.left, NULL);
    pthread_mutex_unlock(&queue.lock);
}

static void begin(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
    OPENSSL_init_ssl(0, NULL); /* what it leaves to atexit() comes after ours */
    atexit(close_gate);
}

/* ---- the caller's side ---------------------------------------------------------------------------------------- */

struct resolver *resolver_start(struct plan *plan)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    struct resolver *resolver = calloc(1, sizeof *resolver);
    if (resolver == NULL) {
        return NULL;
    }
    resolver->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (resolver->fd < 0) {
        free(resolver);
        return NULL;
    }
    atomic_fetch_add(&plan->references, 1);
    resolver->preparation.plan = plan;
    resolver->preparation.has_context = plan->context != NULL;
    pthread_mutex_init(&resolver->lock, NULL);
    atomic_init(&resolver->holders, 2);
    if (!enqueue(resolver)) {
        atomic_store(&resolver->holders, 1);
        leave(resolver);
        return NULL;
    }
    return resolver;
}

int resolver_fd(const struct resolver *resolver)
{
    return resolver->fd;
}

bool resolver_is_done(const struct resolver *resolver)
{
    return atomic_load(&resolver->done);
}

int *resolver_watcher(struct resolver *resolver)
{
    return &resolver->watcher;
}

void resolver_finish(struct resolver *resolver, struct preparation *to)
{
    *to = resolver->preparation;
    resolver->preparation = (struct preparation){0};
    leave(resolver);
}

void resolver_abandon(struct resolver *resolver)
{
    leave(resolver);
}
