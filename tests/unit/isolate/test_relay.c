/* What a host may say about a request, and what it may not. */
#include "tests/support/relay_support.h"

#include "isolate/heads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static bool say(enum frame_kind kind, uint64_t id, const struct buffer *payload)
{
    struct buffer bytes = BUFFER_EMPTY;
    struct frame frame = {.length = payload != NULL ? (uint32_t)payload->len : 0, .kind = (uint16_t)kind, .id = id};
    buffer_append(&bytes, &frame, sizeof frame);
    if (payload != NULL) {
        buffer_append(&bytes, payload->data, payload->len);
    }
    bool open = wire_feed(&fake_channel->wire, (const uint8_t *)bytes.data, bytes.len);
    buffer_free(&bytes);
    return open;
}

static bool say_head(enum frame_kind kind, unsigned i, uint16_t status, uint64_t length, const char *name,
                     const char *value)
{
    struct buffer fields = BUFFER_EMPTY;
    struct response_header header = {str_of(name != NULL ? name : ""), str_of(value != NULL ? value : "")};
    answer_head_put(&fields, &(struct answer_parts){.status = status,
                                                    .content_type = STR_NONE,
                                                    .headers = &header,
                                                    .header_count = name != NULL,
                                                    .length = length,
                                                    .detail = STR_NONE});
    bool open = say(kind, fake_id(i), &fields);
    buffer_free(&fields);
    return open;
}

static bool say_bytes(enum frame_kind kind, unsigned i, size_t len)
{
    struct buffer bytes = BUFFER_EMPTY;
    char *to = buffer_reserve(&bytes, len + 1);
    memset(to, 'x', len);
    bytes.len = len;
    bool open = say(kind, fake_id(i), &bytes);
    buffer_free(&bytes);
    return open;
}

static bool say_number(enum frame_kind kind, unsigned i, uint64_t number)
{
    struct buffer bytes = BUFFER_EMPTY;
    frame_put_u64(&bytes, number);
    bool open = say(kind, fake_id(i), &bytes);
    buffer_free(&bytes);
    return open;
}

static int begin(void **state)
{
    (void)state;
    if (fake_loop == NULL) {
        fake_start();
    }
    fake_begin();
    return 0;
}

static int finish(void **state)
{
    (void)state;
    fake_finish();
    return 0;
}

static void test_a_whole_answer(void **state)
{
    (void)state;
    assert_true(say_head(FRAME_HEAD, 1, 201, 5, "X-A", "b"));
    assert_true(say_bytes(FRAME_DATA, 1, 5));
    assert_true(say(FRAME_END, fake_id(1), NULL));
    assert_int_equal(fake_clients[1].status, 201);
    assert_int_equal(fake_clients[1].bytes, 5);
    assert_int_equal(fake_clients[1].ends, 1);
    assert_false(fake_clients[1].cut);
    assert_int_equal(fake_clients[0].ends + fake_clients[2].ends, 0);
    /* About a request that has ended, or never was: nobody cares. */
    assert_true(say_bytes(FRAME_DATA, 1, 5));
    assert_true(say(FRAME_END, UINT64_C(77) << 32 | 9, NULL));
}

static bool say_trailer(unsigned i, uint16_t count, const char *name, const char *value)
{
    struct buffer fields = BUFFER_EMPTY;
    frame_put_u16(&fields, count);
    frame_put_str(&fields, str_of(name));
    frame_put_str(&fields, str_of(value));
    bool open = say(FRAME_END, fake_id(i), &fields);
    buffer_free(&fields);
    return open;
}

static void test_trailers(void **state)
{
    (void)state;
    assert_true(say_head(FRAME_HEAD, 1, 200, RESPONSE_LENGTH_UNKNOWN, NULL, NULL));
    assert_true(say_trailer(1, 1, "X-Sum", "7"));
    assert_int_equal(fake_clients[1].ends, 1);
    assert_false(fake_clients[1].cut);
}

static void test_a_short_answer_is_cut(void **state)
{
    (void)state;
    assert_true(say_head(FRAME_HEAD, 0, 200, 5, NULL, NULL));
    assert_true(say_bytes(FRAME_DATA, 0, 4));
    assert_true(say(FRAME_END, fake_id(0), NULL));
    assert_true(fake_clients[0].cut);
}

static void test_the_body_goes_there(void **state)
{
    (void)state;
    assert_true(say_number(FRAME_ROOM, 2, 100));
    assert_int_equal(fake_clients[2].req->body.received, 8);
    assert_true(fake_clients[2].req->body.complete);
}

