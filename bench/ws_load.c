/* The load of the WebSocket figures, on Kiln's own protocol core in the client's role: one thread, one epoll.
 *
 *   ws_load echo PORT PATH CONNECTIONS BYTES SECONDS [tls]      prints the messages that came back
 *   ws_load stream PORT PATH PACKET TOTAL                       one connection, a window of bytes under way; prints MB
 *   ws_load listen PORT PATH CONNECTIONS MESSAGES FIRST         subscribers (they send FIRST); prints deliveries
 *   ws_load idle PORT PATH CONNECTIONS BYTES                    one compressed message each, then holds them until its
 *                                                               input ends
 *
 * It says "ready" once all connections are open. Frames are masked once: the load is not what is measured. */
#include "ws/handshake.h"
#include "ws/ws.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 262144, WINDOW = 1 << 20 };

struct peer {
    int fd;
    SSL *ssl;
    struct ws ws;
    size_t sent; /* of the frame that is going out */
    bool sending;
    bool blocked; /* epoll watches for room */
    uint64_t frames; /* sent whole */
};

static const char *path;
static uint16_t port;
static SSL_CTX *tls;
static int poll_fd;
static uint8_t *frame;
static size_t frame_len;
static uint64_t payload;
static uint64_t messages;
static uint64_t received;
static uint64_t total; /* of a stream; 0: echo */
static bool talking;
static struct ws_pool *pool;
static const struct ws_settings settings = {.parts = true, .any_text = true, .compress_from = 1};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "ws_load: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static ssize_t put(struct peer *p, const void *data, size_t len)
{
    if (p->ssl == NULL) {
        return send(p->fd, data, len, MSG_NOSIGNAL);
    }
    int n = SSL_write(p->ssl, data, (int)len);
    if (n <= 0) {
        errno = EAGAIN;
        return -1;
    }
    return n;
}

static ssize_t get(struct peer *p, void *to, size_t len)
{
    if (p->ssl == NULL) {
        return recv(p->fd, to, len, 0);
    }
    int n = SSL_read(p->ssl, to, (int)len);
    if (n > 0) {
        return n;
    }
    int error = SSL_get_error(p->ssl, n);
    errno = EAGAIN;
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? -1 : 0;
}

static void put_all(struct peer *p, const void *data, size_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t n = put(p, at, len);
        if (n < 0) {
            fail("send");
        }
        at += n;
        len -= (size_t)n;
    }
}

static void watch(struct peer *p, bool room, int how)
{
    struct epoll_event event = {.events = EPOLLIN | (room ? (uint32_t)EPOLLOUT : 0u), .data.ptr = p};
    p->blocked = room;
    if (epoll_ctl(poll_fd, how, p->fd, &event) != 0) {
        fail("epoll_ctl");
    }
}

/* ---- a connection -------------------------------------------------------------------------------- */

static void handshake(struct peer *p)
{
    struct ws_buffer out = {0};
    char key[WS_KEY_LENGTH + 1];
    struct ws_client_request request = {.host = WS_TEXT_OF("localhost"), .target = ws_text(path)};
    request.deflate = (struct ws_deflate_offer){.on = pool != NULL};
    if (!ws_client_write(&out, &request, key)) {
        fail("handshake");
    }
    put_all(p, out.data, out.len);
    ws_buffer_free(&out);
    char head[4096];
    size_t len = 0;
    while (len < 4 || memcmp(head + len - 4, "\r\n\r\n", 4) != 0) {
        ssize_t n = get(p, head + len, 1);
        if (n <= 0 || ++len == sizeof head) {
            fail("handshake's answer");
        }
    }
    if (memcmp(head, "HTTP/1.1 101", 12) != 0) {
        fprintf(stderr, "ws_load: %.*s\n", (int)len, head);
        exit(EXIT_FAILURE);
    }
}

static void open_peer(struct peer *p)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    p->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (p->fd < 0 || connect(p->fd, (struct sockaddr *)&to, sizeof to) != 0) {
        fail("connect");
    }
    setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (tls != NULL) {
        p->ssl = SSL_new(tls);
        SSL_set_fd(p->ssl, p->fd);
        if (SSL_connect(p->ssl) != 1) {
            fail("TLS");
        }
    }
    ws_init(&p->ws, WS_CLIENT, &settings);
    handshake(p);
    if (pool != NULL) {
        struct ws_deflate agreed = {.on = true, .server_bits = 15, .client_bits = 15};
        ws_use_deflate(&p->ws, pool, &agreed);
    }
}

static void unblock(struct peer *p)
{
    int yes = 1;
    if (ioctl(p->fd, FIONBIO, &yes) != 0) {
        fail("ioctl");
    }
    watch(p, false, EPOLL_CTL_ADD);
}

static void make_frame(struct ws *ws, enum ws_opcode opcode, const void *data, size_t len)
{
    struct ws_frame made;
    if (ws_frame_make(ws, &made, opcode, data, len) != WS_OK) {
        fail("frame");
    }
    frame_len = ws_frame_size(&made);
    frame = malloc(frame_len);
    if (frame == NULL) {
        fail("malloc");
    }
    ws_frame_copy(&made, frame);
}

/* ---- talking --------------------------------------------------------------------------------------- */

static void send_more(struct peer *p)
{
    while (p->sending) {
        ssize_t n = put(p, frame + p->sent, frame_len - p->sent);
        if (n < 0) {
            if (errno != EAGAIN) {
                fail("send");
            }
            if (!p->blocked) {
                watch(p, true, EPOLL_CTL_MOD);
            }
            return;
        }
        p->sent += (size_t)n;
        if (p->sent < frame_len) {
            continue;
        }
        p->sent = 0;
        p->frames++;
        p->sending = total > 0 && p->frames * payload < total && p->frames * payload - received < WINDOW;
    }
    if (p->blocked) {
        watch(p, false, EPOLL_CTL_MOD);
    }
}

