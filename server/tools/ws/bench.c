/* The load generator: every connection sends a message when the last has come back. */
#include "ws/ws_tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

struct bench {
    kiln_ws_loop *loop;
    char *message;
    size_t size;
    int64_t to_send;
    int64_t to_come;
    int64_t came;
    int64_t wrong;
    int open;
    int wanted;
    bool ended;
    double began;
    double slowest;
    double sum;
    char error[256];
};

struct one {
    struct bench *bench;
    double sent_at;
};

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void send_next(kiln_ws *ws, struct one *one)
{
    struct bench *b = one->bench;
    if (b->to_send > 0) {
        b->to_send--;
        one->sent_at = seconds(CLOCK_MONOTONIC);
        kiln_ws_send(ws, KILN_WS_BINARY, b->message, b->size);
    }
}

static void on_open(kiln_ws *ws, void *user)
{
    struct one *one = user;
    if (one->bench->open++ == 0) {
        one->bench->began = seconds(CLOCK_MONOTONIC);
    }
    send_next(ws, one);
}

static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    struct one *one = user;
    struct bench *b = one->bench;
    double took = seconds(CLOCK_MONOTONIC) - one->sent_at;
    b->sum += took;
    b->slowest = took > b->slowest ? took : b->slowest;
    b->wrong += m->length != b->size || memcmp(m->data, b->message, b->size) != 0;
    b->ended = b->ended || ++b->came == b->to_come;
    send_next(ws, one);
}

static void on_close(kiln_ws *ws, int code, const char *reason, void *user)
{
    struct one *one = user;
    struct bench *b = one->bench;
    if (b->came < b->to_come) {
        snprintf(b->error, sizeof b->error, "a connection ended with %d: %s", code,
                 reason[0] != '\0' ? reason : kiln_ws_error(ws));
        b->ended = true;
    }
    free(one);
}

static const kiln_ws_handler handler = {.open = on_open, .message = on_message, .close = on_close};

static bool connect_all(struct bench *b, const struct ws_tool *tool)
{
    kiln_ws_options options = tool->options;
    options.error = b->error;
    options.error_size = sizeof b->error;
    for (int i = 0; i < tool->connections; i++) {
        struct one *one = calloc(1, sizeof *one);
        if (one == NULL) {
            return false;
        }
        one->bench = b;
        if (kiln_ws_loop_connect(b->loop, tool->url, &options, &handler, one) == NULL) {
            free(one);
            return false;
        }
    }
    return true;
}

/* False: it broke, or for `patience` seconds no connection was opened and no message came back. */
static bool run(struct bench *b, double patience)
{
    double since = seconds(CLOCK_MONOTONIC);
    int64_t came = 0;
    int open = 0;
    while (!b->ended) {
        double left = since + patience - seconds(CLOCK_MONOTONIC);
        if (patience > 0 && left <= 0) {
            snprintf(
                b->error, sizeof b->error,
                "%d of %d connections are open, %lld of %lld messages came back, and then nothing for %g s: is it an "
                "echo server?",
                b->open, b->wanted, (long long)b->came, (long long)b->to_come, patience);
            return false;
        }
        if (kiln_ws_loop_run_once(b->loop, patience > 0 && left < 1 ? (int)(left * 1000) + 1 : 1000) < 0) {
            snprintf(b->error, sizeof b->error, "the loop cannot wait");
            return false;
        }
        if (b->came != came || b->open != open) {
            came = b->came;
            open = b->open;
            since = seconds(CLOCK_MONOTONIC);
        }
    }
    return b->came == b->to_come;
}

static void print(const struct bench *b, const struct ws_tool *tool, double cpu)
{
    double took = seconds(CLOCK_MONOTONIC) - b->began;
    double count = (double)b->came;
    printf("%lld messages of %zu bytes over %d connections in %.3f s\n", (long long)b->came, b->size, tool->connections,
           took);
    printf("%.0f messages/s, %.1f MB/s each way, %.1f us mean and %.1f ms longest round trip, %.2f us of CPU a message "
           "here\n",
           count / took, count * (double)b->size / took / 1e6, b->sum / count * 1e6, b->slowest * 1e3,
           cpu / count * 1e6);
}

int ws_bench(const struct ws_tool *tool)
{
    struct bench b = {.loop = kiln_ws_loop_create(),
                      .size = tool->size,
                      .to_send = tool->messages,
                      .to_come = tool->messages,
                      .wanted = tool->connections};
    b.message = malloc(tool->size + 1);
    if (b.loop == NULL || b.message == NULL) {
        fputs("kiln ws: no memory\n", stderr);
        kiln_ws_loop_free(b.loop);
        free(b.message);
        return EXIT_NO_CONNECTION;
    }
    memset(b.message, 'x', tool->size);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    bool ok = connect_all(&b, tool) && run(&b, tool->patience_s);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    if (ok) {
        print(&b, tool, cpu);
    } else {
        fprintf(stderr, "kiln ws: %s\n", b.error);
    }
    if (b.wrong > 0) {
        fprintf(stderr, "kiln ws: %lld answers were not what was sent: is it an echo server?\n", (long long)b.wrong);
        ok = false;
    }
    kiln_ws_loop_free(b.loop);
    free(b.message);
    return ok ? EXIT_ALL_WELL : b.open > 0 ? EXIT_BROKEN : EXIT_NO_CONNECTION;
}
