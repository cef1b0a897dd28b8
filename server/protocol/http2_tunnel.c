/* DESIGN: a WebSocket in a stream (RFC 8441). The stream of an extended CONNECT becomes a tunnel (connection/conn.h): its
 * DATA frames are the bytes, END_STREAM is the end of them, RST_STREAM a reset. So protocol/websocket.c, and with
 * it every endpoint, works on it as on a connection.
 *
 * In: bytes go to the protocol as they lie in the receive buffer; while it does not read the stream's window stays shut. Out:
 * at most TUNNEL_HIGH bytes wait in the stream, the others in the tunnel's own queue, where their
 * number is seen (kiln_ws_pending) and their deadline runs.
 *
 * The tunnel holds the request, in whose arena the stream lies, until both have ended. Whichever ends first tells
 * the other: http2_tunnel_ended() and on_gone, or the transport's close(). */
#include "protocol/http2_private.h"

#include <errno.h>
#include <sys/uio.h>

enum { TUNNEL_HIGH = 131072 };

static struct request *request_of(const struct conn *conn)
{
    return conn->transport_state;
}

/* NULL: the stream is over, or about to be. */
static struct http2_stream *stream_of(const struct conn *conn)
{
    struct http2_stream *s = request_of(conn)->stream;
    return s->magic == HTTP2_STREAM_MAGIC && !s->aborted && !s->h->dead ? s : NULL;
}

/* ---- the transport ------------------------------------------------------------------------ */

/* It is read again: what has come, and what comes, is fed. */
static ssize_t tunnel_receive(struct conn *conn, void *to, size_t cap)
{
    (void)to;
    (void)cap;
    conn->input_held = false;
    if (stream_of(conn) != NULL) {
        http2_body_resume(request_of(conn));
    }
    errno = EAGAIN;
    return -1;
}

static void has_room(struct request *req)
{
    struct http2_stream *s = req->stream;
    if (s->tunnel != NULL) {
        conn_flush(s->tunnel);
    }
}

static ssize_t tunnel_send(struct conn *conn, const struct iovec *vectors, int count, bool more)
{
    struct request *req = request_of(conn);
    struct http2_stream *s = stream_of(conn);
    size_t sent = 0;
    (void)more;
    if (s == NULL || s->finished) {
        errno = EPIPE;
        return -1;
    }
    size_t room = s->queued < TUNNEL_HIGH ? TUNNEL_HIGH - (size_t)s->queued : 0;
    for (int i = 0; i < count && room > 0; i++) {
        size_t n = vectors[i].iov_len < room ? vectors[i].iov_len : room;
        response_write(req, vectors[i].iov_base, n);
        sent += n;
        room -= n;
    }
    if (room == 0) {
        req->on_drained = has_room;
        req->ops->notify_drained(req);
    }
    if (sent == 0) {
        errno = EAGAIN;
        return -1;
    }
    return (ssize_t)sent;
}

static ssize_t tunnel_send_file(struct conn *conn, int fd, off_t offset, size_t len)
{
    (void)conn;
    (void)fd;
    (void)offset;
    (void)len;
    errno = ENOTSUP; /* nothing that is tunnelled has files */
    return -1;
}

static void tunnel_shutdown(struct conn *conn)
{
    if (stream_of(conn) != NULL && !stream_of(conn)->finished) {
        response_end(request_of(conn));
    }
}

static void tunnel_close(struct conn *conn)
{
    struct request *req = request_of(conn);
    struct http2_stream *s = stream_of(conn);
    req->on_gone = NULL;
    req->on_drained = NULL;
    ((struct http2_stream *)req->stream)->tunnel = NULL;
    if (s != NULL && !s->finished) {
        http2_reset(s, NGHTTP2_CANCEL);
    } else if (s != NULL) {
        http2_attend(s); /* what the client has not ended by now is ended for it */
    }
    request_release(req);
}

static const struct transport transport_tunnel = {
    .name = "h2 stream",
    .secure = false,
    .receive = tunnel_receive,
    .send = tunnel_send,
    .send_file = tunnel_send_file,
    .shutdown = tunnel_shutdown,
    .close = tunnel_close,
};

static const struct transport transport_secure_tunnel = {
    .name = "h2 stream over tls",
    .secure = true,
    .receive = tunnel_receive,
    .send = tunnel_send,
    .send_file = tunnel_send_file,
    .shutdown = tunnel_shutdown,
    .close = tunnel_close,
};

/* ---- from the stream ------------------------------------------------------------------------ */

static bool on_bytes(struct request *req, const uint8_t *data, size_t len)
{
    struct http2_stream *s = req->stream;
    if (s->tunnel == NULL) {
        return true;
    }
    conn_feed(s->tunnel, data, len);
    if (s->tunnel != NULL && s->tunnel->read_paused) {
        http2_body_pause(req);
    }
    return true;
}

static void on_end(struct request *req)
{
    struct http2_stream *s = req->stream;
    if (s->tunnel != NULL) {
        conn_feed_end(s->tunnel);
    }
}

static void on_gone(struct request *req)
{
    struct http2_stream *s = req->stream;
    if (s->tunnel != NULL) {
        conn_close(s->tunnel, CONN_CLOSE_ERROR);
    }
}

static void on_error(struct request *req, int status)
{
    if (status != 0) { /* 0: on_gone follows */
        on_gone(req);
    }
}

static const struct body_sink sink = {.on_bytes = on_bytes, .on_end = on_end, .on_error = on_error};

void http2_tunnel_ended(struct conn *tunnel)
{
    conn_feed_end(tunnel);
}

/* ---- the handover ------------------------------------------------------------------------------ */

struct conn *http2_upgrade_conn(struct request *req)
{
    struct http2_stream *s = req->stream;
    if (s->aborted || s->h->dead) {
        return NULL;
    }
    const struct transport *transport = s->h->conn->transport->secure ? &transport_secure_tunnel : &transport_tunnel;
    s->tunnel = conn_open_tunnel(s->h->conn, transport, req);
    if (s->tunnel != NULL) {
        request_hold(req);
    }
    return s->tunnel;
}

bool http2_upgrade_stream(struct request *req, const struct protocol *protocol, void *proto)
{
    struct http2_stream *s = req->stream;
    s->tunnel->protocol = protocol;
    s->tunnel->proto = proto;
    req->on_gone = on_gone;
    req->body.sink = &sink;
    req->body.limit = 0;
    http2_body_resume(req);
    return true;
}
