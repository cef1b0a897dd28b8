/* DESIGN: sessions on the disk, in LMDB, without a wait for the disk and without a way to lose
 * or to break them.
 *
 * What LMDB gives: atomic transactions over several processes, readers that never wait. With
 * its own sync on, each commit costs two flushes of the disk; with MDB_NOSYNC a commit is a
 * few writes into the page cache, which the kernel keeps when the process is killed, but
 * after a loss of power the pages may have reached the disk in any order and the file may be
 * broken as a whole. So there are two files:
 *   live.mdb   MDB_NOSYNC. All operations happen here. What is committed survives any death of
 *              the process. Believed only until the machine restarts (lmdb_files.c).
 *   saved.mdb  LMDB's full sync. A follower: a thread carries over the rows that changed, every
 *              SessionSyncMs, in one transaction (lmdb_mirror.c). At all times consistent on the
 *              disk; after a restart of the machine, live.mdb is made from it again.
 * SessionSync "grouped": a loss of power costs the last SessionSyncMs, plus the time the disk
 * took; "strict": the writer carries over before it answers, for all operations that came in
 * meanwhile at once. Nothing is mapped writable (no MDB_WRITEMAP): a stray pointer in an
 * endpoint cannot reach the file, and a full disk is an error instead of a SIGBUS.
 *
 * Reads run on the caller's thread. Writes are queued for one thread, which runs all that are
 * waiting in one transaction and then answers them; if LMDB refuses the batch, it is undone
 * and each operation runs alone, so that only the one at fault fails. SessionStoreSize is
 * counted in bytes of content; the map is several times as large, so that there is always
 * room to delete. Two workers (one is replacing the other) share the files through LMDB's
 * own locks, which are robust against a killed owner. */
#include "base/check.h"
#include "observe/log.h"
#include "sessions/lmdb_private.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <time.h>

enum { BATCH = 256, QUIET_MS = 10000, DISK_FULL = 16 << 20 };

/* ---- errors ------------------------------------------------------------------------------------- */

int64_t lmdb_monotonic_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* LMDB says EIO also when the disk took only a part of a write because it became full. */
static bool is_full(const struct store *store, int rc)
{
    struct statvfs fs;
    if (rc == EIO && statvfs(store->directory, &fs) == 0) {
        return (uint64_t)fs.f_bavail * fs.f_frsize < DISK_FULL;
    }
    return rc == MDB_MAP_FULL || rc == MDB_TXN_FULL || rc == ENOSPC || rc == EDQUOT || rc == EFBIG;
}

enum store_result lmdb_failure(struct store *store, const char *what, int rc)
{
    bool full = is_full(store, rc);
    int64_t now = lmdb_monotonic_ms();
    int64_t until = atomic_load_explicit(&store->quiet_until, memory_order_relaxed);
    if (now >= until && atomic_compare_exchange_strong(&store->quiet_until, &until, now + QUIET_MS)) {
        bool damaged = rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_PANIC;
        log_error("sessions: %s: %s: %s%s", store->directory, what, mdb_strerror(rc),
                  damaged ? "; the store is damaged: stop the server, move live.mdb away and start again, it is made "
                            "anew from saved.mdb"
                  : full  ? "; make room on the disk or raise SessionStoreSize"
                          : "");
    }
    return full ? STORE_FULL : STORE_FAILED;
}

/* ---- transactions ----------------------------------------------------------------------------------- */

int lmdb_begin(struct store *store, struct table *table, unsigned flags, MDB_txn **txn)
{
    for (unsigned attempt = 0;; attempt++) {
        int rc = mdb_txn_begin(table->env, NULL, flags, txn);
        if (rc == MDB_READERS_FULL && attempt == 0) {
            int dead;
            mdb_reader_check(table->env, &dead);
            continue;
        }
        if (rc != MDB_MAP_RESIZED || attempt > 1) {
            return rc;
        }
        /* Another worker runs with a larger SessionStoreSize: follow it, alone. */
        pthread_rwlock_unlock(&store->map_lock);
        pthread_rwlock_wrlock(&store->map_lock);
        mdb_env_set_mapsize(table->env, 0);
        pthread_rwlock_unlock(&store->map_lock);
        pthread_rwlock_rdlock(&store->map_lock);
    }
}

static int reader_begin(struct store *store, MDB_txn **txn)
{
    *txn = NULL;
    pthread_mutex_lock(&store->readers_lock);
    if (store->idle_count > 0) {
        *txn = store->idle_readers[--store->idle_count];
    }
    pthread_mutex_unlock(&store->readers_lock);
    if (*txn != NULL) {
        int rc = mdb_txn_renew(*txn);
        if (rc == 0) {
            return 0;
        }
        mdb_txn_abort(*txn);
    }
    return lmdb_begin(store, &store->live, MDB_RDONLY, txn);
}

static void reader_end(struct store *store, MDB_txn *txn)
{
    mdb_txn_reset(txn);
    pthread_mutex_lock(&store->readers_lock);
    if (store->idle_count < IDLE_READERS) {
        store->idle_readers[store->idle_count++] = txn;
        txn = NULL;
    }
    pthread_mutex_unlock(&store->readers_lock);
    if (txn != NULL) {
        mdb_txn_abort(txn);
    }
}