/* All are lost with it: the one that was answered is cut, those that had begun get 502, others wait. */
static void assert_killed(void)
{
    assert_true(fake_channel->wire.ended);
    assert_true(atomic_load(&fake_host->left));
    assert_true(fake_host->kill_at_ms != 0);
    for (size_t i = 0; i < FAKE_REQUESTS; i++) {
        assert_true(fake_clients[i].ends == 1);
    }
}

#define MAY_NOT(name, statement) \
    static void name(void **state) \
    { \
        (void)state; \
        assert_false(statement); \
        assert_killed(); \
    }

MAY_NOT(test_data_before_a_head, say_bytes(FRAME_DATA, 0, 1))
MAY_NOT(test_an_end_before_a_head, say(FRAME_END, fake_id(0), NULL))
MAY_NOT(test_two_heads, say_head(FRAME_HEAD, 0, 200, 1, NULL, NULL) && say_head(FRAME_HEAD, 0, 200, 1, NULL, NULL))
MAY_NOT(test_more_than_it_promised, say_head(FRAME_HEAD, 0, 200, 3, NULL, NULL) && say_bytes(FRAME_DATA, 0, 4))
MAY_NOT(test_a_status_that_is_none, say_head(FRAME_HEAD, 0, 100, 3, NULL, NULL))
MAY_NOT(test_an_error_that_is_none, say_head(FRAME_ERROR, 0, 200, 0, NULL, NULL))
MAY_NOT(test_a_line_break_in_a_header, say_head(FRAME_HEAD, 0, 200, 0, "X", "a\r\nSet-Cookie: b"))
MAY_NOT(test_a_name_that_is_none, say_head(FRAME_HEAD, 0, 200, 0, "X Y", "a"))
MAY_NOT(test_framing_of_its_own, say_head(FRAME_HEAD, 0, 200, 0, "Content-Length", "5"))
MAY_NOT(test_a_frame_of_the_worker, say_bytes(FRAME_BODY, 0, 3))
MAY_NOT(test_an_unknown_frame, say_bytes((enum frame_kind)999, 0, 3))
MAY_NOT(test_too_much_room, say_number(FRAME_ROOM, 0, UINT64_MAX))
MAY_NOT(test_an_end_with_a_payload, say_head(FRAME_HEAD, 0, 200, 0, NULL, NULL) && say_bytes(FRAME_END, 0, 1))
#define BEGUN say_head(FRAME_HEAD, 0, 200, RESPONSE_LENGTH_UNKNOWN, NULL, NULL)
MAY_NOT(test_trailers_that_are_fewer, BEGUN &&say_trailer(0, 2, "X", "a"))
MAY_NOT(test_trailers_that_are_more, BEGUN &&say_trailer(0, 0, "X", "a"))
MAY_NOT(test_a_line_break_in_a_trailer, BEGUN &&say_trailer(0, 1, "X", "a\r\nb"))
MAY_NOT(test_a_trailer_that_frames, BEGUN &&say_trailer(0, 1, "Transfer-Encoding", "chunked"))
MAY_NOT(test_large_data, say_head(FRAME_HEAD, 0, 200, RESPONSE_LENGTH_UNKNOWN, NULL, NULL) &&
                             say_bytes(FRAME_DATA, 0, FRAME_DATA_MAX + 1))
MAY_NOT(test_a_file_without_one, say_head(FRAME_HEAD, 0, 200, 5, NULL, NULL) && say_number(FRAME_FILE, 0, 0))
MAY_NOT(test_a_session_call_that_is_none, say_number(FRAME_SESSION, 0, 99))

static bool say_file(int fd, uint64_t offset, uint64_t len)
{
    fake_channel->wire.fds[fake_channel->wire.fd_count++] = fd;
    struct buffer fields = BUFFER_EMPTY;
    frame_put_u64(&fields, offset);
    frame_put_u64(&fields, len);
    bool open = say(FRAME_FILE, fake_id(0), &fields);
    buffer_free(&fields);
    return open;
}

