/* The load of the WebSocket figures: a program of libkilnws (plugin-sdk/include/kiln_ws.h) and of nothing else, its
 * ready loop as a client, on one thread.
 *
 *   ws_load echo PORT PATH CONNECTIONS BYTES SECONDS [tls]      prints the messages that came back
 *   ws_load stream PORT PATH PACKET TOTAL                       one connection, a window of bytes under way; prints MB,
 *                                                               seconds, and the processor's seconds
 *   ws_load listen PORT PATH CONNECTIONS MESSAGES FIRST         subscribers (they send FIRST); prints deliveries
 *   ws_load idle PORT PATH CONNECTIONS BYTES                    one compressed message each, then holds them until its
 *                                                               input ends
 *
 * It says "ready" once all connections are open. */
#include <kiln_ws.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* No more under way at once: servers have a backlog. */
enum { CONNECTING = 256, WINDOW = 1 << 20 };

static struct {
    kiln_ws_loop *loop;
    char url[512];
    kiln_ws_options options;
    int wanted; /* connections */
    int begun;
    int open;
    kiln_ws **sockets; /* the open ones */
    int type;
    const char *data;
    size_t size;
    bool talking; /* what comes back is answered */
    uint64_t messages;
    uint64_t received;
    uint64_t sent;
    uint64_t total; /* bytes of a stream; 0: echo */
} load;

static _Noreturn void fail(const char *what, const char *why)
{
    fprintf(stderr, "ws_load: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- connections ------------------------------------------------------------------------------------ */

static void send_one(kiln_ws *ws)
{
    int result = kiln_ws_send(ws, load.type, load.data, load.size);
    if (result != KILN_OK) {
        fail("send", kiln_ws_error(ws));
    }
    load.sent += load.size;
}

static void send_stream(kiln_ws *ws)
{
    while (load.sent < load.total && load.sent - load.received < WINDOW) {
        send_one(ws);
    }
}

static void connect_next(void);

static void on_open(kiln_ws *ws, void *user)
{
    (void)user;
    load.sockets[load.open++] = ws;
    connect_next();
}

static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    (void)user;
    load.messages++;
    load.received += m->length;
    if (!load.talking) {
        return;
    }
    if (load.total > 0) {
        send_stream(ws);
    } else {
        send_one(ws);
    }
}

static void on_close(kiln_ws *ws, int code, const char *reason, void *user)
{
    char what[64];
    (void)user;
    snprintf(what, sizeof what, "a connection ended with %d", code);
    fail(what, reason[0] != '\0' ? reason : kiln_ws_error(ws));
}

static const kiln_ws_handler handler = {.open = on_open, .message = on_message, .close = on_close};

static void connect_next(void)
{
    if (load.begun == load.wanted) {
        return;
    }
    load.begun++;
    if (kiln_ws_loop_connect(load.loop, load.url, &load.options, &handler, NULL) == NULL) {
        fail("connect", load.options.error);
    }
}

static void open_all(int count)
{
    load.wanted = count;
    load.sockets = calloc((size_t)count, sizeof *load.sockets);
    if (load.sockets == NULL) {
        fail("connect", "no memory");
    }
    for (int i = 0; i < CONNECTING; i++) {
        connect_next();
    }
    while (load.open < count) {
        kiln_ws_loop_run_once(load.loop, -1);
    }
}

static void send_to_all(void)
{
    for (int i = 0; i < load.open; i++) {
        send_one(load.sockets[i]);
    }
}

/* Until so many messages or bytes came, or the time is over. */
static void run(uint64_t enough, uint64_t bytes, double most)
{
    double until = seconds(CLOCK_MONOTONIC) + most;
    while (load.messages < enough && load.received < bytes && seconds(CLOCK_MONOTONIC) < until) {
        kiln_ws_loop_run_once(load.loop, 100);
    }
}

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

/* ---- what is measured ---------------------------------------------------------------------------------- */

static void talk_about(int type, const char *data, size_t size)
{
    if (data == NULL) {
        fail("message", "no memory");
    }
    load.type = type;
    load.data = data;
    load.size = size;
}

static int echo(int count, size_t bytes, double most)
{
    open_all(count);
    talk_about(KILN_WS_BINARY, calloc(1, bytes + 1), bytes);
    load.talking = true;
    ready();
    send_to_all();
    run(UINT64_MAX, UINT64_MAX, most);
    printf("%llu\n", (unsigned long long)load.messages);
    return 0;
}

static int stream(size_t packet, uint64_t bytes)
{
    open_all(1);
    talk_about(KILN_WS_BINARY, calloc(1, packet), packet);
    load.total = bytes / packet * packet;
    load.talking = true;
    ready();
    double began = seconds(CLOCK_MONOTONIC);
    send_stream(load.sockets[0]);
    run(UINT64_MAX, load.total, 600);
    printf("%.3f %.3f %.3f\n", (double)load.received / 1e6, seconds(CLOCK_MONOTONIC) - began,
           seconds(CLOCK_PROCESS_CPUTIME_ID));
    return load.received == load.total ? 0 : EXIT_FAILURE;
}

static int listen_to(int count, uint64_t wanted, const char *first)
{
    open_all(count);
    talk_about(KILN_WS_TEXT, first, strlen(first));
    send_to_all();
    run((uint64_t)count, UINT64_MAX, 60); /* each is told that it has joined */
    load.messages = 0;
    ready();
    run(wanted * (uint64_t)count, UINT64_MAX, 120);
    printf("%llu\n", (unsigned long long)load.messages);
    return 0;
}

static int idle(int count, size_t bytes)
{
    char *data = malloc(bytes + 1);
    load.options.deflate = KILN_WS_DEFLATE;
    load.options.deflate_min = 1;
    for (size_t i = 0; data != NULL && i < bytes; i++) {
        data[i] = (char)('a' + (i * i / 7) % 26);
    }
    open_all(count);
    talk_about(KILN_WS_TEXT, data, bytes);
    send_to_all();
    run((uint64_t)count, UINT64_MAX, 120);
    if (load.messages != (uint64_t)count || !kiln_ws_is_compressed(load.sockets[0])) {
        fail("idle", "not every message came back, or nothing is compressed");
    }
    ready();
    while (getchar() != EOF) {
    }
    return 0;
}

int main(int argc, char **argv)
{
    static char error[512];
    if (argc < 6) {
        fputs("usage: see the head of bench/ws_load.c\n", stderr);
        return 2;
    }
    bool tls = argc > 7 && strcmp(argv[7], "tls") == 0;
    snprintf(load.url, sizeof load.url, "%s://127.0.0.1:%s%s", tls ? "wss" : "ws", argv[2], argv[3]);
    load.options = (kiln_ws_options){.insecure = 1, .max_message = -1, .error = error, .error_size = sizeof error};
    load.loop = kiln_ws_loop_create();
    if (load.loop == NULL) {
        fail("loop", "no memory");
    }
    unsigned long long a = strtoull(argv[4], NULL, 10), b = strtoull(argv[5], NULL, 10);
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
