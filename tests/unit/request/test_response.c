/* What may stand in a response, and how the ways of sending one end; over HTTP/1.1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "protocol/http1.h"
#include "request/request.h"
#include "tests/support/fake_conn.h"

static struct loop *loop;
static struct fake peer;
static char *output;
static void (*answer)(struct request *req);

void __wrap_request_start(struct request *req);
void __wrap_request_start(struct request *req)
{
    req->response.no_body = req->method == METHOD_HEAD;
    answer(req);
}

static int set_up(void **state)
{
    (void)state;
    return fake_open(&peer, loop, &protocol_http1) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    fake_close(&peer);
    free(output);
    output = NULL;
    return 0;
}

/* The response to a GET. */
static const char *get(void (*fn)(struct request *req))
{
    answer = fn;
    fake_text(&peer, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    free(output);
    output = fake_take(&peer);
    return output;
}

static bool has(const char *line)
{
    char with_ends[256];
    snprintf(with_ends, sizeof with_ends, "\r\n%s\r\n", line);
    return strstr(output, with_ends) != NULL;
}

/* ---- headers --------------------------------------------------------------------------------- */

static void set_headers(struct request *req)
{
    assert_true(response_header_add(req, STR("X-A"), STR("1")));
    assert_true(response_header_add(req, STR("x-a"), STR("2")));
    assert_true(response_header_set(req, STR("X-B"), STR("old")));
    assert_true(response_header_set(req, STR("x-b"), STR("new")));
    assert_true(response_header_set(req, STR("Content-Type"), STR("text/old")));
    assert_true(response_header_add(req, STR("content-type"), STR("text/plain")));
    assert_true(response_header_add(req, STR("X-C"), STR("gone")));
    response_header_remove(req, STR("x-c"));
    response_header_remove(req, STR("X-Never"));
    assert_true(response_header_add(req, STR("X-Tab"), STR("a\tb \xff")));
    assert_true(response_header_add(req, STR("Server"), STR("mine")));
    assert_int_equal(response_header_get(req, STR("X-a")).len, 1);
    assert_int_equal(response_header_get(req, STR("CONTENT-TYPE")).len, 10);
    assert_null(response_header_get(req, STR("X-C")).ptr);
    response_send(req, "body", 4);
}

static void test_headers(void **state)
{
    (void)state;
    get(set_headers);
    assert_true(has("X-A: 1") && has("x-a: 2") && has("x-b: new") && has("Content-Type: text/plain"));
    assert_true(has("X-Tab: a\tb \xff") && has("Content-Length: 4"));
    assert_null(strstr(output, "old"));
    assert_null(strstr(output, "gone"));
    /* One's own takes the place of the default. */
    assert_true(has("Server: mine") && !has("Server: Kiln"));
    assert_string_equal(strstr(output, "\r\n\r\n"), "\r\n\r\nbody");
}

static void try_bad_headers(struct request *req)
{
    static const char *const bad_values[] = {"a\r\nX-Evil: 1", "a\nb", "a\rb", "\x01", "\x7f", "a\x1b[0m"};
    static const char *const bad_names[] = {"", "X Y", "X:", "X\r\nY", "X\xe9", "(X)", "X\t"};
    for (size_t i = 0; i < ARRAY_LEN(bad_values); i++) {
        assert_false(response_header_add(req, STR("X"), str_of(bad_values[i])));
        assert_false(response_header_set(req, STR("X"), str_of(bad_values[i])));
        assert_false(response_header_set(req, STR("Content-Type"), str_of(bad_values[i])));
    }
    assert_false(response_header_add(req, STR("X"), (struct str){"a\0b", 3}));
    for (size_t i = 0; i < ARRAY_LEN(bad_names); i++) {
        assert_false(response_header_add(req, str_of(bad_names[i]), STR("v")));
        assert_false(response_header_set(req, str_of(bad_names[i]), STR("v")));
    }
    response_send(req, "", 0);
}

static void test_what_may_not_stand_in_a_header(void **state)
{
    (void)state;
    get(try_bad_headers);
    assert_null(strstr(output, "X: "));
    assert_null(strstr(output, "Content-Type"));
    assert_true(has("Content-Length: 0"));
}

/* A value that is refused leaves the one before. */
static void set_then_refuse(struct request *req)
{
    assert_true(response_header_set(req, STR("X"), STR("good")));
    assert_false(response_header_set(req, STR("X"), STR("b\nad")));
    response_send(req, "", 0);
}

static void test_refused_value_leaves_the_old_one(void **state)
{
    (void)state;
    get(set_then_refuse);
    assert_true(has("X: good"));
}

static void add_many(struct request *req)
{
    unsigned n = 0;
    while (n < 5000 && response_header_add(req, STR("X"), STR("y"))) {
        n++;
    }
    assert_in_range(n, 500, 2000);
    response_send(req, "", 0);
}

static void test_number_of_headers_is_bounded(void **state)
{
    (void)state;
    get(add_many);
    assert_true(has("X: y") && has("Content-Length: 0"));
}

/* ---- sending -------------------------------------------------------------------------------------- */

static unsigned released;

static void release(void *arg)
{
    (void)arg;
    released++;
}

static void send_parts(struct request *req)
{
    response_begin(req, 9);
    response_write(req, "abc", 3);
    response_write_ref(req, "def", 3, release, NULL);
    response_write_ref(req, "", 0, release, NULL);
    response_write(req, "ghi", 3);
    response_end(req);
}

static void test_known_length(void **state)
{
    (void)state;
    released = 0;
    get(send_parts);
    assert_string_equal(strstr(output, "\r\n\r\n"), "\r\n\r\nabcdefghi");
    assert_true(has("Content-Length: 9"));
    assert_int_equal(released, 2);
}

static void send_too_little(struct request *req)
{
    response_begin(req, 10);
    response_write(req, "abc", 3);
    response_end(req);
}

static void test_too_little_closes(void **state)
{
    (void)state;
    get(send_too_little);
    assert_null(peer.conn);
}

static void fail_late(struct request *req)
{
    response_begin(req, RESPONSE_LENGTH_UNKNOWN);
    response_write(req, "abc", 3);
    response_error(req, 500);
}

static void test_error_behind_the_head_closes(void **state)
{
    (void)state;
    get(fail_late);
    assert_null(peer.conn);
    assert_null(strstr(output, "500"));
}

static void send_ready(struct request *req)
{
    static const struct ready_head head = {.status = 200, .block = {"Content-Type: a/b\r\nContent-Length: 3\r\n", 38}};
    response_send_ready(req, &head, "abc", 3, release, NULL);
}

static void test_ready_head(void **state)
{
    (void)state;
    released = 0;
    get(send_ready);
    assert_true(has("Content-Type: a/b") && has("Content-Length: 3"));
    assert_string_equal(strstr(output, "\r\n\r\n"), "\r\n\r\nabc");
    answer = send_ready;
    fake_text(&peer, "HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    free(output);
    output = fake_take(&peer);
    assert_true(has("Content-Length: 3") && has("Connection: close"));
    assert_string_equal(strstr(output, "\r\n\r\n"), "\r\n\r\n");
    assert_int_equal(released, 2);
}

/* The error page is not what the headers said of another body; what belongs to the error stays. */
static void describe_then_fail(struct request *req)
{
    response_header_set(req, STR("Content-Type"), STR("image/png"));
    response_header_set(req, STR("Content-Encoding"), STR("gzip"));
    response_header_set(req, STR("ETag"), STR("\"x\""));
    response_header_set(req, STR("Last-Modified"), STR("now"));
    response_header_set(req, STR("Cache-Control"), STR("max-age=9999"));
    response_header_set(req, STR("Content-Disposition"), STR("attachment"));
    response_header_set(req, STR("Set-Cookie"), STR("a=b"));
    response_header_set(req, STR("Retry-After"), STR("7"));
    response_error(req, 503);
}

static void test_error_page_drops_what_described_the_body(void **state)
{
    (void)state;
    get(describe_then_fail);
    assert_int_equal(strncmp(output, "HTTP/1.1 503 Service Unavailable\r\n", 34), 0);
    assert_true(has("Set-Cookie: a=b") && has("Retry-After: 7"));
    static const char *const dropped[] = {"image/png", "gzip", "ETag", "Last-Modified", "max-age", "attachment"};
    for (size_t i = 0; i < ARRAY_LEN(dropped); i++) {
        assert_null(strstr(output, dropped[i]));
    }
}

static void test_reasons(void **state)
{
    (void)state;
    assert_string_equal(status_reason(404), "Not Found");
    assert_string_equal(status_reason(200), "OK");
    assert_string_equal(status_reason(299), "Unknown");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_headers),
        TEST(test_what_may_not_stand_in_a_header),
        TEST(test_refused_value_leaves_the_old_one),
        TEST(test_number_of_headers_is_bounded),
        TEST(test_known_length),
        TEST(test_too_little_closes),
        TEST(test_error_behind_the_head_closes),
        TEST(test_ready_head),
        TEST(test_error_page_drops_what_described_the_body),
        TEST(test_reasons),
    };
    loop = fake_loop(NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_loop_free(loop);
    return failed;
}
