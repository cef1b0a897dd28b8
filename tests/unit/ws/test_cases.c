/* Every case of cases.def, in both roles, chopped in every way, in each mode of delivery. */
#include "ws_support.h"

struct ws_case {
    const char *id;
    const char *in;
    const char *out;
};

static const struct ws_case cases[] = {
#define CASE(id, in, out) {id, in, out},
#include "cases.def"
#undef CASE
};

static const struct ws_settings modes[] = {
    {0},
    {.own_messages = true},
    {.parts = true},
    {.max_message = 1 << 20},
};

static struct wire wire;
static struct wire expected;

static bool close_is(const struct seen *seen, unsigned code)
{
    return seen->first == 0x88 && seen->len >= 2 && ((unsigned)seen->payload[0] << 8 | seen->payload[1]) == code;
}

/* What the peer wrote is what the case says, frame by frame. */
static bool answers_as_expected(const struct ws_case *c, const struct echo *e, bool client)
{
    const char *failure = strstr(c->out, "fail");
    unsigned code = failure != NULL ? (unsigned)atoi(failure + 4) : 0;
    char *frames = strdup(c->out);
    frames[failure != NULL ? (size_t)(failure - c->out) : strlen(frames)] = '\0';
    expected.bytes.len = 0;
    expected.count = 0;
    put_script(&expected, frames, false);
    free(frames);
    struct seen_list list = read_frames(&e->out, client);
    struct seen_list wanted = read_frames(&expected.bytes, false);
    bool good = e->failure == code && list.count == wanted.count + (code != 0);
    for (size_t i = 0; good && i < wanted.count; i++) {
        good = list.items[i].first == wanted.items[i].first && list.items[i].len == wanted.items[i].len &&
               memcmp(list.items[i].payload, wanted.items[i].payload, wanted.items[i].len) == 0;
    }
    good = good && (code == 0 || close_is(&list.items[list.count - 1], code));
    free_frames(&list);
    free_frames(&wanted);
    return good;
}

static void run_case(const struct ws_case *c, enum chop chop, enum ws_role role, const struct ws_settings *settings)
{
    struct echo e = {0};
    wire.bytes.len = 0;
    wire.count = 0;
    put_script(&wire, c->in, role == WS_SERVER);
    ws_init(&e.ws, role, settings);
    echo_feed_wire(&e, &wire, chop);
    if (!answers_as_expected(c, &e, role == WS_CLIENT)) {
        fail_msg("case %s, chop %d, role %d, mode %d: failure %u %s", c->id, (int)chop, (int)role,
                 (int)(settings - modes), e.failure, e.why != NULL ? e.why : "");
    }
    echo_free(&e);
}

static void test_every_case(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool big = strstr(cases[i].in, "*262144") != NULL || strstr(cases[i].in, "*1048576") != NULL;
        for (enum chop chop = 0; chop < CHOP_COUNT; chop++) {
            for (size_t mode = 0; mode < sizeof modes / sizeof modes[0]; mode++) {
                if (!big || chop < CHOP_7 || mode == 0) {
                    run_case(&cases[i], chop, WS_SERVER, &modes[mode]);
                    run_case(&cases[i], chop, WS_CLIENT, &modes[mode]);
                }
            }
        }
    }
}

/* ---- failing at the first byte that shows it ------------------------------------------------------------ */

static bool is_text(const uint8_t *text, size_t len)
{
    return ws_utf8_is_valid(text, len); /* proven against the definition in test_utf8.c */
}

/* Can these bytes go on to be UTF-8? */
static bool may_become_text(const uint8_t *text, size_t len)
{
    static const uint8_t next[] = {0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf};
    uint8_t *copy = malloc(len + 3);
    memcpy(copy, text, len);
    bool may = is_text(copy, len);
    for (size_t i = 0; i < sizeof next && !may; i++) {
        copy[len] = next[i];
        copy[len + 1] = copy[len + 2] = 0x80;
        may = is_text(copy, len + 1) || is_text(copy, len + 2) || is_text(copy, len + 3);
    }
    free(copy);
    return may;
}

/* 6.4 of the suite, for every text of 6: not a byte later than it can be known. */
static void test_wrong_text_fails_at_its_first_wrong_byte(void **state)
{
    (void)state;
    size_t checked = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strncmp(cases[i].in, "81:x", 4) != 0 || strcmp(cases[i].out, "fail1007") != 0) {
            continue;
        }
        uint8_t *text;
        size_t len = read_payload(cases[i].in + 3, strlen(cases[i].in + 3), &text);
        size_t first_wrong = 1;
        while (first_wrong <= len && may_become_text(text, first_wrong)) {
            first_wrong++;
        }
        struct echo e = {0};
        ws_init(&e.ws, WS_SERVER, &modes[0]);
        wire.bytes.len = 0;
        wire.count = 0;
        put_script(&wire, cases[i].in, true);
        size_t head = wire.bytes.len - len;
        for (size_t at = 0; at < wire.bytes.len && !e.ended; at++) {
            echo_feed(&e, wire.bytes.data + at, 1);
            bool due = at + 1 >= head + (first_wrong <= len ? first_wrong : len);
            assert_int_equal(e.ended, due);
        }
        assert_int_equal(e.failure, 1007);
        echo_free(&e);
        free(text);
        checked++;
    }
    assert_true(checked > 60);
}

/* Faults of a head are answered when their byte has come, not when the frame is whole. */
static void test_faults_of_heads_do_not_wait_for_more(void **state)
{
    (void)state;
    static const struct {
        uint8_t bytes[2];
        size_t len;
    } heads[] = {{{0x83}, 1}, {{0xb1}, 1},       {{0xc1}, 1},       {{0x80}, 1},
                 {{0x09}, 1}, {{0x81, 0x05}, 2}, {{0x89, 0xfe}, 2}, {{0x88, 0x81}, 2}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct echo e = {0};
        ws_init(&e.ws, WS_SERVER, &modes[0]);
        for (size_t at = 0; at < heads[i].len; at++) {
            assert_false(e.ended);
            echo_feed(&e, &heads[i].bytes[at], 1);
        }
        assert_int_equal(e.failure, 1002);
        echo_free(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case),
        cmocka_unit_test(test_wrong_text_fails_at_its_first_wrong_byte),
        cmocka_unit_test(test_faults_of_heads_do_not_wait_for_more),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ws_buffer_free(&wire.bytes);
    ws_buffer_free(&expected.bytes);
    return failed;
}
