#include "wsio/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- beginning --------------------------------------------------------------------------------------- */

static uint64_t or_else(int64_t value, int64_t usual)
{
    return (uint64_t)(value > 0 ? value : usual);
}

void wslink_init(struct link *link, const kiln_ws_options *options, struct ws_pool *pool)
{
    *link = (struct link){.transport.fd = -1, .pool = pool, .ping_took_us = -1, .threads = true};
    link->limits = (struct wslink_limits){
        .send_queue = or_else(options->send_queue, 16 << 20),
        .close_us = or_else(options->close_timeout, 5000) * 1000,
        .ping_us = or_else(options->ping_interval, 0) * 1000,
        .pause_min_us = or_else(options->reconnect_min, 500) * 1000,
        .pause_max_us = or_else(options->reconnect_max, 30000) * 1000,
        .connect_ms = options->connect_timeout == 0 ? 30000 : options->connect_timeout,
        .reconnect = options->reconnect,
    };
    link->settings = (struct ws_settings){
        .max_message = options->max_message < 0 ? 0 : or_else(options->max_message, 64 << 20),
        .compress_from = (size_t)or_else(options->deflate_min, 64),
    };
}

static void begin_dialling(struct link *link)
{
    link->dial = malloc(sizeof *link->dial);
    if (link->dial == NULL) {
        snprintf(link->error, sizeof link->error, "no memory");
        link->close_code = WS_CLOSE_ABNORMAL;
        link->state = WSLINK_CLOSED;
        return;
    }
    dial_begin(link->dial, link->plan, link->limits.connect_ms, link->threads);
    link->state = WSLINK_DIALING;
}

void wslink_dial(struct link *link, struct plan *plan)
{
    link->plan = plan;
    begin_dialling(link);
}

static struct ws_pool *pool_of(struct link *link)
{
    if (link->pool == NULL) {
        link->pool = ws_pool_create(&(struct ws_pool_options){.budget = 1 << 20});
        link->owns_pool = link->pool != NULL;
    }
    return link->pool;
}

void wslink_begin(struct link *link, enum ws_role role, const struct ws_deflate *agreed, const char *rest,
                  size_t rest_len)
{
    wslink_forget(link);
    ws_init(&link->core, role, &link->settings);
    if (agreed->on && pool_of(link) != NULL) {
        ws_use_deflate(&link->core, link->pool, agreed);
    } else if (agreed->on) {
        wslink_broken(link, "no memory");
        return;
    }
    if (rest_len > 0) {
        link->in = malloc(LINK_INPUT + 1);
        if (link->in == NULL) {
            wslink_broken(link, "no memory");
            return;
        }
        memcpy(link->in, rest, rest_len); /* at most a head's buffer, which is smaller */
        link->input = (struct ws_input){link->in, rest_len};
    }
    link->state = WSLINK_OPEN;
    link->error[0] = '\0';
    link->heard_us = clock_us();
    link->pinged = false;
    link->tries = 0;
    link->connections++;
    if (link->on_open != NULL) {
        link->on_open(link);
    }
}

void wslink_open(struct link *link, int fd, enum ws_role role)
{
    carrier_init(&link->transport, fd);
    describe_peer(fd, link->peer, sizeof link->peer);
    wslink_begin(link, role, &(struct ws_deflate){0}, NULL, 0);
}

/* The way is gone: what it has found out is taken over. */
static void take_dial(struct link *link)
{
    struct dial *d = link->dial;
    free(link->head);
    free(link->protocol);
    link->head = d->head;
    link->head_size = d->head_size;
    link->head_is_request = false;
    link->protocol = d->protocol.ptr != NULL ? strndup(d->protocol.ptr, d->protocol.len) : NULL;
    link->status = d->status;
    link->times = d->times;
    memcpy(link->peer, d->peer, sizeof link->peer);
    d->head = NULL;
}

static void dialled(struct link *link)
{
    struct dial *d = link->dial;
    link->dial = NULL;
    link->transport = d->transport;
    d->transport.fd = -1;
    d->transport.ssl = NULL;
    size_t rest = d->head_len - d->head_size;
    struct ws_deflate agreed = d->agreed;
    link->dial = d;
    take_dial(link);
    link->dial = NULL;
    wslink_begin(link, WS_CLIENT, &agreed, link->head + link->head_size, rest);
    dial_end(d);
    free(d);
}

