#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ws/handshake.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUEST "GET /chat HTTP/1.1\r\nHost: example.com\r\n"
#define UPGRADE "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
#define KEY "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define VERSION "Sec-WebSocket-Version: 13\r\n"
#define GOOD REQUEST UPGRADE KEY VERSION

static struct ws_head head;

static struct ws_headers parse(const char *text, bool request)
{
    assert_int_equal(ws_head_parse(&head, text, strlen(text), request), WS_HEAD_WHOLE);
    assert_int_equal(head.size, strlen(text));
    return ws_head_headers(&head);
}

/* ---- heads ----------------------------------------------------------------------------------------------- */

static void test_heads_are_whole_with_their_empty_line(void **state)
{
    (void)state;
    static const char text[] = GOOD "X-Empty:\r\nX-Blank: \t a b \t\r\n\r\nrest";
    size_t size = sizeof text - 5;
    for (size_t len = 0; len < size; len++) {
        char *copy = malloc(len + 1);
        memcpy(copy, text, len);
        assert_int_equal(ws_head_parse(&head, copy, len, true), WS_HEAD_MORE);
        free(copy);
    }
    assert_int_equal(ws_head_parse(&head, text, sizeof text - 1, true), WS_HEAD_WHOLE);
    assert_int_equal(head.size, size);
    assert_true(ws_text_eq(head.target, ws_text("/chat")));
    assert_int_equal(head.count, 7);
    assert_true(ws_text_eq(head.headers[5].value, ws_text("")));
    assert_true(ws_text_eq(head.headers[6].value, ws_text("a b")));
}

static void test_bad_heads(void **state)
{
    (void)state;
    static const char *const requests[] = {
        "GET /chat\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n",
        "GET /a b HTTP/1.1\r\n\r\n",
        "GET /chat HTTP/2.0\r\n\r\n",
        "G@T /chat HTTP/1.1\r\n\r\n",
        "GET /chat HTTP/1.1\r\nNo colon\r\n\r\n",
        "GET /chat HTTP/1.1\r\n: empty\r\n\r\n",
        "GET /chat HTTP/1.1\r\nName : blank\r\n\r\n",
        "GET /chat HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        "GET /chat HTTP/1.1\r\nA: b\nB: c\r\n\r\n",
        "GET /chat HTTP/1.1\r\nA: \x01\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        assert_int_equal(ws_head_parse(&head, requests[i], strlen(requests[i]), true), WS_HEAD_BAD);
    }
    static const char *const answers[] = {"HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/3 200\r\n\r\n",
                                          "HTTP/1.1200 OK\r\n\r\n"};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        assert_int_equal(ws_head_parse(&head, answers[i], strlen(answers[i]), false), WS_HEAD_BAD);
    }
    struct ws_buffer many = {0};
    ws_buffer_format(&many, "GET / HTTP/1.1\r\n");
    for (int i = 0; i <= WS_HEADERS_MAX; i++) {
        ws_buffer_format(&many, "A: b\r\n");
    }
    ws_buffer_format(&many, "\r\n");
    assert_int_equal(ws_head_parse(&head, many.data, many.len, true), WS_HEAD_BAD);
    ws_buffer_free(&many);
}

/* ---- server ------------------------------------------------------------------------------------------------- */

