#include "request/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

/* Each byte at each place of a value longer than a word, against the rule in RFC 9110 5.5. */
static void test_field_values(void **state)
{
    (void)state;
    for (size_t len = 1; len <= 19; len++) {
        for (size_t at = 0; at < len; at++) {
            for (int c = 0; c < 256; c++) {
                char value[19];
                memset(value, 'v', sizeof value);
                value[at] = (char)c;
                bool allowed = c == '\t' || (c >= ' ' && c != 0x7f);
                if (field_value_is_valid((struct str){value, len}) != allowed) {
                    fail_msg("%02x at %zu of %zu", c, at, len);
                }
            }
        }
    }
    assert_true(field_value_is_valid(STR("")));
    assert_true(field_value_is_valid(STR("text/html;\tcharset=\xc3\xa4\x80\xff")));
    assert_false(field_value_is_valid(STR("value\r\nX: y")));
}

static void test_tokens(void **state)
{
    (void)state;
    assert_true(token_is_valid(STR("X-Name_1!#$%&'*+.^`|~")));
    assert_false(token_is_valid(STR("")));
    for (int c = 0; c < 256; c++) {
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool mark = c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
        assert_int_equal(token_has_char((char)c), alnum || mark);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_field_values),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
