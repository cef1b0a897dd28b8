/* Deadlines of HTTP/1.1: all absolute, moved by what they measure and by nothing else. */
#include "tests/support/http1_peer.h"

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static void test_silent_connection_is_closed(void **state)
{
    (void)state;
    fake_wait(&peer, 1999);
    assert_false(peer.conn->lingering);
    fake_wait(&peer, 1);
    assert_null(peer.conn);
    assert_string_equal(sent(), "");
}

static void test_bytes_do_not_extend_the_time_for_a_head(void **state)
{
    (void)state;
    static const char head[] = "GET / HTTP/1.1\r\nHost: x\r\nX: aaaaaaaaaaaaaaaaaaaaa";
    size_t n = 0;
    for (uint64_t ms = 0; ms < 2000; ms += 100) {
        assert_false(peer.conn->lingering);
        fake_input(&peer, head + n++, 1);
        fake_wait(&peer, 100);
    }
    assert_true(starts(sent(), "HTTP/1.1 408 "));
    assert_true(peer.conn->lingering);
    assert_int_equal(begun, 0);
}

static void test_time_for_a_head_begins_anew_with_each_request(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        fake_wait(&peer, 1500);
        fake_text(&peer, "GET / HTTP/1.1\r\n");
        fake_wait(&peer, 1500);
        fake_text(&peer, "Host: x\r\n\r\n");
        assert_true(starts(sent(), "HTTP/1.1 200 "));
    }
    fake_text(&peer, "GET / HT");
    fake_wait(&peer, 2000);
    assert_true(starts(sent(), "HTTP/1.1 408 "));
}

static void test_empty_lines_do_not_keep_a_connection(void **state)
{
    (void)state;
    for (uint64_t ms = 0; ms < 2000; ms += 500) {
        assert_false(peer.conn->lingering);
        fake_text(&peer, "\r\n");
        fake_wait(&peer, 500);
    }
    assert_null(peer.conn);
}

static void test_keep_alive_timeout(void **state)
{
    (void)state;
    fake_text(&peer, GET("/"));
    fake_wait(&peer, 9999);
    assert_false(peer.conn->lingering);
    fake_text(&peer, GET("/"));
    fake_wait(&peer, 9999);
    assert_false(peer.conn->lingering);
    fake_wait(&peer, 1);
    assert_null(peer.conn);
    assert_true(peer.half_closed);
}

/* The byte has arrived and was not received when the time is over. */
static void test_request_that_meets_the_end_is_served(void **state)
{
    (void)state;
    fake_text(&peer, GET("/"));
    assert_int_equal(write(peer.other, "G", 1), 1);
    fake_wait(&peer, 10000);
    assert_int_equal(peer.conn->finishing, 0);
    fake_text(&peer, GET("/"));
    assert_int_equal(begun, 2);
    char byte;
    assert_int_equal(read(peer.conn->watch.fd, &byte, 1), 1);
    fake_wait(&peer, 10000);
    assert_null(peer.conn);
}

/* What the kernel has, the peer may not have yet. */
static void test_answer_on_its_way_is_not_destroyed(void **state)
{
    (void)state;
    fake_text(&peer, GET("/"));
    assert_int_equal(write(peer.conn->watch.fd, "x", 1), 1);
    fake_wait(&peer, 10000);
    assert_true(peer.conn->lingering);
    fake_wait(&peer, 5000);
    assert_null(peer.conn);
}

static void test_keep_alive_timeout_begins_behind_the_answer(void **state)
{
    (void)state;
    peer.budget = 1000;
    fake_text(&peer, GET("/large"));
    for (int i = 0; i < 6; i++) {
        peer.budget = 10000;
        fake_run(&peer);
        fake_wait(&peer, 5000);
    }
    assert_int_equal(peer.conn->finishing, 0);
    peer.budget = SIZE_MAX;
    fake_run(&peer);
    fake_text(&peer, GET("/next"));
    assert_int_equal(begun, 2);
}

static void test_running_request_has_no_deadline(void **state)
{
    (void)state;
    fake_text(&peer, GET("/hold"));
    fake_wait(&peer, 100000);
    answer_echo(held);
    fake_run(&peer);
    assert_true(starts(sent(), "HTTP/1.1 200 "));
    assert_false(peer.conn->lingering);
}

/* Options: 100 bytes a second, 3 seconds of grace. */
static void test_slow_body(void **state)
{
    (void)state;
    fake_text(&peer, POST("/", "Content-Length: 100000\r\n", ""));
    for (int i = 0; i < 29; i++) {
        assert_int_equal(body_error, -1);
        fake_text(&peer, "123456789");
        fake_wait(&peer, 100);
    }
    assert_int_equal(body_error, -1);
    fake_wait(&peer, 100);
    assert_int_equal(body_error, 408);
    assert_true(starts(sent(), "HTTP/1.1 408 "));
    assert_true(peer.conn->lingering);
}

static void test_body_that_is_fast_enough(void **state)
{
    (void)state;
    fake_text(&peer, POST("/", "Content-Length: 12000\r\n", ""));
    for (int i = 0; i < 1000; i++) {
        fake_text(&peer, "123456789012");
        fake_wait(&peer, 100);
    }
    assert_true(starts(sent(), "HTTP/1.1 200 "));
}

