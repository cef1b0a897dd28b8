/* permessage-deflate, against zlib driven by the test itself. Cases 12 and 13 of the Autobahn suite are
 * test_every_size_and_agreement: messages of each size, under each agreement, both ways. */
#include "ws_support.h"

#include <zlib.h>

static const struct ws_settings whole = {0};
static const struct ws_settings in_parts = {.parts = true};
static const struct ws_pool_options generous = {.budget = 64 << 20};

/* ---- the other side, by zlib alone ------------------------------------------------------------------------ */

struct other {
    z_stream out; /* compresses what it sends */
    z_stream in;
    bool out_fresh; /* no takeover */
    bool in_fresh;
};

static void other_open(struct other *o, const struct ws_deflate *agreed, bool is_client)
{
    unsigned out_bits = is_client ? agreed->client_bits : agreed->server_bits;
    unsigned in_bits = is_client ? agreed->server_bits : agreed->client_bits;
    *o = (struct other){
        .out_fresh = is_client ? agreed->client_no_takeover : agreed->server_no_takeover,
        .in_fresh = is_client ? agreed->server_no_takeover : agreed->client_no_takeover,
    };
    assert_int_equal(deflateInit2(&o->out, 9, Z_DEFLATED, -(int)(out_bits == 8 ? 9 : out_bits), 9, Z_DEFAULT_STRATEGY),
                     Z_OK);
    assert_int_equal(inflateInit2(&o->in, -(int)in_bits), Z_OK);
}

static void other_close(struct other *o)
{
    deflateEnd(&o->out);
    inflateEnd(&o->in);
}

static size_t other_compress(struct other *o, const uint8_t *data, size_t len, uint8_t **out)
{
    size_t cap = len + len / 2 + 1024;
    *out = malloc(cap);
    if (o->out_fresh) {
        deflateReset(&o->out);
    }
    o->out.next_in = (Bytef *)(uintptr_t)data;
    o->out.avail_in = (uInt)len;
    o->out.next_out = *out;
    o->out.avail_out = (uInt)cap;
    deflate(&o->out, Z_SYNC_FLUSH);
    size_t made = cap - o->out.avail_out;
    if (made == 0) { /* nothing since the last flush: an empty block */
        (*out)[0] = 0;
        return 1;
    }
    assert_true(made >= 4 && memcmp(*out + made - 4, "\0\0\xff\xff", 4) == 0);
    return made - 4;
}

/* One byte of output at a time: then zlib can refer to nothing but its window, and a distance beyond
 * the agreed one is an error. */
static void other_expect(struct other *o, const uint8_t *data, size_t len, const uint8_t *expected, size_t expected_len)
{
    if (o->in_fresh) {
        inflateReset(&o->in);
    }
    uint8_t *copy = malloc(len + 4);
    memcpy(copy, data, len);
    memcpy(copy + len, "\0\0\xff\xff", 4);
    o->in.next_in = copy;
    o->in.avail_in = (uInt)len + 4;
    for (size_t i = 0; i < expected_len; i++) {
        uint8_t byte;
        o->in.next_out = &byte;
        o->in.avail_out = 1;
        assert_int_equal(inflate(&o->in, Z_SYNC_FLUSH), Z_OK);
        assert_int_equal(o->in.avail_out, 0);
        assert_int_equal(byte, expected[i]);
    }
    uint8_t rest;
    o->in.next_out = &rest;
    o->in.avail_out = 1;
    inflate(&o->in, Z_SYNC_FLUSH);
    assert_int_equal(o->in.avail_out, 1);
    assert_int_equal(o->in.avail_in, 0);
    free(copy);
}

/* Text with repetitions near and far, valid UTF-8. */
static void make_text(uint8_t *to, size_t len, unsigned seed)
{
    static const char *const words[] = {"socket ",     "kiln ",  "{\"key\": ", "value, ",
                                        "0123456789 ", "stream", "\xc3\xa4 "};
    size_t at = 0;
    while (at < len) {
        seed = seed * 1103515245 + 12345;
        const char *word = words[(seed >> 16) % 7];
        size_t n = strlen(word);
        if (at + n > len) {
            memset(to + at, '.', len - at);
            return;
        }
        memcpy(to + at, word, n);
        at += n;
    }
}

/* ---- both ways ------------------------------------------------------------------------------------------------ */

