/* DESIGN: memory of nghttp2's sessions. A stream costs it a dozen small objects, which come and go in batches, as many
 * at once as streams run: more than malloc keeps at hand for a thread, so that most of them take its long way. Here
 * each thread keeps those that were given back, by size, and the next stream gets them without a look at anything
 * else.
 *
 * - What is kept are blocks of malloc as they are, with nothing of ours in front: how large one is, malloc knows. So
 *   memory that outgrows its block goes to realloc() like any other.
 * - A block was asked for in the full size of its class, so that whoever gets it next may use all of it.
 * - The buffer for frames, which each session has, comes from http2_pages.c.
 * - Bounded by KEPT_MAX bytes a thread. When the thread's last session ends, all of it goes back to malloc.
 * - Under sanitizers nothing is kept: they are to see every use of what was freed. */
#include "base/sanitize.h"
#include "protocol/http2_private.h"

#include <malloc.h>
#include <stdlib.h>

#if !defined(KILN_ASAN) && !defined(KILN_TSAN)

/* What malloc has on 64 bits: 24, 40, 56 ... bytes. Where it has others, blocks count as the next smaller class. */
enum { SMALLEST = 24, STEP = 16, CLASSES = 32, KEPT_MAX = 65536, LARGE = 16384 };

struct kept {
    struct kept *next;
};

static _Thread_local struct {
    struct kept *lists[CLASSES];
    size_t bytes;
    unsigned sessions;
} memory;

static inline size_t class_size(size_t class)
{
    return SMALLEST + class * STEP;
}

/* CLASSES or more: too large to be kept. */
static inline size_t class_of(size_t size)
{
    return size > SMALLEST ? (size - SMALLEST + STEP - 1) / STEP : 0;
}

static void *take_large(size_t size)
{
    void *block = size >= LARGE && size <= HTTP2_PAGES_SIZE ? http2_pages_take() : NULL;
    return block != NULL ? block : malloc(size);
}

static void *take(size_t size, void *user_data)
{
    (void)user_data;
    size_t class = class_of(size);
    if (UNLIKELY(class >= CLASSES)) {
        return take_large(size);
    }
    struct kept *block = memory.lists[class];
    if (LIKELY(block != NULL)) {
        memory.lists[class] = block->next;
        memory.bytes -= class_size(class);
        return block;
    }
    return malloc(class_size(class));
}

static void give_back(void *block, void *user_data)
{
    (void)user_data;
    if (block == NULL) {
        return;
    }
    if (UNLIKELY(http2_pages_are(block))) {
        http2_pages_give_back(block);
        return;
    }
    size_t size = malloc_usable_size(block);
    size_t class = (size - SMALLEST) / STEP; /* huge where size is less than the smallest */
    if (UNLIKELY(class >= CLASSES || memory.bytes + class_size(class) > KEPT_MAX || memory.sessions == 0)) {
        free(block);
        return;
    }
    struct kept *kept = block;
    kept->next = memory.lists[class];
    memory.lists[class] = kept;
    memory.bytes += class_size(class);
}

static void *take_zeros(size_t count, size_t size, void *user_data)
{
    size_t all;
    if (__builtin_mul_overflow(count, size, &all)) {
        return NULL;
    }
    if (all > class_size(CLASSES - 1)) {
        return calloc(count, size);
    }
    void *block = take(all, user_data);
    if (block != NULL) {
        memset(block, 0, all);
    }
    return block;
}

static void *take_more(void *block, size_t size, void *user_data)
{
    if (block == NULL) {
        return take(size, user_data);
    }
    if (http2_pages_are(block)) {
        void *larger = malloc(size);
        if (larger != NULL) {
            memcpy(larger, block, size < HTTP2_PAGES_SIZE ? size : HTTP2_PAGES_SIZE);
            http2_pages_give_back(block);
        }
        return larger;
    }
    size_t class = class_of(size);
    return realloc(block, class < CLASSES ? class_size(class) : size);
}

nghttp2_mem *http2_memory_enter(void)
{
    static nghttp2_mem functions = {NULL, take, give_back, take_zeros, take_more};
    memory.sessions++;
    return &functions;
}

void http2_memory_leave(void)
{
    CHECK(memory.sessions > 0);
    if (--memory.sessions > 0) {
        return;
    }
    for (size_t i = 0; i < CLASSES; i++) {
        while (memory.lists[i] != NULL) {
            struct kept *block = memory.lists[i];
            memory.lists[i] = block->next;
            free(block);
        }
    }
    memory.bytes = 0;
    http2_pages_leave();
}

size_t http2_memory_kept(void)
{
    return memory.bytes;
}

#else

nghttp2_mem *http2_memory_enter(void)
{
    return NULL; /* malloc's */
}

void http2_memory_leave(void)
{
}

size_t http2_memory_kept(void)
{
    return 0;
}

#endif
