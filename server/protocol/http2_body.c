/* The body of a stream's request on its way in. While the sink wants bytes they go to it as they lie
 * in the receive buffer and the stream's window is opened again; while it does not they are kept,
 * and the window, which is not opened, bounds them. The window is small until somebody reads. */
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http2_private.h"

#include <stdlib.h>

enum { CHUNK = 4096 };

/* Of a stream whose body is read, beyond what every stream has. */
static int64_t extra_window(const struct http2_stream *s)
{
    return s->req->config->http2_stream_window - HTTP2_FIRST_WINDOW;
}

static void stop_flowing(struct http2_stream *s)
{
    s->flowing = false;
    s->req->body.flowing = false;
}

static void body_complete(struct http2_stream *s)
{
    struct request *req = s->req;
    req->body.complete = true;
    stop_flowing(s);
    req->body.sink->on_end(req);
}

void http2_body_failed(struct http2_stream *s, int status)
{
    struct request *req = s->req;
    bool read = s->flowing;
    req->body.failed = true;
    stop_flowing(s);
    http2_body_drop(s);
    if (read) {
        req->body.sink->on_error(req, status);
    }
}

/* ---- bytes -------------------------------------------------------------------------------------- */

static void consumed(struct http2_stream *s, size_t len)
{
    if (!s->h->dead) {
        nghttp2_session_consume_stream(s->h->session, s->id, len);
        http2_work_later(s->h);
    }
}

static void deliver(struct http2_stream *s, const uint8_t *data, size_t len)
{
    struct request *req = s->req;
    req->body.received += len;
    if (req->body.limit != 0 && req->body.received > req->body.limit) {
        http2_body_failed(s, 413);
        return;
    }
    req->body.sink->on_bytes(req, data, len);
}

static bool keep(struct http2_stream *s, const uint8_t *data, size_t len)
{
    struct http2_chunk *last = s->last_chunk;
    size_t room = last != NULL ? last->cap - last->len : 0;
    size_t n = len < room ? len : room;
    if (n > 0) {
        memcpy(last->bytes + last->len, data, n);
        last->len += (uint32_t)n;
    }
    if (n == len) {
        return true;
    }
    size_t cap = len - n > CHUNK ? len - n : CHUNK;
    struct http2_chunk *chunk = malloc(sizeof *chunk + cap);
    if (chunk == NULL) {
        return false;
    }
    *chunk = (struct http2_chunk){.len = (uint32_t)(len - n), .cap = (uint32_t)cap};
    memcpy(chunk->bytes, data + n, len - n);
    if (last != NULL) {
        last->next = chunk;
    } else {
        s->chunks = chunk;
    }
    s->last_chunk = chunk;
    return true;
}

void http2_body_received(struct http2_stream *s, const uint8_t *data, size_t len)
{
    struct request *req = s->req;
    if (s->finished || req->body.failed || req->body.complete) {
        consumed(s, len); /* nobody will read it */
        return;
    }
    if (!s->flowing || s->chunks != NULL) {
        if (!keep(s, data, len)) {
            http2_reset(s, NGHTTP2_INTERNAL_ERROR);
        }
        return;
    }
    request_hold(req);
    deliver(s, data, len);
    if (s->magic == HTTP2_STREAM_MAGIC) {
        consumed(s, len);
    }
    request_release(req);
}

/* All that came is with the sink: is it the end? */
static void settle(struct http2_stream *s)
{
    if (s->trailers && s->head.status != 0) {
        http2_body_failed(s, s->head.status);
    } else if (s->remote_done) {
        body_complete(s);
    }
}

void http2_body_ended(struct http2_stream *s)
{
    s->remote_done = true;
    if (s->flowing && s->chunks == NULL) {
        settle(s);
    }
}

/* By http2_stream_attend, which holds the request. */
void http2_body_deliver(struct http2_stream *s)
{
    while (s->magic == HTTP2_STREAM_MAGIC && s->flowing && s->chunks != NULL) {
        struct http2_chunk *chunk = s->chunks;
        size_t len = chunk->len;
        s->chunks = chunk->next;
        s->last_chunk = s->chunks != NULL ? s->last_chunk : NULL;
        deliver(s, chunk->bytes, len);
        free(chunk);
        if (s->magic == HTTP2_STREAM_MAGIC) {
            consumed(s, len);
        }
    }
    if (s->magic == HTTP2_STREAM_MAGIC && s->flowing && s->chunks == NULL) {
        settle(s);
    }
}

void http2_body_drop(struct http2_stream *s)
{
    size_t kept = 0;
    while (s->chunks != NULL) {
        struct http2_chunk *chunk = s->chunks;
        s->chunks = chunk->next;
        kept += chunk->len;
        free(chunk);
    }
    s->last_chunk = NULL;
    if (s->big_window) {
        s->big_window = false;
        s->h->grown -= (uint64_t)extra_window(s);
    }
    if (kept > 0) {
        consumed(s, kept);
    }
}

/* ---- flow and rate ------------------------------------------------------------------------------ */

/* Somebody reads: the client may send further ahead, as long as the connection's streams together
 * do not exceed the connection's window. */
static void widen(struct http2_stream *s)
{
    struct http2 *h = s->h;
    const struct config *config = s->req->config;
    int64_t extra = extra_window(s);
    bool small = s->req->body.length != RESPONSE_LENGTH_UNKNOWN && s->req->body.length <= HTTP2_FIRST_WINDOW;
    if (s->big_window || small || s->remote_done || extra <= 0 ||
        h->grown + (uint64_t)extra > (uint64_t)config->http2_connection_window) {
        return;
    }
    if (nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, s->id,
                                              (int32_t)config->http2_stream_window) == 0) {
        s->big_window = true;
        h->grown += (uint64_t)extra;
    }
}

void http2_body_resume(struct request *req)
{
    struct http2_stream *s = req->stream;
    if (s == NULL || s->h->dead || req->body.complete || req->body.failed || s->flowing || s->finished) {
        return;
    }
    if (req->body.expects_100 && req->body.received == 0 && s->chunks == NULL && !s->remote_done &&
        !req->response.head_sent) {
        req->ops->send_interim(req, 100);
    }
    req->body.expects_100 = false;
    s->flowing = true;
    req->body.flowing = true;
    body_rate_start(&s->rate, loop_now_ms(req->loop));
    widen(s);
    http2_tick(s->h);
    http2_attend(s);
}

void http2_body_pause(struct request *req)
{
    struct http2_stream *s = req->stream;
    if (s == NULL || s->h->dead || !s->flowing) {
        return;
    }
    stop_flowing(s);
    body_rate_stop(&s->rate, loop_now_ms(req->loop));
}
