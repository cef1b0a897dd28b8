/* A connection of HTTP/1.1 with a peer in the same thread, opened and closed around each test. */
#ifndef KILN_TESTS_SUPPORT_HTTP1_PEER_H
#define KILN_TESTS_SUPPORT_HTTP1_PEER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/http1_answers.h"

static struct loop *loop;
static struct fake peer;
static char *output;

static inline int open_peer(void **state)
{
    (void)state;
    answers_reset();
    return fake_open(&peer, loop, &protocol_http1) ? 0 : -1;
}

static inline int close_peer(void **state)
{
    (void)state;
    fake_close(&peer);
    free(output);
    output = NULL;
    buffer_free(&body_seen);
    return 0;
}

static inline unsigned count(const char *text, const char *what)
{
    unsigned n = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what)) {
        n++;
    }
    return n;
}

/* Everything sent since the last call. */
static inline const char *sent(void)
{
    free(output);
    output = fake_take(&peer);
    return output;
}

/* A large block of input that is only here to be counted. */
static inline void send_bytes(size_t len)
{
    char *block = calloc(1, len);
    fake_input(&peer, block, len);
    free(block);
}

static inline bool is_lingering(void)
{
    return peer.conn != NULL && peer.conn->lingering;
}

#define GET(target) "GET " target " HTTP/1.1\r\nHost: x\r\n\r\n"
#define POST(target, headers, body) "POST " target " HTTP/1.1\r\nHost: x\r\n" headers "\r\n" body
#define CHUNKED "Transfer-Encoding: chunked\r\n"
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_peer, close_peer)

#endif
