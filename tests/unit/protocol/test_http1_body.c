/* HTTP/1.1 on a connection, from bytes to bytes: bodies, and clients that leave. */
#include "tests/support/http1_peer.h"

/* ---- bodies ------------------------------------------------------------------------------------- */

static void test_unread_body_of_an_answered_request_is_dropped(void **state)
{
    (void)state;
    fake_text(&peer, POST("/early", "Content-Length: 30\r\n", "GET /smuggled HTTP"));
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 1);
    fake_text(&peer, "/1.1\r\n\r\n...." GET("/next"));
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 1);
    assert_non_null(strstr(output, "GET /next 0 0"));
    assert_int_equal(begun, 2);
}

static void test_large_unread_body_ends_the_connection(void **state)
{
    (void)state;
    fake_text(&peer, POST("/early", "Content-Length: 1000000\r\n", "x"));
    assert_non_null(strstr(sent(), "Connection: close\r\n"));
    assert_true(is_lingering());
    send_bytes(300000);
    assert_true(is_lingering());
    fake_eof(&peer);
    assert_null(peer.conn);
}

static void test_unread_chunked_body_ends_the_connection(void **state)
{
    (void)state;
    fake_text(&peer, POST("/early", CHUNKED, "5\r\nhello\r\n0\r\n\r\n") GET("/next"));
    assert_int_equal(count(sent(), "HTTP/1.1"), 1);
    assert_non_null(strstr(output, "Connection: close\r\n"));
}

/* The answer comes with the last byte of the body, before its end was told. */
static void test_answer_at_the_last_byte_of_the_body(void **state)
{
    (void)state;
    fake_text(&peer, POST("/first", "Content-Length: 5\r\n", "hello") GET("/next"));
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 2);
    assert_non_null(strstr(output, "GET /next 0 0"));
}

static void test_answer_in_the_middle_of_the_body(void **state)
{
    (void)state;
    fake_text(&peer, POST("/first", "Content-Length: 10\r\n", "hello"));
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 1);
    fake_text(&peer, "world" GET("/next"));
    assert_non_null(strstr(sent(), "GET /next 0 0"));
}

/* A sink that pauses hears nothing, not even of the end, until it resumes. */
static void test_paused_sink_is_told_of_the_end_when_it_resumes(void **state)
{
    (void)state;
    fake_text(&peer, POST("/pause", "Content-Length: 5\r\n", "hello") GET("/next"));
    assert_int_equal(body_seen.len, 5);
    assert_int_equal(body_ends, 0);
    assert_string_equal(sent(), "");
    held->ops->body_resume(held);
    assert_int_equal(body_ends, 0);
    fake_run(&peer);
    assert_int_equal(body_ends, 1);
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 2);
}

static void test_paused_body_stops_reading(void **state)
{
    (void)state;
    fake_text(&peer, POST("/pause", "Content-Length: 1000000\r\n", "x"));
    assert_int_equal(body_seen.len, 1);
    char *block = calloc(1, 999999);
    fake_input(&peer, block, 999999);
    assert_int_equal(body_seen.len, 1);
    size_t waiting = peer.in_len;
    assert_true(waiting > 999999 - 200000);
    assert_false(fake_reads(&peer));
    while (held != NULL) {
        held->ops->body_resume(held);
        fake_run(&peer);
    }
    assert_int_equal(body_seen.len, 1000000);
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 1);
    free(block);
}

static void test_body_beyond_the_limit(void **state)
{
    (void)state;
    fake_text(&peer, POST("/", CHUNKED, "FFFFFFFFFFF\r\n"));
    for (unsigned i = 0; i < 3; i++) {
        send_bytes(65536);
    }
    assert_int_equal(body_error, -1);
    held = NULL;
    fake_close(&peer);
    open_peer(state);
    fake_text(&peer, POST("/", CHUNKED, "FFFFFFFFFFFFFFFE\r\n"));
    assert_int_equal(body_error, 413);
    assert_int_equal(strncmp(sent(), "HTTP/1.1 413", 12), 0);
    assert_true(is_lingering());
}

static void test_malformed_chunks(void **state)
{
    (void)state;
    static const char *const bodies[] = {"5\nhello\n0\n\n",        "x\r\n",
                                         "5\r\nhelloXX0\r\n\r\n",  "0\r\nbad\r\n\r\n",
                                         "0\r\nA: b\r\n:\r\n\r\n", "0\r\n GET / HTTP/1.1\r\n\r\n"};
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        fake_text(&peer, POST("/", CHUNKED, ""));
        fake_text(&peer, bodies[i]);
        assert_int_equal(body_error, 400);
        assert_int_equal(strncmp(sent(), "HTTP/1.1 400", 12), 0);
        assert_true(is_lingering());
        fake_close(&peer);
        open_peer(state);
    }
}

/* ---- 100-continue ----------------------------------------------------------------------------------- */

static void test_continue_is_sent_when_the_body_is_wanted(void **state)
{
    (void)state;
    fake_text(&peer, POST("/", "Expect: 100-Continue\r\nContent-Length: 5\r\n", ""));
    assert_string_equal(sent(), "HTTP/1.1 100 Continue\r\n\r\n");
    fake_text(&peer, "hello" GET("/next"));
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 2);
    assert_null(strstr(output, "100 Continue"));
}