struct pair {
    struct echo e;
    struct other other;
    struct ws_pool *pool;
    bool client; /* role of the core */
};

static void pair_open(struct pair *p, enum ws_role role, const struct ws_deflate *agreed,
                      const struct ws_pool_options *options, const struct ws_settings *settings)
{
    memset(p, 0, sizeof *p);
    p->pool = ws_pool_create(options);
    p->client = role == WS_CLIENT;
    ws_init(&p->e.ws, role, settings);
    ws_use_deflate(&p->e.ws, p->pool, agreed);
    other_open(&p->other, agreed, !p->client);
}

static void pair_close(struct pair *p)
{
    echo_free(&p->e);
    ws_pool_free(p->pool);
    other_close(&p->other);
}

static struct wire wire;

/* The other side sends the message in `pieces` frames, the echo must be the same message. */
static void exchange(struct pair *p, const uint8_t *data, size_t len, size_t pieces, enum chop chop)
{
    uint8_t *compressed;
    size_t n = other_compress(&p->other, data, len, &compressed);
    wire.bytes.len = 0;
    wire.count = 0;
    for (size_t i = 0; i < pieces; i++) {
        size_t from = n * i / pieces;
        size_t to = n * (i + 1) / pieces;
        unsigned first = (i == 0 ? 0x41u : 0) | (i + 1 == pieces ? 0x80 : 0);
        put_frame(&wire, first, compressed + from, to - from, !p->client, 0);
        if (i == 0 && pieces > 1) {
            put_frame(&wire, 0x8a, "between", 7, !p->client, 0);
        }
    }
    free(compressed);
    p->e.out.len = 0;
    echo_feed_wire(&p->e, &wire, chop);
    if (p->e.failure != 0) {
        fail_msg("%zu bytes in %zu pieces: %s", len, pieces, p->e.why);
    }
    struct seen_list list = read_frames(&p->e.out, p->client);
    assert_int_equal(list.count, 1);
    if (list.items[0].first == 0xc1) {
        other_expect(&p->other, list.items[0].payload, list.items[0].len, data, len);
    } else {
        assert_int_equal(list.items[0].first, 0x81);
        assert_int_equal(list.items[0].len, len);
        assert_memory_equal(list.items[0].payload, data, len);
    }
    free_frames(&list);
}

static void test_every_size_and_agreement(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 16, 64, 256, 1024, 8192, 40000, 131072};
    uint8_t *data = malloc(131072);
    for (unsigned bits = 8; bits <= 15; bits++) {
        for (unsigned flags = 0; flags < 8; flags++) {
            const struct ws_deflate agreed = {.on = true,
                                              .server_no_takeover = flags & 1,
                                              .client_no_takeover = (flags & 2) != 0,
                                              .server_bits = (uint8_t)bits,
                                              .client_bits = (uint8_t)(23 - bits)};
            struct pair p;
            pair_open(&p, (flags & 4) != 0 ? WS_CLIENT : WS_SERVER, &agreed, &generous, bits % 2 ? &whole : &in_parts);
            for (unsigned i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
                size_t len = sizes[i / 2];
                make_text(data, len, i * 31 + bits);
                exchange(&p, data, len, 1 + (i % 3) * 2, (i % 2) != 0 ? CHOP_997 : CHOP_WHOLE);
            }
            make_text(data, 3000, 1);
            exchange(&p, data, 3000, 7, CHOP_OCTETS);
            pair_close(&p);
        }
    }
    free(data);
}

/* Data that repeats at every distance up to the window, to lure the encoder beyond it. */
static void test_no_distance_beyond_a_window_of_256(void **state)
{
    (void)state;
    const struct ws_deflate agreed = {.on = true, .server_bits = 8, .client_bits = 8};
    struct pair p;
    uint8_t data[20000];
    pair_open(&p, WS_SERVER, &agreed, &generous, &whole);
    for (size_t period = 200; period < 600; period++) {
        for (size_t i = 0; i < sizeof data; i++) {
            data[i] = (uint8_t)(32 + (i % period * 2654435761u >> 7) % 90);
        }
        exchange(&p, data, 4 * period, 1, CHOP_WHOLE);
    }
    pair_close(&p);
}

/* ---- the examples of RFC 7692, 7.2.3 --------------------------------------------------------------------------- */

