/* One client: a connection at a time, requests on it by habit. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum habit { CLOSES, PIPELINES, READS_SLOWLY, KEEPS, THINKS, HABITS };

enum {
    SLOW_BYTES = 65536, /* a slow reader takes at a time, once a tick */
    KEPT_REQUESTS = 200, /* at most, on one connection */
    THINK_MS = 300, /* at most, between requests of THINKS: less than the idle second of a draining server */
    STALE_MS = 700, /* idle for longer: a server may close it at the moment at which we write */
    RETRY_MS = 5,
};

/* Of eight clients each. */
static const enum habit habits[8] = {CLOSES, PIPELINES, READS_SLOWLY, KEEPS, THINKS, KEEPS, PIPELINES, CLOSES};

struct client {
    unsigned number;
    enum habit habit;
    int fd; /* -1: none */
    bool connected;
    uint32_t wanted;
    struct request_text out;
    size_t out_sent;
    struct sent ring[OUTSTANDING_MAX]; /* oldest at `first` */
    unsigned first, outstanding;
    struct answer answer;
    unsigned left; /* requests on this connection */
    bool answered_here; /* something, on this connection */
    uint64_t idle_since_ms;
    uint64_t pause_until_ms;
    char *texts;
};

static struct client_options options;
static struct client *clients;
static uint64_t crash_due_ms;
static uint64_t began_ms;
static bool stopping;

static struct sent *oldest(struct client *c)
{
    return &c->ring[c->first];
}

static void watch(struct client *c, uint32_t wanted)
{
    if (wanted != c->wanted) {
        struct epoll_event event = {.events = wanted, .data.ptr = c};
        c->wanted = wanted;
        epoll_ctl(options.epoll, EPOLL_CTL_MOD, c->fd, &event);
    }
}

static void begin_answer(struct client *c)
{
    struct answer *answer = &c->answer;
    answer->state = BODY_HEAD;
    answer->head_size = 0;
    answer->status = 0;
    answer->left = 0;
    answer->chunked = answer->has_length = answer->close = false;
    answer->content_range[0] = answer->content_type[0] = answer->set_cookie[0] = '\0';
}

static void drop_outstanding(struct client *c)
{
    totals.in_flight -= c->outstanding;
    c->outstanding = 0;
    c->first = 0;
    c->out.size = 0;
    c->out_sent = 0;
    begin_answer(c);
}

static void close_connection(struct client *c)
{
    drop_outstanding(c);
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
}

/* The connection broke. A request that had been idle for long before is the client's own risk (RFC 9112, 9.3.1). */
static void broken(struct client *c, const char *how)
{
    if (c->outstanding == 0) {
        totals.idle_closed++;
    } else {
        struct sent *sent = oldest(c);
        totals.lost += c->outstanding;
        note_example(
            "lost %u: %s: client %u, %s, %zu bytes of the body had come%s, sent %llu ms ago, idle %lld ms before",
            c->outstanding, how, c->number, sent->kind->name, sent->got,
            c->answered_here ? "" : ", first on its connection", (unsigned long long)(now_ms() - sent->sent_ms),
            (long long)(sent->sent_ms - c->idle_since_ms));
    }
    close_connection(c);
}

static void wrong(struct client *c, const char *why)
{
    struct sent *sent = oldest(c);
    totals.wrong++;
    note_example("wrong: %s: client %u, %s, status %d (%d expected), %zu bytes of the body, %zu expected, %.150s", why,
                 c->number, sent->kind->name, c->answer.status, sent->status, sent->got, sent->expected_size,
                 sent->expected == NULL && sent->got < TEXT_MAX ? (sent->text[sent->got] = '\0', sent->text) : "");
    close_connection(c);
}

/* ---- asking --------------------------------------------------------------------------------- */

