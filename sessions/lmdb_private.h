/* Shared by the files of the LMDB store; the design stands in lmdb.c. */
#ifndef KILN_SESSIONS_LMDB_PRIVATE_H
#define KILN_SESSIONS_LMDB_PRIVATE_H

#include "sessions/store.h"

#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>

enum { LMDB_MAGIC = 0x53544c4d, IDLE_READERS = 64 };

/* One of the two files. */
struct table {
    MDB_env *env;
    MDB_dbi rows;
    MDB_dbi dirty; /* live only: key of a row that `saved` does not have yet -> number of the transaction */
    const char *name;
    bool has_dirty; /* live */
    MDB_txn *opening; /* while it is opened: for the way out of a damaged file */
    MDB_cursor *reading;
};

struct store {
    uint32_t magic;
    char *directory;
    bool strict;
    unsigned sync_ms;
    size_t max_value;
    size_t max_session;
    uint64_t max_bytes;
    char boot_id[64];
    struct table live;
    struct table saved;

    pthread_rwlock_t map_lock; /* read: around every transaction; write: to follow a map that grew */

    pthread_mutex_t readers_lock;
    MDB_txn *idle_readers[IDLE_READERS]; /* of live, reset */
    unsigned idle_count;

    pthread_mutex_t queue_lock;
    pthread_cond_t queue_wake;
    struct store_op *queue;
    struct store_op **queue_end;
    bool stopping;
    pthread_t writer;
    bool writer_runs;

    pthread_mutex_t sync_lock;
    pthread_cond_t sync_wake;
    bool sync_due; /* something was committed since the last look */
    bool sync_stopping;
    pthread_t syncer;
    bool syncer_runs;

    _Atomic int64_t quiet_until; /* monotonic ms: no more lines about failures before */
    int64_t readers_checked; /* monotonic ms; by whoever mirrors */
};

/* ---- lmdb_files.c: opening, recovery, closing ----------------------------------------------- */
bool lmdb_files_open(struct store *store, struct buffer *error);
void lmdb_files_close(struct store *store);

/* ---- lmdb.c ---------------------------------------------------------------------------------- */
/* mdb_txn_begin that follows a map that another process has made larger. The caller holds
 * map_lock for reading, before and after. */
int lmdb_begin(struct store *store, struct table *table, unsigned flags, MDB_txn **txn);
/* Logs, but not more than once in a while; returns what to answer. */
enum store_result lmdb_failure(struct store *store, const char *what, int rc);
int64_t lmdb_monotonic_ms(void);

/* ---- lmdb_mirror.c ------------------------------------------------------------------------------ */
/* Brings `saved` up to date with what is committed in `live` when it begins; 0 or an error. */
int lmdb_mirror(struct store *store);

/* ---- lmdb_rows.c: the operations inside one transaction ---------------------------------------- */
struct totals {
    uint64_t bytes;
    uint64_t count;
};

struct rows {
    struct store *store;
    MDB_txn *txn;
    uint64_t number; /* of the transaction */
    struct totals totals;
    bool totals_changed;
    int rc; /* not 0: the transaction must be aborted */
};

/* A write transaction on live; 0 or an error. */
int rows_begin(struct rows *rows, struct store *store);
int rows_commit(struct rows *rows);
void rows_abort(struct rows *rows);
/* A writing operation. When it changes nothing it says why; when rows->rc is set the
 * result means nothing. */
enum store_result rows_write(struct rows *rows, struct store_op *op);
/* A reading operation in a read-only transaction. */
enum store_result rows_read(struct store *store, MDB_txn *txn, struct store_op *op, int *rc);
int rows_totals(struct store *store, MDB_txn *txn, struct totals *totals);

#endif