static void test_examples_of_the_rfc(void **state)
{
    (void)state;
    static const char *const scripts[] = {
        "c1:xf248cdc9c90700",
        "41:xf248cd 80:xc9c90700",
        "c1:xf248cdc9c90700 c1:xf200110000",
        "c1:x000500faff48656c6c6f00",
        "c1:xf348cdc9c9070000",
        "41:xf248050000 80:x00", /* not whole */
        "c1:xf24805000000ffffcac9c90700",
        "c1:xf348cdc9c90700", /* a final block without the empty one behind it */
    };
    static const unsigned counts[] = {1, 1, 2, 1, 1, 0, 1, 1};
    const struct ws_deflate agreed = {.on = true, .server_bits = 15, .client_bits = 15};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        for (enum chop chop = 0; chop < CHOP_COUNT; chop++) {
            struct pair p;
            pair_open(&p, WS_SERVER, &agreed, &generous, &(const struct ws_settings){.compress_from = 1000});
            wire.bytes.len = 0;
            wire.count = 0;
            put_script(&wire, scripts[i], true);
            echo_feed_wire(&p.e, &wire, chop);
            struct seen_list list = read_frames(&p.e.out, false);
            if (counts[i] == 0) {
                assert_true(p.e.failure != 0);
            } else {
                assert_int_equal(p.e.failure, 0);
                assert_int_equal(list.count, counts[i]);
                assert_int_equal(list.items[list.count - 1].len, 5);
                assert_memory_equal(list.items[list.count - 1].payload, "Hello", 5);
            }
            free_frames(&list);
            pair_close(&p);
        }
    }
}

/* ---- what must fail ------------------------------------------------------------------------------------------- */

static unsigned failure_of(const char *script, uint64_t limit)
{
    const struct ws_deflate agreed = {.on = true, .server_bits = 15, .client_bits = 15};
    const struct ws_settings settings = {.max_message = limit};
    struct pair p;
    pair_open(&p, WS_SERVER, &agreed, &generous, &settings);
    wire.bytes.len = 0;
    wire.count = 0;
    put_script(&wire, script, true);
    echo_feed_wire(&p.e, &wire, CHOP_OCTETS);
    unsigned failure = p.e.failure;
    pair_close(&p);
    return failure;
}

static void test_wrong_frames_and_data(void **state)
{
    (void)state;
    assert_int_equal(failure_of("c9:x00", 0), 1002); /* a compressed ping */
    assert_int_equal(failure_of("41:xf248cd c0:xc9c90700", 0), 1002); /* the bit on a continuation */
    assert_int_equal(failure_of("a1:a", 0), 1002);
    assert_int_equal(failure_of("c1:xff", 0), 1007); /* a block of type 3 */
    assert_int_equal(failure_of("c1:x0005000000", 0), 1007); /* stored length and its complement differ */
    assert_int_equal(failure_of("c1:xf248cd", 0), 1007); /* cut off */
    assert_int_equal(failure_of("c1:x", 0), 1007); /* nothing at all is no stream */
    assert_int_equal(failure_of("c1:xf200110000", 0), 1007); /* refers to what never was */
    assert_int_equal(failure_of("c1:xaafa0f00", 0), 1007); /* text that is not UTF-8 */
    assert_int_equal(failure_of("c1:xf248cdc9c90700", 5), 0);
    assert_int_equal(failure_of("c1:xf248cdc9c90700", 4), 1009);
}

static void test_a_bomb_is_cut_off_before_it_costs_memory(void **state)
{
    (void)state;
    enum { LIMIT = 1 << 20 };
    const struct ws_deflate agreed = {.on = true, .server_bits = 15, .client_bits = 15};
    const struct ws_settings settings = {.max_message = LIMIT};
    uint8_t *zeros = calloc(1, 64 << 20);
    struct pair p;
    pair_open(&p, WS_SERVER, &agreed, &generous, &settings);
    uint8_t *bomb;
    size_t len = other_compress(&p.other, zeros, 64 << 20, &bomb);
    wire.bytes.len = 0;
    wire.count = 0;
    put_frame(&wire, 0xc2, bomb, len, true, 0);
    echo_feed(&p.e, wire.bytes.data, wire.bytes.len);
    assert_int_equal(p.e.failure, 1009);
    assert_true(p.e.ws.message_cap <= 2 * LIMIT);
    assert_true(ws_pool_used(p.pool) < 100000);
    free(bomb);
    free(zeros);
    pair_close(&p);
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

static void expect_sent(struct pair *p, const struct ws_frame *frame, unsigned first, const char *text)
{
    struct ws_buffer bytes = {0};
    uint8_t *copy = malloc(ws_frame_size(frame));
    ws_frame_copy(frame, copy);
    ws_buffer_add(&bytes, copy, ws_frame_size(frame));
    struct seen_list list = read_frames(&bytes, p->client);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].first, first);
    if ((first & 0x40) != 0) {
        other_expect(&p->other, list.items[0].payload, list.items[0].len, (const uint8_t *)text, strlen(text));
    }
    free_frames(&list);
    ws_buffer_free(&bytes);
    free(copy);
}

