#include "answer/compress.h"

#include <brotli/decode.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

/* The accepted codings as letters, best first: b z g i. */
static const char *accepted(const char *value)
{
    static char text[CODING_COUNT + 1];
    struct accepted_codings codings;
    accept_encoding_parse(str_of(value), &codings);
    for (unsigned i = 0; i < codings.count; i++) {
        text[i] = "bzgi"[codings.order[i]];
    }
    text[codings.count] = '\0';
    return text;
}

static void codings_are_ranked_by_weight(void **state)
{
    (void)state;
    assert_string_equal(accepted(NULL), "i");
    assert_string_equal(accepted(""), "i");
    assert_string_equal(accepted("gzip"), "gi");
    assert_string_equal(accepted("GZip"), "gi");
    assert_string_equal(accepted("x-gzip"), "gi");
    assert_string_equal(accepted("gzip, deflate, br, zstd"), "bzgi");
    assert_string_equal(accepted("br;q=0.5, gzip;q=0.8"), "gbi");
    assert_string_equal(accepted("br;q=0, gzip"), "gi");
    assert_string_equal(accepted("gzip;q=0.5, identity"), "ig");
    assert_string_equal(accepted("gzip; Q=1.000"), "gi");
    assert_string_equal(accepted("gzip;q=0.000"), "i");
    assert_string_equal(accepted("deflate, compress"), "i");
}

static void identity_and_star(void **state)
{
    (void)state;
    assert_string_equal(accepted("*"), "bzgi");
    assert_string_equal(accepted("*;q=0"), "");
    assert_string_equal(accepted("*;q=0, gzip"), "g");
    assert_string_equal(accepted("*;q=0, identity;q=0.1"), "i");
    assert_string_equal(accepted("identity;q=0"), "");
    assert_string_equal(accepted("identity;q=0, br"), "b");
    assert_string_equal(accepted("gzip;q=0, *"), "bzi");
    assert_string_equal(accepted("gzip, *;q=0.1"), "gbzi");
}

static void malformed_elements_are_skipped(void **state)
{
    (void)state;
    assert_string_equal(accepted("gzip;q=2"), "i");
    assert_string_equal(accepted("gzip;q=-1"), "i");
    assert_string_equal(accepted("gzip;q="), "i");
    assert_string_equal(accepted("gzip;q=0.1234"), "i");
    assert_string_equal(accepted("gzip;q=1.5"), "i");
    assert_string_equal(accepted("gzip;level=3"), "i");
    assert_string_equal(accepted(",,;,gzip;q=x,br,"), "bi");
}

static void remembered_answers_equal_parsed_ones(void **state)
{
    (void)state;
    static const char *const values[] = {"gzip",
                                         "br",
                                         "",
                                         "gzip, br",
                                         "br, gzip",
                                         "gzip;q=0",
                                         "gzip, deflate, br, zstd, and a value that is longer than what is remembered"};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            struct accepted_codings fresh;
            accept_encoding_parse(str_of(values[i]), &fresh);
            const struct accepted_codings *known = accept_encoding_cached(str_of(values[i]));
            assert_int_equal(known->count, fresh.count);
            assert_memory_equal(known->order, fresh.order, fresh.count);
        }
    }
}

static size_t decode(enum coding coding, struct str coded, uint8_t *to, size_t room)
{
    if (coding == CODING_BROTLI) {
        assert_int_equal(BrotliDecoderDecompress(coded.len, (const uint8_t *)coded.ptr, &room, to), 1);
        return room;
    }
    if (coding == CODING_ZSTD) {
        return ZSTD_decompress(to, room, coded.ptr, coded.len);
    }
    z_stream z = {
        .next_in = (Bytef *)(uintptr_t)coded.ptr, .avail_in = (uInt)coded.len, .next_out = to, .avail_out = (uInt)room};
    assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
    assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
    inflateEnd(&z);
    return z.total_out;
}

static void every_coding_and_level_comes_back(void **state)
{
    (void)state;
    enum { SIZE = 50000 };
    uint8_t *text = malloc(SIZE);
    uint8_t *back = malloc(SIZE);
    for (int i = 0; i < SIZE; i++) {
        text[i] = (uint8_t)("the quick brown fox\n"[i % 20] + (i / 977) % 3);
    }
    static const enum compression_level levels[] = {COMPRESSION_OPTIMAL, COMPRESSION_FASTEST, COMPRESSION_SMALLEST};
    for (int coding = 0; coding < CODING_IDENTITY; coding++) {
        for (size_t i = 0; i < 3; i++) {
            struct buffer out = BUFFER_EMPTY;
            assert_true(compress_bytes((enum coding)coding, levels[i], true, text, SIZE, &out));
            assert_true(out.len < SIZE / 4);
            assert_int_equal(decode((enum coding)coding, buffer_str(&out), back, SIZE), SIZE);
            assert_memory_equal(back, text, SIZE);
            buffer_free(&out);
        }
    }
    free(text);
    free(back);
}

static void what_does_not_shrink_is_not_coded(void **state)
{
    (void)state;
    uint8_t noise[1000];
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof noise; i++) {
        x = x * 1664525 + 1013904223;
        noise[i] = (uint8_t)(x >> 24);
    }
    for (int coding = 0; coding < CODING_IDENTITY; coding++) {
        struct buffer out = BUFFER_EMPTY;
        assert_false(compress_bytes((enum coding)coding, COMPRESSION_OPTIMAL, false, noise, sizeof noise, &out));
        assert_int_equal(out.len, 0);
        assert_false(compress_bytes((enum coding)coding, COMPRESSION_OPTIMAL, false, noise, 0, &out));
        assert_false(compress_bytes((enum coding)coding, COMPRESSION_NONE, false, noise, sizeof noise, &out));
        buffer_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codings_are_ranked_by_weight),      cmocka_unit_test(identity_and_star),
        cmocka_unit_test(malformed_elements_are_skipped),    cmocka_unit_test(remembered_answers_equal_parsed_ones),
        cmocka_unit_test(every_coding_and_level_comes_back), cmocka_unit_test(what_does_not_shrink_is_not_coded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
