#include "endpoint/heap_lock.h"

#include "base/sanitize.h"

#include <dlfcn.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__GLIBC__) && !defined(KILN_ASAN) && !defined(KILN_TSAN)

/* malloc/malloc.c and arena.c since 2.26, on machines of 64 bits */
enum {
    REGION = 64 << 20, /* HEAP_MAX_SIZE */
    OTHER_HEAP = 4, /* NON_MAIN_ARENA in a block's size */
    STATE_WITHIN = 256, /* the state lies behind the first region's few words */
    LISTED_SIZE = 3000, /* too large for lists that have no lock */
    TOP_IN_STATE = 96, /* where a free block alone on its list points to: what is left of the heap */
    LOCKED_MOST = 2,
};

/* What malloc writes before a block: its size, and marks in the lowest bits. */
static size_t size_word(const volatile size_t *block)
{
    return *(const size_t *)((uintptr_t)block - sizeof(size_t));
}

int *heap_lock_find(void)
{
    size_t *volatile block = malloc(64);
    if (block == NULL) {
        return NULL;
    }
    int *lock = NULL;
    uintptr_t region = (uintptr_t)block & ~((uintptr_t)REGION - 1);
    if ((size_word(block) & OTHER_HEAP) != 0) {
        uintptr_t state = *(const uintptr_t *)region;
        uintptr_t offset = state & (REGION - 1);
        bool known = state - offset == region && offset >= sizeof(void *) && offset <= STATE_WITHIN && state % 16 == 0;
        lock = known && *(const volatile int *)state <= LOCKED_MOST ? (int *)state : NULL;
    }
    free(block);
    return lock;
}

/* In the data of the library that malloc is of, with the heap's end behind the block. */
static int *lock_of_state(uintptr_t top_at, uintptr_t block)
{
    Dl_info data;
    Dl_info code;
    if (dladdr((const void *)top_at, &data) == 0 || dladdr((const void *)(uintptr_t)malloc, &code) == 0 ||
        data.dli_fbase != code.dli_fbase) {
        return NULL;
    }
    uintptr_t top = *(const uintptr_t *)top_at;
    int *lock = (int *)(top_at - TOP_IN_STATE);
    return top > block && top < (uintptr_t)sbrk(0) && *(const volatile int *)lock <= LOCKED_MOST ? lock : NULL;
}

int *heap_lock_find_first(void)
{
    size_t *volatile block = malloc(LISTED_SIZE);
    void *volatile wall = malloc(LISTED_SIZE); /* so that the block does not become a part of what is left */
    int *lock = NULL;
    if (block != NULL && wall != NULL && (size_word(block) & OTHER_HEAP) == 0) {
        memset(block, 0, LISTED_SIZE);
        free(block);
        volatile uintptr_t *list = (volatile uintptr_t *)(uintptr_t)block;
        uintptr_t listed = list[0]; /* NOLINT(clang-analyzer-unix.Malloc): on purpose */
        lock = listed != 0 && listed == list[1] ? lock_of_state(listed, (uintptr_t)block) : NULL;
    } else {
        free(block);
    }
    free(wall);
    return lock;
}

#else

int *heap_lock_find(void)
{
    return NULL;
}

int *heap_lock_find_first(void)
{
    return NULL;
}

#endif

void heap_lock_open(int *lock)
{
    if (lock != NULL && __atomic_exchange_n(lock, 0, __ATOMIC_ACQ_REL) != 0) {
        syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

void heap_lock_unstick(int *lock)
{
    enum { LOOKS = 300, BETWEEN_US = 10000 };
    for (int i = 0; lock != NULL && i < LOOKS; i++) {
        if (__atomic_load_n(lock, __ATOMIC_ACQUIRE) == 0) {
            return;
        }
        usleep(BETWEEN_US);
    }
    heap_lock_open(lock);
}
