#include "loop/coroutine.h"

#include "base/check.h"
#include "base/sanitize.h"
#include "loop/coroutine_switch.h"
#include "loop/loop.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(KILN_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(KILN_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102 /* Linux 6.13: a guard that costs no mapping of its own */
#endif

enum { COROUTINE_MAGIC = 0x434f524f, GUARD = 65536, POOL_KEEP = 64 };

/* Stands at the top of its own stack, so that starting one allocates nothing else. */
struct coroutine {
    uint32_t magic;
    bool finished;
    void *sp;
    void *resumer_sp;
    struct coroutine *resumer; /* the coroutine that resumed this one, NULL: the loop */
    struct loop *loop;
    void (*fn)(void *);
    void *arg;
    char *map; /* the mapping: guard, then stack */
    size_t map_size;
    struct coroutine *next_free;
#if defined(KILN_ASAN)
    void *fake_stack;
    void *resumer_fake_stack;
    const void *resumer_bottom;
    size_t resumer_size;
#endif
#if defined(KILN_TSAN)
    void *fiber;
    void *resumer_fiber;
#endif
};

struct stack_pool {
    struct coroutine *free;
    unsigned count;
};

static _Thread_local struct coroutine *running;
static _Atomic size_t stack_size = 262144;

void coroutine_stack_size_set(size_t bytes)
{
    stack_size = (bytes + 4095) & ~(size_t)4095;
}

struct coroutine *coroutine_self(void)
{
    return running;
}

static struct stack_pool *pool_of(struct loop *loop)
{
    struct stack_pool *pool = loop_slot(loop, LOOP_SLOT_COROUTINES);
    if (pool == NULL) {
        pool = calloc(1, sizeof *pool);
        CHECK(pool != NULL);
        loop_slot_set(loop, LOOP_SLOT_COROUTINES, pool);
    }
    return pool;
}

static struct coroutine *stack_map(void)
{
    size_t size = GUARD + stack_size;
    char *map =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    if (madvise(map, GUARD, MADV_GUARD_INSTALL) != 0 && mprotect(map, GUARD, PROT_NONE) != 0) {
        munmap(map, size);
        return NULL;
    }
    struct coroutine *co = (struct coroutine *)(void *)(map + size - ((sizeof *co + 63) & ~(size_t)63));
    *co = (struct coroutine){.magic = COROUTINE_MAGIC, .map = map, .map_size = size};
    return co;
}

static void stack_unmap(struct coroutine *co)
{
    co->magic = 0;
#if defined(KILN_ASAN)
    /* What ran on it left marks in the shadow, and another mapping may come to lie here. */
    __asan_unpoison_memory_region(co->map, co->map_size);
#endif
    munmap(co->map, co->map_size);
}

void coroutine_stack_bounds(const struct coroutine *co, void **low, void **high)
{
    *low = co->map + GUARD;
    *high = (void *)(uintptr_t)co;
}

static void switch_out(struct coroutine *co)
{
#if defined(KILN_ASAN)
    __sanitizer_start_switch_fiber(co->finished ? NULL : &co->fake_stack, co->resumer_bottom, co->resumer_size);
#endif
#if defined(KILN_TSAN)
    __tsan_switch_to_fiber(co->resumer_fiber, 0);
#endif
    coroutine_switch(&co->sp, co->resumer_sp);
#if defined(KILN_ASAN)
    __sanitizer_finish_switch_fiber(co->fake_stack, &co->resumer_bottom, &co->resumer_size);
#endif
}

static void *coroutine_main(void *arg)
{
    struct coroutine *co = arg;
#if defined(KILN_ASAN)
    __sanitizer_finish_switch_fiber(NULL, &co->resumer_bottom, &co->resumer_size);
#endif
    co->fn(co->arg);
    co->finished = true;
#if defined(KILN_ASAN) || defined(KILN_TSAN)
    switch_out(co); /* they are told of it, and may see no return on the other stack */
#endif
    return co->resumer_sp;
}

static void switch_in(struct coroutine *co, bool first)
{
    co->resumer = running;
    running = co;
#if defined(KILN_ASAN)
    __sanitizer_start_switch_fiber(&co->resumer_fake_stack, co->map + GUARD, (size_t)((char *)co - co->map) - GUARD);
#endif
#if defined(KILN_TSAN)
    co->resumer_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(co->fiber, 0);
#endif
    if (first) {
        coroutine_enter(&co->resumer_sp, co, coroutine_main, co);
    } else {
        coroutine_switch(&co->resumer_sp, co->sp);
    }
#if defined(KILN_ASAN)
    __sanitizer_finish_switch_fiber(co->resumer_fake_stack, NULL, NULL);
#endif
    running = co->resumer;
}

static void recycle(struct coroutine *co)
{
    struct stack_pool *pool = pool_of(co->loop);
#if defined(KILN_TSAN)
    __tsan_destroy_fiber(co->fiber);
#endif
    if (pool->count >= POOL_KEEP || co->map_size != GUARD + stack_size) {
        stack_unmap(co);
        return;
    }
    co->next_free = pool->free;
    pool->free = co;
    pool->count++;
}

/* A pooled stack of the size that is wanted now, or a new one. */
static struct coroutine *stack_take(struct stack_pool *pool)
{
    while (pool->free != NULL) {
        struct coroutine *co = pool->free;
        pool->free = co->next_free;
        pool->count--;
        if (co->map_size == GUARD + stack_size) {
            return co;
        }
        stack_unmap(co);
    }
    return stack_map();
}

bool coroutine_start(struct loop *loop, void (*fn)(void *), void *arg)
{
    struct coroutine *co = stack_take(pool_of(loop));
    if (co == NULL) {
        return false;
    }
    co->loop = loop;
    co->fn = fn;
    co->arg = arg;
    co->finished = false;
#if defined(KILN_TSAN)
    co->fiber = __tsan_create_fiber(0);
#endif
    switch_in(co, true);
    if (co->finished) {
        recycle(co);
    }
    return true;
}

void coroutine_suspend(void)
{
    struct coroutine *co = running;
    CHECK(co != NULL);
    switch_out(co);
}

void coroutine_resume(struct coroutine *co)
{
    CHECK(co->magic == COROUTINE_MAGIC && !co->finished && co->loop == loop_self());
    switch_in(co, false);
    if (co->finished) {
        recycle(co);
    }
}

void coroutine_pool_trim(struct loop *loop, unsigned keep)
{
    struct stack_pool *pool = pool_of(loop);
    while (pool->count > keep) {
        struct coroutine *co = pool->free;
        pool->free = co->next_free;
        pool->count--;
        stack_unmap(co);
    }
    if (keep == 0) {
        free(pool);
        loop_slot_set(loop, LOOP_SLOT_COROUTINES, NULL);
    }
}
