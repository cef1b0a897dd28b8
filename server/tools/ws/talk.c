/* The client: standard input and the socket in one poll(2), nothing waits for anything else. Input is not read while
 * much of it is unsent, so a slow server slows the pipe and fills no memory. */
#include "ws/ws_tool.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { INPUT = 65536, UNSENT_MOST = 1 << 20, SHOWN_OF_BINARY = 32 };

struct talk {
    const struct ws_tool *tool;
    kiln_ws *ws;
    bool terminal; /* a person types */
    bool input_ended;
    bool closing;
    bool greeted;
    bool failed; /* to write what came */
    bool interrupted;
    unsigned connections;
    uint64_t pongs;
    double silent_since;
    double next_ping;
    char *line; /* what was read of the line that is not whole */
    size_t line_len;
    size_t line_cap;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void note(const struct talk *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void note(const struct talk *t, const char *format, ...)
{
    va_list args;
    if (!t->tool->quiet) {
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
    }
}

static volatile sig_atomic_t interrupts;
static int interrupt_fd = -1;

static void interrupt(int number)
{
    int before = errno;
    interrupts = number;
    eventfd_write(interrupt_fd, 1);
    errno = before;
}

/* Ctrl-C closes in order; the second one ends the program at once. */
static void catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND};
    interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- telling ------------------------------------------------------------------------------------------- */

static void tell_timing(kiln_ws *ws)
{
    kiln_ws_times times;
    kiln_ws_timing(ws, &times);
    const struct {
        const char *name;
        int64_t at;
    } parts[] = {{"name", times.name},
                 {"tcp", times.tcp},
                 {"proxy", times.proxy},
                 {"tls", times.tls},
                 {"handshake", times.handshake}};
    int64_t before = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].at > 0) {
            fprintf(stderr, "%-10s %9.3f ms\n", parts[i].name, (double)(parts[i].at - before) / 1000);
            before = parts[i].at;
        }
    }
    fprintf(stderr, "%-10s %9.3f ms\n", "in all", (double)before / 1000);
}

static void tell_connection(struct talk *t)
{
    kiln_ws *ws = t->ws;
    t->connections = kiln_ws_connections(ws);
    if (t->tool->verbose) {
        const char *tls = kiln_ws_tls(ws);
        const char *protocol = kiln_ws_protocol(ws);
        note(t, "connected to %s%s%s; status %d; subprotocol %s; %scompressed\n", kiln_ws_peer(ws),
             tls != NULL ? " by " : "", tls != NULL ? tls : "", kiln_ws_status(ws),
             protocol != NULL ? protocol : "none", kiln_ws_is_compressed(ws) ? "" : "not ");
    }
    if (t->tool->timing) {
        tell_timing(ws);
    }
    if (t->terminal && !t->greeted) {
        note(t, "Connected. A line is a message; /ping, /close and Ctrl-D are there, too.\n");
    }
    t->greeted = true;
}

static void show(struct talk *t, const kiln_ws_message *m)
{
    bool person = t->terminal && isatty(STDOUT_FILENO);
    if (m->type == KILN_WS_BINARY && person) {
        printf("< %zu bytes:", m->length);
        for (size_t i = 0; i < m->length && i < SHOWN_OF_BINARY; i++) {
            printf(" %02x", (unsigned char)m->data[i]);
        }
        puts(m->length > SHOWN_OF_BINARY ? " ..." : "");
    } else {
        fputs(person ? "< " : "", stdout);
        fwrite(m->data, 1, m->length, stdout);
        if (m->type == KILN_WS_TEXT) {
            putchar('\n');
        }
    }
    t->failed = fflush(stdout) != 0;
}

/* ---- sending ---------------------------------------------------------------------------------------------- */

static void close_it(struct talk *t, int code, const char *reason)
{
    if (kiln_ws_close(t->ws, code, reason) == KILN_INVALID) {
        note(t, "a code is from 1000 to 1003, 1007 to 1014 or 3000 to 4999\n");
        return;
    }
    t->closing = true;
}