static void came(struct peer *p, const struct ws_item *item)
{
    received += item->len;
    messages += item->final;
    bool next = total > 0 ? p->frames * payload < total && p->frames * payload - received < WINDOW : item->final;
    if (talking && next && !p->sending) {
        p->sending = true;
        send_more(p);
    }
}

static void receive(struct peer *p, uint8_t *buffer)
{
    ssize_t n = get(p, buffer, READ_BYTES);
    if (n == 0) {
        errno = ECONNRESET;
        fail("the server closed the connection");
    }
    struct ws_input input = {buffer, n > 0 ? (size_t)n : 0};
    struct ws_item item;
    enum ws_event event;
    while ((event = ws_receive(&p->ws, &input, &item)) != WS_EVENT_NONE) {
        if (event == WS_EVENT_DATA) {
            came(p, &item);
        } else if (event != WS_EVENT_PONG && event != WS_EVENT_PING) {
            fail("the server closed");
        }
    }
    if (p->ssl != NULL && SSL_pending(p->ssl) > 0) {
        receive(p, buffer);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Until so many messages or bytes came, or the time is over. */
static void run(uint64_t enough, uint64_t bytes, double seconds)
{
    static uint8_t buffer[READ_BYTES];
    struct epoll_event events[256];
    double until = now() + seconds;
    while (messages < enough && received < bytes && now() < until) {
        int n = epoll_wait(poll_fd, events, 256, 100);
        for (int i = 0; i < n; i++) {
            struct peer *p = events[i].data.ptr;
            if ((events[i].events & EPOLLOUT) != 0) {
                send_more(p);
            }
            if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0) {
                receive(p, buffer);
            }
        }
    }
}

static struct peer *open_all(int count)
{
    struct peer *peers = calloc((size_t)count, sizeof *peers);
    for (int i = 0; peers != NULL && i < count; i++) {
        open_peer(&peers[i]);
    }
    return peers;
}

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

static void start(struct peer *peers, int count)
{
    for (int i = 0; i < count; i++) {
        unblock(&peers[i]);
    }
    for (int i = 0; i < count; i++) {
        peers[i].sending = true;
        send_more(&peers[i]);
    }
}

/* ---- what is measured ---------------------------------------------------------------------------------- */

static int echo(int count, size_t bytes, double seconds)
{
    struct peer *peers = open_all(count);
    char *data = calloc(1, bytes + 1);
    payload = bytes;
    make_frame(&peers[0].ws, WS_BINARY, data, bytes);
    talking = true;
    ready();
    start(peers, count);
    run(UINT64_MAX, UINT64_MAX, seconds);
    talking = false;
    printf("%llu\n", (unsigned long long)messages);
    return 0;
}

static int stream(size_t packet, uint64_t bytes)
{
    struct peer *peers = open_all(1);
    char *data = calloc(1, packet);
    payload = packet;
    total = bytes / packet * packet;
    make_frame(&peers[0].ws, WS_BINARY, data, packet);
    talking = true;
    ready();
    double began = now();
    start(peers, 1);
    run(UINT64_MAX, total, 600);
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    printf("%.3f %.3f %.3f\n", (double)received / 1e6, now() - began, (double)used.tv_sec + (double)used.tv_nsec / 1e9);
    return received == total ? 0 : EXIT_FAILURE;
}

static int listen_to(int count, uint64_t wanted, const char *first)
{
    struct peer *peers = open_all(count);
    make_frame(&peers[0].ws, WS_TEXT, first, strlen(first));
    start(peers, count);
    run((uint64_t)count, UINT64_MAX, 60); /* each is told that it has joined */
    messages = 0;
    received = 0;
    ready();
    run(wanted * (uint64_t)count, UINT64_MAX, 120);
    printf("%llu\n", (unsigned long long)messages);
    return 0;
}

static int idle(int count, size_t bytes)
{
    const struct ws_pool_options options = {.budget = 0, .level = 1};
    char *data = malloc(bytes);
    pool = ws_pool_create(&options);
    if (pool == NULL || data == NULL) {
        fail("malloc");
    }
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (char)('a' + (i * i / 7) % 26);
    }
    struct peer *peers = open_all(count);
    make_frame(&peers[0].ws, WS_TEXT, data, bytes);
    start(peers, count);
    run((uint64_t)count, UINT64_MAX, 120);
    if (messages != (uint64_t)count) {
        fail("not every message came back");
    }
    ready();
    while (getchar() != EOF) {
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fputs("usage: see the head of bench/ws_load.c\n", stderr);
        return 2;
    }
    port = (uint16_t)atoi(argv[2]);
    path = argv[3];
    poll_fd = epoll_create1(0);
    unsigned long long a = strtoull(argv[4], NULL, 10), b = strtoull(argv[5], NULL, 10);
    if (argc > 7 && strcmp(argv[7], "tls") == 0) {
        tls = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    if (strcmp(argv[1], "echo") == 0 && argc > 6) {
        return echo((int)a, b, atof(argv[6]));
    }
    if (strcmp(argv[1], "stream") == 0) {
        return stream(a, b);
    }
    if (strcmp(argv[1], "listen") == 0 && argc > 6) {
        return listen_to((int)a, b, argv[6]);
    }
    return strcmp(argv[1], "idle") == 0 ? idle((int)a, b) : 2;
}