static void test_continue_is_not_sent_without_need(void **state)
{
    (void)state;
    fake_text(&peer, "GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n");
    assert_null(strstr(sent(), "100 Continue"));
    fake_text(&peer, "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    assert_null(strstr(sent(), "100 Continue"));
    assert_int_equal(count(output, "HTTP/1.1 200"), 1);
}

/* Whether the client will send the body now is unknown: the connection cannot go on. */
static void test_answer_instead_of_continue_closes(void **state)
{
    (void)state;
    fake_text(&peer, POST("/early", "Expect: 100-continue\r\nContent-Length: 5\r\n", ""));
    assert_int_equal(strncmp(sent(), "HTTP/1.1 200", 12), 0);
    assert_non_null(strstr(output, "Connection: close"));
    assert_true(is_lingering());
}

static void test_continue_never_stands_in_an_answer(void **state)
{
    (void)state;
    fake_text(&peer, POST("/hold", "Expect: 100-continue\r\nContent-Length: 5\r\n", ""));
    response_begin(held, RESPONSE_LENGTH_UNKNOWN);
    response_write(held, "first", 5);
    read_body(held, &pause_sink);
    fake_run(&peer);
    assert_non_null(strstr(sent(), "5\r\nfirst\r\n"));
    assert_null(strstr(output, "100 Continue"));
    struct request *req = held;
    held = NULL;
    response_end(req);
    fake_run(&peer);
}

/* ---- the client leaves --------------------------------------------------------------------------------- */

static void test_end_of_input_between_requests_closes(void **state)
{
    (void)state;
    fake_text(&peer, GET("/"));
    fake_eof(&peer);
    assert_null(peer.conn);
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 1);
}

static void test_end_of_input_behind_a_whole_request(void **state)
{
    (void)state;
    fake_text(&peer, GET("/hold") GET("/next"));
    fake_eof(&peer);
    assert_int_equal(held_peer_eof, 1);
    assert_non_null(peer.conn);
    struct request *req = held;
    answer_echo(req);
    fake_run(&peer);
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 2);
    assert_null(peer.conn);
    assert_int_equal(held_gone, 0);
}

static void test_end_of_input_in_head_or_body(void **state)
{
    (void)state;
    fake_text(&peer, "GET / HT");
    fake_eof(&peer);
    assert_null(peer.conn);
    assert_string_equal(sent(), "");
    fake_close(&peer);
    open_peer(state);
    fake_text(&peer, POST("/", "Content-Length: 50\r\n", "hello"));
    fake_eof(&peer);
    assert_int_equal(body_error, 400);
    assert_int_equal(strncmp(sent(), "HTTP/1.1 400", 12), 0);
    assert_null(peer.conn);
    fake_close(&peer);
    open_peer(state);
    fake_text(&peer, POST("/", CHUNKED, "5\r\nhello\r\n0\r\nX: y\r\n"));
    fake_eof(&peer);
    assert_int_equal(body_error, 400);
    fake_close(&peer);
    open_peer(state);
    fake_text(&peer, POST("/early", "Content-Length: 50\r\n", "hello"));
    fake_eof(&peer);
    assert_null(peer.conn);
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 1);
}

static void test_end_of_input_while_the_sink_pauses(void **state)
{
    (void)state;
    fake_text(&peer, POST("/pause", "Content-Length: 10\r\n", "hello"));
    fake_eof(&peer);
    assert_int_equal(body_error, -1);
    held->ops->body_resume(held);
    fake_run(&peer);
    assert_int_equal(body_error, 400);
    assert_null(peer.conn);
    fake_close(&peer);
    open_peer(state);
    fake_text(&peer, POST("/pause", "Content-Length: 5\r\n", "hello"));
    fake_eof(&peer);
    held->ops->body_resume(held);
    fake_run(&peer);
    assert_int_equal(body_ends, 1);
    assert_int_equal(count(sent(), "HTTP/1.1 200"), 1);
    assert_null(peer.conn);
}

static void test_reset_tells_the_request(void **state)
{
    (void)state;
    fake_text(&peer, GET("/hold"));
    struct request *req = held;
    request_hold(req);
    peer.reset = true;
    fake_run(&peer);
    assert_null(peer.conn);
    assert_int_equal(held_gone, 1);
    /* What the handler still does changes nothing and harms nobody. */
    req->ops->body_resume(req);
    req->ops->body_pause(req);
    response_send(req, "late", 4);
    response_error(req, 500);
    request_release(req);
}

static void test_reset_in_the_body_tells_the_sink(void **state)
{
    (void)state;
    fake_text(&peer, POST("/", "Content-Length: 50\r\n", "hello"));
    peer.reset = true;
    fake_run(&peer);
    assert_int_equal(body_error, 0);
    assert_null(peer.conn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_unread_body_of_an_answered_request_is_dropped),
        TEST(test_large_unread_body_ends_the_connection),
        TEST(test_unread_chunked_body_ends_the_connection),
        TEST(test_answer_at_the_last_byte_of_the_body),
        TEST(test_answer_in_the_middle_of_the_body),
        TEST(test_paused_sink_is_told_of_the_end_when_it_resumes),
        TEST(test_paused_body_stops_reading),
        TEST(test_body_beyond_the_limit),
        TEST(test_malformed_chunks),
        TEST(test_continue_is_sent_when_the_body_is_wanted),
        TEST(test_continue_is_not_sent_without_need),
        TEST(test_answer_instead_of_continue_closes),
        TEST(test_continue_never_stands_in_an_answer),
        TEST(test_end_of_input_between_requests_closes),
        TEST(test_end_of_input_behind_a_whole_request),
        TEST(test_end_of_input_in_head_or_body),
        TEST(test_end_of_input_while_the_sink_pauses),
        TEST(test_reset_tells_the_request),
        TEST(test_reset_in_the_body_tells_the_sink),
    };
    loop = fake_loop(NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_loop_free(loop);
    return failed;
}
