#include "protocol/http1.h"

#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/header_lines.h"
#include "protocol/http1_private.h"
#include "protocol/http2.h"

#include <stdlib.h>

enum {
    DISCARD_MAX = 262144, /* of an unread body, rather than closing the connection */
    PIPELINE_MAX = 65536, /* input kept while a request runs */
    OUTPUT_HIGH = 262144, /* unsent output above which no further request is begun */
    DRAIN_IDLE_SECONDS = 1, /* of an idle connection while the worker drains */
};

static struct http1 *http1_of(const struct conn *conn)
{
    return MAGIC_CAST(struct http1, conn->proto, HTTP1_MAGIC);
}

static uint64_t seconds_from_now(const struct conn *conn, double seconds)
{
    return loop_now_ms(conn->loop) + (uint64_t)(seconds * 1000);
}

/* ---- input that must wait ------------------------------------------------------------------ */

static bool keep_input(struct http1 *h, const uint8_t *data, size_t len)
{
    if (h->in_len + len > h->in_cap) {
        size_t cap = h->in_cap == 0 ? 1024 : h->in_cap;
        while (cap < h->in_len + len) {
            cap *= 2;
        }
        char *in = realloc(h->in, cap);
        if (in == NULL) {
            return false;
        }
        h->in = in;
        h->in_cap = (uint32_t)cap;
    }
    memcpy(h->in + h->in_len, data, len);
    h->in_len += (uint32_t)len;
    return true;
}

static void drop_input(struct http1 *h, size_t used)
{
    if (used < h->in_len) {
        memmove(h->in, h->in + used, h->in_len - used);
        h->in_len -= (uint32_t)used;
        return;
    }
    free(h->in);
    h->in = NULL;
    h->in_len = 0;
    h->in_cap = 0;
}

static void free_http1(struct http1 *h)
{
    free(h->in);
    h->magic = 0;
    free(h);
}

/* ---- refusing ---------------------------------------------------------------------------------- */

/* A head that makes no request: the answer goes out, nothing more is read. */
static void refuse(struct http1 *h, int status)
{
    struct conn *conn = h->conn;
    h->keep_alive = false;
    h->framing = BODY_NONE;
    if (h->req == NULL) {
        h->req = request_create(conn, &http1_request_ops, h);
        if (h->req == NULL) {
            conn_close(conn, CONN_CLOSE_ERROR);
            return;
        }
    }
    struct request *req = h->req;
    req->http_major = 1;
    req->http_minor = 1;
    req->response.no_body = req->method_text.ptr != NULL && req->method == METHOD_HEAD;
    if (req->method_text.ptr == NULL) {
        req->method = METHOD_GET;
        req->method_text = STR("-");
        req->target = STR("-");
    }
    req->raw_path = STR("/");
    req->path = STR("/");
    req->host = STR("");
    req->hostname = STR("");
    req->body.present = false;
    req->body.complete = true;
    h->state = HTTP1_REQUEST;
    h->out_left = 0;
    request_refuse(req, status);
}

/* ---- on to HTTP/2 ----------------------------------------------------------------------------------- */

/* The connection is another protocol's from now on; callers up the stack may still look at this. */
static void let_go(struct http1 *h)
{
    h->dead = true;
    h->req = NULL;
    if (!h->process_queued) {
        h->process_queued = true;
        loop_defer(h->conn->loop, &h->process_task);
    }
}

/* The head that begins every HTTP/2 connection, as the first one of this. */
static bool is_http2(const struct http1 *h, const uint8_t *data, size_t end)
{
    return end == sizeof HTTP2_PREFACE_HEAD - 1 && memcmp(data, HTTP2_PREFACE_HEAD, end) == 0 && !h->begun &&
           !h->conn->transport->secure && config_hold_current(h->conn->loop)->enable_http2;
}

/* ---- head ------------------------------------------------------------------------------------------ */

/* Before a head; how many there may be is bounded by the deadline alone. */
static size_t skip_empty_lines(const uint8_t *data, size_t len)
{
    size_t i = 0;
    while (i + 1 < len && data[i] == '\r' && data[i + 1] == '\n') {
        i += 2;
    }
    return i;
}

