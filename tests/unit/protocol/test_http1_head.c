/* Heads: what is taken, and what is refused with which status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/config.h"
#include "protocol/head_scan.h"
#include "protocol/header_lines.h"
#include "protocol/http1_head.h"

#include <stdio.h>
#include <stdlib.h>

static struct config *config;
static struct request req;
static struct http1_head head;

/* What the protocol does with the bytes of a head: 0, or the status that refuses it. */
static int parse(const char *bytes, size_t len)
{
    arena_reset(&req.arena);
    memset(&req, 0, sizeof req);
    memset(&head, 0, sizeof head);
    arena_init(&req.arena, 0);
    req.config = config;
    struct head_scan scan = {0};
    switch (head_scan(&scan, (const uint8_t *)bytes, len)) {
    case HEAD_INCOMPLETE: return -1;
    case HEAD_BAD: return 400;
    case HEAD_COMPLETE: break;
    }
    char *copy = arena_alloc(&req.arena, scan.end + HEADER_LINES_SLACK);
    memcpy(copy, bytes, scan.end);
    memset(copy + scan.end, 0, HEADER_LINES_SLACK);
    return http1_head_parse(&req, copy, scan.end, scan.lines, &head);
}

static int parse_text(const char *text)
{
    return parse(text, strlen(text));
}

/* The head of a GET with these further lines. */
static int with(const char *lines)
{
    char text[4096];
    snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", lines);
    return parse_text(text);
}

static void expect_str(struct str actual, const char *expected)
{
    assert_int_equal(actual.len, strlen(expected));
    assert_memory_equal(actual.ptr, expected, actual.len);
    assert_int_equal(actual.ptr[actual.len], '\0');
}

static void test_names_and_values(void **state)
{
    (void)state;
    assert_int_equal(parse_text("POST /a%2Fb?x=%26 HTTP/1.1\r\nHost: Example.ORG:80\r\nX-W: \t a b \t \r\n"
                                "Empty:\r\nEmpty2: \t \r\nY:c\r\nHigh: \xe9\xff\r\nColon: a:b\r\nCookie: a=b\r\n\r\n"),
                     0);
    assert_int_equal(req.method, METHOD_POST);
    expect_str(req.method_text, "POST");
    expect_str(req.target, "/a%2Fb?x=%26");
    assert_int_equal(req.host.len, 14);
    assert_memory_equal(req.host.ptr, "example.org:80", 14);
    assert_int_equal(req.http_minor, 1);
    static const char *const expected[] = {
        "Host", "Example.ORG:80", "X-W",      "a b",   "Empty", "",       "Empty2", "", "Y",
        "c",    "High",           "\xe9\xff", "Colon", "a:b",   "Cookie", "a=b"};
    assert_int_equal(req.header_count, ARRAY_LEN(expected) / 2);
    for (unsigned i = 0; i < req.header_count; i++) {
        expect_str(req.headers[i].name, expected[2 * i]);
        expect_str(req.headers[i].value, expected[2 * i + 1]);
    }
    expect_str(request_known_value(&req, HEADER_COOKIE), "a=b");
    assert_null(request_known(&req, HEADER_RANGE));
    assert_true(head.keep_alive);
    assert_int_equal(head.framing, BODY_NONE);
}

