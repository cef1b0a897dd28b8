#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(KILN_ASAN)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) __asan_poison_memory_region((p), (n))
#define UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

struct arena_block {
    struct arena_block *older;
    size_t size; /* of the whole block, this header included */
};

struct arena_deferred {
    struct arena_deferred *older;
    void (*fn)(void *);
    void *arg;
};

/* Blocks of exactly ARENA_BLOCK bytes wait here for the thread's next request: of a thread that has opened its pool,
 * and so will drain it. */
enum { POOL_MAX = 256 };
static _Thread_local struct arena_block *pool;
static _Thread_local unsigned pool_count;
static _Thread_local unsigned pool_max;

void arena_init(struct arena *arena, size_t limit)
{
    *arena = (struct arena){.limit = limit};
}

static struct arena_block *take_block(size_t size)
{
    if (size == ARENA_BLOCK && pool != NULL) {
        struct arena_block *block = pool;
        UNPOISON(block, ARENA_BLOCK);
        pool = block->older;
        pool_count--;
        return block;
    }
    struct arena_block *block = malloc(size);
    if (block != NULL) {
        block->size = size;
    }
    return block;
}

void *arena_alloc_slow(struct arena *arena, size_t size)
{
    size = size > 0 ? size : 1;
    size_t rounded = (size + 15) & ~(size_t)15;
    if (rounded < size || rounded > SIZE_MAX / 4) {
        return NULL;
    }
#if defined(KILN_ASAN)
    rounded += 16; /* a poisoned gap behind each object */
#endif
    if (rounded <= (size_t)(arena->end - arena->next)) {
        void *p = arena->next;
        arena->next += rounded;
        UNPOISON(p, size);
        return p;
    }
    size_t need = rounded + sizeof(struct arena_block);
    size_t block_size = need <= ARENA_BLOCK ? ARENA_BLOCK : need;
    /* Doubling keeps the number of blocks small for a body that grows. */
    if (block_size == ARENA_BLOCK && arena->used >= (size_t)16 * ARENA_BLOCK) {
        block_size = (size_t)16 * ARENA_BLOCK;
    }
    if (arena->limit != 0 && (block_size > arena->limit || arena->used > arena->limit - block_size)) {
        arena->limited = true;
        return NULL;
    }
    struct arena_block *block = take_block(block_size);
    if (block == NULL) {
        return NULL;
    }
    block->older = arena->blocks;
    block->size = block_size;
    arena->blocks = block;
    arena->used += block_size;
    char *start = (char *)(block + 1);
    if (block_size == need && block_size > ARENA_BLOCK && arena->next != NULL) {
        /* A single large object: keep filling the block that was current. */
        UNPOISON(start, size);
        return start;
    }
    arena->next = start + rounded;
    arena->end = (char *)block + block_size;
    POISON(start, block_size - sizeof *block);
    UNPOISON(start, size);
    return start;
}

void *arena_zalloc(struct arena *arena, size_t size)
{
    void *p = arena_alloc(arena, size);
    if (p != NULL) {
        memset(p, 0, size);
    }
    return p;
}

char *arena_strndup(struct arena *arena, const char *text, size_t len)
{
    char *copy = arena_alloc(arena, len + 1);
    if (copy == NULL) {
        return NULL;
    }
    if (len > 0) {
        memcpy(copy, text, len);
    }
    copy[len] = '\0';
    return copy;
}

struct str arena_str(struct arena *arena, struct str text)
{
    char *copy = arena_strndup(arena, text.ptr, text.len);
    return (struct str){copy, copy != NULL ? text.len : 0};
}

char *arena_vprintf(struct arena *arena, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    char *text = length < 0 ? NULL : arena_alloc(arena, (size_t)length + 1);
    if (text != NULL) {
        vsnprintf(text, (size_t)length + 1, format, again);
    }
    va_end(again);
    return text;
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = arena_vprintf(arena, format, args);
    va_end(args);
    return text;
}

bool arena_defer(struct arena *arena, void (*fn)(void *), void *arg)
{
    struct arena_deferred *deferred = arena_alloc(arena, sizeof *deferred);
    if (deferred == NULL) {
        return false;
    }
    *deferred = (struct arena_deferred){arena->deferred, fn, arg};
    arena->deferred = deferred;
    return true;
}

void arena_reset(struct arena *arena)
{
    /* A clean-up may defer another one: take them one at a time. */
    while (arena->deferred != NULL) {
        struct arena_deferred *deferred = arena->deferred;
        arena->deferred = deferred->older;
        deferred->fn(deferred->arg);
    }
    struct arena_block *block = arena->blocks;
    size_t limit = arena->limit;
    *arena = (struct arena){.limit = limit};
    while (block != NULL) {
        struct arena_block *older = block->older;
        if (block->size == ARENA_BLOCK && pool_count < pool_max) {
            block->older = pool;
            pool = block;
            pool_count++;
            POISON(block + 1, ARENA_BLOCK - sizeof *block);
        } else {
            UNPOISON(block, block->size);
            free(block);
        }
        block = older;
    }
}

void arena_pool_open(void)
{
    pool_max = POOL_MAX;
}

void arena_pool_drain(void)
{
    pool_max = 0;
    while (pool != NULL) {
        struct arena_block *block = pool;
        UNPOISON(block, ARENA_BLOCK);
        pool = block->older;
        free(block);
    }
    pool_count = 0;
}
