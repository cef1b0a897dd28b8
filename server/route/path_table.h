/* DESIGN: one site's hash table from URL path to node. Readers take no lock: they load the
 * slot array, walk it, and compare hash, length and then the bytes. One writer at a time.
 * A slot's key never changes once set; a removed key leaves a tombstone until the array
 * is rebuilt, and the old array is retired through the epoch. So a reader sees each key
 * either as it was or as it is, never another's node.
 *
 * The key of a slot is the first `length` bytes of its node's URL. For the node itself that
 * is all of it; an endpoint "/hello.so" also stands under its first six bytes, "/hello".
 * No key is stored twice. */
#ifndef KILN_ROUTE_PATH_TABLE_H
#define KILN_ROUTE_PATH_TABLE_H

#include "base/str.h"

#include <stdatomic.h>
#include <stdbool.h>

struct site_node;
struct path_slots;

struct path_table {
    _Atomic(struct path_slots *) slots; /* NULL while empty */
};

/* Any reader of the epoch. A node whose URL is longer than `path` is there by its short name. */
const struct site_node *path_table_find(const struct path_table *table, struct str path);

/* The writer: puts `node` under the first `length` bytes of its URL, in the place of whatever
 * was there. False when out of memory; the table is as before. */
bool path_table_set(struct path_table *table, size_t length, const struct site_node *node);
void path_table_remove(struct path_table *table, struct str path);
/* Room for this many keys, so that a scan does not grow it step by step. */
bool path_table_reserve(struct path_table *table, size_t keys);
/* Nobody reads it any more. */
void path_table_free(struct path_table *table);

#endif
