#include "sessions/json_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void json_is_told_from_what_is_not(void **state)
{
    (void)state;
    static const char *const good[] = {
        "0",
        "-0",
        "1.5e-3",
        "123456789012345678901234567890",
        "\"\"",
        "\"\\u00e9\\n\\\"\"",
        "\"\xc3\xa9\"",
        "[]",
        "{}",
        " [ 1 , {\"a\" : null} , true ] ",
        "\"\xf0\x9f\x98\x80\"",
        "\t\r\n1\n",
        "1E+2",
        "\"\x7f\"",
    };
    static const char *const bad[] = {
        "",
        " ",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "0x10",
        "NaN",
        "Infinity",
        "tru",
        "truefalse",
        "1 2",
        "[1,]",
        "{1:2}",
        "{\"a\":1,}",
        "'a'",
        "\"",
        "\"a",
        "\"\n\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\xc3\"",
        "\"\xed\xa0\x80\"",
        "\"\xff\"",
        "[1]x",
        "[1]\x01",
        "\xef\xbb\xbf"
        "1",
        "nul",
        "[00]",
        "{\"a\":-}",
        "1\v",
        "//\n1",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!json_text_is_valid(str_of(good[i]))) {
            fail_msg("refused: %s", good[i]);
        }
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (json_text_is_valid(str_of(bad[i]))) {
            fail_msg("accepted: %s", bad[i]);
        }
    }
    assert_false(json_text_is_valid((struct str){"1\0", 2}));
    assert_false(json_text_is_valid((struct str){"\"a\0b\"", 5}));
}

static void integers_have_one_form(void **state)
{
    (void)state;
    int64_t value;
    assert_true(json_text_integer(STR("-9223372036854775808"), &value));
    assert_true(value == INT64_MIN);
    assert_true(json_text_integer(STR("9223372036854775807"), &value));
    assert_true(value == INT64_MAX);
    assert_true(json_text_integer(STR("0"), &value) && value == 0);
    static const char *const not [] = {
        "9223372036854775808", "-9223372036854775809", "01", "-", "", "1.0", " 1", "1 ", "1e2"};
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++) {
        assert_false(json_text_integer(str_of(not [i]), &value));
    }
    static const int64_t numbers[] = {0, 1, -1, INT64_MAX, INT64_MIN, 1000000007};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char text[24];
        size_t len = json_text_print_integer(numbers[i], text);
        assert_true(len <= 20);
        assert_true(json_text_integer((struct str){text, len}, &value));
        assert_true(value == numbers[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_told_from_what_is_not),
        cmocka_unit_test(integers_have_one_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
