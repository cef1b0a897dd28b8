/* The floor of the WebSocket figures: an epoll loop that receives, unmasks and sends, and knows nothing else. It takes short
 * frames that come whole, and checks nothing. What it needs is the kernel's part of an echo.
 *   ws_bare PORT */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256, BYTES = 65536, MOST = 65536, KEY = 24 };

static char is_open[MOST]; /* by descriptor: its handshake was answered */

static int listen_on(const char *port)
{
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    return bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 4096) == 0 ? fd : -1;
}

static void take(int poll_fd, int listener)
{
    int one = 1;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET | EPOLLRDHUP, .data.fd = fd};
    if (fd >= MOST) {
        close(fd);
    } else if (fd >= 0) {
        is_open[fd] = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
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

/* Of a handshake that came whole. */
static void accept_handshake(int fd, const char *head)
{
    static const char name[] = "Sec-WebSocket-Key: ";
    const char *key = strcasestr(head, name);
    unsigned char digest[SHA_DIGEST_LENGTH];
    unsigned char text[2 * SHA_DIGEST_LENGTH];
    char both[128];
    char answer[256];
    if (key == NULL) {
        close(fd);
        return;
    }
    snprintf(both, sizeof both, "%.*s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", KEY, key + sizeof name - 1);
    SHA1((const unsigned char *)both, strlen(both), digest);
    EVP_EncodeBlock(text, digest, sizeof digest);
    int len = snprintf(answer, sizeof answer,
                       "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       "Sec-WebSocket-Accept: %s\r\n\r\n",
                       (const char *)text);
    send(fd, answer, (size_t)len, MSG_NOSIGNAL);
    is_open[fd] = 1;
}

static void serve(int fd)
{
    static unsigned char in[BYTES + 128];
    static unsigned char out[BYTES + 128];
    ssize_t n = recv(fd, in, BYTES, 0);
    if (n <= 0) {
        close(fd);
    } else if (!is_open[fd]) {
        in[n] = '\0';
        accept_handshake(fd, (const char *)in);
    } else {
        send(fd, out, echo(in, (size_t)n, out), MSG_NOSIGNAL);
    }
}

int main(int argc, char **argv)
{
    int listener = argc > 1 ? listen_on(argv[1]) : -1;
    int poll_fd = epoll_create1(0);
    struct epoll_event events[EVENTS] = {{.events = EPOLLIN, .data.fd = listener}};
    if (listener < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &events[0]) != 0) {
        return EXIT_FAILURE;
    }
    for (;;) {
        int n = epoll_wait(poll_fd, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == listener) {
                take(poll_fd, listener);
            } else {
                serve(events[i].data.fd);
            }
        }
    }
}
