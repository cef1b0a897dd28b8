/* The output side of HTTP/1.1: heads, framing, and what ends a response. A head is
 * formatted straight into the connection's output queue. */
#include "base/check.h"
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http1_private.h"

#include <stdio.h>
#include <sys/uio.h>

static struct http1 *h_of(const struct request *req)
{
    return MAGIC_CAST(struct http1, req->stream, HTTP1_MAGIC);
}

static inline char *put(char *at, const char *text, size_t len)
{
    memcpy(at, text, len);
    return at + len;
}

#define PUT_LITERAL(at, literal) put((at), (literal), sizeof(literal) - 1)

static char *put_status_line(char *at, int status)
{
    if (status == 200) {
        return PUT_LITERAL(at, "HTTP/1.1 200 OK\r\nDate: ");
    }
    struct str reason = str_of(status_reason(status));
    at = PUT_LITERAL(at, "HTTP/1.1 ");
    at[0] = (char)('0' + status / 100 % 10);
    at[1] = (char)('0' + status / 10 % 10);
    at[2] = (char)('0' + status % 10);
    at[3] = ' ';
    at = put(at + 4, reason.ptr, reason.len);
    return PUT_LITERAL(at, "\r\nDate: ");
}

static char *put_header(char *at, struct str name, struct str value)
{
    at = put(at, name.ptr, name.len);
    at = PUT_LITERAL(at, ": ");
    at = put(at, value.ptr, value.len);
    return PUT_LITERAL(at, "\r\n");
}

static bool response_has(const struct request *req, struct str name)
{
    for (unsigned i = 0; i < req->response.header_count; i++) {
        if (str_eq_nocase(req->response.headers[i].name, name)) {
            return true;
        }
    }
    return req->response.content_type.ptr != NULL && str_eq_nocase(name, STR("content-type"));
}

/* DefaultHeaders less those that the response has itself. */
static char *put_default_headers(char *at, const struct request *req)
{
    const struct config_header_list_view {
        const struct config_header *items;
        size_t count;
    } list = {req->config->default_headers.items, req->config->default_headers.count};
    bool replaced = false;
    for (size_t i = 0; i < list.count && !replaced; i++) {
        replaced = response_has(req, list.items[i].name);
    }
    if (!replaced) {
        return put(at, req->hold->default_headers, req->hold->default_headers_len);
    }
    for (size_t i = 0; i < list.count; i++) {
        if (!response_has(req, list.items[i].name)) {
            at = put_header(at, list.items[i].name, list.items[i].value);
        }
    }
    return at;
}

static size_t own_headers_room(const struct request *req)
{
    size_t room = 0;
    for (unsigned i = 0; i < req->response.header_count; i++) {
        room += req->response.headers[i].name.len + req->response.headers[i].value.len + 4;
    }
    return room;
}

/* Room that put_* may need, generously. */
static size_t head_room(const struct request *req)
{
    return 320 + req->response.content_type.len + req->hold->default_headers_len + own_headers_room(req);
}

/* Must the connection end after this response, for the sake of the request's body? */
static bool body_ends_connection(const struct http1 *h, const struct request *req)
{
    if (req->body.failed) {
        return true;
    }
    if (!req->body.present || req->body.complete || h->body_flowing) {
        return false;
    }
    return h->framing != BODY_LENGTH || req->body.expects_100 || h->body_left > 65536;
}

static char *put_framing(char *at, struct http1 *h, struct request *req, uint64_t length)
{
    int status = req->response.status;
    bool bodiless = status == 204 || status == 304 || status < 200;
    h->chunked_out = false;
    h->out_left = length;
    if (bodiless) {
        h->out_left = 0;
    } else if (length != RESPONSE_LENGTH_UNKNOWN) {
        at = PUT_LITERAL(at, "Content-Length: ");
        at += str_put_u64(at, length);
        at = PUT_LITERAL(at, "\r\n");
    } else if (req->http_minor >= 1) {
        at = PUT_LITERAL(at, "Transfer-Encoding: chunked\r\n");
        h->chunked_out = !req->response.no_body;
    } else {
        h->keep_alive = false; /* HTTP/1.0: the end of the connection ends the body */
    }
    return at;
}