/* `behind`: bytes that have come after the head. */
static void begin_request(struct http1 *h, const uint8_t *bytes, size_t len, size_t behind)
{
    struct conn *conn = h->conn;
    unsigned lines = h->scan.lines;
    h->scan = (struct head_scan){0};
    struct request *req = request_create(conn, &http1_request_ops, h);
    char *head_bytes = req != NULL ? arena_alloc(&req->arena, len + HEADER_LINES_SLACK) : NULL;
    if (head_bytes == NULL) {
        if (req != NULL) {
            request_end(req);
        }
        conn_close(conn, CONN_CLOSE_ERROR);
        return;
    }
    h->req = req;
    memcpy(head_bytes, bytes, len);
    memset(head_bytes + len, 0, HEADER_LINES_SLACK);
    struct http1_head head = {0};
    int status = http1_head_parse(req, head_bytes, len, lines, &head);
    if (status != 0) {
        refuse(h, status);
        return;
    }
    if (UNLIKELY(head.upgrade) && http2_is_upgrade(req) && http2_upgrade(req)) {
        let_go(h);
        request_start(req);
        return;
    }
    h->state = HTTP1_REQUEST;
    h->framing = (uint8_t)head.framing;
    h->keep_alive = head.keep_alive;
    h->pipelined = head.framing == BODY_NONE ? behind > 0 : head.framing == BODY_LENGTH && behind > req->body.length;
    h->body_flowing = false;
    h->in_trailers = false;
    h->chunked_out = false;
    h->body_left = head.framing == BODY_LENGTH ? req->body.length : 0;
    h->rate = (struct body_rate){0};
    h->chunked = CHUNKED_START;
    req->body.complete = head.framing == BODY_NONE;
    h->head_timed = false;
    conn->deadline_ms = 0;
    request_start(req);
}

/* Bytes used; 0: the head is not whole yet. */
static size_t consume_head(struct http1 *h, const uint8_t *data, size_t len)
{
    size_t skipped = h->scan.line_start == 0 ? skip_empty_lines(data, len) : 0;
    if (skipped > 0) {
        h->begun = true;
        return skipped;
    }
    const struct config *config = config_hold_current(h->conn->loop);
    switch (head_scan(&h->scan, data, len)) {
    case HEAD_BAD: refuse(h, 400); return len;
    case HEAD_COMPLETE: {
        size_t end = h->scan.end;
        const uint8_t *line_end = end > (size_t)config->max_uri_length ? memchr(data, '\r', end) : NULL;
        bool long_line = line_end != NULL && (size_t)(line_end - data) > (size_t)config->max_uri_length + 64;
        if (long_line || end > (size_t)config->max_header_size) {
            refuse(h, long_line ? 414 : 431);
            return len;
        }
        if (UNLIKELY(is_http2(h, data, end))) {
            struct conn *conn = h->conn;
            let_go(h);
            http2_take_over(conn, data, len);
            return len;
        }
        h->begun = true;
        begin_request(h, data, end, len - end);
        if (UNLIKELY(h->dead && h->conn->protocol == &protocol_http2 && end < len) && !conn_is_closed(h->conn)) {
            protocol_http2.on_data(h->conn, data + end, len - end);
            return len;
        }
        return end;
    }
    case HEAD_INCOMPLETE: break;
    }
    if (h->scan.lines == 0 && len > (size_t)config->max_uri_length + 64) {
        refuse(h, 414);
        return len;
    }
    if (len > (size_t)config->max_header_size) {
        refuse(h, 431);
        return len;
    }
    return 0;
}

/* Between requests: KeepAliveTimeout runs. While the worker drains a busy client sends its next
 * request within a moment, and is told by its answer that the connection ends; closing at once
 * would lose the request that is already on its way. */
static void wait_for_request(struct http1 *h)
{
    double seconds = config_hold_current(h->conn->loop)->keep_alive_timeout;
    if (conn_loop_is_shutting_down(h->conn->loop) && seconds > DRAIN_IDLE_SECONDS) {
        seconds = DRAIN_IDLE_SECONDS;
    }
    conn_deadline_set(h->conn, seconds_from_now(h->conn, seconds));
}

/* What is left of a body of known length after its answer has gone. */
static size_t consume_discard(struct http1 *h, size_t len)
{
    size_t n = len < h->body_left ? len : (size_t)h->body_left;
    h->body_left -= n;
    if (h->body_left == 0) {
        h->state = HTTP1_HEAD;
        wait_for_request(h);
    }
    return n;
}

/* ---- the walk over the input ------------------------------------------------------------------------- */

/* A slow reader must not make us gather answers without end. */
static bool output_is_high(struct http1 *h)
{
    struct conn *conn = h->conn;
    if (conn_pending(conn) < OUTPUT_HIGH) {
        return false;
    }
    conn_flush(conn);
    if (conn_is_closed(conn) || conn_pending(conn) < OUTPUT_HIGH) {
        return false;
    }
    h->wait_drained = true;
    conn_notify_drained(conn);
    return true;
}