static void dial_failed(struct link *link)
{
    struct dial *d = link->dial;
    char why[URL_ERROR_MAX];
    memcpy(why, d->error, sizeof why);
    take_dial(link);
    link->dial = NULL;
    dial_end(d);
    free(d);
    wslink_broken(link, why);
}

/* ---- breaking and ending -------------------------------------------------------------------------------- */

void wslink_forget(struct link *link)
{
    if (!link->stale) {
        return;
    }
    link->stale = false;
    ws_free(&link->core);
    if (!link->in_borrowed) {
        free(link->in);
    }
    link->in = NULL;
    link->in_borrowed = false;
    link->input = (struct ws_input){0};
    link->nul_at = NULL;
}

/* The message that was handed out last stays: wslink_forget(). */
static void drop_connection(struct link *link)
{
    if (link->transport.fd >= 0) {
        carrier_close(&link->transport);
    }
    link->losses += link->out.len > 0;
    free(link->out.data);
    memset(&link->out, 0, sizeof link->out);
    link->stale = true;
    link->fin_sent = false;
    link->fin_came = false;
    link->more = false;
    link->read_write = false;
    link->stalled = false;
}

static bool may_dial_again(const struct link *link, int code)
{
    if (link->plan == NULL || link->limits.reconnect == 0 || link->user_closed ||
        (link->limits.reconnect > 0 && link->tries >= (unsigned)link->limits.reconnect)) {
        return false;
    }
    if (link->status >= 400 && link->status < 500) {
        return false; /* it will not be otherwise the next time */
    }
    return code == WS_CLOSE_ABNORMAL || code == WS_CLOSE_GOING_AWAY || code == WS_CLOSE_INTERNAL ||
           code == WS_CLOSE_RESTART || code == WS_CLOSE_TRY_LATER;
}

/* Doubling, and between half and whole of it, so that a server that comes back is not met by all at once. */
static void pause_before_next(struct link *link)
{
    uint64_t pause = link->limits.pause_min_us;
    for (unsigned i = 0; i < link->tries && pause < link->limits.pause_max_us; i++) {
        pause *= 2;
    }
    pause = pause < link->limits.pause_max_us ? pause : link->limits.pause_max_us;
    uint32_t random;
    ws_random(&random, sizeof random);
    link->again_at_us = clock_us() + pause / 2 + (uint64_t)random % (pause / 2 + 1);
    link->tries++;
    link->close_code = 0;
    link->close_reason[0] = '\0';
    link->state = WSLINK_PAUSED;
}

static void finish(struct link *link)
{
    int code = link->close_code;
    drop_connection(link);
    if (may_dial_again(link, code)) {
        pause_before_next(link);
    } else {
        link->state = WSLINK_CLOSED;
    }
}

void wslink_broken(struct link *link, const char *why)
{
    if (link->close_code == 0) {
        link->close_code = WS_CLOSE_ABNORMAL;
        snprintf(link->error, sizeof link->error, "%s", why);
    }
    finish(link);
}

void wslink_end(struct link *link)
{
    link->state = WSLINK_ENDING;
    if (link->end_by_us == 0) {
        link->end_by_us = clock_us() + link->limits.close_us;
    }
}

/* What still comes is read and dropped, so that no reset overtakes our last bytes. False: the connection is broken. */
static bool read_to_end(struct link *link)
{
    enum { SLICES = 64 }; /* a peer that never stops gets its turn again with the next step */
    uint8_t bytes[8192];
    ssize_t n = 1;
    for (unsigned i = 0; i < SLICES && n > 0; i++) {
        n = carrier_read(&link->transport, bytes, sizeof bytes);
    }
    link->fin_came = n == 0;
    link->more = n > 0; /* TLS may hold it where no descriptor tells of it */
    return n != CARRIER_BROKEN;
}

static void step_ending(struct link *link)
{
    if (!link->fin_sent) {
        if (!wslink_flush(link)) {
            return;
        }
        if (link->out.len == 0) {
            int result = carrier_shutdown(&link->transport);
            if (result == CARRIER_BROKEN) {
                finish(link);
                return;
            }
            link->fin_sent = result == 0;
        }
    }
    bool goes_on = link->fin_came || read_to_end(link);
    /* A peer that has said its last may still read ours. */
    if (!goes_on || (link->fin_came && link->fin_sent) || clock_us() >= link->end_by_us) {
        finish(link);
    }
}

