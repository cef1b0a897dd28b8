/* Addresses and what proxies say: every form, and every way to be wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "wsio/proxy.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void test_urls(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool tls;
        const char *host;
        unsigned port;
        const char *authority;
        const char *target;
    } good[] = {
        {"ws://example.com", false, "example.com", 80, "example.com", "/"},
        {"WSS://example.com/", true, "example.com", 443, "example.com", "/"},
        {"http://a:81/x?y=1#z", false, "a", 81, "a:81", "/x?y=1"},
        {"https://a:443?y", true, "a", 443, "a", "/?y"},
        {"ws://[::1]:8080/p", false, "::1", 8080, "[::1]:8080", "/p"},
        {"wss://[2001:db8::1]", true, "2001:db8::1", 443, "[2001:db8::1]", "/"},
        {"ws://127.0.0.1:/p", false, "127.0.0.1", 80, "127.0.0.1", "/p"},
        {"ws://u:p%40@h/", false, "h", 80, "h", "/"},
    };
    char error[URL_ERROR_MAX];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct url url;
        assert_true(url_parse(&url, good[i].text, error));
        assert_int_equal(url.tls, good[i].tls);
        assert_string_equal(url.host, good[i].host);
        assert_int_equal(url.port, good[i].port);
        assert_string_equal(url.authority, good[i].authority);
        assert_string_equal(url.target, good[i].target);
        url_free(&url);
    }
}

static void test_wrong_urls(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "example.com",
        "ftp://x/",
        "ws://",
        "ws:///x",
        "ws://:80/",
        "ws://h:0/",
        "ws://h:65536/",
        "ws://h:8x/",
        "ws://h:-1/",
        "ws://[::1/",
        "ws://[::1]x/",
        "ws://[g]/",
        "ws://a b/",
        "ws://h/a b",
        "ws://h/\r\nX",
        "ws://h/\xc3\xa4",
        "ws://u%zz@h/",
        "ws://u%00@h/",
        "ws://a%3ab@h/",
        "ws://h\\x/",
        "ws://<h>/",
        "ws://h:99999999999999999999/",
    };
    char error[URL_ERROR_MAX];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct url url;
        error[0] = '\0';
        if (url_parse(&url, wrong[i], error)) {
            fail_msg("%s was taken", wrong[i]);
        }
        assert_true(strlen(error) > 10);
    }
    char *longest = malloc(URL_MAX + 100);
    memset(longest, 'a', URL_MAX + 99);
    longest[URL_MAX + 99] = '\0';
    memcpy(longest, "ws://", 5);
    struct url url;
    assert_false(url_parse(&url, longest, error));
    longest[5 + URL_HOST_MAX + 1] = '\0'; /* a host one byte too long */
    assert_false(url_parse(&url, longest, error));
    longest[5 + URL_HOST_MAX] = '\0';
    assert_true(url_parse(&url, longest, error));
    url_free(&url);
    free(longest);
}

static void test_proxy_urls(void **state)
{
    (void)state;
    struct proxy_url proxy;
    char error[URL_ERROR_MAX];
    assert_true(proxy_url_parse(&proxy, "proxy", error));
    assert_int_equal(proxy.kind, PROXY_HTTP);
    assert_int_equal(proxy.port, 8080);
    assert_true(proxy_url_parse(&proxy, "socks5h://me:s%3Acret@[::1]:99/", error));
    assert_int_equal(proxy.kind, PROXY_SOCKS5);
    assert_string_equal(proxy.user, "me");
    assert_string_equal(proxy.password, "s:cret");
    assert_string_equal(proxy.host, "::1");
    assert_int_equal(proxy.port, 99);
    assert_true(proxy_url_parse(&proxy, "socks5://h", error));
    assert_int_equal(proxy.port, 1080);
    assert_false(proxy.has_user);
    static const char *const wrong[] = {"",           "https://h",        "socks4://h", "http://h/path",
                                        "http://h:0", "http://me:secret@"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(proxy_url_parse(&proxy, wrong[i], error));
        assert_null(strstr(error, "secret"));
    }
}

/* ---- dialogues ------------------------------------------------------------------------------------------ */

struct talk {
    const char *sent; /* by us, all of it */
    size_t sent_len;
    const char *answer;
    size_t answer_len;
    enum proxy_result result;
    size_t over; /* bytes of the answer that are the tunnel's */
};

/* The answer in pieces of `step` bytes. */
static void talk_to(const struct proxy_url *proxy, const char *host, const struct talk *t, size_t step)
{
    struct proxy_dialogue *d = malloc(sizeof *d);
    struct ws_buffer sent = {0};
    proxy_begin(d, proxy, host, 443, strchr(host, ':') != NULL);
    enum proxy_result result = PROXY_MORE;
    size_t at = 0;
    size_t used_all = 0;
    for (; at < t->answer_len && result == PROXY_MORE; at += step) {
        size_t n = t->answer_len - at < step ? t->answer_len - at : step;
        size_t used;
        ws_buffer_add(&sent, d->out.data, d->out.len);
        d->out.len = 0;
        result = proxy_receive(d, t->answer + at, n, &used);
        assert_true(used <= n);
        used_all += used;
    }
    ws_buffer_add(&sent, d->out.data, d->out.len);
    assert_int_equal(result, t->result);
    if (result == PROXY_DONE && step >= t->answer_len) {
        assert_int_equal(t->answer_len - used_all, t->over);
    }
    if (result == PROXY_FAILED) {
        assert_true(strlen(d->error) > 10);
        assert_null(strstr(d->error, "secret"));
    }
    if (t->sent != NULL) {
        assert_int_equal(sent.len, t->sent_len);
        assert_memory_equal(sent.data, t->sent, t->sent_len);
    }
    ws_buffer_free(&sent);
    proxy_end(d);
    free(d);
}