static enum store_result run_read(struct store *store, struct store_op *op)
{
    MDB_txn *txn;
    enum store_result result = STORE_FAILED;
    pthread_rwlock_rdlock(&store->map_lock);
    int rc = reader_begin(store, &txn);
    if (rc == 0) {
        result = rows_read(store, txn, op, &rc);
        reader_end(store, txn);
    }
    pthread_rwlock_unlock(&store->map_lock);
    return rc == 0 ? result : lmdb_failure(store, "read", rc);
}

/* ---- the writer --------------------------------------------------------------------------------------- */

struct batch {
    struct store_op *ops[BATCH];
    int64_t numbers[BATCH]; /* as given: some operations answer in op->number */
    unsigned count;
};

/* Waits for work; false when the store is closing and none is left. */
static bool take_batch(struct store *store, struct batch *batch)
{
    batch->count = 0;
    pthread_mutex_lock(&store->queue_lock);
    while (store->queue == NULL && !store->stopping) {
        pthread_cond_wait(&store->queue_wake, &store->queue_lock);
    }
    while (store->queue != NULL && batch->count < BATCH) {
        struct store_op *op = store->queue;
        store->queue = op->next;
        batch->numbers[batch->count] = op->number;
        batch->ops[batch->count++] = op;
    }
    if (store->queue == NULL) {
        store->queue_end = &store->queue;
    }
    pthread_mutex_unlock(&store->queue_lock);
    return batch->count > 0;
}

/* One transaction over ops[first..first+count); 0, or the error for which nothing was done. */
static int write_some(struct store *store, struct batch *batch, unsigned first, unsigned count)
{
    struct rows rows;
    int rc = rows_begin(&rows, store);
    if (rc != 0) {
        return rc;
    }
    for (unsigned i = first; i < first + count; i++) {
        struct store_op *op = batch->ops[i];
        op->number = batch->numbers[i];
        op->result = rows_write(&rows, op);
        if (rows.rc != 0) {
            rows_abort(&rows);
            return rows.rc;
        }
    }
    return rows_commit(&rows);
}

static void write_each(struct store *store, struct batch *batch)
{
    int dead;
    mdb_reader_check(store->live.env, &dead); /* the snapshot of a killed reader may hold the room */
    for (unsigned i = 0; i < batch->count; i++) {
        int rc = write_some(store, batch, i, 1);
        if (rc != 0) {
            batch->ops[i]->result = lmdb_failure(store, "write", rc);
        }
    }
}

static void announce_change(struct store *store)
{
    pthread_mutex_lock(&store->sync_lock);
    store->sync_due = true;
    pthread_cond_signal(&store->sync_wake);
    pthread_mutex_unlock(&store->sync_lock);
}

static void write_batch(struct store *store, struct batch *batch)
{
    pthread_rwlock_rdlock(&store->map_lock);
    if (write_some(store, batch, 0, batch->count) != 0) {
        write_each(store, batch);
    }
    int rc = store->strict ? lmdb_mirror(store) : 0;
    pthread_rwlock_unlock(&store->map_lock);
    if (rc != 0) {
        /* Done, but not on the disk: whoever asked for strict must not take it for safe. */
        enum store_result result = lmdb_failure(store, "write to the disk", rc);
        for (unsigned i = 0; i < batch->count; i++) {
            batch->ops[i]->result = batch->ops[i]->result == STORE_OK ? result : batch->ops[i]->result;
        }
    }
    if (!store->strict) {
        announce_change(store);
    }
}

static void *writer_main(void *arg)
{
    struct store *store = arg;
    struct batch batch;
    while (take_batch(store, &batch)) {
        write_batch(store, &batch);
        for (unsigned i = 0; i < batch.count; i++) {
            batch.ops[i]->done(batch.ops[i]);
        }
    }
    return NULL;
}

static void lmdb_submit(struct store *store, struct store_op *op)
{
    CHECK(store->magic == LMDB_MAGIC);
    op->result = store_check(op, store->max_value);
    if (op->result != STORE_OK) {
        op->done(op);
        return;
    }
    if (op->kind == STORE_EXISTS || op->kind == STORE_GET || op->kind == STORE_GET_ALL) {
        op->result = run_read(store, op);
        op->done(op);
        return;
    }
    op->next = NULL;
    pthread_mutex_lock(&store->queue_lock);
    bool was_empty = store->queue == NULL;
    *store->queue_end = op;
    store->queue_end = &op->next;
    pthread_mutex_unlock(&store->queue_lock);
    if (was_empty) {
        pthread_cond_signal(&store->queue_wake);
    }
}

/* ---- the follower ------------------------------------------------------------------------------------------ */