/* ---- the machine -------------------------------------------------------------------------------------------- */

static void step_dialling(struct link *link)
{
    link->needs_preparation = false;
    switch (dial_step(link->dial)) {
    case DIAL_WAIT: break;
    case DIAL_PREPARE: link->needs_preparation = true; break;
    case DIAL_DONE: dialled(link); break;
    case DIAL_FAILED: dial_failed(link); break;
    }
}

static void step_open(struct link *link)
{
    if (!wslink_flush(link)) {
        return;
    }
    if (link->limits.ping_us == 0 && !link->core.closing) {
        return; /* no time to keep */
    }
    uint64_t now = clock_us();
    if (link->core.closing && now >= link->end_by_us) {
        wslink_broken(link, "the peer does not answer the close frame");
        return;
    }
    if (link->core.closing || now < link->heard_us + link->limits.ping_us) {
        return;
    }
    if (!link->pinged) {
        link->pinged = true;
        wslink_ping_alive(link);
    } else if (now >= link->heard_us + 2 * link->limits.ping_us) {
        wslink_broken(link, "the peer does not answer pings");
    }
}

void wslink_step(struct link *link)
{
    switch (link->state) {
    case WSLINK_DIALING: step_dialling(link); break;
    case WSLINK_PAUSED:
        if (clock_us() >= link->again_at_us) {
            begin_dialling(link);
            if (link->state == WSLINK_DIALING) {
                step_dialling(link);
            }
        }
        break;
    case WSLINK_GREETING: wslink_greet_step(link); break;
    case WSLINK_ASKED: break;
    case WSLINK_OPEN: step_open(link); break;
    case WSLINK_ENDING: step_ending(link); break;
    case WSLINK_CLOSED: break;
    }
}

int wslink_fd(const struct link *link)
{
    return link->dial != NULL ? dial_fd(link->dial) : link->transport.fd;
}

int wslink_wants(const struct link *link)
{
    switch (link->state) {
    case WSLINK_DIALING: return dial_wants(link->dial);
    case WSLINK_GREETING: return link->transport.wants != 0 ? link->transport.wants : KILN_READ;
    case WSLINK_OPEN: return KILN_READ | (link->out.len > 0 || link->read_write ? KILN_WRITE : 0);
    case WSLINK_ENDING: return (link->fin_came ? 0 : KILN_READ) | (link->fin_sent ? 0 : KILN_WRITE);
    case WSLINK_PAUSED:
    case WSLINK_ASKED:
    case WSLINK_CLOSED: break;
    }
    return 0;
}

uint64_t wslink_until_us(const struct link *link)
{
    uint64_t until = UINT64_MAX;
    switch (link->state) {
    case WSLINK_DIALING: return link->needs_preparation ? 0 : dial_until_us(link->dial);
    case WSLINK_PAUSED: return link->again_at_us;
    case WSLINK_GREETING: return link->end_by_us;
    case WSLINK_ENDING: return link->more ? 0 : link->end_by_us;
    case WSLINK_OPEN:
        if (link->more) {
            return 0;
        }
        if (link->limits.ping_us > 0) {
            until = link->heard_us + (link->pinged ? 2 : 1) * link->limits.ping_us;
        }
        return link->core.closing && link->end_by_us < until ? link->end_by_us : until;
    case WSLINK_ASKED:
    case WSLINK_CLOSED: break;
    }
    return until;
}

int *wslink_watcher(struct link *link)
{
    return link->dial != NULL ? dial_watcher(link->dial) : &link->transport.watcher;
}

void wslink_free(struct link *link)
{
    if (link->dial != NULL) {
        dial_end(link->dial);
        free(link->dial);
    }
    drop_connection(link);
    wslink_forget(link);
    if (link->owns_pool) {
        ws_pool_free(link->pool);
    }
    plan_release(link->plan);
    free(link->head);
    free(link->protocol);
    *link = (struct link){.state = WSLINK_CLOSED, .transport.fd = -1};
}
