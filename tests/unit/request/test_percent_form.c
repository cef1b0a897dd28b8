#include "request/form.h"
#include "request/percent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* after the standard headers */
#include <cmocka.h>

static void encode_and_decode_are_inverse_for_every_byte(void **state)
{
    (void)state;
    char all[256];
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
    }
    struct buffer coded = BUFFER_EMPTY;
    assert_true(percent_encode(&coded, (struct str){all, sizeof all}));
    assert_int_equal(coded.len, percent_encoded_length((struct str){all, sizeof all}));
    char back[1024];
    size_t len = 0;
    assert_true(percent_decode(back, buffer_str(&coded), &len));
    assert_int_equal(len, 256);
    assert_memory_equal(back, all, 256);
    buffer_free(&coded);
}

static void broken_escapes_are_refused(void **state)
{
    (void)state;
    static const char *const broken[] = {"%", "%4", "a%g1", "%1g", "x%%41", "%4\x01"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        char out[16];
        size_t len;
        assert_false(percent_decode(out, str_of(broken[i]), &len));
    }
}

static bool note_pair(void *arg, struct str name, struct str value)
{
    struct buffer *out = arg;
    buffer_append_char(out, '[');
    buffer_append_str(out, name);
    buffer_append_char(out, '=');
    buffer_append_str(out, value);
    return buffer_append_char(out, ']');
}

/* Parses `text` fed in pieces of `step` bytes. */
static enum form_result parse(const char *text, size_t len, size_t step, size_t pairs, size_t size, struct buffer *out)
{
    struct form form;
    out->len = 0;
    form_init(&form, pairs, size, note_pair, out);
    for (size_t i = 0; i < len; i += step) {
        form_feed(&form, text + i, i + step < len ? step : len - i);
    }
    enum form_result result = form_finish(&form);
    form_free(&form);
    return result;
}

static void forms_decode_the_same_however_they_are_cut(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *pairs;
    } cases[] = {
        {"", ""},
        {"&&", ""},
        {"a=1&b=2", "[a=1][b=2]"},
        {"a", "[a=]"},
        {"a=", "[a=]"},
        {"=", "[=]"},
        {"=v&x", "[=v][x=]"},
        {"a=b=c", "[a=b=c]"},
        {"a+b=c+d%2B%20", "[a b=c d+ ]"},
        {"n%3D=%26", "[n==&]"},
        {"x=%&y=%4&z=%zz&w=%4%41", "[x=%][y=%4][z=%zz][w=%4A]"},
        {"a=%C3%A4", "[a=\xc3\xa4]"},
        {"%", "[%=]"},
        {"a=1&a=2&", "[a=1][a=2]"},
    };
    struct buffer out = BUFFER_EMPTY;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t len = strlen(cases[i].text);
        for (size_t step = 1; step <= len + 1; step++) {
            assert_int_equal(parse(cases[i].text, len, step, 100, 100, &out), FORM_OK);
            assert_true(str_eq(buffer_str(&out), str_of(cases[i].pairs)));
        }
    }
    buffer_free(&out);
}

static void form_limits_hold(void **state)
{
    (void)state;
    struct buffer out = BUFFER_EMPTY;
    assert_int_equal(parse("a&b&c", 5, 5, 2, 100, &out), FORM_TOO_MANY);
    assert_int_equal(parse("a&b", 3, 3, 2, 100, &out), FORM_OK);
    assert_int_equal(parse("ab=cd", 5, 1, 2, 4, &out), FORM_OK);
    assert_int_equal(parse("ab=cde", 6, 1, 2, 4, &out), FORM_TOO_LARGE);
    buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encode_and_decode_are_inverse_for_every_byte),
        cmocka_unit_test(broken_escapes_are_refused),
        cmocka_unit_test(forms_decode_the_same_however_they_are_cut),
        cmocka_unit_test(form_limits_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