static void add_request(struct client *c, const struct kind *kind, bool last)
{
    struct sent *sent = &c->ring[(c->first + c->outstanding) % OUTSTANDING_MAX];
    char *text = c->texts + (size_t)((c->first + c->outstanding) % OUTSTANDING_MAX) * TEXT_MAX;
    *sent = (struct sent){.kind = kind, .text = text, .sent_ms = now_ms(), .close = last};
    kind->make(sent, &c->out);
    c->outstanding++;
    totals.in_flight++;
    totals.in_flight_most = totals.in_flight > totals.in_flight_most ? totals.in_flight : totals.in_flight_most;
}

static void ask(struct client *c)
{
    uint64_t now = now_ms();
    if (options.crash_ms > 0 && now >= crash_due_ms && c->habit != PIPELINES) {
        crash_due_ms = now + options.crash_ms;
        add_request(c, kind_crash(), c->left == 1);
        c->left--;
        return;
    }
    unsigned count = c->habit == PIPELINES ? 1 + random_below(OUTSTANDING_MAX) : 1;
    for (unsigned i = 0; i < count && c->left > 0; i++) {
        add_request(c, kind_draw(count > 1), c->left == 1);
        c->left--;
    }
}

static void send_out(struct client *c)
{
    while (c->out_sent < c->out.size) {
        ssize_t n = send(c->fd, c->out.data + c->out_sent, c->out.size - c->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            break;
        }
        if (n < 0) {
            broken(c, strerror(errno));
            return;
        }
        c->out_sent += (size_t)n;
    }
    if (c->out_sent == c->out.size) {
        c->out_sent = c->out.size = 0;
    }
    uint32_t reads = c->pause_until_ms == 0 ? EPOLLIN : 0;
    watch(c, reads | (c->out.size > 0 ? EPOLLOUT : 0));
}

/* The server may have ended it while it was idle. */
static bool is_stale(struct client *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN) || now_ms() - c->idle_since_ms >= STALE_MS;
}

static void next(struct client *c)
{
    if (c->left == 0 || stopping || is_stale(c)) {
        totals.idle_closed += c->left > 0 && !stopping;
        close_connection(c);
        return;
    }
    ask(c);
    send_out(c);
}

static void connect_client(struct client *c)
{
    /* From many addresses: as many connections as ports would otherwise be all there can be in a minute. */
    static uint32_t source;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000002u + source++ % 200)};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(0x7f000001)};
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        perror("socket");
        exit(2);
    }
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (bind(c->fd, (struct sockaddr *)&from, sizeof from) != 0) {
        perror("bind");
        exit(2);
    }
    totals.connections++;
    c->connected = false;
    c->answered_here = false;
    c->idle_since_ms = now_ms();
    c->left = c->habit == CLOSES ? 1 : 1 + random_below(KEPT_REQUESTS);
    c->pause_until_ms = 0;
    c->wanted = EPOLLOUT;
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = c};
    epoll_ctl(options.epoll, EPOLL_CTL_ADD, c->fd, &event);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS) {
        totals.refused++;
        note_example("refused: %s", strerror(errno));
        close_connection(c);
        c->pause_until_ms = now_ms() + RETRY_MS;
    }
}

static void connected(struct client *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
        totals.refused++;
        note_example("refused: %s", strerror(error));
        close_connection(c);
        c->pause_until_ms = now_ms() + RETRY_MS;
        return;
    }
    c->connected = true;
    c->idle_since_ms = now_ms();
    next(c);
}

/* ---- hearing -------------------------------------------------------------------------------- */

static void answered(struct client *c)
{
    uint64_t now = now_ms();
    uint64_t took = now - oldest(c)->sent_ms;
    if (took > totals.slowest_ms) {
        totals.slowest_ms = took;
        snprintf(totals.slowest, sizeof totals.slowest, "%s of client %u, sent %llu ms after the begin",
                 oldest(c)->kind->name, c->number, (unsigned long long)(oldest(c)->sent_ms - began_ms));
    }
    totals.answered++;
    totals.in_flight--;
    bool ends = c->answer.close || oldest(c)->close;
    c->first = (c->first + 1) % OUTSTANDING_MAX;
    c->outstanding--;
    c->answered_here = true;
    c->idle_since_ms = now;
    begin_answer(c);
    if (ends) {
        if (c->outstanding > 0) {
            totals.unanswered += c->outstanding;
            note_example("unanswered: %u requests behind an answer that ends the connection", c->outstanding);
        }
        close_connection(c);
    }
}