/* A burst does not buy more than half a minute. */
static void test_burst_does_not_pay_for_silence(void **state)
{
    (void)state;
    fake_text(&peer, POST("/", "Content-Length: 1000000\r\n", ""));
    char *block = calloc(1, 500000);
    fake_input(&peer, block, 500000);
    free(block);
    uint64_t waited = 0;
    while (body_error == -1) {
        fake_wait(&peer, 1000);
        waited += 1000;
        assert_true(waited < 60000);
    }
    assert_int_equal(body_error, 408);
}

/* A handler that takes the bytes one by one, each time asking for more, gives the client no more
 * time. */
static void test_pauses_do_not_extend_the_time_for_a_body(void **state)
{
    (void)state;
    fake_text(&peer, POST("/pause", "Content-Length: 100000\r\n", ""));
    for (int i = 0; i < 40 && body_error == -1; i++) {
        fake_text(&peer, "x");
        fake_wait(&peer, 10);
        if (held != NULL) {
            held->ops->body_resume(held);
            fake_run(&peer);
        }
        fake_wait(&peer, 100);
    }
    assert_int_equal(body_error, 408);
}

/* The time in which the handler does not want bytes is not the client's. */
static void test_paused_time_is_not_counted(void **state)
{
    (void)state;
    fake_text(&peer, POST("/pause", "Content-Length: 2000\r\n", ""));
    for (int i = 0; i < 100; i++) {
        fake_text(&peer, "12345678901234567890");
        fake_wait(&peer, 60000);
        assert_int_equal(body_error, -1);
        if (held != NULL) {
            held->ops->body_resume(held);
            fake_run(&peer);
        }
        fake_wait(&peer, 100);
    }
    assert_int_equal(body_error, -1);
    assert_int_equal(body_seen.len, 2000);
    assert_true(starts(sent(), "HTTP/1.1 200 "));
}

static void test_absolute_body_timeout(void **state)
{
    (void)state;
    const char *const options[] = {"RequestBodyTimeout", "10", "bytesPerSecond", "0", NULL};
    struct loop *strict = fake_loop(options);
    struct fake slow;
    assert_true(fake_open(&slow, strict, &protocol_http1));
    fake_text(&slow, POST("/", "Content-Length: 1000\r\n", ""));
    for (int i = 0; i < 9; i++) {
        fake_text(&slow, "123456789");
        fake_wait(&slow, 1000);
    }
    assert_int_equal(body_error, -1);
    fake_wait(&slow, 1000);
    assert_int_equal(body_error, 408);
    fake_close(&slow);
    fake_loop_free(strict);
}

/* ResponseTimeout 4, 100 bytes a second. */
static void test_reader_that_takes_nothing(void **state)
{
    (void)state;
    peer.budget = 0;
    fake_text(&peer, GET("/large"));
    fake_wait(&peer, 3999);
    assert_non_null(peer.conn);
    fake_wait(&peer, 1);
    assert_null(peer.conn);
}

static void test_slow_reader(void **state)
{
    (void)state;
    peer.budget = 0;
    fake_text(&peer, GET("/large"));
    for (int i = 0; i < 60; i++) {
        peer.budget = 110;
        fake_run(&peer);
        fake_wait(&peer, 1000);
        assert_non_null(peer.conn);
    }
    uint64_t waited = 0;
    while (peer.conn != NULL) {
        peer.budget = 10;
        fake_wait(&peer, 1000);
        waited += 1000;
        assert_true(waited < 20000);
    }
}

static void test_linger_is_bounded(void **state)
{
    (void)state;
    fake_text(&peer, POST("/early", "Connection: close\r\nContent-Length: 1000000\r\n", ""));
    for (int i = 0; i < 5; i++) {
        assert_true(peer.conn->lingering);
        fake_text(&peer, "more and more");
        fake_wait(&peer, 1000);
    }
    assert_null(peer.conn);
}

static void test_discarded_body_that_stops(void **state)
{
    (void)state;
    fake_text(&peer, POST("/early", "Content-Length: 1000\r\n", "x"));
    fake_wait(&peer, 10000);
    assert_null(peer.conn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_silent_connection_is_closed),
        TEST(test_bytes_do_not_extend_the_time_for_a_head),
        TEST(test_time_for_a_head_begins_anew_with_each_request),
        TEST(test_empty_lines_do_not_keep_a_connection),
        TEST(test_keep_alive_timeout),
        TEST(test_request_that_meets_the_end_is_served),
        TEST(test_answer_on_its_way_is_not_destroyed),
        TEST(test_keep_alive_timeout_begins_behind_the_answer),
        TEST(test_running_request_has_no_deadline),
        TEST(test_slow_body),
        TEST(test_body_that_is_fast_enough),
        TEST(test_burst_does_not_pay_for_silence),
        TEST(test_pauses_do_not_extend_the_time_for_a_body),
        TEST(test_paused_time_is_not_counted),
        TEST(test_absolute_body_timeout),
        TEST(test_reader_that_takes_nothing),
        TEST(test_slow_reader),
        TEST(test_linger_is_bounded),
        TEST(test_discarded_body_that_stops),
    };
    const char *const options[] = {
        "RequestHeadersTimeout", "2", "KeepAliveTimeout", "10", "gracePeriod", "3", "bytesPerSecond", "100",
        "ResponseTimeout",       "4", "LingerTimeout",    "5",  NULL};
    loop = fake_loop(options);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_loop_free(loop);
    return failed;
}
