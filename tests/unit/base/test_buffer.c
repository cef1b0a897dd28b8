#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buffer.h"

#include <stdlib.h>

static void expect(struct buffer *b, const char *text)
{
    assert_false(b->failed);
    assert_int_equal(b->len, strlen(text));
    assert_memory_equal(b->data, text, b->len);
    b->len = 0;
}

static void test_append(void **state)
{
    (void)state;
    struct buffer b = BUFFER_EMPTY;
    assert_true(buffer_append(&b, NULL, 0));
    assert_true(buffer_append_str(&b, STR_NONE));
    assert_null(b.data);
    buffer_append_z(&b, "abc");
    buffer_append_char(&b, '-');
    buffer_append_u64(&b, UINT64_MAX);
    buffer_printf(&b, "/%s", "x");
    expect(&b, "abc-18446744073709551615/x");
    buffer_free(&b);
    buffer_free(&b);
}

static void test_grows(void **state)
{
    (void)state;
    struct buffer b = BUFFER_EMPTY;
    for (unsigned i = 0; i < 100000; i++) {
        buffer_append_char(&b, (char)('a' + i % 26));
    }
    assert_int_equal(b.len, 100000);
    for (unsigned i = 0; i < 100000; i++) {
        assert_int_equal(b.data[i], 'a' + i % 26);
    }
    buffer_consume(&b, 99999);
    assert_int_equal(b.len, 1);
    assert_int_equal(b.data[0], 'a' + 99999 % 26);
    buffer_consume(&b, 50);
    assert_int_equal(b.len, 0);
    buffer_free(&b);
    /* Formatted text of every length around what there is room for. */
    for (int n = 200; n < 600; n++) {
        buffer_printf(&b, "%0*d", n, 7);
        assert_int_equal(b.len, n);
        assert_int_equal(b.data[n - 1], '7');
        buffer_free(&b);
    }
}

static void test_failure_stays(void **state)
{
    (void)state;
    struct buffer b = BUFFER_EMPTY;
    buffer_append_z(&b, "abc");
    assert_null(buffer_reserve(&b, SIZE_MAX / 2));
    assert_true(b.failed);
    assert_false(buffer_append_z(&b, "d"));
    assert_false(buffer_printf(&b, "%d", 1));
    assert_false(buffer_append_json(&b, STR("x")));
    assert_int_equal(b.len, 3);
    buffer_free(&b);
    assert_false(b.failed);
}

static void test_html_and_json(void **state)
{
    (void)state;
    struct buffer b = BUFFER_EMPTY;
    buffer_append_html(&b, STR("<a href=\"x\">'&'</a>"));
    expect(&b, "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
    buffer_append_json(&b, (struct str){"a\"\\\n\r\t\0\x1f\x7f\xc3\xa9\xff\xe2\x82", 14});
    expect(&b, "\"a\\\"\\\\\\n\\r\\t\\u0000\\u001f\\u007f\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    buffer_append_json(&b, STR_NONE);
    expect(&b, "\"\"");
    buffer_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_grows),
        cmocka_unit_test(test_failure_stays),
        cmocka_unit_test(test_html_and_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