static void test_the_key_of_the_rfc(void **state)
{
    (void)state;
    char accept[WS_ACCEPT_LENGTH + 1];
    ws_accept_key(ws_text("dGhlIHNhbXBsZSBub25jZQ=="), accept);
    assert_string_equal(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

static void test_what_is_a_handshake_and_what_refuses_it(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {GOOD "\r\n", 0},
        {REQUEST "upgrade: h2c, WebSocket\r\nCONNECTION: upgrade\r\n" KEY VERSION "\r\n", 0},
        {GOOD "Sec-WebSocket-Protocol: a, b\r\nSec-WebSocket-Protocol: c\r\n\r\n", 0},
        {REQUEST UPGRADE KEY "Sec-WebSocket-Version: 8\r\n\r\n", 426},
        {REQUEST UPGRADE KEY "Sec-WebSocket-Version: 130\r\n\r\n", 426},
        {REQUEST UPGRADE KEY "\r\n", 400},
        {REQUEST UPGRADE KEY VERSION VERSION "\r\n", 400},
        {REQUEST UPGRADE VERSION "\r\n", 400},
        {REQUEST UPGRADE KEY KEY VERSION "\r\n", 400},
        {REQUEST UPGRADE VERSION "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=\r\n\r\n", 400},
        {REQUEST UPGRADE VERSION "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ\r\n\r\n", 400},
        {REQUEST UPGRADE VERSION "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25!ZQ==\r\n\r\n", 400},
        {REQUEST "Upgrade: websocket\r\nConnection: keep-alive\r\n" KEY VERSION "\r\n", 400},
        {REQUEST "Upgrade: websockets\r\nConnection: Upgrade\r\n" KEY VERSION "\r\n", 400},
        {GOOD "Sec-WebSocket-Protocol: a, a\r\n\r\n", 400},
        {GOOD "Sec-WebSocket-Protocol: a b\r\n\r\n", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ws_text key;
        assert_int_equal(ws_server_check(parse(cases[i].text, true), &key), cases[i].status);
    }
    assert_int_equal(ws_server_check_http2(parse(REQUEST VERSION "\r\n", true)), 0);
    assert_int_equal(ws_server_check_http2(parse(REQUEST "\r\n", true)), 400);
}

static void test_subprotocols_go_by_the_servers_order(void **state)
{
    (void)state;
    static const char *const supported[] = {"v2.chat", "v1.chat"};
    struct ws_headers h =
        parse(GOOD "Sec-WebSocket-Protocol: v1.chat, V2.chat\r\nSec-WebSocket-Protocol: v2.chat\r\n\r\n", true);
    assert_string_equal(ws_protocol_choose(h, supported, 2), "v2.chat");
    assert_string_equal(ws_protocol_choose(h, supported + 1, 1), "v1.chat");
    assert_null(ws_protocol_choose(parse(GOOD "\r\n", true), supported, 2));
}

static void test_origins(void **state)
{
    (void)state;
    static const char *const allowed[] = {"https://friend.org", "https://*.example.net", "http://localhost:3000"};
    static const struct {
        const char *origin;
        const char *host;
        bool secure;
        bool good;
    } cases[] = {
        {NULL, "example.com", true, true},
        {"https://example.com", "example.com", true, true},
        {"https://EXAMPLE.com", "example.COM:443", true, true},
        {"http://example.com:8080", "example.com:8080", false, true},
        {"http://example.com:80", "example.com", false, true},
        {"https://example.com", "example.com", false, true}, /* TLS ends before us */
        {"http://example.com", "example.com", true, false},
        {"https://example.com:8443", "example.com", true, false},
        {"https://evil.com", "example.com", true, false},
        {"https://example.com.evil.com", "example.com", true, false},
        {"null", "example.com", true, false},
        {"", "example.com", true, false},
        {"https://", "", true, false},
        {"https://friend.org", "example.com", true, true},
        {"https://friend.org:444", "example.com", true, false},
        {"https://a.example.net", "example.com", true, true},
        {"https://a.b.example.net", "example.com", true, true},
        {"https://example.net", "example.com", true, false},
        {"https://.example.net", "example.com", true, false},
        {"https://evil.com/.example.net", "example.com", true, false},
        {"https://evil.com:1.example.net", "example.com", true, false},
        {"http://localhost:3000", "example.com", true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (ws_origin_is_allowed(ws_text(cases[i].origin), ws_text(cases[i].host), cases[i].secure, allowed, 3) !=
            cases[i].good) {
            fail_msg("%s at %s", cases[i].origin, cases[i].host);
        }
    }
    static const char *const any[] = {"*"};
    assert_true(ws_origin_is_allowed(ws_text("null"), ws_text("example.com"), true, any, 1));
}

/* ---- compression ---------------------------------------------------------------------------------------------- */

static void test_offers_of_compression(void **state)
{
    (void)state;
    static const struct ws_deflate_policy off = {0};
    static const struct ws_deflate_policy forget = {.on = true};
    static const struct ws_deflate_policy keep = {.on = true, .server_takeover = true, .client_takeover = true};
    static const struct ws_deflate_policy small = {
        .on = true, .server_takeover = true, .client_takeover = true, .server_bits = 10, .client_bits = 9};
    static const struct {
        const char *offer;
        const struct ws_deflate_policy *policy;
        const char *answer; /* NULL: none */
        unsigned server_bits;
        unsigned client_bits;
    } cases[] = {
        {"permessage-deflate", &keep, "permessage-deflate", 15, 15},
        {"permessage-deflate", &forget, "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
         15, 15},
        {"permessage-deflate; client_max_window_bits", &keep, "permessage-deflate", 15, 15},
        {"permessage-deflate; client_max_window_bits", &small,
         "permessage-deflate; server_max_window_bits=10; client_max_window_bits=9", 10, 9},
        {"permessage-deflate; client_max_window_bits=8", &small,
         "permessage-deflate; server_max_window_bits=10; client_max_window_bits=8", 10, 8},
        {"permessage-deflate", &small, "permessage-deflate; server_max_window_bits=10", 10, 15},
        {"permessage-deflate; server_max_window_bits=8; server_no_context_takeover", &keep,
         "permessage-deflate; server_no_context_takeover; server_max_window_bits=8", 8, 15},
        {"permessage-deflate; server_max_window_bits=\"12\"; client_no_context_takeover", &keep,
         "permessage-deflate; client_no_context_takeover; server_max_window_bits=12", 12, 15},
        {"x-webkit-deflate-frame, PerMessage-Deflate ;client_max_window_bits = 11", &keep,
         "permessage-deflate; client_max_window_bits=11", 15, 11},
        {"permessage-deflate; unknown, permessage-deflate; server_max_window_bits=7, permessage-deflate", &keep,
         "permessage-deflate", 15, 15},
        {"permessage-deflate; server_max_window_bits", &keep, NULL, 0, 0},
        {"permessage-deflate; server_max_window_bits=16", &keep, NULL, 0, 0},
        {"permessage-deflate; server_max_window_bits=09", &keep, NULL, 0, 0},
        {"permessage-deflate; client_max_window_bits=0", &keep, NULL, 0, 0},
        {"permessage-deflate; client_no_context_takeover; client_no_context_takeover", &keep, NULL, 0, 0},
        {"permessage-deflate; client_no_context_takeover=1", &keep, NULL, 0, 0},
        {"permessage-deflate;", &keep, NULL, 0, 0},
        {"permessage-deflate; \"a, permessage-deflate\"", &keep, NULL, 0, 0},
        {"permessage-deflate", &off, NULL, 0, 0},
        {"", &keep, NULL, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400];
        char answer[WS_EXTENSION_MAX];
        struct ws_deflate agreed;
        snprintf(text, sizeof text, GOOD "Sec-WebSocket-Extensions: %s\r\n\r\n", cases[i].offer);
        bool taken = ws_deflate_accept(parse(text, true), cases[i].policy, &agreed, answer);
        assert_int_equal(taken, cases[i].answer != NULL);
        assert_int_equal(agreed.on, taken);
        if (taken) {
            assert_string_equal(answer, cases[i].answer);
            assert_int_equal(agreed.server_bits, cases[i].server_bits);
            assert_int_equal(agreed.client_bits, cases[i].client_bits);
        }
    }
}

static void test_answers_about_compression(void **state)
{
    (void)state;
    static const struct ws_deflate_offer plain = {.on = true};
    static const struct ws_deflate_offer wishes = {
        .on = true, .server_no_takeover = true, .server_bits = 10, .client_bits = 12};
    static const struct ws_deflate_offer none = {0};
    static const struct {
        const char *answer;
        const struct ws_deflate_offer *offer;
        bool good;
        bool on;
    } cases[] = {
        {"", &plain, true, false},
        {"permessage-deflate", &plain, true, true},
        {"permessage-deflate; server_no_context_takeover; client_max_window_bits=9", &plain, true, true},
        {"permessage-deflate; server_max_window_bits=8", &plain, true, true},
        {"permessage-deflate; server_no_context_takeover; server_max_window_bits=10", &wishes, true, true},
        {"permessage-deflate; server_no_context_takeover; server_max_window_bits=11", &wishes, false, false},
        {"permessage-deflate; server_no_context_takeover", &wishes, false, false},
        {"permessage-deflate; server_max_window_bits=10", &wishes, false, false},
        {"permessage-deflate; server_no_context_takeover; server_max_window_bits=10; client_max_window_bits=13",
         &wishes, false, false},
        {"permessage-deflate; client_max_window_bits", &plain, false, false},
        {"permessage-deflate; other", &plain, false, false},
        {"permessage-deflate, permessage-deflate", &plain, false, false},
        {"x-other", &plain, false, false},
        {"permessage-deflate", &none, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400];
        struct ws_deflate agreed;
        snprintf(text, sizeof text, "HTTP/1.1 101 S\r\nSec-WebSocket-Extensions: %s\r\n\r\n", cases[i].answer);
        assert_int_equal(ws_deflate_agree(parse(text, false), cases[i].offer, &agreed), cases[i].good);
        if (cases[i].good) {
            assert_int_equal(agreed.on, cases[i].on);
        }
    }
}

/* ---- both sides together ------------------------------------------------------------------------------------------ */

static const char *const protocols[] = {"chat", "superchat"};
static const struct ws_header more[] = {{WS_TEXT_OF("Authorization"), WS_TEXT_OF("Bearer x")}};

static struct ws_client_request client_request(void)
{
    return (struct ws_client_request){.host = ws_text("example.com:81"),
                                      .target = ws_text("/chat?x=1"),
                                      .protocols = protocols,
                                      .protocol_count = 2,
                                      .origin = "https://example.com",
                                      .deflate = {.on = true},
                                      .more = more,
                                      .more_count = 1};
}

static void test_a_client_s_request_is_a_handshake_that_a_server_answers(void **state)
{
    (void)state;
    const struct ws_client_request request = client_request();
    struct ws_buffer out = {0};
    struct ws_buffer answer = {0};
    char key[WS_KEY_LENGTH + 1];
    char extension[WS_EXTENSION_MAX];
    struct ws_deflate agreed;
    struct ws_text found;
    assert_true(ws_client_write(&out, &request, key));
    assert_int_equal(ws_head_parse(&head, out.data, out.len, true), WS_HEAD_WHOLE);
    struct ws_headers headers = ws_head_headers(&head);
    assert_int_equal(ws_server_check(headers, &found), 0);
    assert_true(ws_text_eq(found, ws_text(key)));
    assert_true(ws_text_eq(ws_header_find(headers, ws_text("authorization"), NULL), ws_text("Bearer x")));
    assert_true(ws_text_eq(ws_header_find(headers, ws_text("host"), NULL), ws_text("example.com:81")));
    const struct ws_deflate_policy policy = {.on = true};
    assert_true(ws_deflate_accept(headers, &policy, &agreed, extension));
    assert_true(ws_server_accept(&answer, found, "superchat", extension, NULL, 0));
    struct ws_deflate client_agreed;
    struct ws_text protocol;
    assert_int_equal(ws_head_parse(&head, answer.data, answer.len, false), WS_HEAD_WHOLE);
    assert_int_equal(ws_client_check(&head, &request, key, &protocol, &client_agreed), WS_ANSWER_ACCEPTED);
    assert_true(ws_text_eq(protocol, ws_text("superchat")));
    assert_memory_equal(&agreed, &client_agreed, sizeof agreed);
    ws_buffer_free(&out);
    ws_buffer_free(&answer);
}

#define ANSWER "HTTP/1.1 101 Switching Protocols\r\n"
#define ACCEPT "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"

static void test_answers_that_a_client_does_not_take(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum ws_answer answer;
    } cases[] = {
        {ANSWER UPGRADE ACCEPT "\r\n", WS_ANSWER_ACCEPTED},
        {ANSWER UPGRADE ACCEPT "Sec-WebSocket-Protocol: chat\r\n\r\n", WS_ANSWER_ACCEPTED},
        {"HTTP/1.1 403 Forbidden\r\n" UPGRADE ACCEPT "\r\n", WS_ANSWER_REFUSED},
        {"HTTP/1.1 200 OK\r\n\r\n", WS_ANSWER_REFUSED},
        {"HTTP/1.0 101 S\r\n" UPGRADE ACCEPT "\r\n", WS_ANSWER_BAD_UPGRADE},
        {ANSWER "Upgrade: websocket\r\n" ACCEPT "\r\n", WS_ANSWER_BAD_UPGRADE},
        {ANSWER "Connection: Upgrade\r\nUpgrade: h2c\r\n" ACCEPT "\r\n", WS_ANSWER_BAD_UPGRADE},
        {ANSWER UPGRADE "\r\n", WS_ANSWER_BAD_KEY},
        {ANSWER UPGRADE "Sec-WebSocket-Accept: t3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", WS_ANSWER_BAD_KEY},
        {ANSWER UPGRADE ACCEPT ACCEPT "\r\n", WS_ANSWER_BAD_KEY},
        {ANSWER UPGRADE ACCEPT "Sec-WebSocket-Protocol: other\r\n\r\n", WS_ANSWER_BAD_PROTOCOL},
        {ANSWER UPGRADE ACCEPT "Sec-WebSocket-Protocol: chat, superchat\r\n\r\n", WS_ANSWER_BAD_PROTOCOL},
        {ANSWER UPGRADE ACCEPT "Sec-WebSocket-Extensions: x-other\r\n\r\n", WS_ANSWER_BAD_EXTENSION},
    };
    const struct ws_client_request request = client_request();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ws_text protocol;
        struct ws_deflate agreed;
        parse(cases[i].text, false);
        enum ws_answer answer = ws_client_check(&head, &request, "dGhlIHNhbXBsZSBub25jZQ==", &protocol, &agreed);
        if (answer != cases[i].answer) {
            fail_msg("%s: %s", cases[i].text, ws_answer_text(answer));
        }
    }
}

static void test_nothing_is_smuggled_into_a_head(void **state)
{
    (void)state;
    struct ws_buffer out = {0};
    char key[WS_KEY_LENGTH + 1];
    struct ws_client_request request = client_request();
    request.target = ws_text("/a\r\nX: y");
    assert_false(ws_client_write(&out, &request, key));
    request = client_request();
    request.host = ws_text("a b");
    assert_false(ws_client_write(&out, &request, key));
    static const struct ws_header bad[] = {{WS_TEXT_OF("A"), WS_TEXT_OF("b\r\nC: d")},
                                           {WS_TEXT_OF("A:"), WS_TEXT_OF("b")},
                                           {WS_TEXT_OF("sec-websocket-KEY"), WS_TEXT_OF("b")}};
    for (size_t i = 0; i < 3; i++) {
        request = client_request();
        request.more = &bad[i];
        assert_false(ws_client_write(&out, &request, key));
    }
    assert_false(ws_server_accept(&out, ws_text("dGhlIHNhbXBsZSBub25jZQ=="), "a\r\nb", NULL, NULL, 0));
    assert_false(ws_server_accept(&out, ws_text("dGhlIHNhbXBsZSBub25jZQ=="), NULL, NULL, &bad[0], 1));
    ws_buffer_free(&out);
}

static void test_a_refusal_is_a_whole_http_answer(void **state)
{
    (void)state;
    struct ws_buffer out = {0};
    assert_true(ws_server_refuse(&out, 426, "Upgrade Required", "version 13 only\n", NULL, 0));
    assert_int_equal(ws_head_parse(&head, out.data, out.len, false), WS_HEAD_WHOLE);
    assert_int_equal(head.status, 426);
    struct ws_headers h = ws_head_headers(&head);
    assert_true(ws_text_eq(ws_header_find(h, ws_text("sec-websocket-version"), NULL), ws_text("13")));
    assert_true(ws_text_eq(ws_header_find(h, ws_text("content-length"), NULL), ws_text("16")));
    assert_int_equal(out.len - head.size, 16);
    ws_buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_are_whole_with_their_empty_line),
        cmocka_unit_test(test_bad_heads),
        cmocka_unit_test(test_the_key_of_the_rfc),
        cmocka_unit_test(test_what_is_a_handshake_and_what_refuses_it),
        cmocka_unit_test(test_subprotocols_go_by_the_servers_order),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_offers_of_compression),
        cmocka_unit_test(test_answers_about_compression),
        cmocka_unit_test(test_a_client_s_request_is_a_handshake_that_a_server_answers),
        cmocka_unit_test(test_answers_that_a_client_does_not_take),
        cmocka_unit_test(test_nothing_is_smuggled_into_a_head),
        cmocka_unit_test(test_a_refusal_is_a_whole_http_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
