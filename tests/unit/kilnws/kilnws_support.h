/* What the tests of libkilnws share: peers of raw bytes, and addresses. */
#ifndef KILN_KILNWS_SUPPORT_H
#define KILN_KILNWS_SUPPORT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <kiln_ws.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A client's socket without a handshake, and the server's end as a plain descriptor. */
static inline kiln_ws *with_raw_peer(int *peer, const kiln_ws_options *options)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    *peer = fds[1];
    kiln_ws *ws = kiln_ws_adopt(fds[0], KILN_WS_ROLE_CLIENT, options);
    assert_non_null(ws);
    return ws;
}

static inline void peer_sends(int peer, unsigned opcode, const void *data, size_t length)
{
    uint8_t head[4] = {(uint8_t)(0x80 | opcode), 126, (uint8_t)(length >> 8), (uint8_t)length};
    if (length < 126) {
        head[1] = (uint8_t)length;
    }
    assert_int_equal(write(peer, head, length < 126 ? 2 : 4), length < 126 ? 2 : 4);
    assert_int_equal(write(peer, data, length), length);
}

static inline void poll_for(kiln_ws *ws)
{
    int wanted = kiln_ws_wanted(ws);
    int ms = kiln_ws_timeout(ws);
    struct pollfd fd = {kiln_ws_fd(ws),
                        (short)((wanted & KILN_READ ? POLLIN : 0) | (wanted & KILN_WRITE ? POLLOUT : 0)), 0};
    poll(&fd, 1, ms >= 0 && ms < 1000 ? ms : 1000);
}

static inline char *url_of(const kiln_ws_listener *listener, const char *scheme)
{
    static char url[64];
    snprintf(url, sizeof url, "%s://127.0.0.1:%d/", scheme, kiln_ws_listener_port(listener));
    return url;
}

static inline uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

#endif
