/* HTTP/1.1 on a connection, from bytes to bytes: heads, answers and the order of them. Bodies: test_http1_body.c. */
#include "tests/support/http1_peer.h"

/* ---- requests and answers ---------------------------------------------------------------- */

static void test_answers_pipelined_requests_in_order(void **state)
{
    (void)state;
    fake_text(&peer,
              GET("/1") POST("/2", "Content-Length: 5\r\n", "hello") GET("/3")
                  POST("/4", CHUNKED, "3\r\nabc\r\n0\r\nX: y\r\n\r\n") "HEAD /5 HTTP/1.1\r\nHost: x\r\n\r\n" GET("/6"));
    const char *text = sent();
    const char *order[] = {"GET /1 0 0\n", "POST /2 5 0\n", "GET /3 0 0\n", "POST /4 3 1\n", "GET /6 0 0\n"};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        text = strstr(text, order[i]);
        assert_non_null(text);
    }
    assert_int_equal(count(output, "HTTP/1.1 200 OK\r\n"), 6);
    assert_null(strstr(output, "HEAD /5"));
    assert_int_equal(peer.sends, 1);
}

/* Wherever the network cuts the bytes, the answers are the same. */
static void test_split_at_every_position(void **state)
{
    (void)state;
    static const char input[] = "\r\n" GET("/1") POST("/2", "Content-Length: 5\r\n", "hello")
        POST("/3", CHUNKED, "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n")
            POST("/early", "Content-Length: 3\r\n", "xyz") GET("/stream")
                GET("/304") "HEAD /7 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" GET("/8");
    fake_input(&peer, input, sizeof input - 1);
    char *whole = fake_take(&peer);
    assert_int_equal(count(whole, "HTTP/1.1 "), 8);
    for (size_t cut = 1; cut < sizeof input; cut++) {
        fake_close(&peer);
        open_peer(state);
        fake_input(&peer, input, cut);
        fake_input(&peer, input + cut, sizeof input - 1 - cut);
        assert_string_equal(sent(), whole);
    }
    fake_close(&peer);
    open_peer(state);
    peer.piece = 1;
    fake_input(&peer, input, sizeof input - 1);
    assert_string_equal(sent(), whole);
    free(whole);
}

static void test_framing_of_answers_without_body(void **state)
{
    (void)state;
    fake_text(&peer, GET("/204"));
    assert_null(strstr(sent(), "Content-Length"));
    assert_null(strstr(output, "Transfer-Encoding"));
    assert_string_equal(output + strlen(output) - 4, "\r\n\r\n");
    fake_text(&peer, GET("/205"));
    assert_non_null(strstr(sent(), "Content-Length: 0\r\n"));
    assert_null(strstr(output, "not sent"));
    fake_text(&peer, GET("/304"));
    assert_null(strstr(sent(), "not sent"));
    assert_null(strstr(output, "Content-Length"));
    fake_text(&peer, "HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_non_null(strstr(sent(), "Transfer-Encoding: chunked\r\n"));
    assert_string_equal(output + strlen(output) - 4, "\r\n\r\n");
    fake_text(&peer, "HEAD /large HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_non_null(strstr(sent(), "Content-Length: 100000\r\n"));
    assert_string_equal(output + strlen(output) - 4, "\r\n\r\n");
    assert_non_null(peer.conn);
}

static void test_streamed_answer_is_chunked(void **state)
{
    (void)state;
    fake_text(&peer, GET("/stream"));
    assert_non_null(strstr(sent(), "\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"));
    assert_null(strstr(output, "Connection: close"));
}

static void test_streamed_answer_ends_an_http10_connection(void **state)
{
    (void)state;
    fake_text(&peer, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_non_null(strstr(sent(), "Connection: close\r\n\r\nhello world"));
    assert_null(strstr(output, "chunked"));
    assert_true(is_lingering());
}

static void test_connection_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        bool keeps;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: foo , CLOSE\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false},
        /* An empty value takes nothing from the line behind it. */
        {"GET / HTTP/1.1\r\nHost: x\r\nX:\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: \r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nX: \t \r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: closed\r\n\r\n", true},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
        {"GET / HTTP/1.0\r\nConnection: x\r\nConnection: keep-alive\r\n\r\n", true},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        fake_text(&peer, cases[i].head);
        assert_non_null(strstr(sent(), "HTTP/1.1 200 OK\r\n"));
        assert_int_equal(strstr(output, "Connection: close") != NULL, !cases[i].keeps);
        assert_int_equal(is_lingering(), !cases[i].keeps);
        fake_close(&peer);
        open_peer(state);
    }
}

