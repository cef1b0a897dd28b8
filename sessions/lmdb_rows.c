/* DESIGN: how sessions lie in LMDB. One ordered table of rows, told apart by the first byte
 * of the key:
 *   S <n> id          end of the session, bytes of its values
 *   V <n> id key      one value, JSON text
 *   E end id          the sessions in the order in which they end
 *   T                 totals of the store
 * with <n> the length of the id in one byte and the end in 8 bytes, most significant first.
 * A value is a row of its own, so setting or counting one never reads the others, and two
 * requests that set different keys do not meet. Every changed row is also entered in the
 * table `dirty` with the number of the transaction, for lmdb_mirror.c.
 * All checks of an operation come before its first write: an operation that is refused
 * leaves the transaction, which it shares with others, as it was. */
#include "base/check.h"
#include "sessions/json_text.h"
#include "sessions/lmdb_private.h"

#include <errno.h>

struct session_row {
    int64_t expires;
    uint64_t bytes;
};

struct key {
    uint8_t bytes[2 + 8 + STORE_ID_MAX + STORE_KEY_MAX];
    size_t len;
};

/* ---- keys ---------------------------------------------------------------------------------------- */

static struct key make_key(uint8_t tag, struct str id, struct str name)
{
    struct key key;
    key.bytes[0] = tag;
    key.bytes[1] = (uint8_t)id.len;
    memcpy(key.bytes + 2, id.ptr, id.len);
    if (name.len > 0) {
        memcpy(key.bytes + 2 + id.len, name.ptr, name.len);
    }
    key.len = 2 + id.len + name.len;
    return key;
}

static struct key expiry_key(int64_t expires, struct str id)
{
    struct key key;
    key.bytes[0] = 'E';
    for (unsigned i = 0; i < 8; i++) {
        key.bytes[1 + i] = (uint8_t)((uint64_t)expires >> (56 - 8 * i));
    }
    memcpy(key.bytes + 9, id.ptr, id.len);
    key.len = 9 + id.len;
    return key;
}

static struct key totals_key(void)
{
    return (struct key){.bytes = {'T'}, .len = 1};
}

static MDB_val key_val(struct key *key)
{
    return (MDB_val){key->len, key->bytes};
}

static uint64_t session_cost(struct str id)
{
    return id.len + STORE_SESSION_COST;
}

static uint64_t value_cost(struct str name, size_t len)
{
    return name.len + len + STORE_VALUE_COST;
}

/* ---- single rows ----------------------------------------------------------------------------------- */

static int row_get(struct store *store, MDB_txn *txn, struct key *key, struct str *data)
{
    MDB_val k = key_val(key);
    MDB_val v;
    int rc = mdb_get(txn, store->live.rows, &k, &v);
    *data = rc == 0 ? (struct str){v.mv_data, v.mv_size} : STR_NONE;
    return rc;
}

static void mark_dirty(struct rows *rows, struct key *key)
{
    MDB_val k = key_val(key);
    MDB_val number = {sizeof rows->number, &rows->number};
    if (rows->rc == 0) {
        rows->rc = mdb_put(rows->txn, rows->store->live.dirty, &k, &number, 0);
    }
}

static void row_put(struct rows *rows, struct key key, const void *data, size_t len)
{
    if (rows->rc != 0) {
        return;
    }
    MDB_val k = key_val(&key);
    MDB_val v = {len, NULL};
    rows->rc = mdb_put(rows->txn, rows->store->live.rows, &k, &v, MDB_RESERVE);
    if (rows->rc == 0 && len > 0) {
        memcpy(v.mv_data, data, len);
    }
    mark_dirty(rows, &key);
}

static void row_delete(struct rows *rows, struct key key)
{
    if (rows->rc != 0) {
        return;
    }
    MDB_val k = key_val(&key);
    rows->rc = mdb_del(rows->txn, rows->store->live.rows, &k, NULL);
    mark_dirty(rows, &key);
}

