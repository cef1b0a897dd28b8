/* Assertions about our own bugs, and checked casts for every `void *` that comes
 * back to us. Errors of users, peers or the system are never asserted. */
#ifndef KILN_BASE_CHECK_H
#define KILN_BASE_CHECK_H

#include <stdint.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
/* Of a function that a usual request does not come to: not inlined, so that its variables and their
 * guards are not on the stack of the one that calls it. */
#define COLD __attribute__((cold, noinline))

/* Prints the place and aborts; the supervisor restarts the worker. */
_Noreturn void check_failed(const char *what, const char *file, int line);

#define CHECK(cond) (LIKELY(cond) ? (void)0 : check_failed(#cond, __FILE__, __LINE__))

/* A struct that travels through a void pointer carries `uint32_t magic` as its
 * first member; MAGIC_CAST verifies it. */
#define MAGIC_CAST(type, ptr, expected) \
    (__extension__({ \
        type *magic_cast_p = (ptr); \
        CHECK(magic_cast_p != NULL && magic_cast_p->magic == (uint32_t)(expected)); \
        magic_cast_p; \
    }))

#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