static size_t consume(struct http1 *h, const uint8_t *data, size_t len)
{
    size_t used = 0;
    h->in_consume = true;
    if (h->state == HTTP1_REQUEST) {
        http1_body_end_length(h);
    }
    while (used < len && !h->dead && h->conn->finishing == 0 && !h->wait_drained) {
        size_t n = 0;
        switch ((enum http1_state)h->state) {
        case HTTP1_HEAD:
            if (!output_is_high(h) && !h->dead) {
                n = consume_head(h, data + used, len - used);
            }
            break;
        case HTTP1_REQUEST:
            if (!h->req->body.complete) {
                n = http1_body_consume(h, data + used, len - used);
            }
            break;
        case HTTP1_DISCARD: n = consume_discard(h, len - used); break;
        case HTTP1_UPGRADED: break;
        }
        if (n == 0) {
            break;
        }
        used += n;
    }
    h->in_consume = false;
    return h->dead || h->conn->finishing != 0 ? len : used;
}

/* The peer has sent its last byte and what could be used of it was. `stuck`: more may be later. */
static void input_ended(struct http1 *h, bool stuck)
{
    struct request *req = h->req;
    if (req != NULL && req->body.complete) {
        if (!req->peer_eof) {
            request_peer_eof(req);
        }
    } else if (stuck) {
        return;
    } else if (req == NULL) {
        conn_finish(h->conn, CONN_CLOSE_PEER);
    } else if (!req->body.failed) {
        http1_body_failed(h, 400);
    }
}

/* Bytes lie in h->in that cannot be used yet: decides whether the socket is read on, and
 * by when a head that has begun must be whole. */
static void after_input(struct http1 *h)
{
    struct conn *conn = h->conn;
    if (h->state == HTTP1_UPGRADED) {
        return;
    }
    bool stuck = h->wait_drained || (h->state == HTTP1_REQUEST && !h->body_flowing);
    if (stuck && h->in_len >= PIPELINE_MAX) {
        conn_pause_read(conn);
    } else {
        conn_resume_read(conn);
    }
    if (h->state == HTTP1_HEAD && h->in_len > 0 && !h->wait_drained && !h->head_timed) {
        h->head_timed = true;
        conn_deadline_set(conn, seconds_from_now(conn, config_hold_current(conn->loop)->request_headers_timeout));
    }
    if (h->eof) {
        input_ended(h, stuck);
    }
}

static void process_input(struct http1 *h)
{
    size_t used = consume(h, (const uint8_t *)h->in, h->in_len);
    if (!h->dead) {
        drop_input(h, used);
        after_input(h);
    }
}

/* The connection and what came behind the request's head go to the next protocol. */
static void switch_protocol(struct http1 *h)
{
    struct conn *conn = h->conn;
    const struct protocol *protocol = h->next.protocol;
    conn->protocol = protocol;
    conn->proto = h->next.proto;
    conn->deadline_ms = 0;
    conn_resume_read(conn);
    if (h->wait_drained) {
        protocol->on_drained(conn);
    }
    if (h->in_len > 0 && !conn_is_closed(conn)) {
        protocol->on_data(conn, (const uint8_t *)h->in, h->in_len);
    }
    if (h->eof && !conn_is_closed(conn)) {
        protocol->on_eof(conn);
    }
    free_http1(h);
}

static void process_later(struct task *task)
{
    struct http1 *h = CONTAINER_OF(task, struct http1, process_task);
    h->process_queued = false;
    if (h->dead) {
        free_http1(h);
        return;
    }
    if (h->state == HTTP1_UPGRADED) {
        switch_protocol(h);
        return;
    }
    process_input(h);
}

void http1_queue_input(struct http1 *h)
{
    if (!h->in_consume && !h->process_queued && !h->dead) {
        h->process_queued = true;
        loop_defer(h->conn->loop, &h->process_task);
    }
}

/* ---- called by the output side -------------------------------------------------------------- */

void http1_request_done(struct http1 *h)
{
    struct conn *conn = h->conn;
    struct request *req = h->req;
    bool unread = req->body.present && !req->body.complete;
    bool keep = h->keep_alive && !req->response.close_after && !req->body.failed &&
                !(unread && (h->framing != BODY_LENGTH || h->body_left > DISCARD_MAX || req->body.expects_100));
    h->req = NULL;
    h->body_flowing = false;
    h->state = keep && unread && h->body_left > 0 ? HTTP1_DISCARD : HTTP1_HEAD;
    request_end(req);
    if (h->dead) {
        return;
    }
    if (!keep) {
        conn_finish(conn, CONN_CLOSE_LOCAL);
        return;
    }
    wait_for_request(h);
    if (h->in_len > 0 || h->eof || conn->read_paused) {
        http1_queue_input(h);
    }
}

