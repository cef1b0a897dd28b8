/* The blocks in which nghttp2 makes frames: each its own, and no memory in those that nobody writes to. */
#include "base/sanitize.h"
#include "protocol/http2_private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(KILN_ASAN) || defined(KILN_TSAN)
int main(void)
{
    puts("a sanitizer sees to all memory: there are no such blocks");
    return 0;
}
#else

enum { MANY = 1000, PAGE = 4096 };

static char *blocks[MANY];

static void take_all(void)
{
    for (size_t i = 0; i < MANY; i++) {
        blocks[i] = http2_pages_take();
        if (blocks[i] == NULL) {
            skip(); /* larger pages */
        }
        assert_int_equal((uintptr_t)blocks[i] % PAGE, 0);
        assert_true(http2_pages_are(blocks[i]));
        memset(blocks[i], (int)(i % 251), 100);
        blocks[i][HTTP2_PAGES_SIZE - 1] = (char)(i % 241);
    }
}

static bool has_memory(const char *page)
{
    unsigned char there = 0;
    return mincore((void *)(uintptr_t)page, PAGE, &there) == 0 && (there & 1) != 0;
}

static void every_block_is_its_own(void **state)
{
    (void)state;
    take_all();
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal((unsigned char)blocks[i][0], i % 251);
        assert_int_equal((unsigned char)blocks[i][99], i % 251);
        assert_int_equal((unsigned char)blocks[i][HTTP2_PAGES_SIZE - 1], i % 241);
    }
    http2_pages_leave();
}

static void only_what_is_written_to_has_memory(void **state)
{
    (void)state;
    take_all();
    for (size_t i = 0; i < MANY; i++) {
        assert_true(has_memory(blocks[i]));
        assert_false(has_memory(blocks[i] + 2 * PAGE));
    }
    for (size_t i = 0; i < MANY / 2; i++) {
        http2_pages_give_back(blocks[2 * i]);
    }
    size_t warm = 0;
    for (size_t i = 0; i < MANY; i++) {
        warm += i % 2 == 0 && has_memory(blocks[i]);
        assert_true(i % 2 == 0 || (unsigned char)blocks[i][99] == i % 251);
    }
    assert_true(warm > 0 && warm < 20);
    http2_pages_leave();
}

static void what_was_given_back_is_used_again(void **state)
{
    (void)state;
    take_all();
    char *last = blocks[MANY - 1];
    http2_pages_give_back(last);
    assert_ptr_equal(http2_pages_take(), last);
    for (size_t i = 0; i < MANY; i++) {
        http2_pages_give_back(blocks[i]);
    }
    size_t there = 0; /* all but one mapping, and those with warm blocks, have gone */
    for (size_t i = 0; i < MANY; i++) {
        there += http2_pages_are(blocks[i]);
    }
    assert_true(there > 0 && there < MANY);
    take_all();
    http2_pages_leave();
    assert_false(http2_pages_are(blocks[0]));
}

static void others_are_not_taken_for_ours(void **state)
{
    (void)state;
    take_all();
    char *begins_a_page = aligned_alloc(PAGE, PAGE);
    assert_non_null(begins_a_page);
    assert_false(http2_pages_are(begins_a_page));
    assert_false(http2_pages_are(begins_a_page + 16));
    assert_false(http2_pages_are(NULL));
    free(begins_a_page);
    http2_pages_leave();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_its_own),
        cmocka_unit_test(only_what_is_written_to_has_memory),
        cmocka_unit_test(what_was_given_back_is_used_again),
        cmocka_unit_test(others_are_not_taken_for_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