static void test_request_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1", 0},
        {"GET / HTTP/1.0", 0},
        {"GET //a///b HTTP/1.1", 0},
        {"OPTIONS * HTTP/1.1", 0},
        {"GET * HTTP/1.1", 400},
        {"GET http://x/a?b HTTP/1.1", 0},
        {"GET HTTP://x/ HTTP/1.1", 0},
        {"GET https://x HTTP/1.1", 0},
        {"GET http://x?b HTTP/1.1", 0},
        {"GET ftp://x/a HTTP/1.1", 400},
        {"GET http:///a HTTP/1.1", 400},
        {"GET http://u@x/ HTTP/1.1", 400},
        {"GET x:80 HTTP/1.1", 400},
        {"CONNECT x:80 HTTP/1.1", 405},
        {"GET /a#b HTTP/1.1", 400},
        {"GET /a b HTTP/1.1", 400},
        {"GET  / HTTP/1.1", 400},
        {"GET /  HTTP/1.1", 400},
        {"GET / HTTP/1.1 ", 400},
        {" GET / HTTP/1.1", 400},
        {"GET\t/\tHTTP/1.1", 400},
        {"GET / HTTP/1.1x", 400},
        {"GET / HTTP/1.10", 400},
        {"GET / HTTP/01.1", 400},
        {"GET / HTTP/1,1", 400},
        {"GET / http/1.1", 400},
        {"GET / HTTP/0.9", 400},
        {"GET / HTTP/2.0", 505},
        {"GET / HTTP/1.2", 505},
        {"GET / HTTP/9.9", 505},
        {"GET /", 400},
        {"GET", 400},
        {"GET / HTTP/1.1 HTTP/1.0", 400},
        {"GET /\xe9 HTTP/1.1", 400},
        {"BREW / HTTP/1.1", 501},
        {"GE(T / HTTP/1.1", 501},
        {"get / HTTP/1.1", 501},
        {"GET /a HTTP/1.", 400},
        {"/ HTTP/1.1", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s\r\nHost: x\r\n\r\n", cases[i].line);
        int status = parse_text(text);
        if (status != cases[i].status) {
            print_error("%s: %d instead of %d\n", cases[i].line, status, cases[i].status);
        }
        assert_int_equal(status, cases[i].status);
    }
}

static void test_absolute_target_names_the_host(void **state)
{
    (void)state;
    assert_int_equal(parse_text("GET http://Other:81/a?b HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
    assert_memory_equal(req.host.ptr, "other:81", 8);
    assert_int_equal(req.host.len, 8);
    expect_str(req.target, "/a?b");
    assert_int_equal(parse_text("GET http://other?b HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
    expect_str(req.target, "/?b");
}

static void test_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        int status;
    } cases[] = {
        {"x", 0},        {"", 0},          {"a.b-c_d.example", 0}, {"x:80", 0},  {"x:", 0},     {"[::1]", 0},
        {"[::1]:80", 0}, {"127.0.0.1", 0}, {"x:65536", 400},       {"x:a", 400}, {"a/b", 400},  {"a@b", 400},
        {"a,b", 400},    {"a b", 400},     {":80", 400},           {"[]", 400},  {"[::1", 400}, {"[::1]x", 400},
        {"[g::]", 400},  {"x:80:80", 400}, {"x\x80", 400},         {"x?", 400},  {"x#", 400},   {"x:-1", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].value);
        int status = parse_text(text);
        if (status != cases[i].status) {
            print_error("Host: %s: %d\n", cases[i].value, status);
        }
        assert_int_equal(status, cases[i].status);
    }
    assert_int_equal(parse_text("GET / HTTP/1.1\r\n\r\n"), 400);
    assert_int_equal(parse_text("GET / HTTP/1.0\r\n\r\n"), 0);
    assert_int_equal(with("Host: x\r\n"), 400);
    assert_int_equal(with("host: y\r\n"), 400);
}

static void test_lines_that_are_no_headers(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "X\r\n",           ": x\r\n",      ":\r\n",          "X : y\r\n",       "X\t: y\r\n",
        " X: y\r\n",       "\tX: y\r\n",   "A: b\r\n c\r\n", "A: b\r\n\tc\r\n", " \r\n",
        "X Y: z\r\n",      "X(Y): b\r\n",  "X@Y: b\r\n",     "X\x80: b\r\n",    "\"X\": b\r\n",
        "A: b\r\n: x\r\n", "X/Y: b\r\n",   "{X}: b\r\n",     "X\r\n: y\r\n",    "Transfer-Encoding\r\n: chunked\r\n",
        "A: b\r\n \r\n",   "A:\r\n b\r\n", "X[]: y\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        int status = with(lines[i]);
        if (status != 400) {
            print_error("%s: %d\n", lines[i], status);
        }
        assert_int_equal(status, 400);
    }
}