/* The row of a session, ended or not. MDB_NOTFOUND when there is none. */
static int session_get(struct store *store, MDB_txn *txn, struct str id, struct session_row *row)
{
    struct key key = make_key('S', id, STR_NONE);
    struct str data;
    int rc = row_get(store, txn, &key, &data);
    if (rc != 0) {
        return rc;
    }
    if (data.len != sizeof *row) {
        return MDB_CORRUPTED;
    }
    memcpy(row, data.ptr, sizeof *row);
    return 0;
}

static void session_put(struct rows *rows, struct str id, const struct session_row *row)
{
    row_put(rows, make_key('S', id, STR_NONE), row, sizeof *row);
}

/* STORE_OK and the row of a session that has not ended; STORE_NOT_FOUND, or *rc set. */
static enum store_result session_live(struct store *store, MDB_txn *txn, const struct store_op *op,
                                      struct session_row *row, int *rc)
{
    int found = session_get(store, txn, op->id, row);
    if (found == MDB_NOTFOUND || (found == 0 && row->expires <= op->now)) {
        return STORE_NOT_FOUND;
    }
    *rc = found;
    return found == 0 ? STORE_OK : STORE_FAILED;
}

/* Moves the cursor to the first row at or after `from`; true when its key begins with `prefix`. */
static bool seek(MDB_cursor *cursor, struct key *from, MDB_val *key, MDB_val *data, int *rc)
{
    *key = key_val(from);
    int found = mdb_cursor_get(cursor, key, data, MDB_SET_RANGE);
    if (found != 0 && found != MDB_NOTFOUND) {
        *rc = found;
    }
    return found == 0;
}

static bool has_prefix(const MDB_val *key, const struct key *prefix)
{
    return key->mv_size >= prefix->len && memcmp(key->mv_data, prefix->bytes, prefix->len) == 0;
}

static struct key copy_key(const MDB_val *val)
{
    struct key key = {.len = val->mv_size <= sizeof key.bytes ? val->mv_size : 0};
    memcpy(key.bytes, val->mv_data, key.len);
    return key;
}

/* ---- transactions ----------------------------------------------------------------------------------- */

int rows_totals(struct store *store, MDB_txn *txn, struct totals *totals)
{
    struct key key = totals_key();
    struct str data;
    int rc = row_get(store, txn, &key, &data);
    *totals = (struct totals){0};
    if (rc == MDB_NOTFOUND) {
        return 0;
    }
    if (rc == 0 && data.len != sizeof *totals) {
        return MDB_CORRUPTED;
    }
    if (rc == 0) {
        memcpy(totals, data.ptr, sizeof *totals);
    }
    return rc;
}

int rows_begin(struct rows *rows, struct store *store)
{
    *rows = (struct rows){.store = store};
    int rc = lmdb_begin(store, &store->live, 0, &rows->txn);
    if (rc != 0) {
        return rc;
    }
    rows->number = mdb_txn_id(rows->txn);
    rc = rows_totals(store, rows->txn, &rows->totals);
    if (rc != 0) {
        rows_abort(rows);
    }
    return rc;
}

int rows_commit(struct rows *rows)
{
    if (rows->totals_changed) {
        row_put(rows, totals_key(), &rows->totals, sizeof rows->totals);
    }
    if (rows->rc != 0) {
        mdb_txn_abort(rows->txn);
        return rows->rc;
    }
    return mdb_txn_commit(rows->txn);
}

void rows_abort(struct rows *rows)
{
    mdb_txn_abort(rows->txn);
}

static bool room_for(const struct rows *rows, uint64_t more)
{
    return more <= rows->store->max_bytes && rows->totals.bytes <= rows->store->max_bytes - more;
}

static void count(struct rows *rows, int64_t bytes, int64_t sessions)
{
    rows->totals.bytes += (uint64_t)bytes;
    rows->totals.count += (uint64_t)sessions;
    rows->totals_changed = true;
}

