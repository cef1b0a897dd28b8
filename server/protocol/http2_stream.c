/* A stream's life: made with its request, looked at when something waits for it, held to its times,
 * ended when nghttp2 closes it. */
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http2_private.h"

#include <stdlib.h>

/* ---- life -------------------------------------------------------------------------------- */

static void load_drop(void *arg)
{
    struct http2_load *load = arg;
    if (--load->running == 0 && load->closed) {
        free(load);
    }
}

struct http2_stream *http2_stream_adopt(struct http2 *h, int32_t id, struct request *req)
{
    struct http2_stream *s = arena_zalloc(&req->arena, sizeof *s);
    if (s == NULL || !arena_defer(&req->arena, load_drop, h->load)) {
        return NULL;
    }
    h->load->running++;
    s->magic = HTTP2_STREAM_MAGIC;
    s->id = id;
    s->h = h;
    s->req = req;
    s->announced = RESPONSE_LENGTH_UNKNOWN;
    list_init(&s->attention);
    list_append(&h->streams, &s->node);
    h->stream_count++;
    h->had_streams = true;
    req->ops = &http2_request_ops;
    req->stream = s;
    return s;
}

struct http2_stream *http2_stream_create(struct http2 *h, int32_t id)
{
    struct request *req = request_create(h->conn, &http2_request_ops, NULL);
    if (req == NULL) {
        return NULL;
    }
    req->http_major = 2;
    req->method = METHOD_OTHER;
    struct http2_stream *s = http2_stream_adopt(h, id, req);
    if (s == NULL) {
        request_end(req);
    }
    return s;
}

void http2_stream_end(struct http2_stream *s, bool gone)
{
    struct http2 *h = s->h;
    struct request *req = s->req;
    if (h->gathering == s) {
        h->gathering = NULL;
    }
    struct conn *tunnel = s->tunnel;
    list_remove(&s->node);
    list_remove(&s->attention);
    h->stream_count--;
    http2_response_drop(s);
    http2_body_drop(s);
    if (!s->started) {
        http2_head_blank(s);
        req->response.status = 400; /* for the log: it was no request */
    } else if (gone) {
        s->aborted = true;
        request_gone(req);
    } else if (tunnel != NULL) {
        s->aborted = true;
        http2_tunnel_ended(tunnel);
    }
    s->magic = 0;
    request_end(req);
    http2_work_later(h);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Once the answer is out and not all of the request came, the client may stop (RFC 9113 8.1). True: the
 * answer is still on its way. */
static bool end_unread(struct http2_stream *s)
{
    nghttp2_session *session = s->h->session;
    if (!s->finished || s->aborted || s->remote_done || s->closed || s->tunnel != NULL) {
        return false;
    }
    if (nghttp2_session_get_stream_local_close(session, s->id) != 1) {
        return true;
    }
    s->aborted = true; /* by us: it does not count against the client */
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
    http2_work_later(s->h);
    return false;
}

void http2_stream_attend(struct http2_stream *s)
{
    struct request *req = s->req;
    if (end_unread(s)) {
        http2_tick(s->h);
    }
    request_hold(req);
    if (s->flowing) {
        http2_body_deliver(s);
    }
    /* The stream lies in the request's arena, so it is still there, if only as a memory. */
    if (s->magic == HTTP2_STREAM_MAGIC && s->want_drained && s->queued == 0) {
        s->want_drained = false;
        void (*tell)(struct request *) = req->on_drained;
        req->on_drained = NULL;
        if (tell != NULL) {
            tell(req);
        }
    }
    request_release(req);
}

/* ---- time ----------------------------------------------------------------------------------------- */

/* Does the client hold back its own answer, by not opening a window? When the answer waits for
 * others, or for the network, the connection's own deadline watches. */
static bool is_held_back(const struct http2_stream *s)
{
    nghttp2_session *session = s->h->session;
    return nghttp2_session_get_remote_window_size(session) <= 0 ||
           nghttp2_session_get_stream_remote_window_size(session, s->id) <= 0;
}

static bool answer_is_too_slow(struct http2_stream *s, uint64_t now)
{
    const struct config *config = s->req->config;
    if (s->blocked_since_ms == 0 || config->response_timeout <= 0) {
        return false;
    }
    if (!is_held_back(s)) {
        s->blocked_since_ms = now;
        s->sent_since = 0;
        return false;
    }
    double seconds = config->response_timeout;
    if (config->bytes_per_second > 0) {
        seconds += (double)s->sent_since / config->bytes_per_second;
    }
    return (double)(now - s->blocked_since_ms) >= seconds * 1000;
}

bool http2_stream_check_time(struct http2_stream *s, uint64_t now)
{
    if (answer_is_too_slow(s, now)) {
        http2_reset(s, NGHTTP2_CANCEL);
        return false;
    }
    bool timed = s->flowing && s->tunnel == NULL; /* a tunnel's protocol has times of its own */
    if (timed && body_rate_is_too_slow(&s->rate, s->req, now)) {
        http2_body_failed(s, 408);
        return false;
    }
    return end_unread(s) || timed || s->blocked_since_ms != 0;
}
