/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/format.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static long plain(char *to, size_t room, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    long length = format_plain(to, room, format, args);
    va_end(args);
    return length;
}

/* The same text as the C library's. */
#define SAME(...) \
    do { \
        char ours[256]; \
        char theirs[256]; \
        long length = plain(ours, sizeof ours, __VA_ARGS__); \
        int wanted = snprintf(theirs, sizeof theirs, __VA_ARGS__); \
        assert_int_equal(length, wanted); \
        assert_memory_equal(ours, theirs, (size_t)wanted); \
    } while (0)

#define LEFT_TO_LIBC(...) \
    do { \
        char ours[256]; \
        assert_int_equal(plain(ours, sizeof ours, __VA_ARGS__), -1); \
    } while (0)

static void test_plain_formats_are_as_the_c_library_has_them(void **state)
{
    (void)state;
    SAME("nothing");
    SAME("%s", "");
    SAME("a%sb%sc", "text", "");
    SAME("%d %i %d %d", 0, -1, INT_MAX, INT_MIN);
    SAME("%u %u", 0u, UINT_MAX);
    SAME("%ld %li %ld", 0L, LONG_MAX, LONG_MIN);
    SAME("%lu", ULONG_MAX);
    SAME("%lld %lld %lld", 5LL, LLONG_MAX, LLONG_MIN);
    SAME("%llu", ULLONG_MAX);
    SAME("%zu", SIZE_MAX);
    SAME("%c%c", 'x', '%');
    SAME("100%% of %s", "it");
    SAME("%d%s%u%c", -7, "z", 7u, 'q');
}

static void test_everything_else_is_left_to_the_c_library(void **state)
{
    (void)state;
    LEFT_TO_LIBC("%5d", 1);
    LEFT_TO_LIBC("%-5s", "x");
    LEFT_TO_LIBC("%.2s", "xyz");
    LEFT_TO_LIBC("%x", 255u);
    LEFT_TO_LIBC("%f", 1.5);
    LEFT_TO_LIBC("%p", (void *)0);
    LEFT_TO_LIBC("%zd", (ptrdiff_t)1);
    LEFT_TO_LIBC("%hd", 1);
    LEFT_TO_LIBC("%ls", L"x");
    LEFT_TO_LIBC("%s", (char *)NULL);
}

static void test_what_does_not_fit_is_left_too(void **state)
{
    (void)state;
    char small[8];
    assert_int_equal(plain(small, sizeof small, "12345678"), 8);
    assert_int_equal(plain(small, sizeof small, "123456789"), -1);
    assert_int_equal(plain(small, sizeof small, "%s", "123456789"), -1);
    assert_int_equal(plain(small, sizeof small, "%d", 1), -1); /* room for any number is asked for */
    assert_int_equal(plain(small, 0, "%c", 'x'), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_formats_are_as_the_c_library_has_them),
        cmocka_unit_test(test_everything_else_is_left_to_the_c_library),
        cmocka_unit_test(test_what_does_not_fit_is_left_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