/* ---- writing operations -------------------------------------------------------------------------------- */

/* The value `json` under op->key; `row` is the session's and is written as well. */
static enum store_result value_put(struct rows *rows, const struct store_op *op, struct session_row *row,
                                   struct str json)
{
    struct key key = make_key('V', op->id, op->key);
    struct str old;
    int rc = row_get(rows->store, rows->txn, &key, &old);
    if (rc != 0 && rc != MDB_NOTFOUND) {
        rows->rc = rc;
        return STORE_FAILED;
    }
    uint64_t before = rc == 0 ? value_cost(op->key, old.len) : 0;
    uint64_t after = value_cost(op->key, json.len);
    if (row->bytes - before + after > rows->store->max_session) {
        return STORE_TOO_LARGE;
    }
    if (after > before && !room_for(rows, after - before)) {
        return STORE_FULL;
    }
    row_put(rows, key, json.ptr, json.len);
    if (after != before) {
        row->bytes = row->bytes - before + after;
        session_put(rows, op->id, row);
        count(rows, (int64_t)(after - before), 0);
    }
    return STORE_OK;
}

static enum store_result create(struct rows *rows, const struct store_op *op)
{
    struct session_row row;
    int rc = session_get(rows->store, rows->txn, op->id, &row);
    if (rc == 0) {
        return STORE_CONFLICT;
    }
    if (rc != MDB_NOTFOUND) {
        rows->rc = rc;
        return STORE_FAILED;
    }
    uint64_t first = op->key.len > 0 ? value_cost(op->key, op->json.len) : 0;
    if (first > rows->store->max_session) {
        return STORE_TOO_LARGE;
    }
    if (!room_for(rows, session_cost(op->id) + first)) {
        return STORE_FULL;
    }
    row = (struct session_row){op->expires, first};
    session_put(rows, op->id, &row);
    row_put(rows, expiry_key(op->expires, op->id), NULL, 0);
    if (op->key.len > 0) {
        row_put(rows, make_key('V', op->id, op->key), op->json.ptr, op->json.len);
    }
    count(rows, (int64_t)(session_cost(op->id) + first), 1);
    return STORE_OK;
}

static enum store_result touch(struct rows *rows, const struct store_op *op, struct session_row *row)
{
    if (row->expires == op->expires) {
        return STORE_OK;
    }
    row_delete(rows, expiry_key(row->expires, op->id));
    row->expires = op->expires;
    row_put(rows, expiry_key(row->expires, op->id), NULL, 0);
    session_put(rows, op->id, row);
    return STORE_OK;
}

static enum store_result remove_key(struct rows *rows, const struct store_op *op, struct session_row *row)
{
    struct key key = make_key('V', op->id, op->key);
    struct str old;
    int rc = row_get(rows->store, rows->txn, &key, &old);
    if (rc != 0) {
        rows->rc = rc == MDB_NOTFOUND ? 0 : rc;
        return STORE_NOT_FOUND;
    }
    uint64_t bytes = value_cost(op->key, old.len);
    row_delete(rows, key);
    row->bytes -= bytes;
    session_put(rows, op->id, row);
    count(rows, -(int64_t)bytes, 0);
    return STORE_OK;
}

static enum store_result increment(struct rows *rows, struct store_op *op, struct session_row *row)
{
    struct key key = make_key('V', op->id, op->key);
    struct str old;
    int rc = row_get(rows->store, rows->txn, &key, &old);
    int64_t number = 0;
    int64_t sum;
    if (rc != 0 && rc != MDB_NOTFOUND) {
        rows->rc = rc;
        return STORE_FAILED;
    }
    if ((rc == 0 && !json_text_integer(old, &number)) || __builtin_add_overflow(number, op->number, &sum)) {
        return STORE_CONFLICT;
    }
    char text[24];
    size_t len = json_text_print_integer(sum, text);
    enum store_result result = value_put(rows, op, row, (struct str){text, len});
    if (result == STORE_OK) {
        op->number = sum;
    }
    return result;
}

