/* DESIGN: the store that forgets when the process ends: for tests, for development, and for
 * sites whose sessions are worth nothing tomorrow. Sessions are spread over shards by the
 * hash of their id, each under its own mutex that is held for a few memory accesses, so every
 * operation completes inside submit. One counter over all shards holds the limit. */
#include "base/check.h"
#include "base/map.h"
#include "sessions/json_text.h"
#include "sessions/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SHARDS = 64, MEMORY_MAGIC = 0x53544d4d };

struct value {
    size_t len;
    char json[];
};

struct entry {
    int64_t expires;
    size_t bytes; /* of keys and values, with their cost */
    struct map values; /* key -> struct value */
};

struct shard {
    pthread_mutex_t lock;
    struct map entries; /* id -> struct entry */
} __attribute__((aligned(64)));

struct store {
    uint32_t magic;
    size_t max_value;
    size_t max_session;
    uint64_t max_bytes;
    _Atomic uint64_t bytes;
    _Atomic uint64_t count;
    struct shard shards[SHARDS];
};

static struct shard *shard_of(struct store *store, struct str id)
{
    return &store->shards[(str_hash(id) >> 32) % SHARDS];
}

static size_t session_cost(struct str id)
{
    return id.len + STORE_SESSION_COST;
}

static size_t value_cost(struct str key, size_t len)
{
    return key.len + len + STORE_VALUE_COST;
}

