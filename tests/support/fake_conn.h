/* A connection whose peer is the test: bytes go in and come out by calls, sending blocks when
 * the test says so, time passes when the test says so. The loop is driven by hand on the test's
 * thread, so every run is the same. A socket pair stands in for the descriptor. */
#ifndef KILN_TESTS_SUPPORT_FAKE_CONN_H
#define KILN_TESTS_SUPPORT_FAKE_CONN_H

#include "base/arena.h"
#include "base/buffer.h"
#include "config/config.h"
#include "connection/conn.h"
#include "loop/config_hold.h"
#include "loop/loop_private.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct fake {
    struct loop *loop;
    struct conn *conn; /* NULL once closed */
    int other; /* far end of the socket pair; nothing passes through it */
    const uint8_t *in; /* what the next receive calls get */
    size_t in_len;
    size_t piece; /* at most this much per receive; 0: no limit */
    bool eof;
    bool reset;
    struct buffer out; /* everything that was sent */
    size_t budget; /* bytes that may still be sent; SIZE_MAX: no limit */
    unsigned sends;
    bool half_closed; /* our side has ended its output */
};

static inline struct fake *fake_of(const struct conn *conn)
{
    return conn->transport_state;
}

static inline ssize_t fake_receive(struct conn *conn, void *to, size_t cap)
{
    struct fake *f = fake_of(conn);
    if (f->reset) {
        errno = ECONNRESET;
        return -1;
    }
    if (f->in_len == 0) {
        errno = EAGAIN;
        return f->eof ? 0 : -1;
    }
    size_t n = f->in_len < cap ? f->in_len : cap;
    n = f->piece > 0 && f->piece < n ? f->piece : n;
    memcpy(to, f->in, n);
    f->in += n;
    f->in_len -= n;
    return (ssize_t)n;
}

static inline ssize_t fake_send(struct conn *conn, const struct iovec *vectors, int count, bool more)
{
    struct fake *f = fake_of(conn);
    ssize_t total = 0;
    (void)more;
    f->sends++;
    for (int i = 0; i < count; i++) {
        size_t n = vectors[i].iov_len < f->budget ? vectors[i].iov_len : f->budget;
        buffer_append(&f->out, vectors[i].iov_base, n);
        f->budget -= f->budget == SIZE_MAX ? 0 : n;
        total += (ssize_t)n;
    }
    if (total == 0) {
        errno = EAGAIN;
        return -1;
    }
    return total;
}

static inline ssize_t fake_send_file(struct conn *conn, int fd, off_t offset, size_t len)
{
    struct fake *f = fake_of(conn);
    len = len < f->budget ? len : f->budget;
    if (len == 0) {
        errno = EAGAIN;
        return -1;
    }
    char *to = buffer_reserve(&f->out, len);
    ssize_t n = pread(fd, to, len, offset);
    if (n > 0) {
        f->out.len += (size_t)n;
        f->budget -= f->budget == SIZE_MAX ? 0 : (size_t)n;
    }
    return n;
}

static inline void fake_shutdown(struct conn *conn)
{
    fake_of(conn)->half_closed = true;
}

static inline void fake_closed(struct conn *conn)
{
    fake_of(conn)->conn = NULL;
}

static const struct transport transport_fake = {
    .name = "fake",
    .receive = fake_receive,
    .send = fake_send,
    .send_file = fake_send_file,
    .shutdown = fake_shutdown,
    .close = fake_closed,
};

/* The transport's state is set by the time the protocol can send. */
static inline bool fake_open(struct fake *f, struct loop *loop, const struct protocol *protocol)
{
    int pair[2];
    *f = (struct fake){.loop = loop, .budget = SIZE_MAX};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
        return false;
    }
    const struct sockaddr_storage peer = {.ss_family = AF_UNIX};
    f->other = pair[1];
    f->conn = conn_open(loop, pair[0], NULL, &transport_fake, protocol, &peer);
    if (f->conn == NULL) {
        close(pair[1]);
        return false;
    }
    f->conn->transport_state = f;
    return true;
}

/* The connection takes what arrives: not paused, and the peer has not ended. */
static inline bool fake_reads(const struct fake *f)
{
    return f->conn != NULL && !f->conn->read_paused && !f->conn->eof_seen;
}

/* What the loop would do now: readiness as long as there is any, then the deferred tasks, until
 * nothing moves any more. */
static inline void fake_run(struct fake *f)
{
    for (;;) {
        loop_run_deferred(f->loop);
        uint32_t ready = 0;
        if (f->conn == NULL) {
            return;
        }
        if (fake_reads(f) && (f->in_len > 0 || f->eof || f->reset)) {
            ready |= LOOP_READ | (f->eof ? LOOP_HANGUP : 0) | (f->reset ? LOOP_ERROR : 0);
        }
        if (conn_pending(f->conn) > 0 && f->budget > 0) {
            ready |= LOOP_WRITE;
        }
        if (ready == 0) {
            return;
        }
        f->conn->watch.on_ready(&f->conn->watch, ready);
    }
}

static inline void fake_input(struct fake *f, const void *data, size_t len)
{
    f->in = data;
    f->in_len = len;
    fake_run(f);
}

static inline void fake_text(struct fake *f, const char *text)
{
    fake_input(f, text, strlen(text));
}

static inline void fake_eof(struct fake *f)
{
    f->eof = true;
    fake_run(f);
}

static inline void fake_wait(struct fake *f, uint64_t ms)
{
    f->loop->now_ms += ms;
    timers_run(f->loop);
    fake_run(f);
}

/* Output so far as a C string; taken away. The buffer is the caller's. */
static inline char *fake_take(struct fake *f)
{
    buffer_append_char(&f->out, '\0');
    char *text = f->out.data;
    f->out = BUFFER_EMPTY;
    return text;
}

static inline void fake_close(struct fake *f)
{
    if (f->conn != NULL) {
        conn_close(f->conn, CONN_CLOSE_LOCAL);
    }
    loop_run_deferred(f->loop);
    close(f->other);
    buffer_free(&f->out);
}

/* A loop with a config of defaults changed by {"key", "value", ..., NULL}. */
static inline struct loop *fake_loop(const char *const *options)
{
    struct config_errors errors = {0};
    struct config_overrides overrides = {0};
    for (; options != NULL && *options != NULL; options += 2) {
        overrides.name[overrides.count] = options[0];
        overrides.value[overrides.count++] = options[1];
    }
    struct config *config = config_parse(STR_NONE, "test", &overrides, &errors);
    if (config == NULL) {
        fprintf(stderr, "%.*s", STR_ARG(buffer_str(&errors.text)));
        abort();
    }
    config_errors_free(&errors);
    struct loop *loop = loop_create(0);
    config_hold_set(loop, config);
    config_unref(config);
    return loop;
}

static inline void fake_loop_free(struct loop *loop)
{
    conn_close_all(loop);
    loop_run_deferred(loop);
    conn_loop_free(loop);
    config_hold_clear(loop);
    loop_destroy(loop);
    arena_pool_drain();
}

#endif
