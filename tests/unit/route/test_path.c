#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "route/path.h"

#include <stdlib.h>

static const struct {
    const char *raw;
    const char *path; /* NULL: refused; "dot": refused as a dotfile */
} cases[] = {
    {"/", "/"},
    {"/a", "/a"},
    {"/a/", "/a/"},
    {"/a//b", "/a/b"},
    {"//a", "/a"},
    {"///", "/"},
    {"/a/./b", "/a/b"},
    {"/a/.", "/a/"},
    {"/.", "/"},
    {"/a/../b", "/b"},
    {"/a/b/..", "/a/"},
    {"/a/b/../", "/a/"},
    {"/a/..", "/"},
    {"/a/b/../../c", "/c"},
    {"/a//..//b", "/b"},
    {"/..", NULL},
    {"/../", NULL},
    {"/a/../..", NULL},
    {"/a/../../etc/passwd", NULL},
    {"/%2e%2e/etc/passwd", NULL},
    {"/a/%2e%2e/%2E./b", NULL},
    {"/..%2f..%2fetc/passwd", NULL},
    {"/a/%2e%2e%2fb", "/b"},
    {"/%2e/a", "/a"},
    {"/%41%62", "/Ab"},
    {"/a%2Fb", "/a/b"},
    {"/a%2f%2fb", "/a/b"},
    {"/a%5Cb", "/a\\b"},
    {"/a\\..\\b", "/a\\..\\b"},
    {"/%252e%252e/a", "/%2e%2e/a"},
    {"/%25", "/%"},
    {"/%3Fx", "/?x"},
    {"/%23x", "/#x"},
    {"/a%0Ab", "/a\nb"},
    {"/%C3%A4", "/\xC3\xA4"},
    {"/%", NULL},
    {"/%4", NULL},
    {"/%4g", NULL},
    {"/%g4", NULL},
    {"/a%", NULL},
    {"/%00", NULL},
    {"/a%00.html", NULL},
    {"/%2500", "/%00"},
    {"/...", "dot"},
    {"/..a", "dot"},
    {"/.git/config", "dot"},
    {"/a/.env", "dot"},
    {"/%2egit", "dot"},
    {"/a/%2E%2e%2Eb", "dot"},
    {"/a/b.", "/a/b."},
    {"/a/b..", "/a/b.."},
    {"/a/b../c", "/a/b../c"},
    {"/a./b", "/a./b"},
    {"/.well-known", "/.well-known"},
    {"/.well-known/acme/x", "/.well-known/acme/x"},
    {"/.well-known/.x", "dot"},
    {"/.well-knownx", "dot"},
    {"/a/.well-known/x", "dot"},
    {"/.well-known/../.git", "dot"},
    {"", NULL},
    {"a", NULL},
    {"*", NULL},
};

static void normalises(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct str raw = str_of(cases[i].raw);
        char *out = malloc(raw.len + 1); /* exact, so that a sanitizer sees one byte too many */
        struct path_result result = path_normalise(raw, out);
        const char *expected = cases[i].path;
        if (expected == NULL) {
            if (result.ok) {
                fail_msg("%s: expected to be refused, is %s", cases[i].raw, out);
            }
        } else if (strcmp(expected, "dot") == 0) {
            if (!result.ok || !result.dotted) {
                fail_msg("%s: expected to be a dotfile", cases[i].raw);
            }
        } else if (!result.ok || result.dotted || !str_eq(result.path, str_of(expected))) {
            fail_msg("%s: expected %s, is %s", cases[i].raw, expected, result.ok ? out : "refused");
        }
        free(out);
    }
}

static void scan_tells_clean_paths(void **state)
{
    (void)state;
    static const char *const clean[] = {"/", "/a", "/a/", "/a/b.html", "/a./b", "/a..b", "/\xC3\xA4", "/a-b+c!"};
    static const char *const not_clean[] = {"",      "a",      "*",     "//", "/a//b", "/.",
                                            "/a/.b", "/a%20b", "/a/..", "/%", "/a//"};
    for (size_t i = 0; i < sizeof clean / sizeof clean[0]; i++) {
        assert_true(path_scan(str_of(clean[i])).clean);
        char out[64];
        struct path_result result = path_normalise(str_of(clean[i]), out);
        assert_true(result.ok && !result.dotted && str_eq(result.path, str_of(clean[i])));
        assert_int_equal(result.slashes, path_scan(str_of(clean[i])).slashes);
    }
    for (size_t i = 0; i < sizeof not_clean / sizeof not_clean[0]; i++) {
        assert_false(path_scan(str_of(not_clean[i])).clean);
    }
    assert_int_equal(path_scan(STR("/a/b/c/")).slashes, 4);
}

static void encodes_for_location(void **state)
{
    (void)state;
    char out[128];
    struct str plain = STR("/a-b_c.d~e/(f)!$&'*+,;=:@");
    assert_int_equal(path_encode(out, plain), plain.len);
    assert_memory_equal(out, plain.ptr, plain.len);
    struct str odd = STR("/ \"<>\\^`{|}%?#\r\n\x7f\xC3\xA4");
    struct str expected = STR("/%20%22%3C%3E%5C%5E%60%7B%7C%7D%25%3F%23%0D%0A%7F%C3%A4");
    size_t len = path_encode(out, odd);
    assert_int_equal(len, expected.len);
    assert_memory_equal(out, expected.ptr, len);
    assert_int_equal(path_encode(out, (struct str){"\0", 1}), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normalises),
        cmocka_unit_test(scan_tells_clean_paths),
        cmocka_unit_test(encodes_for_location),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