/* True: it was a command. */
static bool command(struct talk *t, const char *line)
{
    if (strncmp(line, "/ping", 5) == 0 && (line[5] == ' ' || line[5] == '\0')) {
        const char *data = line[5] == ' ' ? line + 6 : "";
        kiln_ws_ping(t->ws, data, strlen(data));
        return true;
    }
    if (strncmp(line, "/close", 6) == 0 && (line[6] == ' ' || line[6] == '\0')) {
        char none[] = "";
        char *end = none;
        long code = line[6] == ' ' ? strtol(line + 7, &end, 10) : 1000;
        close_it(t, code > 0 && code < 5000 ? (int)code : 0, *end == ' ' ? end + 1 : NULL);
        return true;
    }
    if (strcmp(line, "/quit") == 0) {
        close_it(t, 1000, NULL);
        return true;
    }
    return false;
}

static void send_line(struct talk *t, const char *line, size_t len)
{
    if ((t->terminal || t->tool->slash) && line[0] == '/' && command(t, line)) {
        return;
    }
    if (kiln_ws_send(t->ws, KILN_WS_TEXT, line, len) == KILN_INVALID) {
        note(t, "kiln ws: a line is not UTF-8 and was not sent; --binary sends any bytes\n");
    }
}

/* Whole lines are sent, the rest is kept. False: no memory. */
static bool take_text(struct talk *t, const char *data, size_t len)
{
    if (t->line_len + len + 1 > t->line_cap) {
        size_t cap = (t->line_len + len + 1) * 2;
        char *line = realloc(t->line, cap);
        if (line == NULL) {
            return false;
        }
        t->line = line;
        t->line_cap = cap;
    }
    memcpy(t->line + t->line_len, data, len);
    t->line_len += len;
    size_t at = 0;
    char *end;
    while (!t->closing && (end = memchr(t->line + at, '\n', t->line_len - at)) != NULL) {
        *end = '\0';
        size_t line_len = (size_t)(end - t->line) - at;
        send_line(t, t->line + at, line_len);
        at += line_len + 1;
    }
    memmove(t->line, t->line + at, t->line_len - at);
    t->line_len -= at;
    return true;
}

static void end_input(struct talk *t)
{
    t->input_ended = true;
    t->silent_since = now_s();
    if (t->line_len > 0) {
        t->line[t->line_len] = '\0';
        send_line(t, t->line, t->line_len); /* a last line without its end */
        t->line_len = 0;
    }
}

static void read_input(struct talk *t)
{
    char data[INPUT];
    ssize_t n = read(STDIN_FILENO, data, sizeof data);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (n <= 0) {
        end_input(t);
        return;
    }
    if (t->tool->binary) {
        kiln_ws_send(t->ws, KILN_WS_BINARY, data, (size_t)n);
    } else if (!take_text(t, data, (size_t)n)) {
        note(t, "kiln ws: no memory for so long a line\n");
        end_input(t);
    }
}

/* ---- time -------------------------------------------------------------------------------------------------- */

/* The nearest of what is due, in ms; what is due now is done. */
static int keep_time(struct talk *t)
{
    const struct ws_tool *tool = t->tool;
    double now = now_s();
    double next = now + 3600;
    if (tool->ping_s > 0 && kiln_ws_state(t->ws) == KILN_WS_OPEN) {
        if (now >= t->next_ping) {
            kiln_ws_ping(t->ws, "", 0);
            t->next_ping = now + tool->ping_s;
        }
        next = t->next_ping;
    }
    if (t->input_ended && !t->closing && tool->wait_s >= 0) {
        double end = t->silent_since + tool->wait_s;
        if (now >= end && kiln_ws_pending(t->ws) == 0) {
            close_it(t, 1000, NULL);
        } else {
            next = end < next ? end : next;
        }
    }
    int ms = kiln_ws_timeout(t->ws);
    int ours = next <= now ? 1 : (int)((next - now) * 1000) + 1;
    return ms >= 0 && ms < ours ? ms : ours;
}

/* What is sent back waits for a server that does not read: no more is received until it does. */
static bool is_full(const struct talk *t)
{
    return t->tool->echo && kiln_ws_state(t->ws) == KILN_WS_OPEN && kiln_ws_pending(t->ws) >= UNSENT_MOST;
}

