/* Sizes: what is large arrives whole, what is too large costs nothing, and what can be is not copied. */
#include "ws_support.h"

static struct wire wire;

static void wire_clear(void)
{
    wire.bytes.len = 0;
    wire.count = 0;
}

static void test_65536_fragments_make_one_message(void **state)
{
    (void)state;
    static const struct ws_settings settings = {.max_message = 1 << 20};
    for (enum ws_role role = WS_SERVER; role <= WS_CLIENT; role++) {
        for (enum chop chop = CHOP_WHOLE; chop <= CHOP_997; chop++) {
            struct echo e = {0};
            wire_clear();
            for (size_t i = 0; i < 65536; i++) {
                uint8_t byte = pattern(i);
                put_frame(&wire, (i == 0 ? 0x01u : 0) | (i == 65535 ? 0x80 : 0), &byte, 1, role == WS_SERVER, 0);
            }
            ws_init(&e.ws, role, &settings);
            echo_feed_wire(&e, &wire, chop);
            assert_int_equal(e.failure, 0);
            struct seen_list list = read_frames(&e.out, role == WS_CLIENT);
            assert_int_equal(list.count, 1);
            assert_int_equal(list.items[0].len, 65536);
            for (size_t i = 0; i < 65536; i++) {
                assert_int_equal(list.items[0].payload[i], pattern(i));
            }
            free_frames(&list);
            echo_free(&e);
        }
    }
}

static void test_endless_empty_fragments_cost_nothing(void **state)
{
    (void)state;
    static const struct ws_settings settings = {.max_message = 100};
    struct echo e = {0};
    wire_clear();
    put_script(&wire, "01:", true);
    for (size_t i = 0; i < 60000; i++) {
        put_frame(&wire, 0x00, "", 0, true, 0);
    }
    ws_init(&e.ws, WS_SERVER, &settings);
    echo_feed_wire(&e, &wire, CHOP_WHOLE);
    assert_int_equal(e.failure, 0);
    assert_int_equal(e.ws.message_cap, 0);
    echo_free(&e);
}

static void test_64_mib_arrive_whole(void **state)
{
    (void)state;
    enum { SIZE = 64 << 20 };
    static const struct ws_settings settings = {.max_message = SIZE};
    uint8_t *data = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) {
        data[i] = (uint8_t)(i * 2654435761u >> 24);
    }
    for (size_t frames = 1; frames <= 64; frames += 63) {
        struct ws ws;
        struct ws_item item;
        wire_clear();
        for (size_t i = 0; i < frames; i++) {
            put_frame(&wire, (i == 0 ? 0x02u : 0) | (i + 1 == frames ? 0x80 : 0), data + SIZE / frames * i,
                      SIZE / frames, true, 0);
        }
        ws_init(&ws, WS_SERVER, &settings);
        enum ws_event event = WS_EVENT_NONE;
        for (size_t at = 0; at < wire.bytes.len;) {
            assert_int_equal(event, WS_EVENT_NONE);
            size_t n = wire.bytes.len - at < 65536 ? wire.bytes.len - at : 65536;
            struct ws_input input = {(uint8_t *)wire.bytes.data + at, n};
            event = ws_receive(&ws, &input, &item);
            at += n;
        }
        assert_int_equal(event, WS_EVENT_DATA);
        assert_int_equal(item.len, SIZE);
        assert_memory_equal(item.data, data, SIZE);
        assert_true(ws.message_cap <= SIZE + SIZE / 2 + 64);
        ws_trim(&ws);
        assert_null(ws.message);
        ws_free(&ws);
    }
    free(data);
    ws_buffer_free(&wire.bytes);
    wire.bytes = (struct ws_buffer){0};
}

/* The announced length alone decides, and nothing was allocated for it. */
static void test_too_big_is_known_from_the_head(void **state)
{
    (void)state;
    static const struct ws_settings settings = {.max_message = 1000};
    static const uint8_t head[] = {0x82, 0xfe, 0x03, 0xe9, 1, 2, 3, 4}; /* 1001 */
    static const uint8_t huge[] = {0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4};
    static const uint8_t negative[] = {0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4};
    static const struct {
        const uint8_t *bytes;
        size_t len;
        unsigned code;
    } cases[] = {{head, sizeof head, 1009}, {huge, sizeof huge, 1009}, {negative, sizeof negative, 1002}};
    for (size_t i = 0; i < 3; i++) {
        struct echo e = {0};
        ws_init(&e.ws, WS_SERVER, &settings);
        echo_feed(&e, cases[i].bytes, cases[i].len);
        assert_int_equal(e.failure, cases[i].code);
        assert_int_equal(e.ws.message_cap, 0);
        echo_free(&e);
    }
}

