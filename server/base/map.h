/* Hash map from bytes to pointer: open addressing, exact comparison of the keys, never
 * only of hashes. Not thread-safe. Keys are copied. */
#ifndef KILN_BASE_MAP_H
#define KILN_BASE_MAP_H

#include "base/str.h"

struct map_slot {
    char *key; /* NULL: empty; owned by the map */
    size_t key_len;
    uint64_t hash;
    void *value;
};

struct map {
    struct map_slot *slots; /* cap of them, cap a power of two */
    size_t cap;
    size_t count;
};

/* NULL when absent. */
void *map_get(const struct map *map, struct str key);
/* Replaces an existing value; *old (may be NULL) receives it. False when out of memory. */
bool map_put(struct map *map, struct str key, void *value, void **old);
/* Removes the key; returns its value or NULL. */
void *map_remove(struct map *map, struct str key);
/* Frees keys and slots; values stay the caller's. */
void map_free(struct map *map);

/* for (size_t i = 0; map_next(&map, &i, &key, &value);) — in no order; no change inside. */
bool map_next(const struct map *map, size_t *cursor, struct str *key, void **value);

#endif