static const char long_text[] = "a message that is long enough to be worth it, worth it, worth it, worth it";

static void test_short_messages_go_as_they_are(void **state)
{
    (void)state;
    const struct ws_deflate agreed = {.on = true, .server_bits = 15, .client_bits = 15};
    struct pair p;
    struct ws_frame frame;
    pair_open(&p, WS_SERVER, &agreed, &generous, &(const struct ws_settings){.compress_from = 40});
    assert_int_equal(ws_frame_make(&p.e.ws, &frame, WS_TEXT, long_text, 39), WS_OK);
    assert_true(frame.borrowed);
    assert_ptr_equal(frame.payload, long_text); /* not copied */
    expect_sent(&p, &frame, 0x81, "");
    assert_int_equal(ws_frame_make(&p.e.ws, &frame, WS_TEXT, long_text, sizeof long_text - 1), WS_OK);
    expect_sent(&p, &frame, 0xc1, long_text);
    /* What does not become shorter goes as it is, and the history stays in step. */
    uint8_t noise[200];
    ws_random(noise, sizeof noise);
    assert_int_equal(ws_frame_make(&p.e.ws, &frame, WS_BINARY, noise, sizeof noise), WS_OK);
    expect_sent(&p, &frame, 0x82, "");
    assert_int_equal(ws_frame_make(&p.e.ws, &frame, WS_TEXT, long_text, sizeof long_text - 1), WS_OK);
    expect_sent(&p, &frame, 0xc1, long_text);
    pair_close(&p);
}

static void test_messages_sent_in_fragments_are_compressed_as_one(void **state)
{
    (void)state;
    for (unsigned no_takeover = 0; no_takeover < 2; no_takeover++) {
        const struct ws_deflate agreed = {.on = true,
                                          .server_no_takeover = no_takeover != 0,
                                          .client_no_takeover = no_takeover != 0,
                                          .server_bits = 10,
                                          .client_bits = 10};
        struct pair p;
        struct ws_frame frame;
        pair_open(&p, WS_CLIENT, &agreed, &generous, &whole);
        for (int round = 0; round < 3; round++) {
            struct ws_buffer compressed = {0};
            static const char *const parts[] = {"one, two, three, ", "", "one, two, three", ""};
            for (size_t i = 0; i < 4; i++) {
                assert_int_equal(ws_fragment_make(&p.e.ws, &frame, WS_TEXT, parts[i], strlen(parts[i]), i == 3), WS_OK);
                assert_int_equal(frame.head[0], (i == 0 ? 0x41 : 0) | (i == 3 ? 0x80 : 0));
                ws_buffer_add(&compressed, frame.payload, frame.payload_len);
                struct ws_frame ping;
                assert_int_equal(ws_frame_make(&p.e.ws, &ping, WS_PING, "p", 1), WS_OK);
            }
            other_expect(&p.other, (const uint8_t *)compressed.data, compressed.len,
                         (const uint8_t *)"one, two, three, one, two, three", 32);
            ws_buffer_free(&compressed);
        }
        pair_close(&p);
    }
}

static void test_one_frame_for_many_between_messages_of_ones_own(void **state)
{
    (void)state;
    const struct ws_deflate agreed = {.on = true, .server_bits = 12, .client_bits = 15};
    struct pair p;
    struct ws_frame frame;
    pair_open(&p, WS_SERVER, &agreed, &generous, &whole);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(ws_frame_make(&p.e.ws, &frame, WS_TEXT, long_text, sizeof long_text - 1), WS_OK);
        expect_sent(&p, &frame, 0xc1, long_text);
        assert_int_equal(ws_shared_bits(&p.e.ws), 12);
        assert_true(ws_takes_shared(&p.e.ws));
        assert_true(ws_shared_make(p.pool, 12, &frame, WS_TEXT, long_text + 2, sizeof long_text - 3));
        ws_shared_sent(&p.e.ws);
        expect_sent(&p, &frame, 0xc1, long_text + 2);
    }
    pair_close(&p);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Ten thousand connections that forget after each message hold no context between messages. */