/* Takes one row after the other from under the old id; the copy is needed because LMDB may
 * move what it handed out as soon as something is written. */
static void move_values(struct rows *rows, MDB_cursor *cursor, struct str from, struct str to)
{
    struct key prefix = make_key('V', from, STR_NONE);
    struct buffer copy = BUFFER_EMPTY;
    MDB_val k;
    MDB_val v;
    while (rows->rc == 0 && seek(cursor, &prefix, &k, &v, &rows->rc) && has_prefix(&k, &prefix)) {
        struct key key = copy_key(&k);
        copy.len = 0;
        if (!buffer_append(&copy, v.mv_data, v.mv_size)) {
            rows->rc = ENOMEM;
            break;
        }
        struct str name = {(const char *)key.bytes + prefix.len, key.len - prefix.len};
        row_delete(rows, key);
        if (to.len > 0) {
            row_put(rows, make_key('V', to, name), copy.data, copy.len);
        }
    }
    buffer_free(&copy);
}

static void move_or_delete_values(struct rows *rows, struct str from, struct str to)
{
    MDB_cursor *cursor;
    int rc = mdb_cursor_open(rows->txn, rows->store->live.rows, &cursor);
    if (rc != 0) {
        rows->rc = rc;
        return;
    }
    move_values(rows, cursor, from, to);
    mdb_cursor_close(cursor);
}

static void session_delete(struct rows *rows, struct str id, const struct session_row *row)
{
    row_delete(rows, make_key('S', id, STR_NONE));
    row_delete(rows, expiry_key(row->expires, id));
    move_or_delete_values(rows, id, STR_NONE);
    count(rows, -(int64_t)(row->bytes + session_cost(id)), -1);
}

static enum store_result rename_id(struct rows *rows, const struct store_op *op, struct session_row *row)
{
    struct session_row other;
    int rc = session_get(rows->store, rows->txn, op->new_id, &other);
    if (rc == 0) {
        return STORE_CONFLICT;
    }
    if (rc != MDB_NOTFOUND) {
        rows->rc = rc;
        return STORE_FAILED;
    }
    if (op->new_id.len > op->id.len && !room_for(rows, op->new_id.len - op->id.len)) {
        return STORE_FULL;
    }
    row_delete(rows, make_key('S', op->id, STR_NONE));
    row_delete(rows, expiry_key(row->expires, op->id));
    row->expires = op->expires;
    session_put(rows, op->new_id, row);
    row_put(rows, expiry_key(row->expires, op->new_id), NULL, 0);
    move_or_delete_values(rows, op->id, op->new_id);
    count(rows, (int64_t)op->new_id.len - (int64_t)op->id.len, 0);
    return STORE_OK;
}

static enum store_result destroy(struct rows *rows, const struct store_op *op)
{
    struct session_row row;
    int rc = session_get(rows->store, rows->txn, op->id, &row);
    if (rc == 0) {
        session_delete(rows, op->id, &row);
    } else if (rc != MDB_NOTFOUND) {
        rows->rc = rc;
    }
    return STORE_OK;
}

/* The session that ends first, when it has ended. */
static bool first_ended(struct rows *rows, MDB_cursor *cursor, int64_t now, struct key *found)
{
    struct key from = {.bytes = {'E'}, .len = 1};
    struct key until = expiry_key(now, STR(""));
    MDB_val k;
    MDB_val v;
    if (!seek(cursor, &from, &k, &v, &rows->rc) || !has_prefix(&k, &from) || k.mv_size <= until.len ||
        memcmp(k.mv_data, until.bytes, until.len) > 0) {
        return false;
    }
    *found = copy_key(&k);
    return found->len > 0;
}

