#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/sanitize.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#if defined(KILN_ASAN)
#include <sanitizer/asan_interface.h>
#endif

static void test_allocations_are_aligned_and_apart(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 0);
    char *blocks[2000];
    size_t sizes[2000];
    srand(1);
    for (unsigned i = 0; i < 2000; i++) {
        sizes[i] = (size_t)rand() % (i % 50 == 0 ? 20000 : 200);
        blocks[i] = arena_alloc(&arena, sizes[i]);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        memset(blocks[i], (int)(i & 0xff), sizes[i]);
    }
    for (unsigned i = 0; i < 2000; i++) {
        for (size_t k = 0; k < sizes[i]; k++) {
            assert_int_equal((unsigned char)blocks[i][k], i & 0xff);
        }
    }
    arena_reset(&arena);
    assert_int_equal(arena.used, 0);
    arena_pool_drain();
}

static void test_zero_bytes_have_an_address(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 0);
    assert_non_null(arena_alloc(&arena, 0));
    assert_non_null(arena_zalloc(&arena, 0));
    assert_string_equal(arena_strndup(&arena, NULL, 0), "");
    assert_non_null(arena_str(&arena, STR_NONE).ptr);
    arena_reset(&arena);
}

static void test_limit(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 100000);
    size_t got = 0;
    while (arena_alloc(&arena, 1000) != NULL) {
        got += 1000;
        assert_true(got <= 100000);
    }
    assert_true(got > 20000);
    assert_true(arena.used <= 100000);
    arena_reset(&arena);
    assert_null(arena_alloc(&arena, 100001));
    assert_non_null(arena_alloc(&arena, 50000));
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_null(arena_alloc(&arena, SIZE_MAX - 8));
    assert_null(arena_alloc(&arena, SIZE_MAX / 2));
    assert_null(arena_strndup(&arena, "x", SIZE_MAX - 1));
    arena_reset(&arena);
    arena_init(&arena, 100);
    assert_null(arena_alloc(&arena, 1));
    assert_null(arena_zalloc(&arena, 1));
    assert_null(arena_str(&arena, STR("x")).ptr);
    assert_false(arena_defer(&arena, free, NULL));
    arena_reset(&arena);
}

static struct arena *deferring;
static char order[16];

static void note(void *arg)
{
    strncat(order, arg, 1);
}

static void note_and_defer(void *arg)
{
    note(arg);
    assert_true(arena_defer(deferring, note, "z"));
}

static void test_deferred_run_newest_first(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 0);
    deferring = &arena;
    order[0] = '\0';
    arena_defer(&arena, note, "a");
    arena_defer(&arena, note_and_defer, "b");
    arena_defer(&arena, note, "c");
    arena_reset(&arena);
    assert_string_equal(order, "cbza");
    arena_reset(&arena);
    assert_string_equal(order, "cbza");
}

static void test_text(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 0);
    assert_string_equal(arena_strndup(&arena, "abcdef", 3), "abc");
    assert_string_equal(arena_printf(&arena, "%d-%s", 42, "x"), "42-x");
    char *zero = arena_zalloc(&arena, 5000);
    for (unsigned i = 0; i < 5000; i++) {
        assert_int_equal(zero[i], 0);
    }
    arena_reset(&arena);
}

static void test_blocks_are_used_again(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 0);
    arena_pool_open();
    void *first = arena_alloc(&arena, 100);
    arena_reset(&arena);
    assert_ptr_equal(arena_alloc(&arena, 100), first);
    arena_reset(&arena);
    arena_pool_drain();
}

static void *use_and_end(void *arg)
{
    struct arena *arena = arg;
    assert_non_null(arena_alloc(arena, 100));
    arena_reset(arena);
    return NULL;
}

/* Nothing would free what it kept: under AddressSanitizer a leak. */
static void test_a_thread_without_a_pool_keeps_nothing(void **state)
{
    (void)state;
    struct arena arena;
    pthread_t thread;
    size_t before = mallinfo2().uordblks;
    arena_init(&arena, 0);
    void *block = arena_alloc(&arena, 100);
    assert_non_null(block);
    arena_reset(&arena);
    assert_int_equal(mallinfo2().uordblks, before);
    arena_init(&arena, 0);
    assert_int_equal(pthread_create(&thread, NULL, use_and_end, &arena), 0);
    pthread_join(thread, NULL);
}

#if defined(KILN_ASAN)
static void test_what_is_not_allocated_is_poisoned(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 0);
    char *a = arena_alloc(&arena, 20);
    char *b = arena_alloc(&arena, 20);
    assert_false(__asan_address_is_poisoned(a + 19));
    assert_true(__asan_address_is_poisoned(a + 32));
    assert_true(__asan_address_is_poisoned(b + 32));
    arena_pool_open();
    arena_reset(&arena);
    assert_true(__asan_address_is_poisoned(a));
    arena_pool_drain();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations_are_aligned_and_apart),
        cmocka_unit_test(test_zero_bytes_have_an_address),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_deferred_run_newest_first),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_blocks_are_used_again),
        cmocka_unit_test(test_a_thread_without_a_pool_keeps_nothing),
#if defined(KILN_ASAN)
        cmocka_unit_test(test_what_is_not_allocated_is_poisoned),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