static void test_idle_connections_share_contexts(void **state)
{
    (void)state;
    enum { MANY = 10000 };
    const struct ws_deflate agreed = {
        .on = true, .server_no_takeover = true, .client_no_takeover = true, .server_bits = 15, .client_bits = 15};
    const struct ws_pool_options options = {0};
    struct ws_pool *pool = ws_pool_create(&options);
    struct ws *many = calloc(MANY, sizeof *many);
    struct other other;
    other_open(&other, &agreed, true);
    uint8_t *compressed;
    size_t len = other_compress(&other, (const uint8_t *)long_text, sizeof long_text - 1, &compressed);
    wire.bytes.len = 0;
    wire.count = 0;
    put_frame(&wire, 0xc1, compressed, len, true, 0);
    uint8_t *copy = malloc(wire.bytes.len);
    for (size_t i = 0; i < MANY; i++) {
        struct ws_item item;
        struct ws_frame frame;
        ws_init(&many[i], WS_SERVER, &whole);
        ws_use_deflate(&many[i], pool, &agreed);
        memcpy(copy, wire.bytes.data, wire.bytes.len);
        struct ws_input input = {copy, wire.bytes.len};
        assert_int_equal(ws_receive(&many[i], &input, &item), WS_EVENT_DATA);
        assert_int_equal(item.len, sizeof long_text - 1);
        assert_int_equal(ws_frame_make(&many[i], &frame, WS_TEXT, item.data, item.len), WS_OK);
        assert_int_equal(frame.head[0], 0xc1);
        ws_trim(&many[i]);
        assert_null(many[i].message);
    }
    assert_true(ws_pool_used(pool) < 400000);
    for (size_t i = 0; i < MANY; i++) {
        ws_free(&many[i]);
    }
    free(copy);
    free(compressed);
    free(many);
    other_close(&other);
    ws_pool_free(pool);
}

/* Beyond the budget nobody is promised a history any more, and our own is given up, yet all can talk. */
static void test_the_budget_bounds_kept_contexts(void **state)
{
    (void)state;
    enum { MANY = 100, BUDGET = 1 << 20 };
    const struct ws_pool_options options = {.budget = BUDGET};
    struct ws_pool *pool = ws_pool_create(&options);
    struct ws many[MANY];
    unsigned promised = 0;
    for (size_t i = 0; i < MANY; i++) {
        struct ws_deflate agreed = {.on = true, .server_bits = 15, .client_bits = 15};
        agreed.client_no_takeover = !ws_pool_has_room(pool, agreed.client_bits);
        promised += !agreed.client_no_takeover;
        ws_init(&many[i], WS_SERVER, &whole);
        ws_use_deflate(&many[i], pool, &agreed);
        struct ws_frame frame;
        assert_int_equal(ws_frame_make(&many[i], &frame, WS_TEXT, long_text, sizeof long_text - 1), WS_OK);
        assert_int_equal(frame.head[0], 0xc1);
    }
    assert_in_range(promised, 10, BUDGET / 32768);
    assert_true(ws_pool_used(pool) < BUDGET + 600000);
    for (size_t i = 0; i < MANY; i++) {
        ws_free(&many[i]);
    }
    assert_true(ws_pool_has_room(pool, 15));
    ws_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size_and_agreement),
        cmocka_unit_test(test_no_distance_beyond_a_window_of_256),
        cmocka_unit_test(test_examples_of_the_rfc),
        cmocka_unit_test(test_wrong_frames_and_data),
        cmocka_unit_test(test_a_bomb_is_cut_off_before_it_costs_memory),
        cmocka_unit_test(test_short_messages_go_as_they_are),
        cmocka_unit_test(test_messages_sent_in_fragments_are_compressed_as_one),
        cmocka_unit_test(test_one_frame_for_many_between_messages_of_ones_own),
        cmocka_unit_test(test_idle_connections_share_contexts),
        cmocka_unit_test(test_the_budget_bounds_kept_contexts),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ws_buffer_free(&wire.bytes);
    return failed;
}
