#include "base/epoch.h"

#include "base/check.h"
#include "base/list.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* A reader publishes the epoch it has seen; 0 means offline. The global epoch moves
 * on with every retirement, and an item of epoch e is free when every online reader
 * shows more than e. */
struct reader {
    _Alignas(64) _Atomic uint64_t seen;
    struct list node;
};

struct retired {
    struct retired *next;
    void (*fn)(void *);
    void *arg;
    uint64_t epoch;
};

static _Atomic uint64_t global_epoch = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list readers = {&readers, &readers};
static struct retired *oldest;
static struct retired *newest;
static unsigned waiting;
static _Thread_local struct reader *self;

void epoch_register(void)
{
    CHECK(self == NULL);
    struct reader *reader = aligned_alloc(64, sizeof *reader);
    CHECK(reader != NULL);
    atomic_init(&reader->seen, 0);
    self = reader;
    pthread_mutex_lock(&lock);
    list_append(&readers, &reader->node);
    pthread_mutex_unlock(&lock);
    epoch_online();
}

void epoch_unregister(void)
{
    pthread_mutex_lock(&lock);
    list_remove(&self->node);
    pthread_mutex_unlock(&lock);
    free(self);
    self = NULL;
}

void epoch_quiet(void)
{
    uint64_t now = atomic_load_explicit(&global_epoch, memory_order_acquire);
    if (atomic_load_explicit(&self->seen, memory_order_relaxed) != now) {
        atomic_store(&self->seen, now);
    }
}

void epoch_offline(void)
{
    atomic_store_explicit(&self->seen, 0, memory_order_release);
}

void epoch_online(void)
{
    uint64_t now = atomic_load_explicit(&global_epoch, memory_order_acquire);
    atomic_store_explicit(&self->seen, now, memory_order_relaxed);
    /* The announcement is visible before any later load of a protected pointer. */
    atomic_thread_fence(memory_order_seq_cst);
}

void epoch_retire(void (*fn)(void *), void *arg)
{
    struct retired *item = malloc(sizeof *item);
    CHECK(item != NULL);
    *item = (struct retired){.fn = fn, .arg = arg};
    pthread_mutex_lock(&lock);
    item->epoch = atomic_fetch_add(&global_epoch, 1);
    if (newest != NULL) {
        newest->next = item;
    } else {
        oldest = item;
    }
    newest = item;
    unsigned count = ++waiting;
    pthread_mutex_unlock(&lock);
    if (count % 1024 == 0) {
        epoch_reclaim();
    }
}

unsigned epoch_reclaim(void)
{
    struct retired *due = NULL;
    struct retired **tail = &due;
    pthread_mutex_lock(&lock);
    atomic_thread_fence(memory_order_seq_cst);
    uint64_t slowest = UINT64_MAX;
    LIST_EACH(node, &readers) {
        uint64_t seen = atomic_load(&LIST_ENTRY(node, struct reader, node)->seen);
        if (seen != 0 && seen < slowest) {
            slowest = seen;
        }
    }
    while (oldest != NULL && oldest->epoch < slowest) {
        *tail = oldest;
        tail = &oldest->next;
        oldest = oldest->next;
        waiting--;
    }
    *tail = NULL;
    if (oldest == NULL) {
        newest = NULL;
    }
    unsigned left = waiting;
    pthread_mutex_unlock(&lock);
    while (due != NULL) {
        struct retired *item = due;
        due = item->next;
        item->fn(item->arg);
        free(item);
    }
    return left;
}
