#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ws/utf8.h"

#include <stdlib.h>
#include <string.h>

/* By the definition, one code point at a time. */
static bool reference(const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t c = data[i];
        size_t n = c < 0x80 ? 1 : c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xc0 && c < 0xe0 ? 2 : 0;
        if (n == 0 || i + n > len) {
            return false;
        }
        static const uint32_t first_mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        c &= first_mask[n];
        for (size_t k = 1; k < n; k++) {
            if ((data[i + k] & 0xc0) != 0x80) {
                return false;
            }
            c = c << 6 | (data[i + k] & 0x3fu);
        }
        if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) {
            return false;
        }
        i += n;
    }
    return true;
}

static void test_every_sequence_of_up_to_three_bytes(void **state)
{
    (void)state;
    uint8_t text[4];
    for (uint32_t v = 0; v < 1u << 24; v++) {
        text[0] = (uint8_t)(v >> 16);
        text[1] = (uint8_t)(v >> 8);
        text[2] = (uint8_t)v;
        size_t from = v < 256 ? 2 : v < 65536 ? 1 : 0;
        if (ws_utf8_is_valid(text + from, 3 - from) != reference(text + from, 3 - from)) {
            fail_msg("%02x %02x %02x", text[0], text[1], text[2]);
        }
    }
}

static void test_every_four_byte_character_and_its_neighbours(void **state)
{
    (void)state;
    for (unsigned a = 0xee; a <= 0xff; a++) {
        for (unsigned b = 0; b <= 0xff; b++) {
            for (unsigned c = 0x7e; c <= 0xc1; c++) {
                for (unsigned d = 0x7e; d <= 0xc1; d += 0x11) {
                    const uint8_t text[] = {(uint8_t)a, (uint8_t)b, (uint8_t)c, (uint8_t)d};
                    assert_int_equal(ws_utf8_is_valid(text, 4), reference(text, 4));
                }
            }
        }
    }
}

/* Wherever a wrong byte lies among blocks of ASCII, it is found, at once, however the text is cut. */
static void test_a_wrong_byte_anywhere_in_ascii(void **state)
{
    (void)state;
    enum { LEN = 131 };
    for (size_t at = 0; at < LEN; at++) {
        for (size_t cut = 0; cut <= LEN; cut += 13) {
            uint8_t text[LEN];
            memset(text, 'a', LEN);
            text[at] = 0xff;
            struct ws_utf8 s = {0};
            bool before = ws_utf8_check(&s, text, cut);
            assert_int_equal(before, at >= cut);
            assert_false(before && ws_utf8_check(&s, text + cut, LEN - cut));
        }
    }
}

static void test_a_character_may_be_cut_anywhere(void **state)
{
    (void)state;
    static const char text[] =
        "\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5 and \xf0\x9f\x94\xa5 in a long line of letters";
    for (size_t cut = 0; cut < sizeof text; cut++) {
        struct ws_utf8 s = {0};
        assert_true(ws_utf8_check(&s, (const uint8_t *)text, cut));
        assert_int_equal(ws_utf8_is_whole(&s), reference((const uint8_t *)text, cut));
        assert_true(ws_utf8_check(&s, (const uint8_t *)text + cut, sizeof text - 1 - cut));
        assert_true(ws_utf8_is_whole(&s));
    }
}

static void test_overlong_and_surrogates_show_at_their_second_byte(void **state)
{
    (void)state;
    static const char *const bad[] = {"\xe0\x80", "\xe0\x9f", "\xed\xa0", "\xed\xbf",
                                      "\xf0\x80", "\xf0\x8f", "\xf4\x90"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct ws_utf8 s = {0};
        assert_true(ws_utf8_check(&s, (const uint8_t *)bad[i], 1));
        assert_false(ws_utf8_check(&s, (const uint8_t *)bad[i] + 1, 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sequence_of_up_to_three_bytes),
        cmocka_unit_test(test_every_four_byte_character_and_its_neighbours),
        cmocka_unit_test(test_a_wrong_byte_anywhere_in_ascii),
        cmocka_unit_test(test_a_character_may_be_cut_anywhere),
        cmocka_unit_test(test_overlong_and_surrogates_show_at_their_second_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
