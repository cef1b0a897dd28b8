/* The floor of the WebSocket figures: an epoll loop that receives, unmasks and sends, and knows nothing else.
 *   ws_bare PORT */
#include "ws_common.h"

#include <sys/epoll.h>

enum { EVENTS = 256, BYTES = 65536 };

static void take(int poll_fd, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET | EPOLLRDHUP, .data.fd = fd};
    if (fd >= 0 && welcome(fd)) {
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void serve(int fd)
{
    static unsigned char in[BYTES + 128];
    static unsigned char out[BYTES + 128];
    ssize_t n = recv(fd, in, BYTES, 0);
    if (n <= 0) {
        close(fd);
    } else if (is_open[fd]) {
        send(fd, out, echo(in, (size_t)n, out), MSG_NOSIGNAL);
    } else {
        in[n] = '\0';
        if (!accept_handshake(fd, (const char *)in)) {
            close(fd);
        }
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
