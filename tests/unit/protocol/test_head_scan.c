#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "protocol/head_scan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static enum head_scan_result scan_copy(struct head_scan *scan, const char *text, size_t len)
{
    /* On the heap and of the exact size, so that a sanitizer sees every byte read beyond. */
    uint8_t *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, text, len);
    enum head_scan_result result = head_scan(scan, copy, len);
    free(copy);
    return result;
}

static const char head[] =
    "GET /some/path HTTP/1.1\r\nHost: example.org\r\nX:\ty \x80\xff\r\nAccept: a-value-that-is-longer-than-32-"
    "bytes\r\n\r\nbody\n\0\r";

static size_t head_end(void)
{
    return (size_t)(strstr(head, "\r\n\r\n") - head) + 4;
}

static void test_finds_the_end(void **state)
{
    (void)state;
    struct head_scan scan = {0};
    assert_int_equal(scan_copy(&scan, head, sizeof head), HEAD_COMPLETE);
    assert_int_equal(scan.end, head_end());
    assert_int_equal(scan.lines, 5);
}

static void test_every_split(void **state)
{
    (void)state;
    for (size_t cut = 0; cut < head_end(); cut++) {
        struct head_scan scan = {0};
        assert_int_equal(scan_copy(&scan, head, cut), HEAD_INCOMPLETE);
        assert_int_equal(scan_copy(&scan, head, head_end()), HEAD_COMPLETE);
        assert_int_equal(scan.end, head_end());
        assert_int_equal(scan.lines, 5);
    }
    struct head_scan scan = {0};
    for (size_t len = 0; len < head_end(); len++) {
        assert_int_equal(scan_copy(&scan, head, len), HEAD_INCOMPLETE);
    }
    assert_int_equal(scan_copy(&scan, head, head_end()), HEAD_COMPLETE);
    assert_int_equal(scan.lines, 5);
}

/* Each byte value at each position, before and behind whole blocks of 16. */
static void test_control_bytes_at_every_position(void **state)
{
    (void)state;
    char text[100];
    for (size_t at = 0; at < sizeof text; at++) {
        for (int byte = 0; byte < 256; byte++) {
            memset(text, 'a', sizeof text);
            text[at] = (char)byte;
            struct head_scan scan = {0};
            enum head_scan_result result = scan_copy(&scan, text, sizeof text);
            bool bad = (byte < 0x20 && byte != '\t') || byte == 0x7f;
            if (byte == '\r' && at + 1 == sizeof text) {
                bad = false; /* its LF may follow */
            }
            assert_int_equal(result, bad ? HEAD_BAD : HEAD_INCOMPLETE);
        }
    }
}

static void test_bare_line_ends(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum head_scan_result result;
    } cases[] = {
        {"\n", HEAD_BAD},
        {"\r", HEAD_INCOMPLETE},
        {"\r\n", HEAD_COMPLETE},
        {"\r\r\n", HEAD_BAD},
        {"a\n\n", HEAD_BAD},
        {"a\r\n\n", HEAD_BAD},
        {"a\r\n\r", HEAD_INCOMPLETE},
        {"a\r\n\r\r\n", HEAD_BAD},
        {"a\rb\r\n\r\n", HEAD_BAD},
        {"a\r\n\r\n", HEAD_COMPLETE},
        {"", HEAD_INCOMPLETE},
        {"a\r\n \r\n\r\n", HEAD_COMPLETE},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct head_scan scan = {0};
        assert_int_equal(scan_copy(&scan, cases[i].text, strlen(cases[i].text)), cases[i].result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_end),
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_control_bytes_at_every_position),
        cmocka_unit_test(test_bare_line_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