static void take(struct client *c, const char *data, size_t size)
{
    while (size > 0) {
        size_t used;
        const char *why;
        if (c->outstanding == 0) {
            totals.wrong++;
            note_example("wrong: bytes that belong to no request: %.100s", data);
            close_connection(c);
            return;
        }
        switch (answer_parse(&c->answer, oldest(c), data, size, &used, &why)) {
        case PARSE_MORE: return;
        case PARSE_WRONG: wrong(c, why); return;
        case PARSE_DONE: answered(c); break;
        }
        if (c->fd < 0) {
            return;
        }
        data += used;
        size -= used;
    }
}

static void hear(struct client *c)
{
    static char buffer[1 << 18];
    size_t most = c->habit == READS_SLOWLY ? SLOW_BYTES : sizeof buffer - 1;
    ssize_t n = recv(c->fd, buffer, most, 0);
    if (n < 0 && errno == EAGAIN) {
        return;
    }
    if (n <= 0) {
        broken(c, n == 0 ? "the end of the connection" : strerror(errno));
        return;
    }
    buffer[n] = '\0';
    totals.bytes += (uint64_t)n;
    take(c, buffer, (size_t)n);
    if (c->fd < 0) {
        return;
    }
    if (c->habit == READS_SLOWLY && c->outstanding > 0) {
        c->pause_until_ms = now_ms() + 1;
        watch(c, c->wanted & (uint32_t)~EPOLLIN);
    } else if (c->outstanding == 0 && c->habit == THINKS) {
        c->pause_until_ms = now_ms() + random_below(THINK_MS);
    } else if (c->outstanding == 0) {
        next(c);
    }
}

void client_ready(void *client, uint32_t events)
{
    struct client *c = client;
    if (c->fd < 0) {
        return;
    }
    if (!c->connected) {
        connected(c);
        return;
    }
    if ((events & EPOLLIN) == 0 && (events & (EPOLLERR | EPOLLHUP)) != 0) {
        hear(c);
        return;
    }
    if ((events & EPOLLIN) != 0) {
        hear(c);
    }
    if (c->fd >= 0 && (events & EPOLLOUT) != 0) {
        send_out(c);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

static void tick(struct client *c, uint64_t now)
{
    if (c->pause_until_ms > now) {
        return;
    }
    bool paused = c->pause_until_ms != 0;
    c->pause_until_ms = 0;
    if (c->fd < 0) {
        if (!stopping) {
            connect_client(c);
        }
        return;
    }
    if (c->outstanding == 0) {
        if (c->connected && (paused || stopping)) {
            next(c);
        }
        return;
    }
    if (paused) {
        watch(c, c->wanted | EPOLLIN);
    }
    if (now - oldest(c)->sent_ms > options.patience_ms) {
        totals.timed_out += c->outstanding;
        note_example("timed out: client %u, %s, %zu bytes of the body had come", c->number, oldest(c)->kind->name,
                     oldest(c)->got);
        close_connection(c);
    }
}

void clients_tick(bool stop)
{
    uint64_t now = now_ms();
    stopping = stop;
    for (unsigned i = 0; i < options.clients; i++) {
        tick(&clients[i], now);
    }
}

bool clients_all_quiet(void)
{
    for (unsigned i = 0; i < options.clients; i++) {
        if (clients[i].fd >= 0) {
            return false;
        }
    }
    return true;
}

void clients_open(const struct client_options *given)
{
    options = *given;
    clients = calloc(options.clients, sizeof *clients);
    for (unsigned i = 0; clients != NULL && i < options.clients; i++) {
        clients[i].number = i;
        clients[i].habit = habits[i % 8];
        clients[i].fd = -1;
        clients[i].texts = calloc(OUTSTANDING_MAX, TEXT_MAX);
        if (clients[i].texts == NULL) {
            abort();
        }
    }
    began_ms = now_ms();
    crash_due_ms = began_ms + options.crash_ms;
}
