/* TCP through a WebSocket, where only the web is let through.
 *   tunnel in PORT URL              each TCP connection to PORT becomes a WebSocket to URL
 *   tunnel out PORT HOST TCP_PORT   each WebSocket to PORT becomes a TCP connection to HOST:TCP_PORT */
#include <kiln_ws.h>

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct way {
    kiln_ws *ws;
    int fd;
};

static void *tcp_to_ws(void *arg)
{
    struct way *way = arg;
    char data[65536];
    ssize_t n;
    while ((n = recv(way->fd, data, sizeof data, 0)) > 0 && kiln_ws_write(way->ws, data, (size_t)n) == KILN_OK) {
    }
    kiln_ws_close(way->ws, 1000, NULL);
    return NULL;
}

static void ws_to_tcp(struct way *way)
{
    char data[65536];
    ssize_t n;
    while ((n = kiln_ws_read(way->ws, data, sizeof data)) > 0) {
        for (ssize_t at = 0; at < n;) {
            ssize_t sent = send(way->fd, data + at, (size_t)(n - at), MSG_NOSIGNAL);
            if (sent <= 0) {
                return;
            }
            at += sent;
        }
    }
}

/* Until one side ends. */
static void carry(kiln_ws *ws, int fd)
{
    struct way way = {ws, fd};
    pthread_t thread;
    pthread_create(&thread, NULL, tcp_to_ws, &way);
    ws_to_tcp(&way);
    shutdown(fd, SHUT_RDWR); /* ends the other thread's recv */
    pthread_join(thread, NULL);
    close(fd);
}

static int tcp_connect(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    if (getaddrinfo(host, port, &hints, &list) != 0) {
        return -1;
    }
    int fd = -1;
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, 0);
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* ---- out: a WebSocket server */

static char **target;

static void serve(kiln_ws *ws, void *user)
{
    (void)user;
    int fd = tcp_connect(target[0], target[1]);
    if (fd < 0) {
        kiln_ws_close(ws, 1011, "the target does not answer");
        return;
    }
    carry(ws, fd);
}

static int run_out(int port)
{
    char error[200];
    kiln_ws_listen_options options = {.port = port, .ws = {.error = error, .error_size = sizeof error}};
    kiln_ws_listener *listener = kiln_ws_listen(&options);
    if (listener == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    printf("port %d\n", kiln_ws_listener_port(listener));
    fflush(stdout);
    return kiln_ws_listener_serve(listener, serve, NULL);
}

/* ---- in: a TCP server */

struct visitor {
    int fd;
    const char *url;
};

static void *visit(void *arg)
{
    struct visitor visitor = *(struct visitor *)arg;
    char error[200];
    free(arg);
    kiln_ws *ws = kiln_ws_connect(visitor.url, &(kiln_ws_options){.error = error, .error_size = sizeof error});
    if (ws == NULL) {
        fprintf(stderr, "%s\n", error);
        close(visitor.fd);
        return NULL;
    }
    carry(ws, visitor.fd);
    kiln_ws_free(ws);
    return NULL;
}

static int run_in(int port, const char *url)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t len = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, len) != 0 || listen(listener, 64) != 0) {
        perror("tunnel");
        return 1;
    }
    getsockname(listener, (struct sockaddr *)&address, &len);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        struct visitor *visitor = malloc(sizeof *visitor);
        *visitor = (struct visitor){accept(listener, NULL, NULL), url};
        pthread_t thread;
        if (visitor->fd < 0 || pthread_create(&thread, NULL, visit, visitor) != 0) {
            return 1;
        }
        pthread_detach(thread);
    }
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "in") == 0) {
        return run_in(atoi(argv[2]), argv[3]);
    }
    if (argc == 5 && strcmp(argv[1], "out") == 0) {
        target = argv + 3;
        return run_out(atoi(argv[2]));
    }
    fprintf(stderr, "usage: tunnel in PORT URL | tunnel out PORT HOST TCP_PORT\n");
    return 2;
}
