#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>

static void test_comparison(void **state)
{
    (void)state;
    assert_true(str_eq(STR("abc"), STR("abc")));
    assert_false(str_eq(STR("abc"), STR("abd")));
    assert_false(str_eq(STR("abc"), STR("ab")));
    assert_true(str_eq(STR_NONE, STR("")));
    assert_true(str_eq_nocase(STR("Content-Type"), STR("content-TYPE")));
    assert_false(str_eq_nocase(STR("a[b"), STR("a{b"))); /* letters alone have a case */
    assert_false(str_eq_nocase(STR("\xc4"), STR("\xe4")));
    /* each byte with each other, at each place of words and their ends */
    for (size_t len = 1; len <= 20; len++) {
        char a[20];
        char b[20];
        memset(a, 'x', sizeof a);
        memset(b, 'X', sizeof b);
        for (size_t i = 0; i < len * 65536; i++) {
            size_t at = i / 65536;
            a[at] = (char)(i & 255);
            b[at] = (char)(i >> 8 & 255);
            bool same = ascii_lower(a[at]) == ascii_lower(b[at]);
            if (str_eq_nocase((struct str){a, len}, (struct str){b, len}) != same) {
                fail_msg("%02x and %02x at %zu of %zu", a[at] & 255, b[at] & 255, at, len);
            }
            a[at] = 'x';
            b[at] = 'X';
        }
    }
    assert_true(str_starts(STR("abc"), STR("ab")) && str_starts(STR("a"), STR("")) && str_starts(STR_NONE, STR_NONE));
    assert_false(str_starts(STR("a"), STR("ab")));
    assert_true(str_ends(STR("abc"), STR("bc")) && str_ends(STR_NONE, STR("")));
    assert_false(str_ends(STR("c"), STR("bc")));
    assert_true(str_ends_nocase(STR("x.HTML"), STR(".html")) && str_ends_nocase(STR_NONE, STR("")));
}

static void test_parts(void **state)
{
    (void)state;
    assert_int_equal(str_find(STR("a.b.c"), '.'), 1);
    assert_int_equal(str_find_last(STR("a.b.c"), '.'), 3);
    assert_true(str_find(STR("abc"), '.') == SIZE_MAX && str_find(STR_NONE, '.') == SIZE_MAX);
    assert_true(str_find_last(STR_NONE, '.') == SIZE_MAX);
    assert_true(str_eq(str_from(STR("abc"), 1), STR("bc")));
    assert_true(str_eq(str_from(STR("abc"), 9), STR("")));
    assert_null(str_from(STR_NONE, 0).ptr);
    assert_null(str_from(STR_NONE, 5).ptr);
    assert_true(str_eq(str_first(STR("abc"), 2), STR("ab")));
    assert_true(str_eq(str_first(STR("abc"), 9), STR("abc")));
    assert_true(str_eq(str_trim(STR(" \t a b\t ")), STR("a b")));
    assert_true(str_eq(str_trim(STR(" \t ")), STR("")));
    assert_true(str_eq(str_trim(STR("\r\na\r\n")), STR("\r\na\r\n")));
    assert_int_equal(str_of(NULL).len, 0);
}

