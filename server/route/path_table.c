#include "route/path_table.h"

#include "base/epoch.h"
#include "route/site_index.h"

#include <stdlib.h>

struct path_slot {
    uint32_t tag; /* upper half of the key's hash */
    uint32_t length;
    _Atomic(const struct site_node *) node; /* NULL: end of a probe; &removed: tombstone */
};

struct path_slots {
    size_t mask;
    size_t used; /* live keys and tombstones */
    size_t live;
    struct path_slot slot[];
};

static const struct site_node removed;

static struct path_slots *slots_of(const struct path_table *table)
{
    return atomic_load_explicit(&table->slots, memory_order_acquire);
}

/* The slot that holds the key, or NULL; *end receives the free one where the probe ended. */
static struct path_slot *slot_find(struct path_slots *slots, struct str key, uint64_t hash, struct path_slot **end)
{
    uint32_t tag = (uint32_t)(hash >> 32);
    for (size_t i = (size_t)hash & slots->mask;; i = (i + 1) & slots->mask) {
        struct path_slot *slot = &slots->slot[i];
        const struct site_node *node = atomic_load_explicit(&slot->node, memory_order_acquire);
        if (node == NULL) {
            *end = slot;
            return NULL;
        }
        if (slot->tag == tag && slot->length == key.len && node != &removed &&
            memcmp(node->url.ptr, key.ptr, key.len) == 0) {
            return slot;
        }
    }
}

const struct site_node *path_table_find(const struct path_table *table, struct str path)
{
    const struct path_slots *slots = slots_of(table);
    if (slots == NULL) {
        return NULL;
    }
    uint64_t hash = str_hash(path);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (size_t i = (size_t)hash & slots->mask;; i = (i + 1) & slots->mask) {
        const struct path_slot *slot = &slots->slot[i];
        const struct site_node *node = atomic_load_explicit(&slot->node, memory_order_acquire);
        if (node == NULL) {
            return NULL;
        }
        if (slot->tag == tag && slot->length == path.len && node != &removed &&
            memcmp(node->url.ptr, path.ptr, path.len) == 0) {
            return node;
        }
    }
}

/* Where a key that is not in the table goes. */
static struct path_slot *slot_free(struct path_slots *slots, uint64_t hash)
{
    size_t i = (size_t)hash & slots->mask;
    while (atomic_load_explicit(&slots->slot[i].node, memory_order_relaxed) != NULL) {
        i = (i + 1) & slots->mask;
    }
    return &slots->slot[i];
}

static void slot_fill(struct path_slot *slot, uint64_t hash, size_t length, const struct site_node *node)
{
    slot->tag = (uint32_t)(hash >> 32);
    slot->length = (uint32_t)length;
    atomic_store_explicit(&slot->node, node, memory_order_release);
}

/* At most two thirds full, tombstones included, so that probes stay short and end. */
static size_t slots_needed(size_t keys)
{
    size_t size = 16;
    while (keys * 3 > size * 2) {
        size *= 2;
    }
    return size;
}

static bool rebuild(struct path_table *table, size_t keys)
{
    struct path_slots *old = slots_of(table);
    size_t size = slots_needed(keys);
    struct path_slots *fresh = calloc(1, sizeof *fresh + size * sizeof fresh->slot[0]);
    if (fresh == NULL) {
        return false;
    }
    fresh->mask = size - 1;
    for (size_t i = 0; old != NULL && i <= old->mask; i++) {
        const struct site_node *node = atomic_load_explicit(&old->slot[i].node, memory_order_relaxed);
        if (node == NULL || node == &removed) {
            continue;
        }
        struct str key = str_first(node->url, old->slot[i].length);
        uint64_t hash = str_hash(key);
        slot_fill(slot_free(fresh, hash), hash, key.len, node);
        fresh->live++;
    }
    fresh->used = fresh->live;
    atomic_store_explicit(&table->slots, fresh, memory_order_release);
    if (old != NULL) {
        epoch_retire(free, old);
    }
    return true;
}

bool path_table_set(struct path_table *table, size_t length, const struct site_node *node)
{
    struct str key = str_first(node->url, length);
    uint64_t hash = str_hash(key);
    struct path_slots *slots = slots_of(table);
    struct path_slot *end = NULL;
    if (slots != NULL) {
        struct path_slot *slot = slot_find(slots, key, hash, &end);
        if (slot != NULL) {
            atomic_store_explicit(&slot->node, node, memory_order_release);
            return true;
        }
    }
    if (slots == NULL || (slots->used + 1) * 3 > (slots->mask + 1) * 2) {
        size_t live = slots != NULL ? slots->live : 0;
        /* Half as much again: a table full of tombstones is rebuilt at its size, not doubled. */
        if (!rebuild(table, live + live / 2 + 8)) {
            return false;
        }
        slots = slots_of(table);
        end = slot_free(slots, hash);
    }
    slots->used++;
    slots->live++;
    slot_fill(end, hash, length, node);
    return true;
}

void path_table_remove(struct path_table *table, struct str path)
{
    struct path_slots *slots = slots_of(table);
    struct path_slot *end = NULL;
    struct path_slot *slot = slots != NULL ? slot_find(slots, path, str_hash(path), &end) : NULL;
    if (slot != NULL) {
        atomic_store_explicit(&slot->node, &removed, memory_order_release);
        slots->live--;
    }
}

bool path_table_reserve(struct path_table *table, size_t keys)
{
    const struct path_slots *slots = slots_of(table);
    return (slots != NULL && slots_needed(keys) <= slots->mask + 1) || rebuild(table, keys);
}

void path_table_free(struct path_table *table)
{
    free(slots_of(table));
    atomic_store_explicit(&table->slots, NULL, memory_order_relaxed);
}
