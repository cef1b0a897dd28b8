#include "request/cookie.h"
#include "request/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* after the standard headers */
#include <cmocka.h>

static void cookies_are_split_and_unquoted(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        const char *cookies;
    } cases[] = {
        {"", ""},
        {"a=1", "[a=1]"},
        {"a=1; b=2", "[a=1][b=2]"},
        {"a=1;b=2;", "[a=1][b=2]"},
        {" a = 1 ;  b=x=y", "[a=1][b=x=y]"},
        {"flag; =x; a=", "[a=]"},
        {"q=\"v w\"; r=\"; s=\"\"", "[q=v w][r=\"][s=]"},
        {";;; ;", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buffer out = BUFFER_EMPTY;
        struct str rest = str_of(cases[i].header);
        struct str name;
        struct str value;
        while (cookie_next(&rest, &name, &value)) {
            buffer_printf(&out, "[%.*s=%.*s]", STR_ARG(name), STR_ARG(value));
        }
        assert_true(str_eq(buffer_str(&out), str_of(cases[i].cookies)));
        buffer_free(&out);
    }
}

static void expect_cookie(struct set_cookie cookie, enum cookie_result result, const char *text)
{
    struct buffer out = BUFFER_EMPTY;
    assert_int_equal(set_cookie_format(&out, &cookie), result);
    assert_true(str_eq(buffer_str(&out), str_of(text)));
    buffer_free(&out);
}

static void set_cookie_writes_what_was_asked(void **state)
{
    (void)state;
    expect_cookie((struct set_cookie){.name = STR("a"), .value = STR("b"), .http_only = true}, COOKIE_OK,
                  "a=b; Path=/; HttpOnly; SameSite=Lax");
    expect_cookie((struct set_cookie){.name = STR("a"),
                                      .value = STR(""),
                                      .path = STR("/x"),
                                      .domain = STR("example.com"),
                                      .max_age = 60,
                                      .secure = true,
                                      .same_site = COOKIE_STRICT},
                  COOKIE_OK, "a=; Path=/x; Domain=example.com; Max-Age=60; Secure; SameSite=Strict");
    expect_cookie((struct set_cookie){.name = STR("a"), .value = STR("b"), .max_age = -1}, COOKIE_OK,
                  "a=b; Path=/; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:00 GMT; SameSite=Lax");
    expect_cookie((struct set_cookie){.name = STR("__Host-a"), .value = STR("b"), .secure = true}, COOKIE_OK,
                  "__Host-a=b; Path=/; Secure; SameSite=Lax");
}

static void nothing_can_be_smuggled_into_set_cookie(void **state)
{
    (void)state;
    static const char *const bad_names[] = {"",         "a b", "a=b",      "a;b",       "a\r\nX: y",
                                            "\xc3\xa4", "a\"", "__Host-x", "__secure-x"};
    for (size_t i = 0; i < sizeof bad_names / sizeof bad_names[0]; i++) {
        expect_cookie((struct set_cookie){.name = str_of(bad_names[i]), .value = STR("v")}, COOKIE_BAD_NAME, "");
    }
    static const char *const bad_values[] = {"a b", "a;b", "a,b", "a\"", "a\\b", "a\nb", "\x7f", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof bad_values / sizeof bad_values[0]; i++) {
        expect_cookie((struct set_cookie){.name = STR("n"), .value = str_of(bad_values[i])}, COOKIE_BAD_VALUE, "");
    }
    expect_cookie((struct set_cookie){.name = STR("n"), .value = STR("v"), .path = STR("/; Secure")}, COOKIE_BAD_PATH,
                  "");
    expect_cookie((struct set_cookie){.name = STR("n"), .value = STR("v"), .path = STR("x")}, COOKIE_BAD_PATH, "");
    expect_cookie((struct set_cookie){.name = STR("n"), .value = STR("v"), .domain = STR("a;b")}, COOKIE_BAD_DOMAIN,
                  "");
    expect_cookie((struct set_cookie){.name = STR("n"), .value = STR("v"), .same_site = COOKIE_NONE}, COOKIE_NOT_SECURE,
                  "");
    expect_cookie((struct set_cookie){.name = STR("__Host-n"), .value = STR("v"), .secure = true, .path = STR("/x")},
                  COOKIE_BAD_NAME, "");
}

static void expect_event(struct str event, struct str id, struct str data, const char *text)
{
    struct buffer out = BUFFER_EMPTY;
    assert_true(sse_append_event(&out, event, id, data));
    assert_true(str_eq(buffer_str(&out), str_of(text)));
    buffer_free(&out);
}

static void events_keep_every_line_of_data(void **state)
{
    (void)state;
    expect_event(STR_NONE, STR_NONE, STR("x"), "data: x\n\n");
    expect_event(STR("tick"), STR("7"), STR("x"), "id: 7\nevent: tick\ndata: x\n\n");
    expect_event(STR_NONE, STR_NONE, STR(""), "data: \n\n");
    expect_event(STR_NONE, STR_NONE, STR("a\nb\r\nc\rd\n"), "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
    expect_event(STR_NONE, STR(""), STR("x"), "id: \ndata: x\n\n");
}

static void a_line_break_in_event_or_id_is_refused(void **state)
{
    (void)state;
    struct buffer out = BUFFER_EMPTY;
    assert_false(sse_append_event(&out, STR("a\nb"), STR_NONE, STR("x")));
    assert_false(sse_append_event(&out, STR_NONE, STR("a\rb"), STR("x")));
    assert_false(sse_append_event(&out, STR_NONE, ((struct str){"a\0b", 3}), STR("x")));
    assert_int_equal(out.len, 0);
    buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cookies_are_split_and_unquoted),          cmocka_unit_test(set_cookie_writes_what_was_asked),
        cmocka_unit_test(nothing_can_be_smuggled_into_set_cookie), cmocka_unit_test(events_keep_every_line_of_data),
        cmocka_unit_test(a_line_break_in_event_or_id_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
