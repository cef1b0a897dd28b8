/* DESIGN: kiln.h: WebSockets that an endpoint opens itself. The machine is that of libkilnws (plugin-sdk/wsio/link.h);
 * here is how it waits: for its descriptor by kiln_wait_fd, which suspends the coroutine, and for names and
 * authorities by kiln_offload, so that the loop never stands still. All of it runs where the endpoint runs, so
 * nothing is locked.
 *
 * The memory is malloc'ed and goes with the request at the latest (kiln_defer), also after a crash: the connection
 * is then cut off behind a close frame, because nothing can wait any more. kiln_ws_free before that closes
 * it in order. */
#include "endpoint/sdk_ws_client.h"

#include "wsio/link.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

struct ws_client {
    uint32_t magic;
    bool freed;
    bool opened; /* since `connected` was called last */
    struct kiln_context *ctx;
    struct link link;
    uint64_t deadline_us; /* UINT64_MAX: none */
    const char *data; /* of the message that is read as a stream */
    size_t data_len;
    void (*connected)(kiln_ws *ws, void *user);
    void *user;
};

static void explain(const kiln_ws_options *options, const char *text)
{
    if (options->error != NULL && options->error_size > 0) {
        snprintf(options->error, options->error_size, "%s", text);
    }
}

static void was_opened(struct link *link)
{
    CONTAINER_OF(link, struct ws_client, link)->opened = true;
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

static void prepare(void *arg)
{
    struct ws_client *c = arg;
    preparation_run(&c->link.dial->preparation);
}

/* Until the link can go on, or `until_us`. KILN_OK: look again. */
static int wait_for(struct ws_client *c, int events, uint64_t until_us)
{
    uint64_t now = clock_us();
    if (c->link.needs_preparation) {
        int result = kiln_offload(c->ctx, prepare, c);
        wslink_step(&c->link);
        return result;
    }
    if (now >= until_us) {
        return KILN_TIMEOUT;
    }
    /* What is left to be received is no reason for sending to look again at once. */
    bool sends = (events & KILN_READ) == 0;
    uint64_t link_until = sends && c->link.more ? UINT64_MAX : wslink_until_us(&c->link);
    until_us = link_until < until_us ? link_until : until_us;
    uint64_t ms = until_us == UINT64_MAX ? UINT64_MAX : until_us <= now ? 0 : (until_us - now) / 1000 + 1;
    int timeout = ms == UINT64_MAX ? -1 : ms > INT_MAX ? INT_MAX : (int)ms;
    int fd = wslink_fd(&c->link);
    int result = fd < 0 || events == 0 ? kiln_sleep(c->ctx, timeout < 0 ? 1000 : (unsigned)timeout)
                                       : kiln_wait_fd(c->ctx, fd, events, timeout);
    /* A time of the link's own that is over is no error; nor is a limit of the request, which is. */
    bool over = result == KILN_TIMEOUT && clock_us() < until_us;
    return result >= 0 || (result == KILN_TIMEOUT && !over) ? KILN_OK : result;
}

static uint64_t limit_of(const struct ws_client *c, int64_t ms)
{
    uint64_t until = ms < 0 ? UINT64_MAX : clock_us() + (uint64_t)ms * 1000;
    return until < c->deadline_us ? until : c->deadline_us;
}

static void tell_open(struct ws_client *c)
{
    if (c->opened) {
        c->opened = false;
        if (c->connected != NULL) {
            c->connected((kiln_ws *)c, c->user);
        }
    }
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static void drop(void *arg)
{
    struct ws_client *c = arg;
    if (!c->freed) {
        wslink_close(&c->link, WS_CLOSE_GOING_AWAY, NULL);
        wslink_free(&c->link);
    }
    c->magic = 0;
    free(c);
}

static struct ws_client *create(struct kiln_context *ctx, const char *url, const kiln_ws_options *options)
{
    char error[URL_ERROR_MAX] = "";
    struct plan *plan = plan_create(url, options, error);
    struct ws_client *c = plan != NULL ? calloc(1, sizeof *c) : NULL;
    if (c == NULL || kiln_defer(ctx, drop, c) != KILN_OK) {
        explain(options, plan == NULL ? error : "no memory, or the request is over");
        free(c);
        plan_release(plan);
        return NULL;
    }
    c->magic = WS_CLIENT_MAGIC;
    c->ctx = ctx;
    c->deadline_us = UINT64_MAX;
    c->connected = options->connected;
    c->user = options->user;
    wslink_init(&c->link, options, NULL);
    c->link.threads = false;
    c->link.on_open = was_opened;
    wslink_dial(&c->link, plan);
    return c;
}

static void let_go(struct ws_client *c)
{
    wslink_free(&c->link);
    c->freed = true;
}

kiln_ws *kiln_ws_connect(const char *url, const kiln_ws_options *options)
{
    static const kiln_ws_options usual;
    options = options != NULL ? options : &usual;
    struct kiln_context *ctx = context_current();
    if (ctx == NULL || ctx->closed) {
        explain(options, "kiln_ws_connect is for kiln_run and the blocking form of kiln_socket: here nothing can wait");
        return NULL;
    }
    struct ws_client *c = create(ctx, url, options);
    if (c == NULL) {
        return NULL;
    }
    int result = KILN_OK;
    wslink_step(&c->link);
    while (result == KILN_OK && (c->link.state == WSLINK_DIALING || c->link.state == WSLINK_PAUSED)) {
        result = wait_for(c, wslink_wants(&c->link), UINT64_MAX);
        wslink_step(&c->link);
    }
    if (result != KILN_OK || c->link.connections == 0) {
        explain(options, result == KILN_GONE      ? "the client has left meanwhile"
                         : result == KILN_TIMEOUT ? "RequestTimeout has passed"
                                                  : c->link.error);
        let_go(c);
        return NULL;
    }
    tell_open(c);
    return (kiln_ws *)c;
}

void kiln_ws_free(kiln_ws *ws)
{
    struct ws_client *c = ws != NULL ? ws_client_of(ws) : NULL;
    if (c == NULL || c->freed) {
        return;
    }
    struct ws_item item;
    int result = KILN_OK;
    wslink_close(&c->link, WS_CLOSE_NORMAL, NULL);
    while (result == KILN_OK && (c->link.state == WSLINK_OPEN || c->link.state == WSLINK_ENDING)) {
        wslink_receive(&c->link, &item, NULL);
        if (c->link.state == WSLINK_OPEN || c->link.state == WSLINK_ENDING) {
            result = wait_for(c, wslink_wants(&c->link), UINT64_MAX);
        }
    }
    let_go(c);
}

const char *kiln_ws_error(const kiln_ws *ws)
{
    const struct ws_client *c = ws_client_of(ws);
    return c != NULL ? c->link.error : "";
}

const char *kiln_ws_protocol(const kiln_ws *ws)
{
    const struct ws_client *c = ws_client_of(ws);
    return c != NULL ? c->link.protocol : NULL;
}

kiln_context *ws_client_context(struct ws_client *c)
{
    return c->ctx;
}

/* ---- receiving ------------------------------------------------------------------------------------------- */

int ws_client_receive(struct ws_client *c, kiln_ws_message *message, int64_t timeout_ms)
{
    uint64_t until = limit_of(c, timeout_ms);
    struct ws_item item;
    for (;;) {
        if (c->link.state == WSLINK_DIALING || c->link.state == WSLINK_PAUSED) {
            wslink_step(&c->link); /* connects again */
        }
        enum wslink_event event = wslink_receive(&c->link, &item, NULL);
        tell_open(c);
        if (event == WSLINK_MESSAGE) {
            message->type = item.opcode;
            message->data = item.len > 0 ? (const char *)item.data : "";
            message->length = item.len;
            return 1;
        }
        if (event == WSLINK_OVER) {
            return 0;
        }
        int result = wait_for(c, wslink_wants(&c->link), until);
        if (result != KILN_OK) {
            return result;
        }
    }
}

ssize_t ws_client_read(struct ws_client *c, void *buffer, size_t size)
{
    if (size == 0) {
        return KILN_INVALID;
    }
    while (c->data_len == 0) {
        kiln_ws_message message = {0};
        int result = ws_client_receive(c, &message, -1);
        if (result <= 0) {
            return result;
        }
        c->data = message.data;
        c->data_len = message.length;
    }
    size_t n = c->data_len < size ? c->data_len : size;
    memcpy(buffer, c->data, n);
    c->data += n;
    c->data_len -= n;
    return (ssize_t)n;
}

int ws_client_deadline(struct ws_client *c, int64_t milliseconds)
{
    c->deadline_us = milliseconds < 0 ? UINT64_MAX : clock_us() + (uint64_t)milliseconds * 1000;
    return KILN_OK;
}

/* ---- sending ----------------------------------------------------------------------------------------------- */

/* Until the kernel has all of it. */
static int sent(struct ws_client *c, int result)
{
    uint64_t until = limit_of(c, -1);
    unsigned losses = c->link.losses;
    while (result == KILN_OK && c->link.out.len > 0) {
        result = wait_for(c, KILN_WRITE, until);
        if (result == KILN_OK) {
            wslink_step(&c->link); /* its times hold for a peer that takes nothing, too */
        }
        if (c->link.losses != losses) {
            result = KILN_GONE;
        }
    }
    return result;
}

int ws_client_send(struct ws_client *c, int type, const void *data, size_t len)
{
    return sent(c, wslink_send(&c->link, type, data, len));
}

int ws_client_send_part(struct ws_client *c, int type, const void *data, size_t len, bool final)
{
    return sent(c, wslink_send_part(&c->link, type, data, len, final));
}

int ws_client_ping(struct ws_client *c, const void *data, size_t len)
{
    return sent(c, wslink_ping(&c->link, data, len));
}

size_t ws_client_pending(const struct ws_client *c)
{
    return wslink_pending(&c->link);
}

int ws_client_close(struct ws_client *c, int code, const char *reason)
{
    return sent(c, wslink_close(&c->link, code, reason));
}

int ws_client_close_code(const struct ws_client *c)
{
    return c->link.close_code;
}

const char *ws_client_close_reason(const struct ws_client *c)
{
    return c->link.close_reason;
}
