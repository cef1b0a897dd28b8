#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ws/mask.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t key[4] = {0x12, 0x00, 0xff, 0x80};

static void fill(uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        data[i] = (uint8_t)(i * 7 + 3);
    }
}

static void test_every_length_and_alignment_masks_like_the_definition(void **state)
{
    (void)state;
    for (size_t shift = 0; shift < 17; shift++) {
        for (size_t len = 0; len < 300; len++) {
            uint8_t *from = malloc(shift + len + 1);
            uint8_t *to = malloc(len + 1);
            fill(from, shift + len);
            to[len] = 0x5a;
            ws_mask(to, from + shift, len, key);
            for (size_t i = 0; i < len; i++) {
                assert_int_equal(to[i], from[shift + i] ^ key[i % 4]);
            }
            assert_int_equal(to[len], 0x5a);
            ws_mask(from + shift, from + shift, len, key); /* in place */
            assert_memory_equal(from + shift, to, len);
            free(from);
            free(to);
        }
    }
}

static void test_a_turned_key_goes_on_where_the_last_piece_ended(void **state)
{
    (void)state;
    uint8_t whole[97];
    uint8_t pieces[97];
    for (size_t cut = 0; cut <= sizeof whole; cut++) {
        uint8_t turned[4];
        fill(whole, sizeof whole);
        fill(pieces, sizeof pieces);
        ws_mask(whole, whole, sizeof whole, key);
        memcpy(turned, key, 4);
        ws_mask(pieces, pieces, cut, turned);
        ws_mask_turn(turned, cut);
        ws_mask(pieces + cut, pieces + cut, sizeof pieces - cut, turned);
        assert_memory_equal(whole, pieces, sizeof whole);
    }
}

static void test_keys_differ(void **state)
{
    (void)state;
    uint8_t first[4];
    uint8_t next[4];
    unsigned same = 0;
    ws_mask_key(first);
    for (int i = 0; i < 1000; i++) { /* more than the store holds */
        ws_mask_key(next);
        same += memcmp(first, next, 4) == 0;
    }
    assert_true(same <= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_and_alignment_masks_like_the_definition),
        cmocka_unit_test(test_a_turned_key_goes_on_where_the_last_piece_ended),
        cmocka_unit_test(test_keys_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