static void receive(struct talk *t)
{
    kiln_ws_message m;
    while (!is_full(t) && kiln_ws_recv(t->ws, &m) > 0) {
        show(t, &m);
        if (t->tool->echo) {
            kiln_ws_send(t->ws, m.type, m.data, m.length);
        }
        t->silent_since = now_s();
        if (t->tool->one || t->failed) {
            close_it(t, 1000, NULL);
            return;
        }
    }
    int64_t took;
    uint64_t pongs = kiln_ws_pongs(t->ws, &took);
    if (pongs != t->pongs && took >= 0) {
        note(t, "pong after %.3f ms\n", (double)took / 1000);
    }
    t->pongs = pongs;
}

static void round_of(struct talk *t)
{
    bool open = kiln_ws_state(t->ws) == KILN_WS_OPEN && t->connections > 0;
    bool reads = open && !t->input_ended && !t->closing && kiln_ws_pending(t->ws) < UNSENT_MOST;
    int ms = keep_time(t);
    if (kiln_ws_state(t->ws) == KILN_WS_CLOSED) {
        return; /* our closing has found it broken: there is nothing to wait for */
    }
    bool full = is_full(t);
    int wanted = full ? KILN_WRITE : kiln_ws_wanted(t->ws);
    struct pollfd fds[3] = {
        {.fd = kiln_ws_fd(t->ws),
         .events = (short)((wanted & KILN_READ ? POLLIN : 0) | (wanted & KILN_WRITE ? POLLOUT : 0))},
        {.fd = reads ? STDIN_FILENO : -1, .events = POLLIN},
        {.fd = t->interrupted ? -1 : interrupt_fd, .events = POLLIN},
    };
    poll(fds, 3, full ? 1000 : ms);
    if (interrupts != 0 && !t->interrupted) {
        t->interrupted = true;
        close_it(t, 1000, NULL);
    }
    if (kiln_ws_step(t->ws) == KILN_WS_OPEN && kiln_ws_connections(t->ws) != t->connections) {
        tell_connection(t);
        for (size_t i = 0; i < t->tool->execute_count; i++) {
            kiln_ws_send_text(t->ws, t->tool->execute[i]);
        }
    }
    receive(t);
    if (reads && fds[1].revents != 0 && kiln_ws_state(t->ws) == KILN_WS_OPEN) {
        read_input(t);
    }
}

static int tell_end(const struct talk *t)
{
    int code = kiln_ws_close_code(t->ws);
    if (t->connections == 0) {
        fprintf(stderr, "kiln ws: %s\n", kiln_ws_error(t->ws));
        return EXIT_NO_CONNECTION;
    }
    bool well = code == 1000 || code == 1001 || code == 1005;
    const char *reason = kiln_ws_close_reason(t->ws);
    if (!well || t->terminal || t->tool->verbose) {
        const char *error = kiln_ws_error(t->ws);
        note(t, "closed with %d%s%s%s%s\n", code, reason[0] != '\0' ? ": " : "", reason, error[0] != '\0' ? "; " : "",
             error);
    }
    return well ? EXIT_ALL_WELL : EXIT_BROKEN;
}

int ws_talk(const struct ws_tool *tool)
{
    char error[512] = "";
    kiln_ws_options options = tool->options;
    options.error = error;
    options.error_size = sizeof error;
    struct talk t = {.tool = tool, .terminal = isatty(STDIN_FILENO) == 1};
    t.silent_since = now_s();
    t.ws = kiln_ws_open(tool->url, &options);
    if (t.ws == NULL) {
        fprintf(stderr, "kiln ws: %s\n", error);
        return EXIT_USAGE;
    }
    catch_interrupts();
    signal(SIGPIPE, SIG_IGN); /* of standard output: it is seen when writing */
    while (kiln_ws_state(t.ws) != KILN_WS_CLOSED) {
        round_of(&t);
    }
    int code = tell_end(&t);
    kiln_ws_free(t.ws);
    free(t.line);
    return t.failed ? EXIT_BROKEN : t.interrupted ? 128 + interrupts : code;
}
