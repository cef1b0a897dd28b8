/* Intrusive doubly linked list with a sentinel head: O(1) insert and remove, no
 * allocation. The owner of the node owns the memory. */
#ifndef KILN_BASE_LIST_H
#define KILN_BASE_LIST_H

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next;
    struct list *prev;
};

static inline void list_init(struct list *list)
{
    list->next = list;
    list->prev = list;
}

static inline bool list_is_empty(const struct list *list)
{
    return list->next == list;
}

static inline void list_append(struct list *list, struct list *node)
{
    node->prev = list->prev;
    node->next = list;
    list->prev->next = node;
    list->prev = node;
}

static inline void list_prepend(struct list *list, struct list *node)
{
    list_append(list->next, node);
}

/* The node is left pointing at itself, so that removing it twice is harmless. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#define LIST_ENTRY(node, type, member) CONTAINER_OF(node, type, member)

/* Safe against removal of `node` itself in the body. */
#define LIST_EACH(it, head) \
    for (struct list *it = (head)->next, *it##_next = it->next; it != (head); it = it##_next, it##_next = it->next)

#endif
