#include "wsio/dial.h"

#include "wsio/pacing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

void describe_peer(int fd, char *text, size_t room)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof address;
    char host[64];
    char port[8];
    text[0] = '\0';
    if (getpeername(fd, (struct sockaddr *)&address, &len) != 0 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6) ||
        getnameinfo((struct sockaddr *)&address, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return;
    }
    bool v6 = strchr(host, ':') != NULL;
    snprintf(text, room, "%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

static enum dial_result fail(struct dial *d, const char *what, const char *why)
{
    snprintf(d->error, sizeof d->error, "%.150s%s%.100s", what, why[0] != '\0' ? ": " : "", why);
    return DIAL_FAILED;
}

static int64_t since_began(const struct dial *d)
{
    int64_t us = (int64_t)(clock_us() - d->began_us);
    return us > 0 ? us : 1;
}

/* ---- names ------------------------------------------------------------------------------------------------ */

static enum dial_result start_attempt(struct dial *d);

static enum dial_result prepared(struct dial *d)
{
    preparation_settle(&d->preparation);
    if (d->preparation.error[0] != '\0') {
        return fail(d, d->preparation.error, "");
    }
    d->times.name = since_began(d);
    d->address = d->preparation.addresses;
    return start_attempt(d);
}

static enum dial_result step_prepare(struct dial *d)
{
    if (d->resolver != NULL) {
        if (!resolver_is_done(d->resolver)) {
            return DIAL_WAIT;
        }
        preparation_free(&d->preparation);
        resolver_finish(d->resolver, &d->preparation);
        d->resolver = NULL;
        return prepared(d);
    }
    if (d->prepared || preparation_at_once(&d->preparation)) {
        return prepared(d);
    }
    if (!d->threads) {
        d->prepared = true;
        return DIAL_PREPARE;
    }
    d->resolver = resolver_start(d->plan);
    return d->resolver != NULL ? DIAL_WAIT : fail(d, "no thread or descriptor to look up the name", "");
}

/* ---- TCP --------------------------------------------------------------------------------------------------- */

static void share_time(struct dial *d)
{
    unsigned left = 0;
    for (const struct addrinfo *a = d->address; a != NULL; a = a->ai_next) {
        left++;
    }
    uint64_t now = clock_us();
    d->attempt_until_us = d->until_us == UINT64_MAX || d->until_us < now
                              ? d->until_us
                              : now + (d->until_us - now) / (left > 0 ? left : 1);
}

/* The next address, or the end with the reason of the last. */
static enum dial_result attempt_failed(struct dial *d, int error)
{
    char text[INET6_ADDRSTRLEN + 16] = "";
    char port[8];
    getnameinfo(d->address->ai_addr, d->address->ai_addrlen, text, sizeof text, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    if (d->transport.fd >= 0) {
        carrier_close(&d->transport);
    }
    d->address = d->address->ai_next;
    if (d->address != NULL) {
        return start_attempt(d);
    }
    char what[160];
    snprintf(what, sizeof what, "cannot connect to %s%s port %s", d->plan->has_proxy ? "the proxy " : "", text, port);
    return fail(d, what, strerror(error));
}

static enum dial_result start_attempt(struct dial *d)
{
    share_time(d);
    const struct addrinfo *a = d->address;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return attempt_failed(d, errno);
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pacing_suit(fd, a->ai_addr);
    carrier_init(&d->transport, fd);
    d->transport.wants = KILN_WRITE;
    d->state = STATE_TCP;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        return attempt_failed(d, errno);
    }
    return DIAL_WAIT;
}

static enum dial_result connected(struct dial *d);

static enum dial_result step_tcp(struct dial *d)
{
    int error = 0;
    socklen_t len = sizeof error;
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof peer;
    if (getsockopt(d->transport.fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0) {
        return attempt_failed(d, error != 0 ? error : errno);
    }
    if (getpeername(d->transport.fd, (struct sockaddr *)&peer, &peer_len) != 0) {
        return clock_us() >= d->attempt_until_us ? attempt_failed(d, ETIMEDOUT) : DIAL_WAIT;
    }
    d->times.tcp = since_began(d);
    describe_peer(d->transport.fd, d->peer, sizeof d->peer);
    return connected(d);
}

/* ---- sending and receiving on the way ------------------------------------------------------------------------- */

/* 0: all is sent; or a carrier_result. */
static int send_out(struct dial *d)
{
    while (d->out_at < d->out.len) {
        struct iovec vector = {d->out.data + d->out_at, d->out.len - d->out_at};
        ssize_t n = carrier_write(&d->transport, &vector, 1);
        if (n < 0) {
            return (int)n;
        }
        d->out_at += (size_t)n;
    }
    explicit_bzero(d->out.data, d->out.len); /* it may hold passwords */
    d->out.len = 0;
    d->out_at = 0;
    return 0;
}

static enum dial_result waiting(struct dial *d, ssize_t result, const char *what)
{
    return result == CARRIER_AGAIN ? DIAL_WAIT : fail(d, what, carrier_error(&d->transport));
}

/* ---- proxy ------------------------------------------------------------------------------------------------------ */

static enum dial_result secured(struct dial *d);
static enum dial_result tunnelled(struct dial *d);

static enum dial_result connected(struct dial *d)
{
    if (!d->plan->has_proxy) {
        return tunnelled(d);
    }
    d->proxy = malloc(sizeof *d->proxy);
    if (d->proxy == NULL) {
        return fail(d, "no memory", "");
    }
    proxy_begin(d->proxy, &d->plan->proxy, d->plan->url.host, d->plan->url.port, d->plan->url.numeric_v6);
    d->state = STATE_PROXY;
    return dial_step(d);
}

static enum dial_result step_proxy(struct dial *d)
{
    enum { ROUNDS = 64 }; /* interim answers without an end: others have their turn, and the time its limit */
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (d->proxy->out.len > 0) {
            ws_buffer_add(&d->out, d->proxy->out.data, d->proxy->out.len);
            explicit_bzero(d->proxy->out.data, d->proxy->out.len);
            d->proxy->out.len = 0;
        }
        int sent = send_out(d);
        if (sent != 0) {
            return waiting(d, sent, "the proxy broke the connection");
        }
        uint8_t bytes[2048];
        ssize_t n = carrier_read(&d->transport, bytes, sizeof bytes);
        if (n <= 0) {
            return n == 0 ? fail(d, "the proxy closed the connection without an answer", "")
                          : waiting(d, n, "the proxy broke the connection");
        }
        size_t used;
        enum proxy_result result = proxy_receive(d->proxy, bytes, (size_t)n, &used);
        if (result == PROXY_FAILED) {
            return fail(d, d->proxy->error, "");
        }
        if (result == PROXY_DONE) {
            /* The server speaks second; what is here already was made up on the way. */
            if (used < (size_t)n) {
                return fail(d, "bytes follow the proxy's answer that nobody can have sent", "");
            }
            d->times.proxy = since_began(d);
            return tunnelled(d);
        }
    }
    d->transport.wants = KILN_READ;
    return DIAL_WAIT;
}

/* ---- TLS --------------------------------------------------------------------------------------------------------- */

static enum dial_result tunnelled(struct dial *d)
{
    const struct plan *plan = d->plan;
    if (!plan->url.tls) {
        return secured(d);
    }
    const char *name = plan->server_name != NULL ? plan->server_name : plan->url.host;
    if (!carrier_use_tls(&d->transport, plan->context, name, !plan->tls.insecure)) {
        return fail(d, "TLS cannot be set up for this name", name);
    }
    d->state = STATE_TLS;
    return dial_step(d);
}

static enum dial_result step_tls(struct dial *d)
{
    int result = carrier_handshake(&d->transport);
    if (result != 0) {
        return waiting(d, result, "no TLS connection");
    }
    d->times.tls = since_began(d);
    return secured(d);
}

/* ---- handshake ------------------------------------------------------------------------------------------------------ */

static enum dial_result secured(struct dial *d)
{
    if (!ws_client_write(&d->out, &d->plan->request, d->key)) {
        return fail(d, "the request cannot be written", "");
    }
    d->state = STATE_REQUEST;
    return dial_step(d);
}

static enum dial_result step_request(struct dial *d)
{
    int sent = send_out(d);
    if (sent != 0) {
        return waiting(d, sent, "the server broke the connection");
    }
    d->head = malloc(DIAL_HEAD_MAX);
    if (d->head == NULL) {
        return fail(d, "no memory", "");
    }
    d->state = STATE_ANSWER;
    return dial_step(d);
}

static enum dial_result check_answer(struct dial *d, const struct ws_head *head)
{
    d->head_size = head->size;
    d->status = head->status;
    enum ws_answer answer = ws_client_check(head, &d->plan->request, d->key, &d->protocol, &d->agreed);
    if (answer == WS_ANSWER_ACCEPTED) {
        d->times.handshake = since_began(d);
        return DIAL_DONE;
    }
    if (answer == WS_ANSWER_REFUSED) {
        snprintf(d->error, sizeof d->error, "the server answers %d %.*s instead of a WebSocket", head->status,
                 (int)(head->reason.len < 100 ? head->reason.len : 100), head->reason.len > 0 ? head->reason.ptr : "");
        return DIAL_FAILED;
    }
    return fail(d, ws_answer_text(answer), "");
}

/* 100 to 199 are not the answer yet (RFC 9110, 15.2), but for 101. */
static bool drop_interim(struct dial *d, const struct ws_head *head)
{
    if (head->status >= 200 || head->status == 101) {
        return false;
    }
    d->interim += head->size;
    d->head_len -= head->size;
    memmove(d->head, d->head + head->size, d->head_len);
    return true;
}

static enum dial_result step_answer(struct dial *d)
{
    for (;;) {
        struct ws_head head;
        switch (ws_head_parse(&head, d->head, d->head_len, false)) {
        case WS_HEAD_WHOLE:
            if (drop_interim(d, &head)) {
                continue;
            }
            return check_answer(d, &head);
        case WS_HEAD_BAD: return fail(d, "the server's answer is not HTTP", "");
        case WS_HEAD_MORE: break;
        }
        size_t room = DIAL_HEAD_MAX - d->interim - d->head_len;
        if (room == 0) {
            return fail(d, "the server's answer is longer than 32 KB", "");
        }
        ssize_t n = carrier_read(&d->transport, d->head + d->head_len, room);
        if (n <= 0) {
            return n == 0 ? fail(d, "the server closed the connection without an answer", "")
                          : waiting(d, n, "the server broke the connection");
        }
        d->head_len += (size_t)n;
    }
}

/* ---- the machine -------------------------------------------------------------------------------------------------------- */

void dial_begin(struct dial *d, struct plan *plan, int timeout_ms, bool threads)
{
    *d = (struct dial){.plan = plan, .transport.fd = -1, .threads = threads, .began_us = clock_us()};
    atomic_fetch_add(&plan->references, 2); /* one is the preparation's */
    d->preparation.plan = plan;
    d->preparation.has_context = plan->context != NULL;
    d->until_us = timeout_ms < 0 ? UINT64_MAX : d->began_us + (uint64_t)timeout_ms * 1000;
    d->attempt_until_us = d->until_us;
}

enum dial_result dial_step(struct dial *d)
{
    static enum dial_result (*const steps[STATE_COUNT])(struct dial *) = {
        [STATE_PREPARE] = step_prepare, [STATE_TCP] = step_tcp,         [STATE_PROXY] = step_proxy,
        [STATE_TLS] = step_tls,         [STATE_REQUEST] = step_request, [STATE_ANSWER] = step_answer,
    };
    static const char *const doing[STATE_COUNT] = {
        "the name was not found out", "no connection",           "no answer of the proxy",
        "no end of TLS's handshake",  "the request is not sent", "no answer of the server",
    };
    enum dial_result result = steps[d->state](d);
    if (result == DIAL_WAIT && clock_us() >= d->until_us) {
        return fail(d, doing[d->state], "the time for connecting is over");
    }
    return result;
}

int dial_fd(const struct dial *d)
{
    return d->resolver != NULL ? resolver_fd(d->resolver) : d->transport.fd;
}

int dial_wants(const struct dial *d)
{
    return d->resolver != NULL ? KILN_READ : d->transport.wants;
}

uint64_t dial_until_us(const struct dial *d)
{
    return d->state == STATE_TCP ? d->attempt_until_us : d->until_us;
}

int *dial_watcher(struct dial *d)
{
    return d->resolver != NULL ? resolver_watcher(d->resolver) : &d->transport.watcher;
}

void dial_end(struct dial *d)
{
    if (d->resolver != NULL) {
        resolver_abandon(d->resolver);
        d->resolver = NULL;
    }
    if (d->transport.fd >= 0) {
        carrier_close(&d->transport);
    }
    if (d->proxy != NULL) {
        proxy_end(d->proxy);
        free(d->proxy);
        d->proxy = NULL;
    }
    if (d->out.data != NULL) {
        explicit_bzero(d->out.data, d->out.cap);
    }
    ws_buffer_free(&d->out);
    free(d->head);
    d->head = NULL;
    preparation_free(&d->preparation);
    plan_release(d->plan);
    d->plan = NULL;
}
