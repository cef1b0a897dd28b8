#include "ws_support.h"

static const struct ws_settings settings = {0};

static struct ws server(void)
{
    struct ws ws;
    ws_init(&ws, WS_SERVER, &settings);
    return ws;
}

static void test_lengths_take_their_shortest_form(void **state)
{
    (void)state;
    static const struct {
        size_t len;
        size_t head;
    } cases[] = {{0, 2}, {125, 2}, {126, 4}, {65535, 4}, {65536, 10}};
    uint8_t *data = calloc(1, 65536);
    for (size_t i = 0; i < 5; i++) {
        struct ws ws = server();
        struct ws_frame frame;
        assert_int_equal(ws_frame_make(&ws, &frame, WS_BINARY, data, cases[i].len), WS_OK);
        assert_int_equal(frame.head_len, cases[i].head);
        assert_ptr_equal(frame.payload, data);
        ws_init(&ws, WS_CLIENT, &settings);
        assert_int_equal(ws_frame_make(&ws, &frame, WS_BINARY, data, cases[i].len), WS_OK);
        assert_int_equal(frame.head_len, cases[i].head + 4);
    }
    free(data);
}

static void test_what_may_not_be_sent_is_an_error(void **state)
{
    (void)state;
    struct ws ws = server();
    struct ws_frame frame;
    uint8_t space[WS_CONTROL_MAX];
    char long_text[126] = {0};
    assert_int_equal(ws_frame_make(&ws, &frame, WS_PING, long_text, 126), WS_ERROR_ARGUMENT);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_PING, long_text, 125), WS_OK);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_CLOSE, "", 0), WS_ERROR_ARGUMENT);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_CONTINUATION, "", 0), WS_ERROR_ARGUMENT);
    assert_int_equal(ws_frame_make(&ws, &frame, (enum ws_opcode)3, "", 0), WS_ERROR_ARGUMENT);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_TEXT, "\xff", 1), WS_ERROR_TEXT);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_TEXT, "\xc3", 1), WS_ERROR_TEXT);
    static const unsigned codes[] = {0, 999, 1004, 1006, 1015, 2999, 5000, 66536};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        assert_int_equal(ws_close_make(&ws, &frame, space, codes[i], "", 0), WS_ERROR_ARGUMENT);
    }
    assert_int_equal(ws_close_make(&ws, &frame, space, 1000, "\xc3", 1), WS_ERROR_TEXT);
    assert_false(ws.closing);
}

static void test_fragments_keep_their_order(void **state)
{
    (void)state;
    struct ws ws = server();
    struct ws_frame frame;
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "a", 1, false), WS_OK);
    assert_int_equal(frame.head[0], 0x01);
    assert_true(ws_is_fragmenting(&ws));
    assert_false(ws_takes_shared(&ws));
    assert_int_equal(ws_frame_make(&ws, &frame, WS_TEXT, "b", 1), WS_ERROR_ORDER);
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_BINARY, "b", 1, false), WS_ERROR_ORDER);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_PONG, "b", 1), WS_OK);
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "b", 1, false), WS_OK);
    assert_int_equal(frame.head[0], 0x00);
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "", 0, true), WS_OK);
    assert_int_equal(frame.head[0], 0x80);
    assert_false(ws_is_fragmenting(&ws));
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "whole", 5, true), WS_OK);
    assert_int_equal(frame.head[0], 0x81);
}

static void test_text_may_be_cut_within_a_character_but_not_end_there(void **state)
{
    (void)state;
    struct ws ws = server();
    struct ws_frame frame;
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "\xe1\xbd", 2, false), WS_OK);
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "x", 1, false), WS_ERROR_TEXT);
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "", 0, true), WS_ERROR_TEXT);
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "\xb9", 1, true), WS_OK);
}

static void test_nothing_follows_a_close(void **state)
{
    (void)state;
    struct ws ws = server();
    struct ws_frame frame;
    uint8_t space[WS_CONTROL_MAX];
    assert_int_equal(ws_close_make(&ws, &frame, space, 1001, "bye", 3), WS_OK);
    assert_int_equal(frame.head[0], 0x88);
    assert_int_equal(frame.payload_len, 5);
    assert_memory_equal(frame.payload,
                        "\x03\xe9"
                        "bye",
                        5);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_TEXT, "b", 1), WS_ERROR_CLOSED);
    assert_int_equal(ws_frame_make(&ws, &frame, WS_PING, "b", 1), WS_ERROR_CLOSED);
    assert_int_equal(ws_fragment_make(&ws, &frame, WS_TEXT, "b", 1, true), WS_ERROR_CLOSED);
    assert_int_equal(ws_close_make(&ws, &frame, space, 1000, "", 0), WS_ERROR_CLOSED);
}

static void test_a_long_reason_is_cut_between_characters(void **state)
{
    (void)state;
    struct ws ws = server();
    struct ws_frame frame;
    uint8_t space[WS_CONTROL_MAX];
    char reason[200];
    memset(reason, 'r', sizeof reason);
    memcpy(reason + 122, "\xe1\xbd\xb9", 3);
    assert_int_equal(ws_close_make(&ws, &frame, space, 4000, reason, sizeof reason), WS_OK);
    assert_int_equal(frame.payload_len, 2 + 122);
}

static void test_a_close_without_a_code_is_answered_alike(void **state)
{
    (void)state;
    struct ws ws = server();
    struct ws_frame frame;
    uint8_t space[WS_CONTROL_MAX];
    const struct ws_item item = {.code = WS_CLOSE_NO_CODE};
    assert_int_equal(ws_close_answer(&ws, &frame, space, &item), WS_OK);
    assert_int_equal(frame.payload_len, 0);
}

/* Two cores talk to each other: every message, in either direction, comes out as it went in. */
static void test_client_and_server_understand_each_other(void **state)
{
    (void)state;
    struct echo server_side = {0};
    struct ws client;
    struct ws_frame frame;
    ws_init(&server_side.ws, WS_SERVER, &settings);
    ws_init(&client, WS_CLIENT, &settings);
    for (size_t len = 0; len < 70000; len = len * 3 + 1) {
        uint8_t *data = malloc(len + 1);
        for (size_t i = 0; i < len; i++) {
            data[i] = pattern(i);
        }
        assert_int_equal(ws_frame_make(&client, &frame, WS_TEXT, data, len), WS_OK);
        uint8_t *bytes = malloc(ws_frame_size(&frame));
        ws_frame_copy(&frame, bytes);
        server_side.out.len = 0;
        echo_feed(&server_side, bytes, ws_frame_size(&frame));
        struct ws_input input = {(uint8_t *)server_side.out.data, server_side.out.len};
        struct ws_item item;
        assert_int_equal(ws_receive(&client, &input, &item), WS_EVENT_DATA);
        assert_int_equal(item.len, len);
        assert_memory_equal(item.data, data, len);
        free(bytes);
        free(data);
    }
    echo_free(&server_side);
    ws_free(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths_take_their_shortest_form),
        cmocka_unit_test(test_what_may_not_be_sent_is_an_error),
        cmocka_unit_test(test_fragments_keep_their_order),
        cmocka_unit_test(test_text_may_be_cut_within_a_character_but_not_end_there),
        cmocka_unit_test(test_nothing_follows_a_close),
        cmocka_unit_test(test_a_long_reason_is_cut_between_characters),
        cmocka_unit_test(test_a_close_without_a_code_is_answered_alike),
        cmocka_unit_test(test_client_and_server_understand_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