#define BYTES(text) (text), sizeof(text) - 1

static void all_steps(const char *proxy_text, const char *host, const struct talk *t)
{
    struct proxy_url proxy;
    char error[URL_ERROR_MAX];
    assert_true(proxy_url_parse(&proxy, proxy_text, error));
    for (size_t step = 1; step <= t->answer_len + 1; step++) {
        talk_to(&proxy, host, t, step);
    }
}

static void test_http_proxy(void **state)
{
    (void)state;
    all_steps("http://p", "h",
              &(struct talk){BYTES("CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"), BYTES("HTTP/1.0 200 OK\r\n\r\n"),
                             PROXY_DONE, 0});
    all_steps("http://u:p@p", "::1",
              &(struct talk){BYTES("CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\nProxy-Authorization: Basic "
                                   "dTpw\r\n\r\n"),
                             BYTES("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nrest!"), PROXY_DONE, 5});
    all_steps("http://p", "h", &(struct talk){NULL, 0, BYTES("HTTP/1.1 407 No\r\n\r\n"), PROXY_FAILED, 0});
    all_steps("http://u:secret@p", "h", &(struct talk){NULL, 0, BYTES("HTTP/1.1 407 No\r\n\r\n"), PROXY_FAILED, 0});
    all_steps("http://p", "h", &(struct talk){NULL, 0, BYTES("HTTP/1.1 502 Bad\r\n\r\n"), PROXY_FAILED, 0});
    all_steps("http://p", "h", &(struct talk){NULL, 0, BYTES("SSH-2.0-x\r\n"), PROXY_FAILED, 0});
    struct talk endless = {NULL, 0, malloc(20000), 20000, PROXY_FAILED, 0};
    memset((char *)(uintptr_t)endless.answer, 'x', 20000);
    struct proxy_url proxy = {.kind = PROXY_HTTP};
    talk_to(&proxy, "h", &endless, 1000);
    free((char *)(uintptr_t)endless.answer);
}

static void test_socks_proxy(void **state)
{
    (void)state;
    all_steps("socks5://p", "host",
              &(struct talk){BYTES("\5\1\0\5\1\0\3\4host\1\xbb"), BYTES("\5\0\5\0\0\1\1\2\3\4\0\x50"), PROXY_DONE, 0});
    all_steps(
        "socks5://p", "1.2.3.4",
        &(struct talk){BYTES("\5\1\0\5\1\0\1\1\2\3\4\1\xbb"), BYTES("\5\0\5\0\0\3\3abc\0\x50rest"), PROXY_DONE, 4});
    all_steps("socks5://u:pw@p", "host",
              &(struct talk){BYTES("\5\2\0\2\1\1u\2pw\5\1\0\3\4host\1\xbb"),
                             BYTES("\5\2\1\0\5\0\0\4"
                                   "0123456789abcdef"
                                   "\0\x50"),
                             PROXY_DONE, 0});
    all_steps("socks5://u:secret@p", "h", &(struct talk){NULL, 0, BYTES("\5\2\1\1"), PROXY_FAILED, 0});
    all_steps("socks5://p", "h", &(struct talk){NULL, 0, BYTES("\5\2"), PROXY_FAILED, 0}); /* not offered */
    all_steps("socks5://p", "h", &(struct talk){NULL, 0, BYTES("\5\xff"), PROXY_FAILED, 0});
    all_steps("socks5://p", "h", &(struct talk){NULL, 0, BYTES("\4\0"), PROXY_FAILED, 0});
    for (char code = 1; code < 12; code++) {
        char reply[] = "\5\0\5\0\0\1";
        reply[3] = code;
        all_steps("socks5://p", "h", &(struct talk){NULL, 0, reply, 6, PROXY_FAILED, 0});
    }
    all_steps("socks5://p", "h", &(struct talk){NULL, 0, BYTES("\5\0\5\0\0\2xx"), PROXY_FAILED, 0});
}

/* An endpoint's stack is small. */
static void *many_interim_answers(void *result)
{
    struct proxy_url proxy;
    char error[URL_ERROR_MAX];
    static const char interim[] = "HTTP/1.1 100 \r\n\r\n";
    static const char last[] = "HTTP/1.1 200 \r\n\r\n";
    size_t len = sizeof interim - 1;
    size_t count = (PROXY_ANSWER_MAX - 100) / len;
    char *answer = malloc(PROXY_ANSWER_MAX);
    struct proxy_dialogue *d = malloc(sizeof *d);
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(answer + i * len, interim, len);
    }
    memcpy(answer + count * len, last, sizeof last - 1);
    proxy_url_parse(&proxy, "http://p:1", error);
    proxy_begin(d, &proxy, "h", 80, false);
    *(enum proxy_result *)result = proxy_receive(d, answer, count * len + sizeof last - 1, &used);
    proxy_end(d);
    free(d);
    free(answer);
    return used == count * len + sizeof last - 1 ? result : NULL;
}

static void test_interim_answers_cost_no_stack(void **state)
{
    (void)state;
    enum proxy_result result = PROXY_FAILED;
    pthread_attr_t small;
    pthread_t thread;
    void *ok;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    assert_int_equal(pthread_create(&thread, &small, many_interim_answers, &result), 0);
    pthread_join(thread, &ok);
    pthread_attr_destroy(&small);
    assert_non_null(ok);
    assert_int_equal(result, PROXY_DONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),       cmocka_unit_test(test_wrong_urls),
        cmocka_unit_test(test_proxy_urls), cmocka_unit_test(test_interim_answers_cost_no_stack),
        cmocka_unit_test(test_http_proxy), cmocka_unit_test(test_socks_proxy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
