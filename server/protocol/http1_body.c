/* The body of the running request on its way in: handed to the sink as it lies in the receive
 * buffer, only while the sink wants it, decoded and held to its limits and its rate. */
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http1_private.h"

static void body_complete(struct http1 *h)
{
    struct request *req = h->req;
    req->body.complete = true;
    h->body_flowing = false;
    req->body.flowing = false;
    h->conn->deadline_ms = 0;
    req->body.sink->on_end(req);
}

void http1_body_failed(struct http1 *h, int status)
{
    struct request *req = h->req;
    req->body.failed = true;
    h->keep_alive = false;
    h->body_flowing = false;
    req->body.flowing = false;
    h->conn->deadline_ms = 0;
    if (req->body.sink != NULL) {
        req->body.sink->on_error(req, status);
    } else if (!req->response.head_sent) {
        request_refuse(req, status);
    }
}

static void deliver(struct http1 *h, const uint8_t *data, size_t len)
{
    struct request *req = h->req;
    req->body.received += len;
    if (req->body.limit != 0 && req->body.received > req->body.limit) {
        http1_body_failed(h, 413);
        return;
    }
    req->body.sink->on_bytes(req, data, len);
}

/* A sink that paused at the last bytes is told of the end when it resumes, not before. */
void http1_body_end_length(struct http1 *h)
{
    if (h->body_flowing && h->framing == BODY_LENGTH && h->body_left == 0) {
        body_complete(h);
    }
}

static size_t consume_length_body(struct http1 *h, const uint8_t *data, size_t len)
{
    size_t n = len < h->body_left ? len : (size_t)h->body_left;
    h->body_left -= n;
    deliver(h, data, n);
    http1_body_end_length(h);
    return n;
}

static size_t consume_trailers(struct http1 *h, const uint8_t *data, size_t len)
{
    const struct config *config = config_hold_current(h->conn->loop);
    enum head_scan_result result = head_scan(&h->scan, data, len);
    if (result == HEAD_INCOMPLETE) {
        if (len > (size_t)config->max_header_size) {
            http1_body_failed(h, 431);
            return len;
        }
        return 0;
    }
    size_t end = h->scan.end;
    unsigned lines = h->scan.lines;
    h->scan = (struct head_scan){0};
    if (result == HEAD_BAD || end > (size_t)config->max_header_size ||
        (end > 2 && http1_trailers_parse(h->req, (const char *)data, end, lines) != 0)) {
        http1_body_failed(h, 400);
        return len;
    }
    body_complete(h);
    return end;
}

static size_t consume_chunked_body(struct http1 *h, const uint8_t *data, size_t len)
{
    if (h->in_trailers) {
        return consume_trailers(h, data, len);
    }
    size_t used = 0;
    const uint8_t *bytes = NULL;
    size_t n = 0;
    switch (chunked_next(&h->chunked, data, len, &used, &bytes, &n)) {
    case CHUNKED_DATA: deliver(h, bytes, n); break;
    case CHUNKED_MORE: break;
    case CHUNKED_TRAILERS:
        h->in_trailers = true;
        h->scan = (struct head_scan){0};
        break;
    case CHUNKED_BAD: http1_body_failed(h, 400); return len;
    case CHUNKED_TOO_LARGE: http1_body_failed(h, 413); return len;
    }
    return used;
}

size_t http1_body_consume(struct http1 *h, const uint8_t *data, size_t len)
{
    if (h->req->body.failed) {
        return len; /* the connection closes after the answer */
    }
    if (!h->body_flowing) {
        return 0;
    }
    return h->framing == BODY_LENGTH ? consume_length_body(h, data, len) : consume_chunked_body(h, data, len);
}

/* ---- flow and rate ------------------------------------------------------------------------------------ */

/* When the rate of the body is looked at next: after gracePeriod of receiving, then each time it
 * passes again; and when RequestBodyTimeout ends. */
void http1_body_time(struct http1 *h)
{
    const struct request *req = h->req;
    struct conn *conn = h->conn;
    uint64_t now = loop_now_ms(conn->loop);
    uint64_t grace = (uint64_t)(req->config->grace_period * 1000);
    grace = grace > 100 ? grace : 100;
    uint64_t due = now + grace - (now - h->rate.start_ms) % grace;
    double limit = req->config->request_body_timeout;
    if (limit > 0 && req->started_ms + (uint64_t)(limit * 1000) < due) {
        due = req->started_ms + (uint64_t)(limit * 1000);
    }
    conn_deadline_set(conn, due);
}

void http1_body_resume(struct request *req)
{
    struct http1 *h = req->stream;
    if (h == NULL || h->dead || h->req != req || req->body.complete || req->body.failed || h->body_flowing) {
        return;
    }
    struct conn *conn = h->conn;
    if (req->body.expects_100 && req->body.received == 0 && h->in_len == 0 && !req->response.head_sent) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        conn_write(conn, go_on, sizeof go_on - 1);
    }
    req->body.expects_100 = false;
    h->body_flowing = true;
    req->body.flowing = true;
    body_rate_start(&h->rate, loop_now_ms(conn->loop));
    http1_body_time(h);
    http1_queue_input(h);
}

void http1_body_pause(struct request *req)
{
    struct http1 *h = req->stream;
    if (h == NULL || h->dead || h->req != req || !h->body_flowing) {
        return;
    }
    h->body_flowing = false;
    req->body.flowing = false;
    body_rate_stop(&h->rate, loop_now_ms(h->conn->loop));
    h->conn->deadline_ms = 0;
}