/* NUL and every control byte but HTAB, in a name, in a value, at the ends of a line. */
static void test_control_bytes(void **state)
{
    (void)state;
    static const char text[] = "GET / HTTP/1.1\r\nHost: x\r\nName: value\r\n\r\n";
    static const size_t at[] = {0, 3, 4, 5, 8, 16, 18, 20, 21, 22, 25, 27, 29, 30, 31, 33, 35};
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        for (int byte = 0; byte < 0x20; byte++) {
            char copy[sizeof text];
            memcpy(copy, text, sizeof text);
            copy[at[i]] = (char)byte;
            int status = parse(copy, sizeof text - 1);
            bool in_value = at[i] == 21 || at[i] == 22 || at[i] >= 30;
            assert_true(status >= 400 || (byte == '\t' && in_value));
        }
    }
}

static void test_content_length(void **state)
{
    (void)state;
    static const char *const bad[] = {"+5",
                                      "-5",
                                      "0x5",
                                      "5 5",
                                      "",
                                      "5;x",
                                      "1e1",
                                      "5_0",
                                      "5.0",
                                      "\"5\"",
                                      "5,5",
                                      "5, 5",
                                      ",5",
                                      "5abc",
                                      "5,",
                                      "18446744073709551616",
                                      "18446744073709551621",
                                      "99999999999999999999999999999999999999999999999999"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char line[128];
        snprintf(line, sizeof line, "Content-Length: %s\r\n", bad[i]);
        int status = with(line);
        if (status != 400) {
            print_error("%s: %d\n", line, status);
        }
        assert_int_equal(status, 400);
    }
    assert_int_equal(with("Content-Length: 18446744073709551615\r\n"), 413);
    assert_int_equal(with("Content-Length: 9223372036854775808\r\n"), 413);
    assert_int_equal(with("Content-Length: 5\r\nContent-Length: 5\r\n"), 400);
    assert_int_equal(with("Content-Length: 5\r\nContent-Length: 6\r\n"), 400);
    assert_int_equal(with("Content-Length: 0\r\ncontent-length: 6\r\n"), 400);
    static const struct {
        const char *line;
        uint64_t length;
    } good[] = {{"Content-Length: 5\r\n", 5},    {"Content-Length: 0005\r\n", 5},
                {"Content-Length: 5 \t\r\n", 5}, {"Content-Length:\t5\t\r\n", 5},
                {"Content-Length: 0\r\n", 0},    {"Content-Length: 9223372036854775807\r\n", INT64_MAX}};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_int_equal(with(good[i].line), 0);
        assert_int_equal(req.body.length, good[i].length);
        assert_int_equal(req.body.present, good[i].length > 0);
        assert_int_equal(head.framing, good[i].length > 0 ? BODY_LENGTH : BODY_NONE);
    }
}

