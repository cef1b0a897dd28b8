/* What the protocols write: into the queue, or past an empty one. */
#include "connection/conn_private.h"
#include "connection/output.h"
#include "observe/metrics.h"

#include <errno.h>
#include <sys/uio.h>

/* The queue to write to, and a promise that it will be flushed. NULL: drop the bytes. */
static struct output *writable(struct conn *conn)
{
    if (conn->closed || conn->finishing != 0 || conn->write_failed) {
        return NULL;
    }
    if (conn->out == NULL) {
        conn->out = output_take(conn->loop);
        conn->write_failed = conn->out == NULL;
    }
    if (!conn->in_event) {
        conn_queue_flush(conn);
    }
    return conn->out;
}

void conn_write(struct conn *conn, const void *data, size_t len)
{
    struct output *out = writable(conn);
    if (out != NULL && !output_copy(out, data, len)) {
        conn->write_failed = true;
    }
}

char *conn_reserve(struct conn *conn, size_t len)
{
    struct output *out = writable(conn);
    if (out == NULL) {
        return NULL;
    }
    char *to = output_reserve(out, len);
    if (to == NULL) {
        conn->write_failed = true;
    }
    return to;
}

void conn_commit(struct conn *conn, size_t len)
{
    if (conn->out != NULL) {
        output_commit(conn->out, len);
    }
}

void conn_write_ref(struct conn *conn, const void *data, size_t len, void (*release)(void *), void *arg)
{
    struct output *out = writable(conn);
    if (out != NULL && output_ref(out, data, len, release, arg)) {
        return;
    }
    conn->write_failed = conn->write_failed || out != NULL;
    if (release != NULL) {
        release(arg);
    }
}

/* What the kernel takes of them at once. */
static size_t send_first(struct conn *conn, const struct iovec *vectors, int count)
{
    bool waits = conn->in_flush || (conn->out != NULL && output_pending(conn->out) > 0);
    if (waits || conn->closed || conn->finishing != 0 || conn->write_failed || !conn_has_socket(conn)) {
        return 0;
    }
    ssize_t n = conn->transport->send(conn, vectors, count, false);
    if (n >= 0) {
        metric_add(METRIC_BYTES_SENT, n);
        return (size_t)n;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        conn->write_failed = true;
        if (!conn->in_event) {
            conn_queue_flush(conn); /* which closes it */
        }
    }
    return 0;
}

void conn_write_now(struct conn *conn, const struct iovec *vectors, int count)
{
    size_t sent = send_first(conn, vectors, count);
    for (int i = 0; i < count; i++) {
        if (sent >= vectors[i].iov_len) {
            sent -= vectors[i].iov_len;
            continue;
        }
        conn_write(conn, (const char *)vectors[i].iov_base + sent, vectors[i].iov_len - sent);
        sent = 0;
    }
}

bool conn_cork(struct conn *conn)
{
    if (conn->in_event || conn->closed) {
        return false;
    }
    conn->in_event = true;
    return true;
}

void conn_uncork(struct conn *conn)
{
    conn->in_event = false;
    if (conn->want_drained) {
        conn_queue_flush(conn); /* on_drained is not for the middle of whatever this is */
    } else {
        conn_flush(conn);
    }
}

void conn_write_file(struct conn *conn, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg)
{
    struct output *out = writable(conn);
    if (out != NULL && output_file(out, fd, offset, len, release, arg)) {
        return;
    }
    conn->write_failed = conn->write_failed || out != NULL;
    if (release != NULL) {
        release(arg);
    }
}

size_t conn_pending(const struct conn *conn)
{
    return conn->out != NULL ? (size_t)output_pending(conn->out) : 0;
}

void conn_notify_drained(struct conn *conn)
{
    if (writable(conn) != NULL) {
        conn->want_drained = true;
    }
}