static void test_too_big_counts_all_fragments(void **state)
{
    (void)state;
    static const struct ws_settings settings = {.max_message = 10};
    struct echo e = {0};
    wire_clear();
    put_script(&wire, "82:0123456789 02:01234 00:56789 80:y", true);
    ws_init(&e.ws, WS_SERVER, &settings);
    echo_feed_wire(&e, &wire, CHOP_FRAMES);
    assert_int_equal(e.failure, 1009);
    struct seen_list list = read_frames(&e.out, false);
    assert_int_equal(list.count, 2);
    assert_int_equal(list.items[0].len, 10);
    free_frames(&list);
    echo_free(&e);
}

static void test_too_big_may_be_short(void **state)
{
    (void)state;
    static const struct ws_settings settings = {.max_message = 10};
    struct echo e = {0};
    wire_clear();
    put_script(&wire, "82:0123456789 81:0123456789 82:0123456789a", true);
    ws_init(&e.ws, WS_SERVER, &settings);
    echo_feed_wire(&e, &wire, CHOP_WHOLE);
    assert_int_equal(e.failure, 1009);
    struct seen_list list = read_frames(&e.out, false);
    assert_int_equal(list.count, 3);
    free_frames(&list);
    echo_free(&e);
}

/* A length that is announced and never sent holds no more than a little. */
static void test_memory_follows_the_bytes_that_came(void **state)
{
    (void)state;
    static const struct ws_settings settings = {.max_message = (uint64_t)1 << 40};
    static const uint8_t head[] = {0x82, 0xff, 0, 0, 0x00, 0x80, 0, 0, 0, 0, 1, 2, 3, 4}; /* 512 GiB */
    struct echo e = {0};
    ws_init(&e.ws, WS_SERVER, &settings);
    echo_feed(&e, head, sizeof head);
    assert_int_equal(e.ws.message_cap, 0);
    echo_feed(&e, "abcdef", 6);
    assert_true(e.ws.message_cap <= 1 << 20);
    echo_free(&e);
}

static void test_whole_messages_lie_in_the_input(void **state)
{
    (void)state;
    static const struct ws_settings in_place = {0};
    static const struct ws_settings own = {.own_messages = true};
    for (enum ws_role role = WS_SERVER; role <= WS_CLIENT; role++) {
        struct ws ws;
        struct ws_item item;
        wire_clear();
        put_script(&wire, "82:*5000 01:a 80:b", role == WS_SERVER);
        ws_init(&ws, role, &in_place);
        struct ws_input input = {(uint8_t *)wire.bytes.data, wire.bytes.len};
        assert_int_equal(ws_receive(&ws, &input, &item), WS_EVENT_DATA);
        assert_int_equal(item.len, 5000);
        assert_ptr_equal(item.data + 5000, input.data);
        assert_null(ws.message);
        assert_int_equal(ws_receive(&ws, &input, &item), WS_EVENT_DATA);
        assert_ptr_equal(item.data, ws.message); /* fragments are gathered */
        ws_free(&ws);

        wire_clear();
        put_script(&wire, "82:*5000", role == WS_SERVER);
        ws_init(&ws, role, &own);
        input = (struct ws_input){(uint8_t *)wire.bytes.data, wire.bytes.len};
        assert_int_equal(ws_receive(&ws, &input, &item), WS_EVENT_DATA);
        memset(wire.bytes.data, 0, wire.bytes.len); /* the input is used for something else */
        for (size_t i = 0; i < 5000; i++) {
            assert_int_equal(item.data[i], pattern(i));
        }
        ws_free(&ws);
    }
}

static void test_an_idle_connection_is_small(void **state)
{
    (void)state;
    assert_true(sizeof(struct ws) <= 128);
}