/* While the worker drains a connection ends with its next answer; but not before a pipelined request that has come
 * already, which would be lost. */
static bool drain_ends_connection(const struct http1 *h, const struct request *req)
{
    if (LIKELY(!conn_loop_is_shutting_down(h->conn->loop))) {
        return false;
    }
    bool more = h->in_consume ? h->pipelined : req->body.complete && h->in_len > 0;
    return !more;
}

static char *put_connection(char *at, struct http1 *h, struct request *req)
{
    if (UNLIKELY(req->response.status == 101)) {
        return PUT_LITERAL(at, "Connection: Upgrade\r\n");
    }
    if (req->response.close_after || body_ends_connection(h, req) || drain_ends_connection(h, req)) {
        h->keep_alive = false;
    }
    if (!h->keep_alive) {
        return PUT_LITERAL(at, "Connection: close\r\n");
    }
    return req->http_minor == 0 ? PUT_LITERAL(at, "Connection: keep-alive\r\n") : at;
}

static void send_head(struct request *req, uint64_t length)
{
    struct http1 *h = h_of(req);
    char *start = conn_reserve(h->conn, head_room(req));
    if (start == NULL) {
        return;
    }
    char *at = put_status_line(start, req->response.status);
    at = put(at, loop_http_date(req->loop), 29);
    at = PUT_LITERAL(at, "\r\n");
    if (req->response.default_headers) {
        at = put_default_headers(at, req);
    }
    if (req->response.content_type.ptr != NULL) {
        at = put_header(at, STR("Content-Type"), req->response.content_type);
    }
    for (unsigned i = 0; i < req->response.header_count; i++) {
        at = put_header(at, req->response.headers[i].name, req->response.headers[i].value);
    }
    at = put_framing(at, h, req, length);
    at = put_connection(at, h, req);
    at = PUT_LITERAL(at, "\r\n");
    conn_commit(h->conn, (size_t)(at - start));
}

static void put_chunk_size(struct http1 *h, uint64_t len)
{
    static const char digits[] = "0123456789abcdef";
    char line[20];
    size_t i = sizeof line;
    line[--i] = '\n';
    line[--i] = '\r';
    do {
        line[--i] = digits[len & 15];
        len >>= 4;
    } while (len != 0);
    conn_write(h->conn, line + i, sizeof line - i);
}

/* Accounts for `len` body bytes; false when they must not be sent. */
static bool body_allowed(struct http1 *h, const struct request *req, uint64_t len)
{
    if (len == 0 || req->response.no_body) {
        return false;
    }
    if (h->chunked_out || h->out_left == RESPONSE_LENGTH_UNKNOWN) {
        return true;
    }
    CHECK(len <= h->out_left);
    h->out_left -= len;
    return true;
}

static void send_body(struct request *req, const void *data, size_t len)
{
    struct http1 *h = h_of(req);
    if (!body_allowed(h, req, len)) {
        return;
    }
    if (h->chunked_out) {
        put_chunk_size(h, len);
    }
    conn_write(h->conn, data, len);
    if (h->chunked_out) {
        conn_write(h->conn, "\r\n", 2);
    }
}

static void send_body_ref(struct request *req, const void *data, size_t len, void (*release)(void *), void *arg)
{
    struct http1 *h = h_of(req);
    if (!body_allowed(h, req, len)) {
        if (release != NULL) {
            release(arg);
        }
        return;
    }
    if (h->chunked_out) {
        put_chunk_size(h, len);
    }
    conn_write_ref(h->conn, data, len, release, arg);
    if (h->chunked_out) {
        conn_write(h->conn, "\r\n", 2);
    }
}

static void send_body_file(struct request *req, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg)
{
    struct http1 *h = h_of(req);
    if (!body_allowed(h, req, len)) {
        if (release != NULL) {
            release(arg);
        }
        return;
    }
    if (h->chunked_out) {
        put_chunk_size(h, len);
    }
    conn_write_file(h->conn, fd, offset, len, release, arg);
    if (h->chunked_out) {
        conn_write(h->conn, "\r\n", 2);
    }
}

