/* What the two floors of the WebSocket figures share: a listener, the handshake, the echo of short frames that come whole.
 * Nothing is checked: what such a server needs is the kernel's part. */
#ifndef KILN_BENCH_WS_COMMON_H
#define KILN_BENCH_WS_COMMON_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 65536, KEY = 24 };

static bool is_open[MOST]; /* by descriptor: its handshake was answered */

static int listen_on(const char *port)
{
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    return bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 4096) == 0 ? fd : -1;
}

/* False: it is closed, there is no room for it. */
static bool welcome(int fd)
{
    int one = 1;
    if (fd >= MOST) {
        close(fd);
        return false;
    }
    is_open[fd] = false;
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
}

static size_t echo(const unsigned char *in, size_t have, unsigned char *out)
{
    size_t at = 0;
    size_t made = 0;
    while (at + 6 <= have) {
        size_t len = in[at + 1] & 127;
        out[made] = in[at];
        out[made + 1] = (unsigned char)len;
        for (size_t i = 0; i < len; i++) {
            out[made + 2 + i] = in[at + 6 + i] ^ in[at + 2 + (i & 3)];
        }
        at += 6 + len;
        made += 2 + len;
    }
    return made;
}

/* Of a handshake that came whole. False: it is none. */
static bool accept_handshake(int fd, const char *head)
{
    static const char name[] = "Sec-WebSocket-Key: ";
    const char *key = strcasestr(head, name);
    unsigned char digest[SHA_DIGEST_LENGTH];
    unsigned char text[2 * SHA_DIGEST_LENGTH];
    char both[128];
    char answer[256];
    if (key == NULL) {
        return false;
    }
    snprintf(both, sizeof both, "%.*s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", KEY, key + sizeof name - 1);
    SHA1((const unsigned char *)both, strlen(both), digest);
    EVP_EncodeBlock(text, digest, sizeof digest);
    int len = snprintf(answer, sizeof answer,
                       "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       "Sec-WebSocket-Accept: %s\r\n\r\n",
                       (const char *)text);
    is_open[fd] = send(fd, answer, (size_t)len, MSG_NOSIGNAL) == len;
    return is_open[fd];
}

#endif
