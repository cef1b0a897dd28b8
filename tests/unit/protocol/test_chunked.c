#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "base/check.h"
#include "protocol/chunked.h"

#include <stdlib.h>

struct decoded {
    struct buffer body;
    enum chunked_result result;
    size_t used;
};

/* Feeds it in pieces that end at `cut`, or of one byte each when cut is SIZE_MAX. */
static struct decoded decode(const char *text, size_t len, size_t cut)
{
    struct decoded d = {.result = CHUNKED_MORE};
    struct chunked chunked = CHUNKED_START;
    while (d.used < len) {
        size_t end = cut == SIZE_MAX ? d.used + 1 : d.used < cut ? cut : len;
        uint8_t *copy = malloc(end - d.used);
        memcpy(copy, text + d.used, end - d.used);
        size_t used = 0;
        const uint8_t *data = NULL;
        size_t n = 0;
        d.result = chunked_next(&chunked, copy, end - d.used, &used, &data, &n);
        if (d.result == CHUNKED_DATA) {
            buffer_append(&d.body, data, n);
        }
        free(copy);
        assert_true(used > 0 && used <= end - d.used);
        d.used += used;
        if (d.result != CHUNKED_DATA && d.result != CHUNKED_MORE) {
            break;
        }
    }
    return d;
}

static void expect(const char *text, size_t len, enum chunked_result result, const char *body, size_t used)
{
    for (size_t cut = 0; cut <= len + 1; cut++) {
        struct decoded d = decode(text, len, cut > len ? SIZE_MAX : cut);
        assert_int_equal(d.result, result);
        if (body != NULL) {
            assert_int_equal(d.body.len, strlen(body));
            assert_memory_equal(d.body.data, body, strlen(body));
            assert_int_equal(d.used, used);
        }
        buffer_free(&d.body);
    }
}

static void test_good_bodies_at_every_split(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *body;
        size_t behind; /* bytes of trailers and what follows */
    } cases[] = {
        {"5\r\nhello\r\n0\r\n\r\nGET", "hello", 5},
        {"0\r\n\r\n", "", 2},
        {"000\r\n\r\n", "", 2},
        {"0005\r\nhello\r\nA\r\n0123456789\r\na\r\n0123456789\r\n0\r\nX: y\r\n\r\n", "hello01234567890123456789", 8},
        {"5;a=b;c=\"d;e\"\r\nhello\r\n0;x\r\n", "hello", 0},
        {"5 ; a\r\nhello\r\n0\t;x\r\n", "hello", 0},
        {"2\r\n\r\n\r\n1\r\n\r\r\n1\r\n\n\r\n0\r\n", "\r\n\r\n", 0},
        {"0000000000000005\r\nhello\r\n0\r\n", "hello", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t len = strlen(cases[i].text);
        expect(cases[i].text, len, CHUNKED_TRAILERS, cases[i].body, len - cases[i].behind);
    }
}

static void test_bad_bodies_at_every_split(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "\r\n",          "g\r\n",       "0x5\r\n",           "+5\r\n",
        "-5\r\n",        " 5\r\n",      "5xyz\r\n",          "5_\r\n",
        "5.0\r\n",       "5,\r\n",      "5\nhello",          "5 \r\nhello",
        "5\t\r\n",       "5 5\r\n",     "5\r\r\nhello",      "5\rX\nhello",
        "5;a\nhello",    "5;a\rb\r\n",  "5;\x01\r\n",        "5;\x7f\r\n",
        "5\r\nhello\n0", "5\r\nhelloX", "5\r\nhello\rX",     "5\r\nhello\r\n\r\n",
        ";\r\n",         "\n",          "5\r\nhello\r\n5\n", "00000000000000005\r\nhello\r\n",
        "5;a\r\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        expect(cases[i], strlen(cases[i]), CHUNKED_BAD, NULL, 0);
    }
    expect("5\0\r\n", 4, CHUNKED_BAD, NULL, 0);
    expect("5;\0\r\n", 5, CHUNKED_BAD, NULL, 0);
}

static void test_limits(void **state)
{
    (void)state;
    expect("FFFFFFFFFFFFFFFE\r\n", 18, CHUNKED_TOO_LARGE, NULL, 0);
    expect("8000000000000000\r\n", 18, CHUNKED_TOO_LARGE, NULL, 0);
    expect("10000000000000005\r\n", 19, CHUNKED_BAD, NULL, 0);
    char text[2000];
    memset(text, 'a', sizeof text);
    memcpy(text, "5;", 2);
    assert_int_equal(decode(text, sizeof text, 0).result, CHUNKED_TOO_LARGE);
    /* A thousand bytes of extension pass. */
    memcpy(text + 1000, "\r\nhello\r\n0\r\n", 12);
    struct decoded d = decode(text, 1012, 500);
    assert_int_equal(d.result, CHUNKED_TRAILERS);
    assert_int_equal(d.body.len, 5);
    buffer_free(&d.body);
}

static void test_data_is_handed_on_where_it_lies(void **state)
{
    (void)state;
    static const uint8_t input[] = "a\r\n0123456789\r\n";
    struct chunked chunked = CHUNKED_START;
    size_t used;
    const uint8_t *data;
    size_t n;
    assert_int_equal(chunked_next(&chunked, input, sizeof input - 1, &used, &data, &n), CHUNKED_DATA);
    assert_ptr_equal(data, input + 3);
    assert_int_equal(n, 10);
    assert_int_equal(used, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_bodies_at_every_split),
        cmocka_unit_test(test_bad_bodies_at_every_split),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_data_is_handed_on_where_it_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
