#include "answer/mime.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void assert_str(struct str got, const char *wanted)
{
    if (!str_eq(got, str_of(wanted))) {
        fail_msg("got \"%.*s\", wanted \"%s\"", STR_ARG(got), wanted);
    }
}

static void table_is_sorted_and_lower_case(void **state)
{
    (void)state;
    struct str previous = STR("");
    struct str extension;
    struct str type;
    size_t count = mime_row(0, &extension, &type);
    assert_true(count > 300);
    for (size_t i = 0; i < count; i++) {
        mime_row(i, &extension, &type);
        size_t common = previous.len < extension.len ? previous.len : extension.len;
        int order = memcmp(previous.ptr, extension.ptr, common);
        if (order > 0 || (order == 0 && previous.len >= extension.len)) {
            fail_msg("\"%.*s\" stands after \"%.*s\"", STR_ARG(extension), STR_ARG(previous));
        }
        for (size_t k = 0; k < extension.len; k++) {
            assert_int_equal(extension.ptr[k], ascii_lower(extension.ptr[k]));
        }
        assert_true(str_find(type, '/') != SIZE_MAX);
        assert_str(mime_lookup(extension), type.ptr);
        previous = extension;
    }
}

static void common_types_are_known(void **state)
{
    (void)state;
    assert_str(mime_lookup(STR("html")), "text/html; charset=utf-8");
    assert_str(mime_lookup(STR("js")), "text/javascript; charset=utf-8");
    assert_str(mime_lookup(STR("woff2")), "font/woff2");
    assert_str(mime_lookup(STR("svg")), "image/svg+xml");
    assert_str(mime_lookup(STR("wasm")), "application/wasm");
    assert_null(mime_lookup(STR("")).ptr);
    assert_null(mime_lookup(STR("htmlx")).ptr);
    assert_null(mime_lookup(STR("0")).ptr);
    assert_null(mime_lookup(STR("zzzz")).ptr);
}

static void extension_is_what_follows_the_last_dot(void **state)
{
    (void)state;
    assert_str(path_extension(STR("/a.b/c.tar.gz")), "gz");
    assert_str(path_extension(STR("/a.b/c")), "");
    assert_str(path_extension(STR("/a/.htaccess")), "");
    assert_str(path_extension(STR("x.")), "");
    char room[16];
    struct str lower;
    assert_true(extension_lower(STR("HtMl"), room, &lower));
    assert_str(lower, "html");
    assert_false(extension_lower(STR("12345678901234567"), room, &lower));
}

static void patterns_match_types(void **state)
{
    (void)state;
    const struct str patterns[] = {STR("text/*"), STR("image/svg+xml")};
    assert_true(media_type_in(STR("text/html; charset=utf-8"), patterns, 2));
    assert_true(media_type_in(STR("Image/SVG+xml"), patterns, 2));
    assert_false(media_type_in(STR("image/png"), patterns, 2));
    assert_false(media_type_in(STR("texture/html"), patterns, 2));
    assert_false(media_type_in(STR("tex"), patterns, 2));
    const struct str all[] = {STR("*/*")};
    assert_true(media_type_in(STR("image/png"), all, 1));
}

static void assert_disposition(const char *name, const char *wanted)
{
    struct buffer out = BUFFER_EMPTY;
    content_disposition_append(&out, str_of(name));
    assert_str(buffer_str(&out), wanted);
    buffer_free(&out);
}

static void file_names_are_encoded_for_content_disposition(void **state)
{
    (void)state;
    assert_disposition("a b.zip", "attachment; filename=\"a b.zip\"");
    assert_disposition("x\"; y=\".zip", "attachment; filename=\"x_; y=_.zip\"; filename*=UTF-8''x%22%3B%20y%3D%22.zip");
    assert_disposition("\xc3\xbc"
                       "ber.zip",
                       "attachment; filename=\"_ber.zip\"; filename*=UTF-8''%C3%BCber.zip");
    assert_disposition("a\r\nb", "attachment; filename=\"a__b\"; filename*=UTF-8''a%0D%0Ab");
    assert_disposition("100%.zip", "attachment; filename=\"100_.zip\"; filename*=UTF-8''100%25.zip");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sorted_and_lower_case),
        cmocka_unit_test(common_types_are_known),
        cmocka_unit_test(extension_is_what_follows_the_last_dot),
        cmocka_unit_test(patterns_match_types),
        cmocka_unit_test(file_names_are_encoded_for_content_disposition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