static void write_trailers(struct conn *conn, const struct request *req)
{
    size_t room = sizeof "0\r\n\r\n";
    for (unsigned i = 0; i < req->response.trailer_count; i++) {
        room += req->response.trailers[i].name.len + req->response.trailers[i].value.len + 4;
    }
    char *start = conn_reserve(conn, room);
    if (start == NULL) {
        return;
    }
    char *at = PUT_LITERAL(start, "0\r\n");
    for (unsigned i = 0; i < req->response.trailer_count; i++) {
        at = put_header(at, req->response.trailers[i].name, req->response.trailers[i].value);
    }
    at = PUT_LITERAL(at, "\r\n");
    conn_commit(conn, (size_t)(at - start));
}

static void finish(struct request *req)
{
    struct http1 *h = h_of(req);
    if (h->chunked_out) {
        if (UNLIKELY(req->response.trailer_count > 0)) {
            write_trailers(h->conn, req);
        } else {
            conn_write(h->conn, "0\r\n\r\n", 5);
        }
        h->chunked_out = false;
    }
    http1_request_done(h);
}

static void abort_response(struct request *req)
{
    struct http1 *h = h_of(req);
    bool ends_with_connection =
        req->response.head_sent && req->response.length == RESPONSE_LENGTH_UNKNOWN && req->http_minor == 0;
    if (ends_with_connection) {
        conn_reset(h->conn); /* an orderly end would say that the answer is whole */
    } else {
        conn_close(h->conn, CONN_CLOSE_ERROR);
    }
}

static void send_ready(struct request *req, const struct ready_head *head, const void *body, size_t len,
                       void (*release)(void *), void *arg)
{
    struct http1 *h = h_of(req);
    char *start = conn_reserve(h->conn, head->block.len + 192 + own_headers_room(req));
    if (start != NULL) {
        char *at = put_status_line(start, head->status);
        at = put(at, loop_http_date(req->loop), 29);
        at = PUT_LITERAL(at, "\r\n");
        at = put(at, head->block.ptr, head->block.len);
        for (unsigned i = 0; i < req->response.header_count; i++) {
            at = put_header(at, req->response.headers[i].name, req->response.headers[i].value);
        }
        at = put_connection(at, h, req);
        at = PUT_LITERAL(at, "\r\n");
        conn_commit(h->conn, (size_t)(at - start));
    }
    h->chunked_out = false;
    if (!req->response.no_body && len > 0) {
        conn_write_ref(h->conn, body, len, release, arg);
    } else if (release != NULL) {
        release(arg);
    }
    http1_request_done(h);
}

static void send_interim(struct request *req, int status)
{
    if (req->http_minor == 0 || req->response.head_sent) {
        return;
    }
    char line[64];
    int n = snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\n\r\n", status, status_reason(status));
    conn_write(h_of(req)->conn, line, (size_t)n);
}

static size_t pending(struct request *req)
{
    return conn_pending(h_of(req)->conn);
}

static void notify_drained(struct request *req)
{
    conn_notify_drained(h_of(req)->conn);
}

static void flush(struct request *req)
{
    conn_flush(h_of(req)->conn);
}

static void lost(struct request *req)
{
    static const char last[] = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    struct conn *conn = h_of(req)->conn;
    if (!req->response.head_sent && conn->out == NULL && !conn->transport->secure) {
        const struct iovec whole = {.iov_base = (char *)(uintptr_t)last, .iov_len = sizeof last - 1};
        conn->transport->send(conn, &whole, 1, false);
    }
}

/* It is the request's own. */
static struct conn *upgrade_conn(struct request *req)
{
    return req->conn;
}

const struct request_ops http1_request_ops = {
    .send_head = send_head,
    .send_body = send_body,
    .send_body_ref = send_body_ref,
    .send_body_file = send_body_file,
    .finish = finish,
    .abort = abort_response,
    .send_ready = send_ready,
    .send_interim = send_interim,
    .body_resume = http1_body_resume,
    .body_pause = http1_body_pause,
    .pending = pending,
    .notify_drained = notify_drained,
    .flush = flush,
    .lost = lost,
    .upgrade_conn = upgrade_conn,
    .upgrade = http1_upgrade,
};
