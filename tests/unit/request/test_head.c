/* Names of headers that the server looks at: found in any case, and nothing else is taken for one. Hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "request/head.h"
#include "request/request.h"

#include <stdlib.h>

static const struct {
    const char *name;
    unsigned known;
} names[] = {
    {"host", HEADER_HOST},
    {"connection", HEADER_CONNECTION},
    {"content-length", HEADER_CONTENT_LENGTH},
    {"content-type", HEADER_CONTENT_TYPE},
    {"transfer-encoding", HEADER_TRANSFER_ENCODING},
    {"expect", HEADER_EXPECT},
    {"upgrade", HEADER_UPGRADE},
    {"accept-encoding", HEADER_ACCEPT_ENCODING},
    {"if-match", HEADER_IF_MATCH},
    {"if-none-match", HEADER_IF_NONE_MATCH},
    {"if-modified-since", HEADER_IF_MODIFIED_SINCE},
    {"if-unmodified-since", HEADER_IF_UNMODIFIED_SINCE},
    {"if-range", HEADER_IF_RANGE},
    {"range", HEADER_RANGE},
    {"cookie", HEADER_COOKIE},
    {"referer", HEADER_REFERER},
    {"user-agent", HEADER_USER_AGENT},
    {"authorization", HEADER_AUTHORIZATION},
    {"x-forwarded-for", HEADER_X_FORWARDED_FOR},
};

/* From a block of its own size, so that a sanitizer sees a read beyond it. */
static unsigned known_of(const char *name, size_t len)
{
    char *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, name, len);
    unsigned known = request_known_of((struct str){copy, len});
    free(copy);
    return known;
}

static void test_all_in_any_case(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[64];
        strcpy(text, names[i].name);
        size_t len = strlen(text);
        assert_int_equal(known_of(text, len), names[i].known);
        for (size_t k = 0; k < len; k++) {
            if (text[k] >= 'a' && text[k] <= 'z') {
                text[k] = (char)(text[k] - 32);
                assert_int_equal(known_of(text, len), names[i].known);
            }
        }
    }
}

/* Each byte of each name changed to each other one that a name may have, cut off, and one added. */
static void test_nothing_else(void **state)
{
    (void)state;
    static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t len = strlen(names[i].name);
        for (size_t k = 0; k < len; k++) {
            char text[64];
            for (const char *c = token; *c != '\0'; c++) {
                strcpy(text, names[i].name);
                text[k] = *c;
                if (*c != names[i].name[k]) {
                    assert_int_equal(known_of(text, len), HEADER_KNOWN_COUNT);
                }
            }
            assert_true(known_of(names[i].name, k) != names[i].known);
        }
        char longer[64];
        strcpy(longer, names[i].name);
        strcat(longer, "s");
        assert_int_equal(known_of(longer, len + 1), HEADER_KNOWN_COUNT);
    }
    assert_int_equal(known_of("", 0), HEADER_KNOWN_COUNT);
    assert_int_equal(known_of("a-name-longer-than-any-of-them", 30), HEADER_KNOWN_COUNT);
}

/* From a block of its own, as a header of its own request: what is remembered of one is no use for the next. */
static void assert_host(const char *text, const char *host, size_t name_len)
{
    struct request req = {0};
    arena_init(&req.arena, 0);
    size_t len = strlen(text);
    char *copy = malloc(len + 1);
    memcpy(copy, text, len + 1);
    assert_int_equal(request_host_set(&req, (struct str){copy, len}), host != NULL);
    if (host != NULL) {
        assert_int_equal(req.host.len, strlen(host));
        assert_memory_equal(req.host.ptr, host, req.host.len);
        assert_int_equal(req.host_name_len, name_len);
    }
    arena_reset(&req.arena);
    free(copy);
}

static void test_hosts(void **state)
{
    (void)state;
    char longest[64];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    for (int again = 0; again < 2; again++) {
        assert_host("example.com", "example.com", 11);
        assert_host("example.com:80", "example.com:80", 11);
        assert_host("example.com:8x", NULL, 0);
        assert_host("example:000080", "example:000080", 7);
        assert_host("example.org:80", "example.org:80", 11);
        assert_host("example.oRG:80", "example.org:80", 11);
        assert_host("example.oRG:80", "example.org:80", 11);
        assert_host("[::1]:443", "[::1]:443", 5);
        assert_host("[::1]:443", "[::1]:443", 5);
        assert_host("[::A]", "[::a]", 5);
        assert_host("a/b", NULL, 0);
        assert_host("a/b", NULL, 0);
        assert_host(longest, longest, 63);
        assert_host(longest + 1, longest + 1, 62);
        assert_host(longest + 1, longest + 1, 62);
        assert_host(longest, longest, 63);
        assert_host("", "", 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_all_in_any_case),
        cmocka_unit_test(test_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