/* Takes room in the store's limit; false when there is none. */
static bool take(struct store *store, size_t bytes)
{
    uint64_t have = atomic_load_explicit(&store->bytes, memory_order_relaxed);
    do {
        if (bytes > store->max_bytes || have > store->max_bytes - bytes) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&store->bytes, &have, have + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void give(struct store *store, size_t bytes)
{
    atomic_fetch_sub_explicit(&store->bytes, bytes, memory_order_relaxed);
}

static void entry_free(struct store *store, struct str id, struct entry *entry)
{
    size_t cursor = 0;
    struct str key;
    void *value;
    while (map_next(&entry->values, &cursor, &key, &value)) {
        free(value);
    }
    map_free(&entry->values);
    give(store, entry->bytes + session_cost(id));
    atomic_fetch_sub_explicit(&store->count, 1, memory_order_relaxed);
    free(entry);
}

static struct entry *live(struct shard *shard, struct str id, int64_t now)
{
    struct entry *entry = map_get(&shard->entries, id);
    return entry != NULL && entry->expires > now ? entry : NULL;
}

static enum store_result put(struct store *store, struct entry *entry, struct str key, struct str json)
{
    struct value *old = map_get(&entry->values, key);
    size_t before = old != NULL ? value_cost(key, old->len) : 0;
    size_t after = value_cost(key, json.len);
    if (entry->bytes - before + after > store->max_session) {
        return STORE_TOO_LARGE;
    }
    if (after > before && !take(store, after - before)) {
        return STORE_FULL;
    }
    struct value *value = malloc(sizeof *value + json.len);
    if (value == NULL || !map_put(&entry->values, key, value, NULL)) {
        free(value);
        give(store, after > before ? after - before : 0);
        return STORE_FULL;
    }
    value->len = json.len;
    memcpy(value->json, json.ptr, json.len);
    free(old);
    if (after < before) {
        give(store, before - after);
    }
    entry->bytes = entry->bytes - before + after;
    return STORE_OK;
}

static enum store_result create(struct store *store, struct shard *shard, const struct store_op *op)
{
    if (map_get(&shard->entries, op->id) != NULL) {
        return STORE_CONFLICT;
    }
    if (!take(store, session_cost(op->id))) {
        return STORE_FULL;
    }
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        give(store, session_cost(op->id));
        return STORE_FULL;
    }
    atomic_fetch_add_explicit(&store->count, 1, memory_order_relaxed);
    entry->expires = op->expires;
    enum store_result result = op->key.len > 0 ? put(store, entry, op->key, op->json) : STORE_OK;
    if (result == STORE_OK && !map_put(&shard->entries, op->id, entry, NULL)) {
        result = STORE_FULL;
    }
    if (result != STORE_OK) {
        entry_free(store, op->id, entry);
    }
    return result;
}

static enum store_result get(const struct entry *entry, const struct store_op *op)
{
    const struct value *value = map_get(&entry->values, op->key);
    if (value == NULL) {
        return STORE_NOT_FOUND;
    }
    return buffer_append(op->out, value->json, value->len) ? STORE_OK : STORE_FAILED;
}

static enum store_result get_all(const struct entry *entry, const struct store_op *op)
{
    size_t cursor = 0;
    struct str key;
    void *found;
    char before = '{';
    while (map_next(&entry->values, &cursor, &key, &found)) {
        const struct value *value = found;
        buffer_append_char(op->out, before);
        buffer_append_json(op->out, key);
        buffer_append_char(op->out, ':');
        buffer_append(op->out, value->json, value->len);
        before = ',';
    }
    return buffer_append_z(op->out, before == '{' ? "{}" : "}") ? STORE_OK : STORE_FAILED;
}

static enum store_result remove_key(struct store *store, struct entry *entry, const struct store_op *op)
{
    struct value *value = map_remove(&entry->values, op->key);
    if (value == NULL) {
        return STORE_NOT_FOUND;
    }
    size_t bytes = value_cost(op->key, value->len);
    entry->bytes -= bytes;
    give(store, bytes);
    free(value);
    return STORE_OK;
}

static enum store_result increment(struct store *store, struct entry *entry, struct store_op *op)
{
    const struct value *value = map_get(&entry->values, op->key);
    int64_t number = 0;
    int64_t sum;
    if ((value != NULL && !json_text_integer((struct str){value->json, value->len}, &number)) ||
        __builtin_add_overflow(number, op->number, &sum)) {
        return STORE_CONFLICT;
    }
    char text[24];
    size_t len = json_text_print_integer(sum, text);
    enum store_result result = put(store, entry, op->key, (struct str){text, len});
    if (result == STORE_OK) {
        op->number = sum;
    }
    return result;
}

/* Both shards locked, always the lower one first. */
static void lock_two(struct shard *a, struct shard *b)
{
    struct shard *first = a < b ? a : b;
    struct shard *second = a < b ? b : a;
    pthread_mutex_lock(&first->lock);
    if (second != first) {
        pthread_mutex_lock(&second->lock);
    }
}

static void unlock_two(struct shard *a, struct shard *b)
{
    pthread_mutex_unlock(&a->lock);
    if (a != b) {
        pthread_mutex_unlock(&b->lock);
    }
}

static enum store_result rename_locked(struct store *store, struct shard *from, struct shard *to,
                                       const struct store_op *op)
{
    struct entry *entry = live(from, op->id, op->now);
    if (entry == NULL) {
        return STORE_NOT_FOUND;
    }
    if (map_get(&to->entries, op->new_id) != NULL) {
        return STORE_CONFLICT;
    }
    size_t before = session_cost(op->id);
    size_t after = session_cost(op->new_id);
    if (after > before && !take(store, after - before)) {
        return STORE_FULL;
    }
    if (!map_put(&to->entries, op->new_id, entry, NULL)) {
        give(store, after > before ? after - before : 0);
        return STORE_FULL;
    }
    map_remove(&from->entries, op->id);
    if (after < before) {
        give(store, before - after);
    }
    entry->expires = op->expires;
    return STORE_OK;
}

static enum store_result rename_id(struct store *store, const struct store_op *op)
{
    struct shard *from = shard_of(store, op->id);
    struct shard *to = shard_of(store, op->new_id);
    lock_two(from, to);
    enum store_result result = rename_locked(store, from, to, op);
    unlock_two(from, to);
    return result;
}

/* Removes one ended session of the shard, from *cursor on; false when there is none. */
static bool sweep_one(struct store *store, struct shard *shard, int64_t now, size_t *cursor)
{
    struct str id;
    void *found;
    while (map_next(&shard->entries, cursor, &id, &found)) {
        struct entry *entry = found;
        if (entry->expires <= now) {
            entry_free(store, id, entry);
            map_remove(&shard->entries, id);
            (*cursor)--; /* map_remove may have moved another one here */
            return true;
        }
    }
    return false;
}

static enum store_result sweep(struct store *store, struct store_op *op)
{
    int64_t removed = 0;
    for (unsigned i = 0; i < SHARDS && removed < op->number; i++) {
        struct shard *shard = &store->shards[i];
        size_t cursor = 0;
        pthread_mutex_lock(&shard->lock);
        while (removed < op->number && sweep_one(store, shard, op->now, &cursor)) {
            removed++;
        }
        pthread_mutex_unlock(&shard->lock);
    }
    op->number = removed;
    return STORE_OK;
}

static enum store_result destroy(struct store *store, struct shard *shard, struct str id)
{
    struct entry *entry = map_get(&shard->entries, id);
    if (entry != NULL) {
        entry_free(store, id, entry);
        map_remove(&shard->entries, id);
    }
    return STORE_OK;
}

static enum store_result run_live(struct store *store, struct entry *entry, struct store_op *op)
{
    switch (op->kind) {
    case STORE_EXISTS: op->expires = entry->expires; return STORE_OK;
    case STORE_GET: return get(entry, op);
    case STORE_GET_ALL: return get_all(entry, op);
    case STORE_TOUCH: entry->expires = op->expires; return STORE_OK;
    case STORE_SET: return put(store, entry, op->key, op->json);
    case STORE_REMOVE: return remove_key(store, entry, op);
    case STORE_INCREMENT: return increment(store, entry, op);
    default: return STORE_INVALID;
    }
}

static enum store_result run(struct store *store, struct store_op *op)
{
    if (op->kind == STORE_SWEEP) {
        return sweep(store, op);
    }
    if (op->kind == STORE_RENAME) {
        return rename_id(store, op);
    }
    struct shard *shard = shard_of(store, op->id);
    enum store_result result;
    pthread_mutex_lock(&shard->lock);
    if (op->kind == STORE_CREATE) {
        result = create(store, shard, op);
    } else if (op->kind == STORE_DESTROY) {
        result = destroy(store, shard, op->id);
    } else {
        struct entry *entry = live(shard, op->id, op->now);
        result = entry != NULL ? run_live(store, entry, op) : STORE_NOT_FOUND;
    }
    pthread_mutex_unlock(&shard->lock);
    return result;
}

static void memory_submit(struct store *store, struct store_op *op)
{
    CHECK(store->magic == MEMORY_MAGIC);
    op->result = store_check(op, store->max_value);
    if (op->result == STORE_OK) {
        op->result = run(store, op);
    }
    op->done(op);
}

static struct store *memory_open(const struct store_options *options, struct buffer *error)
{
    struct store *store = aligned_alloc(64, (sizeof *store + 63) & ~(size_t)63);
    if (store == NULL) {
        buffer_append_z(error, "sessions: no memory for the store");
        return NULL;
    }
    *store = (struct store){
        .magic = MEMORY_MAGIC,
        .max_value = options->max_value,
        .max_session = options->max_session,
        .max_bytes = options->max_bytes,
    };
    for (unsigned i = 0; i < SHARDS; i++) {
        pthread_mutex_init(&store->shards[i].lock, NULL);
    }
    return store;
}

static void memory_close(struct store *store)
{
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &store->shards[i];
        size_t cursor = 0;
        struct str id;
        void *entry;
        while (map_next(&shard->entries, &cursor, &id, &entry)) {
            entry_free(store, id, entry);
        }
        map_free(&shard->entries);
        pthread_mutex_destroy(&shard->lock);
    }
    store->magic = 0;
    free(store);
}

static uint64_t memory_count(struct store *store)
{
    return atomic_load_explicit(&store->count, memory_order_relaxed);
}

const struct store_ops store_memory = {
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .submit = memory_submit,
    .count = memory_count,
};