/* As a server reads: into the message itself where it may. True: it was allowed to at least once. */
static bool feed_into_room(struct echo *e, const uint8_t *bytes, size_t len)
{
    bool used = false;
    for (size_t at = 0; at < len;) {
        size_t room = 0;
        uint8_t *to = ws_receive_room(&e->ws, &room);
        size_t n = len - at < 30000 ? len - at : 30000;
        if (to == NULL) {
            echo_feed(e, bytes + at, n);
        } else {
            used = true;
            n = n < room ? n : room;
            memcpy(to, bytes + at, n);
            struct ws_input input = {to, n};
            struct ws_item item;
            enum ws_event event = ws_receive(&e->ws, &input, &item);
            assert_int_equal(input.len, 0);
            if (event != WS_EVENT_NONE) {
                echo_event(e, event, &item);
            }
        }
        at += n;
    }
    return used;
}

static void test_long_messages_arrive_where_they_are_gathered(void **state)
{
    (void)state;
    static const struct ws_settings settings = {.max_message = 4000000};
    for (enum ws_role role = WS_SERVER; role <= WS_CLIENT; role++) {
        struct echo e = {0};
        wire_clear();
        put_script(&wire, "01:*500001 89:ping 80:*1000002 82:*65537 81:*3", role == WS_SERVER);
        ws_init(&e.ws, role, &settings);
        assert_true(feed_into_room(&e, (const uint8_t *)wire.bytes.data, wire.bytes.len));
        assert_int_equal(e.failure, 0);
        struct seen_list list = read_frames(&e.out, role == WS_CLIENT);
        assert_int_equal(list.count, 4);
        assert_int_equal(list.items[1].len, 1500003);
        for (size_t i = 0; i < 1500003; i++) {
            assert_int_equal(list.items[1].payload[i], pattern(i < 500001 ? i : i - 500001));
        }
        assert_int_equal(list.items[2].len, 65537);
        free_frames(&list);
        echo_free(&e);
    }
}

static void test_what_is_not_gathered_has_no_room(void **state)
{
    (void)state;
    static const struct ws_settings whole = {0};
    static const struct ws_settings parts = {.parts = true};
    static const char *const scripts[] = {"82:*60000", "89:*125", "82:*300000"};
    for (size_t i = 0; i < 3; i++) {
        struct echo e = {0};
        wire_clear();
        put_script(&wire, scripts[i], true);
        ws_init(&e.ws, WS_SERVER, i < 2 ? &whole : &parts);
        assert_false(feed_into_room(&e, (const uint8_t *)wire.bytes.data, wire.bytes.len));
        echo_free(&e);
    }
}

static void test_a_split_ping_inside_a_split_message(void **state)
{
    (void)state;
    static const struct ws_settings settings = {0};
    struct echo e = {0};
    wire_clear();
    put_script(&wire, "01:*300 89:*125 00:*300 89:*125 80:*300", true);
    ws_init(&e.ws, WS_SERVER, &settings);
    echo_feed_wire(&e, &wire, CHOP_OCTETS);
    struct seen_list list = read_frames(&e.out, false);
    assert_int_equal(list.count, 3);
    assert_int_equal(list.items[2].len, 900);
    assert_true(ws_in_message(&e.ws) == false);
    ws_trim(&e.ws);
    assert_null(e.ws.message);
    assert_null(e.ws.control);
    free_frames(&list);
    echo_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_65536_fragments_make_one_message),
        cmocka_unit_test(test_endless_empty_fragments_cost_nothing),
        cmocka_unit_test(test_64_mib_arrive_whole),
        cmocka_unit_test(test_too_big_is_known_from_the_head),
        cmocka_unit_test(test_too_big_counts_all_fragments),
        cmocka_unit_test(test_too_big_may_be_short),
        cmocka_unit_test(test_memory_follows_the_bytes_that_came),
        cmocka_unit_test(test_whole_messages_lie_in_the_input),
        cmocka_unit_test(test_an_idle_connection_is_small),
        cmocka_unit_test(test_long_messages_arrive_where_they_are_gathered),
        cmocka_unit_test(test_what_is_not_gathered_has_no_room),
        cmocka_unit_test(test_a_split_ping_inside_a_split_message),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ws_buffer_free(&wire.bytes);
    return failed;
}