/* Until something changed and SessionSyncMs have passed since; false when closing. */
static bool wait_for_sync(struct store *store)
{
    pthread_mutex_lock(&store->sync_lock);
    while (!store->sync_due && !store->sync_stopping) {
        pthread_cond_wait(&store->sync_wake, &store->sync_lock);
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanoseconds = until.tv_nsec + (int64_t)store->sync_ms * 1000000;
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    while (!store->sync_stopping && pthread_cond_timedwait(&store->sync_wake, &store->sync_lock, &until) != ETIMEDOUT) {
    }
    bool go_on = !store->sync_stopping;
    store->sync_due = false;
    pthread_mutex_unlock(&store->sync_lock);
    return go_on;
}

static void *syncer_main(void *arg)
{
    struct store *store = arg;
    while (wait_for_sync(store)) {
        pthread_rwlock_rdlock(&store->map_lock);
        int rc = lmdb_mirror(store);
        pthread_rwlock_unlock(&store->map_lock);
        if (rc != 0) {
            lmdb_failure(store, "write to the disk, a loss of power would cost more than SessionSyncMs", rc);
            announce_change(store); /* again */
        }
    }
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------------ */

static bool start_thread(pthread_t *thread, void *(*main_function)(void *), struct store *store)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that expect them */
    bool started = pthread_create(thread, NULL, main_function, store) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void init_locks(struct store *store)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_rwlock_init(&store->map_lock, NULL);
    pthread_mutex_init(&store->readers_lock, NULL);
    pthread_mutex_init(&store->queue_lock, NULL);
    pthread_cond_init(&store->queue_wake, NULL);
    pthread_mutex_init(&store->sync_lock, NULL);
    pthread_cond_init(&store->sync_wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void store_free(struct store *store)
{
    pthread_rwlock_destroy(&store->map_lock);
    pthread_mutex_destroy(&store->readers_lock);
    pthread_mutex_destroy(&store->queue_lock);
    pthread_cond_destroy(&store->queue_wake);
    pthread_mutex_destroy(&store->sync_lock);
    pthread_cond_destroy(&store->sync_wake);
    free(store->directory);
    store->magic = 0;
    free(store);
}

static void stop_threads(struct store *store)
{
    if (store->writer_runs) {
        pthread_mutex_lock(&store->queue_lock);
        store->stopping = true;
        pthread_cond_signal(&store->queue_wake);
        pthread_mutex_unlock(&store->queue_lock);
        pthread_join(store->writer, NULL);
    }
    if (store->syncer_runs) {
        pthread_mutex_lock(&store->sync_lock);
        store->sync_stopping = true;
        pthread_cond_signal(&store->sync_wake);
        pthread_mutex_unlock(&store->sync_lock);
        pthread_join(store->syncer, NULL);
    }
}

static void lmdb_close(struct store *store)
{
    stop_threads(store);
    pthread_rwlock_rdlock(&store->map_lock);
    int rc = lmdb_mirror(store);
    pthread_rwlock_unlock(&store->map_lock);
    if (rc != 0) {
        lmdb_failure(store, "write to the disk at the end", rc);
    }
    while (store->idle_count > 0) {
        mdb_txn_abort(store->idle_readers[--store->idle_count]);
    }
    lmdb_files_close(store);
    store_free(store);
}

static bool start_threads(struct store *store)
{
    store->writer_runs = start_thread(&store->writer, writer_main, store);
    store->syncer_runs = store->writer_runs && !store->strict && start_thread(&store->syncer, syncer_main, store);
    return store->writer_runs && (store->strict || store->syncer_runs);
}

static struct store *lmdb_open(const struct store_options *options, struct buffer *error)
{
    struct store *store = calloc(1, sizeof *store);
    char *directory = strdup(options->directory);
    if (store == NULL || directory == NULL) {
        buffer_append_z(error, "sessions: no memory");
        free(store);
        free(directory);
        return NULL;
    }
    store->magic = LMDB_MAGIC;
    store->directory = directory;
    store->strict = options->strict;
    store->sync_ms = options->sync_ms;
    store->max_value = options->max_value;
    store->max_session = options->max_session;
    store->max_bytes = options->max_bytes;
    store->queue_end = &store->queue;
    store->live.name = "live.mdb";
    store->live.has_dirty = true;
    store->saved.name = "saved.mdb";
    if (options->boot_id != NULL) {
        snprintf(store->boot_id, sizeof store->boot_id, "%s", options->boot_id);
    }
    init_locks(store);
    if (!lmdb_files_open(store, error)) {
        store_free(store);
        return NULL;
    }
    if (!start_threads(store)) {
        buffer_append_z(error, "sessions: cannot start a thread");
        lmdb_close(store);
        return NULL;
    }
    announce_change(store); /* what a killed worker left to carry over */
    return store;
}

static uint64_t lmdb_count(struct store *store)
{
    struct totals totals = {0};
    MDB_txn *txn;
    pthread_rwlock_rdlock(&store->map_lock);
    if (reader_begin(store, &txn) == 0) {
        rows_totals(store, txn, &totals);
        reader_end(store, txn);
    }
    pthread_rwlock_unlock(&store->map_lock);
    return totals.count;
}

const struct store_ops store_lmdb = {
    .name = "lmdb",
    .open = lmdb_open,
    .close = lmdb_close,
    .submit = lmdb_submit,
    .count = lmdb_count,
};