static void test_nothing_is_read_behind_close(void **state)
{
    (void)state;
    fake_text(&peer, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" GET("/next"));
    assert_int_equal(count(sent(), "HTTP/1.1"), 1);
    fake_text(&peer, GET("/later"));
    assert_int_equal(count(sent(), "HTTP/1.1"), 0);
    assert_int_equal(begun, 1);
}

static void test_cut_answer_closes(void **state)
{
    (void)state;
    fake_text(&peer, GET("/cut"));
    assert_null(peer.conn);
}

static void test_empty_lines_before_a_request(void **state)
{
    (void)state;
    fake_text(&peer, "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n" GET("/a") "\r\n" GET("/b"));
    assert_int_equal(count(sent(), "HTTP/1.1 200 OK\r\n"), 2);
}

/* ---- refusing ----------------------------------------------------------------------------------- */

static void test_refused_heads_close(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        const char *status;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", "400"},
        {"GET / HTTP/1.1\nHost: x\n\n", "400"},
        {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505"},
        {"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "501"},
        {"GET / HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n", "417"},
        {POST("/", "Content-Length: 5\r\n" CHUNKED, "hello"), "400"},
        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        fake_text(&peer, cases[i].head);
        assert_int_equal(strncmp(sent() + 9, cases[i].status, 3), 0);
        assert_non_null(strstr(output, "Connection: close\r\n"));
        assert_int_equal(count(output, "HTTP/1.1 "), 1);
        assert_true(is_lingering());
        assert_int_equal(begun, 0);
        fake_text(&peer, GET("/next"));
        assert_string_equal(sent(), "");
        fake_close(&peer);
        open_peer(state);
    }
}

static void test_refused_head_request_gets_no_body(void **state)
{
    (void)state;
    fake_text(&peer, "HEAD / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n");
    assert_int_equal(strncmp(sent(), "HTTP/1.1 400", 12), 0);
    assert_string_equal(output + strlen(output) - 4, "\r\n\r\n");
}

static void test_long_heads(void **state)
{
    (void)state;
    struct buffer head = BUFFER_EMPTY;
    buffer_append_z(&head, "GET /");
    for (unsigned i = 0; i < 20000; i++) {
        buffer_append_char(&head, 'a');
    }
    fake_input(&peer, head.data, head.len);
    assert_int_equal(strncmp(sent(), "HTTP/1.1 414", 12), 0);
    fake_close(&peer);
    open_peer(state);
    head.len = 0;
    buffer_append_z(&head, "GET / HTTP/1.1\r\nHost: x\r\nX: ");
    for (unsigned i = 0; i < 40000; i++) {
        buffer_append_char(&head, 'a');
    }
    fake_input(&peer, head.data, head.len);
    assert_int_equal(strncmp(sent(), "HTTP/1.1 431", 12), 0);
    buffer_free(&head);
}

/* ---- back-pressure --------------------------------------------------------------------------------------- */

static void test_slow_reader_stops_the_pipeline(void **state)
{
    (void)state;
    struct buffer input = BUFFER_EMPTY;
    for (unsigned i = 0; i < 5000; i++) {
        buffer_append_z(&input, GET("/large"));
    }
    peer.budget = 0;
    fake_input(&peer, input.data, input.len);
    assert_in_range(begun, 3, 5);
    assert_true(peer.in_len > 0);
    assert_false(fake_reads(&peer));
    assert_true(conn_pending(peer.conn) > 0);
    size_t received = 0;
    while (begun < 5000 || conn_pending(peer.conn) > 0) {
        peer.budget = 300000;
        fake_run(&peer);
        assert_true(conn_pending(peer.conn) < 600000);
        assert_true(peer.out.len > 0);
        received += peer.out.len;
        peer.out.len = 0;
    }
    assert_int_equal(begun, 5000);
    assert_true(received > 5000 * sizeof large);
    buffer_free(&input);
}

/* An empty value must not touch the line behind it. */
static void test_header_without_value_hides_no_other(void **state)
{
    (void)state;
    fake_text(&peer,
              POST("/", "X:\r\n" CHUNKED, "3\r\nabc\r\n0\r\n\r\n") POST("/", "X: \t\r\nContent-Length: 3\r\n", "abc"));
    assert_int_equal(count(sent(), "POST / 3 0\n"), 2);
    assert_int_equal(begun, 2);
}

static void test_many_headers_are_all_looked_at(void **state)
{
    (void)state;
    const char *const options[] = {"MaxHeaderCount", "400", NULL};
    struct loop *wide = fake_loop(options);
    struct fake other;
    assert_true(fake_open(&other, wide, &protocol_http1));
    struct buffer head = BUFFER_EMPTY;
    buffer_append_z(&head, "POST / HTTP/1.1\r\nHost: x\r\n");
    for (unsigned i = 0; i < 300; i++) {
        buffer_printf(&head, "X-%u: y\r\n", i);
    }
    buffer_append_z(&head, CHUNKED "\r\n3\r\nabc\r\n0\r\n\r\n");
    fake_input(&other, head.data, head.len);
    char *text = fake_take(&other);
    assert_non_null(strstr(text, "POST / 3 0\n"));
    assert_int_equal(count(text, "HTTP/1.1 "), 1);
    free(text);
    buffer_free(&head);
    fake_close(&other);
    fake_loop_free(wide);
}

/* ---- shutting down ------------------------------------------------------------------------------------------ */

static void test_shutdown_ends_idle_and_finishes_busy_connections(void **state)
{
    (void)state;
    struct loop *ending = fake_loop(NULL);
    struct fake idle;
    struct fake busy;
    struct fake dropping;
    struct fake late;
    assert_true(fake_open(&late, ending, &protocol_http1));
    assert_true(fake_open(&idle, ending, &protocol_http1));
    assert_true(fake_open(&busy, ending, &protocol_http1));
    assert_true(fake_open(&dropping, ending, &protocol_http1));
    fake_text(&idle, GET("/"));
    fake_text(&busy, GET("/hold"));
    fake_text(&dropping, POST("/early", "Content-Length: 10\r\n", "12345"));
    fake_text(&late, GET("/"));
    free(fake_take(&late));
    conn_shutdown_all(ending);
    /* What a client sent before it could know is answered, and says that it was the last. */
    fake_text(&late, GET("/"));
    char *last = fake_take(&late);
    assert_non_null(strstr(last, "Connection: close"));
    free(last);
    assert_true(late.conn->lingering);
    assert_false(idle.conn->lingering);
    assert_true(idle.conn->deadline_ms <= loop_now_ms(ending) + 1000);
    idle.conn->deadline_ms = 1;
    idle.conn->protocol->on_deadline(idle.conn);
    fake_run(&idle);
    assert_null(idle.conn);
    assert_false(busy.conn->lingering);
    fake_text(&dropping, "67890");
    assert_false(dropping.conn->lingering);
    assert_true(dropping.conn->deadline_ms <= loop_now_ms(ending) + 1000);
    answer_echo(held);
    fake_run(&busy);
    char *text = fake_take(&busy);
    assert_non_null(strstr(text, "Connection: close"));
    assert_non_null(strstr(text, "GET /hold 0 0"));
    assert_true(busy.conn->lingering);
    free(text);
    fake_close(&idle);
    fake_close(&busy);
    fake_close(&dropping);
    fake_close(&late);
    fake_loop_free(ending);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_answers_pipelined_requests_in_order),
        TEST(test_split_at_every_position),
        TEST(test_framing_of_answers_without_body),
        TEST(test_streamed_answer_is_chunked),
        TEST(test_streamed_answer_ends_an_http10_connection),
        TEST(test_connection_tokens),
        TEST(test_nothing_is_read_behind_close),
        TEST(test_cut_answer_closes),
        TEST(test_empty_lines_before_a_request),
        TEST(test_refused_heads_close),
        TEST(test_refused_head_request_gets_no_body),
        TEST(test_long_heads),
        TEST(test_slow_reader_stops_the_pipeline),
        TEST(test_header_without_value_hides_no_other),
        TEST(test_many_headers_are_all_looked_at),
        TEST(test_shutdown_ends_idle_and_finishes_busy_connections),
    };
    loop = fake_loop(NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_loop_free(loop);
    return failed;
}