/* Not at once: this may be called while its own input is being worked on. */
bool http1_upgrade(struct request *req, const struct protocol *protocol, void *proto)
{
    struct http1 *h = MAGIC_CAST(struct http1, req->stream, HTTP1_MAGIC);
    h->req = NULL;
    h->state = HTTP1_UPGRADED;
    h->next.protocol = protocol;
    h->next.proto = proto;
    h->wait_drained = false;
    request_end(req);
    if (!h->process_queued) {
        h->process_queued = true;
        loop_defer(h->conn->loop, &h->process_task);
    }
    return true;
}

/* ---- the other events -------------------------------------------------------------------------- */

static bool on_open(struct conn *conn)
{
    struct http1 *h = calloc(1, sizeof *h);
    if (h == NULL) {
        return false;
    }
    h->magic = HTTP1_MAGIC;
    h->conn = conn;
    h->process_task.run = process_later;
    conn->proto = h;
    conn_deadline_set(conn, seconds_from_now(conn, config_hold_current(conn->loop)->request_headers_timeout));
    return true;
}

static void on_data(struct conn *conn, const uint8_t *data, size_t len)
{
    struct http1 *h = http1_of(conn);
    if (h->in_len > 0) {
        if (!keep_input(h, data, len)) {
            conn_close(conn, CONN_CLOSE_ERROR);
            return;
        }
        process_input(h);
        return;
    }
    size_t used = consume(h, data, len);
    if (h->dead) {
        return;
    }
    if (used < len && !keep_input(h, data + used, len - used)) {
        conn_close(conn, CONN_CLOSE_ERROR);
        return;
    }
    if (h->in_len > 0 || conn->read_paused || h->eof) {
        after_input(h);
    }
}

static void on_eof(struct conn *conn)
{
    struct http1 *h = http1_of(conn);
    h->eof = true;
    after_input(h);
}

static void on_drained(struct conn *conn)
{
    struct http1 *h = http1_of(conn);
    if (h->state == HTTP1_UPGRADED) {
        h->wait_drained = true; /* who is told is the next protocol, which has written already */
        return;
    }
    if (h->wait_drained) {
        h->wait_drained = false;
        http1_queue_input(h);
    }
    if (h->req != NULL && h->req->on_drained != NULL) {
        void (*tell)(struct request *) = h->req->on_drained;
        h->req->on_drained = NULL;
        tell(h->req);
    }
}

static void on_deadline(struct conn *conn)
{
    struct http1 *h = http1_of(conn);
    switch ((enum http1_state)h->state) {
    case HTTP1_HEAD:
        if (h->in_len > 0 && !h->wait_drained) {
            refuse(h, 408);
        } else if (h->in_len == 0 && (conn_pending(conn) > 0 || !conn_finish_idle(conn, CONN_CLOSE_TIMEOUT))) {
            /* The last answer is still on its way, at the pace of ResponseTimeout, or a request has just come. */
            wait_for_request(h);
        }
        break;
    case HTTP1_REQUEST:
        if (!h->body_flowing) {
            break;
        }
        if (body_rate_is_too_slow(&h->rate, h->req, loop_now_ms(conn->loop))) {
            http1_body_failed(h, 408);
        } else {
            http1_body_time(h);
        }
        break;
    case HTTP1_DISCARD: conn_close(conn, CONN_CLOSE_TIMEOUT); break;
    case HTTP1_UPGRADED: break;
    }
}

static void on_shutdown(struct conn *conn)
{
    struct http1 *h = http1_of(conn);
    if (h->state == HTTP1_HEAD && h->in_len == 0) {
        wait_for_request(h);
    }
}

static void on_close(struct conn *conn, enum conn_close_reason reason)
{
    struct http1 *h = http1_of(conn);
    if (h->state == HTTP1_UPGRADED) {
        conn->proto = h->next.proto;
        h->next.protocol->on_close(conn, reason);
    }
    h->dead = true;
    struct request *req = h->req;
    h->req = NULL;
    if (req != NULL) {
        request_gone(req);
        request_end(req);
    }
    /* Callers up the stack may still look at it. */
    if (!h->process_queued) {
        h->process_queued = true;
        loop_defer(conn->loop, &h->process_task);
    }
}

const struct protocol protocol_http1 = {
    .name = "http/1.1",
    .on_open = on_open,
    .on_data = on_data,
    .on_eof = on_eof,
    .on_drained = on_drained,
    .on_deadline = on_deadline,
    .on_shutdown = on_shutdown,
    .on_close = on_close,
};
