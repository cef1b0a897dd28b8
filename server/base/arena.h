/* DESIGN: a bump allocator for everything that lives as long as one request.
 * Nothing is freed singly; arena_reset() runs the deferred clean-ups, newest first,
 * and gives the blocks back to a pool of the thread. The first block holds the
 * caller's own struct, so that a request costs no malloc at all when the pool is warm.
 * An arena belongs to one thread at a time; it may be reset on another than it
 * was filled on. Past `limit` bytes allocations return NULL. Freed memory is poisoned
 * under AddressSanitizer. */
#ifndef KILN_BASE_ARENA_H
#define KILN_BASE_ARENA_H

#include "base/sanitize.h"
#include "base/str.h"

#include <stdarg.h>
#include <stddef.h>

enum { ARENA_BLOCK = 4096 };

struct arena_block;
struct arena_deferred;

struct arena {
    char *next; /* first free byte of the current block */
    char *end;
    struct arena_block *blocks; /* newest first */
    struct arena_deferred *deferred;
    size_t used; /* bytes taken from the system or the pool, all blocks */
    size_t limit;
    bool limited; /* an allocation was refused because of it */
};

/* limit 0: no limit. No memory is taken before the first allocation. */
void arena_init(struct arena *arena, size_t limit);

/* 16-byte aligned, contents undefined; NULL when the limit or the memory is reached, never
 * otherwise: zero bytes have an address too. */
void *arena_alloc_slow(struct arena *arena, size_t size);

static inline void *arena_alloc(struct arena *arena, size_t size)
{
#if !defined(KILN_ASAN)
    size_t rounded = (size + 15) & ~(size_t)15;
    /* Minus one: zero, be it asked for or an overflow, takes the slow way. */
    if (rounded - 1 < (size_t)(arena->end - arena->next)) {
        void *p = arena->next;
        arena->next += rounded;
        return p;
    }
#endif
    return arena_alloc_slow(arena, size);
}

void *arena_zalloc(struct arena *arena, size_t size);
/* NUL-terminated copy; NULL when out of memory. */
char *arena_strndup(struct arena *arena, const char *text, size_t len);
/* Copy as str (also NUL-terminated); ptr is NULL when out of memory. */
struct str arena_str(struct arena *arena, struct str text);
char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(struct arena *arena, const char *format, va_list args);

/* Runs fn(arg) at reset, newest first. False when out of memory (fn is not registered). */
bool arena_defer(struct arena *arena, void (*fn)(void *), void *arg);

/* Runs the deferred functions and frees every block; the arena is as after arena_init.
 * If the struct arena itself lies in its first block, copy it out before. */
void arena_reset(struct arena *arena);

/* From now on the calling thread keeps blocks for its next arenas, which it must drain before it ends: for threads
 * that make and reset arenas all the time. */
void arena_pool_open(void);
void arena_pool_drain(void);

#endif