static void test_transfer_encoding(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "xchunked",          "identity",          "gzip, chunked",
        "identity, chunked", "chunked, identity", "chunked, chunked",
        "chunked;q=1",       "\"chunked\"",       "",
        ", chunked",         "chunked,",          "cow",
        "chunked\xa0",       "chun ked",          "gzip",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        for (int with_length = 0; with_length < 2; with_length++) {
            char line[128];
            snprintf(line, sizeof line, "Transfer-Encoding: %s\r\n%s", bad[i],
                     with_length ? "Content-Length: 5\r\n" : "");
            int status = with(line);
            if (status != 400 && status != 501) {
                print_error("%s: %d\n", line, status);
            }
            assert_true(status == 400 || status == 501);
        }
    }
    static const char *const good[] = {"chunked", "CHUNKED", "\tchunked", "chunked \t"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        char line[128];
        snprintf(line, sizeof line, "Transfer-Encoding: %s\r\n", good[i]);
        assert_int_equal(with(line), 0);
        assert_int_equal(head.framing, BODY_CHUNKED);
        assert_true(req.body.present);
        assert_true(req.body.length == RESPONSE_LENGTH_UNKNOWN);
    }
    assert_int_equal(with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400);
    assert_int_equal(with("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"), 400);
    assert_int_equal(with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400);
    assert_int_equal(with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400);
    assert_int_equal(with("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), 400);
    assert_int_equal(parse_text("POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

static void test_expect(void **state)
{
    (void)state;
    assert_int_equal(with("Expect: 100-Continue\r\nContent-Length: 5\r\n"), 0);
    assert_true(req.body.expects_100);
    assert_int_equal(with("Expect: 100-continue\r\n"), 0);
    assert_false(req.body.expects_100);
    assert_int_equal(with("Expect: 200-maybe\r\nContent-Length: 5\r\n"), 417);
    assert_int_equal(parse_text("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"), 0);
    assert_false(req.body.expects_100);
}

static void test_number_of_headers(void **state)
{
    (void)state;
    struct buffer lines = BUFFER_EMPTY;
    for (unsigned i = 0; i < 199; i++) {
        buffer_printf(&lines, "X%u: y\r\n", i);
    }
    buffer_append_char(&lines, '\0');
    assert_int_equal(with(lines.data), 0);
    assert_int_equal(req.header_count, 200);
    lines.len--;
    buffer_append(&lines, "Z: y\r\n", 7);
    assert_int_equal(with(lines.data), 431);
    buffer_free(&lines);
}

/* Whatever single byte of a good head is changed, the parser says something and reads nothing beyond. */
static void test_each_byte_changed(void **state)
{
    (void)state;
    static const char text[] = "POST /p?q HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\nE:\r\n\r\n";
    for (size_t at = 0; at < sizeof text - 1; at++) {
        for (int byte = 0; byte < 256; byte++) {
            char *copy = malloc(sizeof text - 1);
            memcpy(copy, text, sizeof text - 1);
            copy[at] = (char)byte;
            int status = parse(copy, sizeof text - 1);
            free(copy);
            assert_true(status == -1 || status == 0 || (status >= 400 && status <= 505));
        }
    }
}

static int trailers(const char *text)
{
    struct head_scan scan = {0};
    assert_int_equal(head_scan(&scan, (const uint8_t *)text, strlen(text)), HEAD_COMPLETE);
    return http1_trailers_parse(&req, text, scan.end, scan.lines);
}

static void test_trailers(void **state)
{
    (void)state;
    assert_int_equal(with(""), 0);
    assert_int_equal(trailers("X-Sum: abc\r\nY:\r\nZ: \r\n\r\n"), 0);
    assert_int_equal(req.trailer_count, 3);
    expect_str(req.trailers[0].name, "X-Sum");
    expect_str(req.trailers[0].value, "abc");
    expect_str(req.trailers[1].name, "Y");
    expect_str(req.trailers[2].name, "Z");
    static const char *const bad[] = {"bad\r\n\r\n",
                                      ":\r\n\r\n",
                                      ": x\r\n\r\n",
                                      " X: y\r\n\r\n",
                                      "X: y\r\n z\r\n\r\n",
                                      "X : y\r\n\r\n",
                                      "GET / HTTP/1.1\r\n\r\n",
                                      "A: b\r\n:\r\n\r\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(trailers(bad[i]), 400);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_values),
        cmocka_unit_test(test_request_lines),
        cmocka_unit_test(test_absolute_target_names_the_host),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_lines_that_are_no_headers),
        cmocka_unit_test(test_control_bytes),
        cmocka_unit_test(test_content_length),
        cmocka_unit_test(test_transfer_encoding),
        cmocka_unit_test(test_expect),
        cmocka_unit_test(test_number_of_headers),
        cmocka_unit_test(test_each_byte_changed),
        cmocka_unit_test(test_trailers),
    };
    struct config_errors errors = {0};
    struct config_overrides overrides = {0};
    config = config_parse(STR_NONE, "test", &overrides, &errors);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_reset(&req.arena);
    arena_pool_drain();
    config_unref(config);
    return failed;
}
