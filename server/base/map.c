#include "base/map.h"

#include <stdlib.h>

static size_t slot_of(const struct map *map, uint64_t hash, struct str key)
{
    size_t i = (size_t)hash & (map->cap - 1);
    for (;;) {
        const struct map_slot *slot = &map->slots[i];
        if (slot->key == NULL) {
            return i;
        }
        if (slot->hash == hash && str_eq((struct str){slot->key, slot->key_len}, key)) {
            return i;
        }
        i = (i + 1) & (map->cap - 1);
    }
}

void *map_get(const struct map *map, struct str key)
{
    if (map->count == 0) {
        return NULL;
    }
    const struct map_slot *slot = &map->slots[slot_of(map, str_hash(key), key)];
    return slot->key != NULL ? slot->value : NULL;
}

static bool grow(struct map *map)
{
    struct map bigger = {.cap = map->cap == 0 ? 16 : map->cap * 2, .count = map->count};
    bigger.slots = calloc(bigger.cap, sizeof *bigger.slots);
    if (bigger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->cap; i++) {
        const struct map_slot *slot = &map->slots[i];
        if (slot->key != NULL) {
            struct str key = {slot->key, slot->key_len};
            bigger.slots[slot_of(&bigger, slot->hash, key)] = *slot;
        }
    }
    free(map->slots);
    *map = bigger;
    return true;
}

bool map_put(struct map *map, struct str key, void *value, void **old)
{
    if (old != NULL) {
        *old = NULL;
    }
    if ((map->count + 1) * 4 > map->cap * 3 && !grow(map)) {
        return false;
    }
    uint64_t hash = str_hash(key);
    struct map_slot *slot = &map->slots[slot_of(map, hash, key)];
    if (slot->key != NULL) {
        if (old != NULL) {
            *old = slot->value;
        }
        slot->value = value;
        return true;
    }
    char *copy = malloc(key.len + 1);
    if (copy == NULL) {
        return false;
    }
    if (key.len > 0) {
        memcpy(copy, key.ptr, key.len);
    }
    copy[key.len] = '\0';
    *slot = (struct map_slot){copy, key.len, hash, value};
    map->count++;
    return true;
}

void *map_remove(struct map *map, struct str key)
{
    if (map->count == 0) {
        return NULL;
    }
    size_t i = slot_of(map, str_hash(key), key);
    if (map->slots[i].key == NULL) {
        return NULL;
    }
    void *value = map->slots[i].value;
    free(map->slots[i].key);
    map->slots[i].key = NULL;
    map->count--;
    /* Move up what probed past the hole, so that no tombstones are needed. */
    size_t hole = i;
    for (size_t j = (i + 1) & (map->cap - 1); map->slots[j].key != NULL; j = (j + 1) & (map->cap - 1)) {
        size_t home = (size_t)map->slots[j].hash & (map->cap - 1);
        if (((j - home) & (map->cap - 1)) >= ((j - hole) & (map->cap - 1))) {
            map->slots[hole] = map->slots[j];
            map->slots[j].key = NULL;
            hole = j;
        }
    }
    return value;
}

void map_free(struct map *map)
{
    for (size_t i = 0; i < map->cap; i++) {
        free(map->slots[i].key);
    }
    free(map->slots);
    *map = (struct map){0};
}

bool map_next(const struct map *map, size_t *cursor, struct str *key, void **value)
{
    while (*cursor < map->cap) {
        const struct map_slot *slot = &map->slots[(*cursor)++];
        if (slot->key != NULL) {
            *key = (struct str){slot->key, slot->key_len};
            *value = slot->value;
            return true;
        }
    }
    return false;
}