static int file_of(size_t size)
{
    int fd = memfd_create("x", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    return fd;
}

static void test_a_file(void **state)
{
    (void)state;
    assert_true(say_head(FRAME_HEAD, 0, 200, 90, NULL, NULL));
    assert_true(say_file(file_of(100), 10, 90));
    assert_true(say(FRAME_END, fake_id(0), NULL));
    assert_int_equal(fake_clients[0].bytes, 90);
    assert_false(fake_clients[0].cut);
}

MAY_NOT(test_a_file_that_is_shorter, say_head(FRAME_HEAD, 0, 200, 90, NULL, NULL) && say_file(file_of(99), 10, 90))
MAY_NOT(test_a_file_past_the_promise, say_head(FRAME_HEAD, 0, 200, 10, NULL, NULL) && say_file(file_of(99), 10, 11))

static void test_a_pipe_is_no_file(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_true(say_head(FRAME_HEAD, 0, 200, 10, NULL, NULL));
    assert_false(say_file(ends[0], 0, 10));
    close(ends[1]);
    assert_killed();
}

static void test_a_frame_past_the_limit(void **state)
{
    (void)state;
    struct frame frame = {.length = FRAME_MAX + 1, .kind = FRAME_DATA, .id = fake_id(0)};
    assert_false(wire_feed(&fake_channel->wire, (const uint8_t *)&frame, sizeof frame));
    assert_killed();
}

/* More than a client could take is not held for it. */
static void test_the_window(void **state)
{
    (void)state;
    assert_true(say_head(FRAME_HEAD, 0, 200, RESPONSE_LENGTH_UNKNOWN, NULL, NULL));
    size_t sent = 0;
    for (; sent < 4 * (size_t)FRAME_WINDOW; sent += FRAME_DATA_MAX) {
        assert_true(say_bytes(FRAME_DATA, 0, FRAME_DATA_MAX)); /* this client takes all at once */
    }
    assert_int_equal(fake_clients[0].bytes, sent);
}

/* Byte by byte is as good as at once. */
static void test_pieces(void **state)
{
    (void)state;
    struct buffer bytes = BUFFER_EMPTY;
    struct buffer fields = BUFFER_EMPTY;
    answer_head_put(&fields,
                    &(struct answer_parts){.status = 200, .length = 3, .content_type = STR("a/b"), .detail = STR_NONE});
    struct frame head = {.length = (uint32_t)fields.len, .kind = FRAME_HEAD, .id = fake_id(2)};
    struct frame data = {.length = 3, .kind = FRAME_DATA, .id = fake_id(2)};
    struct frame end = {.kind = FRAME_END, .id = fake_id(2)};
    buffer_append(&bytes, &head, sizeof head);
    buffer_append(&bytes, fields.data, fields.len);
    buffer_append(&bytes, &data, sizeof data);
    buffer_append(&bytes, "abc", 3);
    buffer_append(&bytes, &end, sizeof end);
    for (size_t i = 0; i < bytes.len; i++) {
        assert_true(wire_feed(&fake_channel->wire, (const uint8_t *)bytes.data + i, 1));
    }
    assert_int_equal(fake_clients[2].bytes, 3);
    assert_int_equal(fake_clients[2].ends, 1);
    buffer_free(&bytes);
    buffer_free(&fields);
}

/* The process is gone: who had begun is lost, the others wait for the next. */
static void test_what_had_not_begun_waits(void **state)
{
    (void)state;
    atomic_store(&fake_host->begun[0].number, 1);
    wire_close(&fake_channel->wire);
    channel_calls()->on_end(&fake_channel->wire, NULL);
    assert_int_equal(fake_clients[0].status, 502);
    assert_int_equal(fake_clients[0].ends, 1);
    assert_int_equal(fake_clients[1].ends + fake_clients[2].ends, 0);
    assert_false(list_is_empty(&fake_isolate->berths[0].waiting));
}

static void test_a_client_that_leaves(void **state)
{
    (void)state;
    request_gone(fake_clients[0].req);
    request_end(fake_clients[0].req);
    assert_int_equal(atomic_load(&fake_host->live), FAKE_REQUESTS - 1);
    assert_true(say_head(FRAME_HEAD, 0, 200, 5, NULL, NULL)); /* crossed on the way */
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_whole_answer),
        T(test_trailers),
        T(test_a_short_answer_is_cut),
        T(test_the_body_goes_there),
        T(test_data_before_a_head),
        T(test_an_end_before_a_head),
        T(test_two_heads),
        T(test_more_than_it_promised),
        T(test_a_status_that_is_none),
        T(test_an_error_that_is_none),
        T(test_a_line_break_in_a_header),
        T(test_a_name_that_is_none),
        T(test_framing_of_its_own),
        T(test_a_frame_of_the_worker),
        T(test_an_unknown_frame),
        T(test_too_much_room),
        T(test_an_end_with_a_payload),
        T(test_trailers_that_are_fewer),
        T(test_trailers_that_are_more),
        T(test_a_line_break_in_a_trailer),
        T(test_a_trailer_that_frames),
        T(test_large_data),
        T(test_a_file_without_one),
        T(test_a_session_call_that_is_none),
        T(test_a_file),
        T(test_a_file_that_is_shorter),
        T(test_a_file_past_the_promise),
        T(test_a_pipe_is_no_file),
        T(test_a_frame_past_the_limit),
        T(test_the_window),
        T(test_pieces),
        T(test_what_had_not_begun_waits),
        T(test_a_client_that_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