static void sweep_rows(struct rows *rows, MDB_cursor *cursor, struct store_op *op)
{
    int64_t removed = 0;
    struct key key;
    while (rows->rc == 0 && removed < op->number && first_ended(rows, cursor, op->now, &key)) {
        struct str id = {(const char *)key.bytes + 9, key.len - 9};
        struct session_row row;
        int rc = session_get(rows->store, rows->txn, id, &row);
        if (rc != 0) {
            rows->rc = rc == MDB_NOTFOUND ? MDB_CORRUPTED : rc;
            break;
        }
        session_delete(rows, id, &row);
        removed++;
    }
    op->number = removed;
}

static enum store_result sweep(struct rows *rows, struct store_op *op)
{
    MDB_cursor *cursor;
    rows->rc = mdb_cursor_open(rows->txn, rows->store->live.rows, &cursor);
    if (rows->rc == 0) {
        sweep_rows(rows, cursor, op);
        mdb_cursor_close(cursor);
    }
    return STORE_OK;
}

enum store_result rows_write(struct rows *rows, struct store_op *op)
{
    switch (op->kind) {
    case STORE_CREATE: return create(rows, op);
    case STORE_DESTROY: return destroy(rows, op);
    case STORE_SWEEP: return sweep(rows, op);
    default: break;
    }
    struct session_row row;
    enum store_result result = session_live(rows->store, rows->txn, op, &row, &rows->rc);
    if (result != STORE_OK) {
        return result;
    }
    switch (op->kind) {
    case STORE_TOUCH: return touch(rows, op, &row);
    case STORE_SET: return value_put(rows, op, &row, op->json);
    case STORE_REMOVE: return remove_key(rows, op, &row);
    case STORE_INCREMENT: return increment(rows, op, &row);
    case STORE_RENAME: return rename_id(rows, op, &row);
    default: return STORE_INVALID;
    }
}

/* ---- reading operations ------------------------------------------------------------------------------------ */

static enum store_result get(struct store *store, MDB_txn *txn, struct store_op *op, int *rc)
{
    struct key key = make_key('V', op->id, op->key);
    struct str data;
    int found = row_get(store, txn, &key, &data);
    if (found != 0) {
        *rc = found == MDB_NOTFOUND ? 0 : found;
        return STORE_NOT_FOUND;
    }
    return buffer_append_str(op->out, data) ? STORE_OK : STORE_FAILED;
}

static enum store_result get_all(struct store *store, MDB_txn *txn, struct store_op *op, int *rc)
{
    MDB_cursor *cursor;
    *rc = mdb_cursor_open(txn, store->live.rows, &cursor);
    if (*rc != 0) {
        return STORE_FAILED;
    }
    struct key prefix = make_key('V', op->id, STR_NONE);
    MDB_val k;
    MDB_val v;
    char before = '{';
    bool more = seek(cursor, &prefix, &k, &v, rc);
    while (more && has_prefix(&k, &prefix)) {
        buffer_append_char(op->out, before);
        buffer_append_json(op->out, (struct str){(const char *)k.mv_data + prefix.len, k.mv_size - prefix.len});
        buffer_append_char(op->out, ':');
        buffer_append(op->out, v.mv_data, v.mv_size);
        before = ',';
        int next = mdb_cursor_get(cursor, &k, &v, MDB_NEXT);
        *rc = next == MDB_NOTFOUND ? 0 : next;
        more = next == 0;
    }
    mdb_cursor_close(cursor);
    return buffer_append_z(op->out, before == '{' ? "{}" : "}") ? STORE_OK : STORE_FAILED;
}

enum store_result rows_read(struct store *store, MDB_txn *txn, struct store_op *op, int *rc)
{
    struct session_row row;
    enum store_result result = session_live(store, txn, op, &row, rc);
    if (result != STORE_OK) {
        return result;
    }
    switch (op->kind) {
    case STORE_EXISTS: op->expires = row.expires; return STORE_OK;
    case STORE_GET: return get(store, txn, op, rc);
    case STORE_GET_ALL: return get_all(store, txn, op, rc);
    default: return STORE_INVALID;
    }
}
