/* DESIGN: carries changed rows from live.mdb to saved.mdb. `dirty` lists the keys that changed,
 * each with the number of the transaction that changed it last. The order makes it right for
 * any number of workers that do so at once and for a death at any point:
 *   1. lock saved.mdb (its write transaction);
 *   2. take a snapshot of live.mdb, number n, and copy every dirty row as it stands there;
 *   3. commit saved.mdb: on the disk from here on;
 *   4. drop the entries of `dirty` up to n; a row that changed since has a higher number.
 * Because 1 comes before 2, a later copy is never overwritten by an earlier one; a death
 * between 3 and 4 copies some rows twice. The snapshot is released before the commit, so
 * that live.mdb can reuse pages while the disk works. */
#include "sessions/lmdb_private.h"

#include <errno.h>
#include <string.h>

enum { DROP_SLICE = 2000, READERS_CHECK_MS = 10000 };

static uint64_t number_of(const MDB_val *val)
{
    uint64_t number = UINT64_MAX;
    if (val->mv_size == sizeof number) {
        memcpy(&number, val->mv_data, sizeof number);
    }
    return number;
}

static int copy_row(struct store *store, MDB_txn *from, MDB_txn *to, MDB_val key)
{
    MDB_val value;
    MDB_val k = key;
    int rc = mdb_get(from, store->live.rows, &k, &value);
    if (rc == 0) {
        return mdb_put(to, store->saved.rows, &k, &value, 0);
    }
    if (rc == MDB_NOTFOUND) {
        rc = mdb_del(to, store->saved.rows, &k, NULL);
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int copy_rows(struct store *store, MDB_txn *from, MDB_txn *to, uint64_t *copied)
{
    MDB_cursor *cursor;
    int rc = mdb_cursor_open(from, store->live.dirty, &cursor);
    if (rc != 0) {
        return rc;
    }
    MDB_val key;
    MDB_val number;
    while ((rc = mdb_cursor_get(cursor, &key, &number, MDB_NEXT)) == 0 && (rc = copy_row(store, from, to, key)) == 0) {
        (*copied)++;
    }
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* Drops entries up to transaction `last`, from the first key on or, in a later slice, from
 * *from on; sets *from to where the next slice begins, empty at the end. */
static int drop_slice(struct store *store, MDB_txn *txn, uint64_t last, struct buffer *from)
{
    MDB_cursor *cursor;
    int rc = mdb_cursor_open(txn, store->live.dirty, &cursor);
    if (rc != 0) {
        return rc;
    }
    MDB_val key = {from->len, from->data};
    MDB_val number;
    rc = mdb_cursor_get(cursor, &key, &number, from->len > 0 ? MDB_SET_RANGE : MDB_FIRST);
    for (unsigned i = 0; rc == 0 && i < DROP_SLICE; i++) {
        if (number_of(&number) <= last) {
            rc = mdb_cursor_del(cursor, 0);
        }
        if (rc == 0) {
            rc = mdb_cursor_get(cursor, &key, &number, MDB_NEXT);
        }
    }
    from->len = 0;
    if (rc == 0 && !buffer_append(from, key.mv_data, key.mv_size)) {
        rc = ENOMEM;
    }
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int drop_dirty(struct store *store, uint64_t last)
{
    struct buffer from = BUFFER_EMPTY;
    int rc;
    do {
        MDB_txn *txn;
        rc = lmdb_begin(store, &store->live, 0, &txn);
        if (rc != 0) {
            break;
        }
        rc = drop_slice(store, txn, last, &from);
        if (rc != 0) {
            mdb_txn_abort(txn);
            break;
        }
        rc = mdb_txn_commit(txn);
    } while (rc == 0 && from.len > 0);
    buffer_free(&from);
    return rc;
}

/* Snapshots of killed readers would keep old pages from being used again. */
static void check_readers(struct store *store)
{
    int64_t now = lmdb_monotonic_ms();
    if (now - store->readers_checked >= READERS_CHECK_MS) {
        int dead;
        store->readers_checked = now;
        mdb_reader_check(store->live.env, &dead);
        mdb_reader_check(store->saved.env, &dead);
    }
}

int lmdb_mirror(struct store *store)
{
    MDB_txn *to;
    MDB_txn *from;
    check_readers(store);
    int rc = lmdb_begin(store, &store->saved, 0, &to);
    if (rc != 0) {
        return rc;
    }
    rc = lmdb_begin(store, &store->live, MDB_RDONLY, &from);
    if (rc != 0) {
        mdb_txn_abort(to);
        return rc;
    }
    uint64_t last = mdb_txn_id(from);
    uint64_t copied = 0;
    rc = copy_rows(store, from, to, &copied);
    mdb_txn_abort(from);
    if (rc != 0 || copied == 0) {
        mdb_txn_abort(to);
        return rc;
    }
    rc = mdb_txn_commit(to);
    return rc == 0 ? drop_dirty(store, last) : rc;
}