static void test_lists(void **state)
{
    (void)state;
    struct str rest = STR("a, b ,,c,");
    struct str element;
    static const char *const expected[] = {"a", "b", "", "c", ""};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        assert_true(str_split_next(&rest, ',', &element));
        assert_true(str_eq(element, str_of(expected[i])));
    }
    assert_false(str_split_next(&rest, ',', &element));
    rest = STR_NONE;
    assert_false(str_split_next(&rest, ',', &element));
    assert_true(str_list_has(STR("gzip , Keep-Alive"), STR("keep-alive")));
    assert_false(str_list_has(STR("keep-alives"), STR("keep-alive")));
    assert_false(str_list_has(STR_NONE, STR("keep-alive")));
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t max;
        bool ok;
        uint64_t value;
    } cases[] = {
        {"0", UINT64_MAX, true, 0},
        {"007", UINT64_MAX, true, 7},
        {"18446744073709551615", UINT64_MAX, true, UINT64_MAX},
        {"18446744073709551616", UINT64_MAX, false, 0},
        {"18446744073709551621", UINT64_MAX, false, 0},
        {"99999999999999999999999", UINT64_MAX, false, 0},
        {"65535", 65535, true, 65535},
        {"65536", 65535, false, 0},
        {"", UINT64_MAX, false, 0},
        {"+5", UINT64_MAX, false, 0},
        {"-5", UINT64_MAX, false, 0},
        {" 5", UINT64_MAX, false, 0},
        {"5 ", UINT64_MAX, false, 0},
        {"5a", UINT64_MAX, false, 0},
        {"0x5", UINT64_MAX, false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t value = 77;
        assert_int_equal(str_to_u64(str_of(cases[i].text), cases[i].max, &value), cases[i].ok);
        assert_true(value == (cases[i].ok ? cases[i].value : 77));
    }
    static const uint64_t numbers[] = {0, 9, 10, 99, 100, 12345678901234567890u, UINT64_MAX};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        char digits[20];
        char expected[24];
        int n = snprintf(expected, sizeof expected, "%llu", (unsigned long long)numbers[i]);
        assert_int_equal(str_put_u64(digits, numbers[i]), n);
        assert_memory_equal(digits, expected, (size_t)n);
    }
    for (int c = 0; c < 256; c++) {
        const char *digits = "0123456789abcdef";
        const char *at = c != 0 && c < 128 ? strchr(digits, ascii_lower((char)c)) : NULL;
        assert_int_equal(hex_digit((char)c), at != NULL ? (int)(at - digits) : -1);
    }
}

/* Against the definition: every sequence of up to three bytes, and four bytes at the borders. */
static void test_utf8(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0x110000; code++) {
        char text[4];
        size_t n = 0;
        if (code < 0x80) {
            text[n++] = (char)code;
        } else if (code < 0x800) {
            text[n++] = (char)(0xc0 | code >> 6);
            text[n++] = (char)(0x80 | (code & 63));
        } else if (code < 0x10000) {
            text[n++] = (char)(0xe0 | code >> 12);
            text[n++] = (char)(0x80 | (code >> 6 & 63));
            text[n++] = (char)(0x80 | (code & 63));
        } else {
            text[n++] = (char)(0xf0 | code >> 18);
            text[n++] = (char)(0x80 | (code >> 12 & 63));
            text[n++] = (char)(0x80 | (code >> 6 & 63));
            text[n++] = (char)(0x80 | (code & 63));
        }
        bool valid = code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
        assert_int_equal(str_utf8_length(text, n), valid ? n : 0);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(str_utf8_length(text, cut), 0);
        }
    }
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x80\x80",
                                      "\xe0\x9f\xbf",
                                      "\xf0\x80\x80\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc3(",
                                      "\xe2\x82("};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(str_utf8_length(bad[i], strlen(bad[i])), 0);
    }
}

static void test_hash_looks_at_every_byte_and_at_no_other(void **state)
{
    (void)state;
    for (size_t len = 0; len < 70; len++) {
        char *text = malloc(len + 1);
        memset(text, 'x', len);
        uint64_t hash = str_hash((struct str){text, len});
        assert_true(hash == str_hash((struct str){text, len}));
        for (size_t i = 0; i < len; i++) {
            text[i] ^= 1;
            assert_true(str_hash((struct str){text, len}) != hash);
            text[i] ^= 1;
        }
        if (len > 0) {
            assert_true(str_hash((struct str){text, len - 1}) != hash);
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comparison), cmocka_unit_test(test_parts),
        cmocka_unit_test(test_lists),      cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_utf8),       cmocka_unit_test(test_hash_looks_at_every_byte_and_at_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
