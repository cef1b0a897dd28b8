/* The way out of a TLS connection: bytes become records, records leave together.
 *
 * What a peer asks for with each record it sends (new keys, a renegotiation) gets one answer for all of them while it
 * takes nothing (RFC 8446, 4.6.3, has that in mind): otherwise it could make us hold as many answers as it likes. */
#include "connection/tls_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* A client can use a record when all of it has come. On a new or idle connection, where only a few
 * packets leave before the first answer to them, small records let it begin with the first
 * packet; on a busy one large records cost less on both sides. */
enum {
    RECORD_SMALL = 1369, /* fits into one packet with what is around it */
    RECORD_MIDDLE = 4096,
    RUN_SMALL = 12 * 1024,
    RUN_MIDDLE = 64 * 1024,
    IDLE_MS = 1000,

    RECORD_VECTORS = 64, /* as many as output.c hands over at once */
    RECORDS_A_KEY = 1 << 24, /* of AES-GCM: RFC 8446, 5.5 */
};

/* ---- to the kernel ----------------------------------------------------------------------------- */

static bool hold(struct tls *tls, const uint8_t *data, size_t len)
{
    size_t kept = tls->held_len - tls->held_at;
    uint8_t *held = malloc(kept + len);
    if (held == NULL) {
        return false;
    }
    if (kept > 0) {
        memcpy(held, tls->held + tls->held_at, kept);
    }
    memcpy(held + kept, data, len);
    free(tls->held);
    tls->held = held;
    tls->held_at = 0;
    tls->held_len = (uint32_t)(kept + len);
    return true;
}

/* Bytes taken; -1 with errno. */
static ssize_t give(struct conn *conn, const uint8_t *data, size_t len, bool more)
{
    ssize_t n;
    do {
        n = send(conn->watch.fd, data, len, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    } while (n < 0 && errno == EINTR);
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : n;
}

static enum tls_sent give_held(struct conn *conn, struct tls *tls)
{
    while (tls->held != NULL) {
        ssize_t n = give(conn, tls->held + tls->held_at, tls->held_len - tls->held_at, false);
        if (n <= 0) {
            return n < 0 ? TLS_FAILED : TLS_BLOCKED;
        }
        tls->held_at += (uint32_t)n;
        if (tls->held_at == tls->held_len) {
            free(tls->held);
            tls->held = NULL;
            tls->held_at = 0;
            tls->held_len = 0;
        }
    }
    return TLS_SENT;
}

/* The answers to what the peer has asked for while it took nothing, now that nothing is in front of them. */
static bool put_replies(struct tls *tls)
{
    bool alert = tls->alert_waits;
    bool update = tls->update_waits;
    tls->alert_waits = false;
    tls->update_waits = false;
    return (!alert || tls_put(tls, RECORD_ALERT, tls->alert, sizeof tls->alert)) &&
           (!update || tls_put_key_update(tls));
}

enum tls_sent tls_flush(struct conn *conn, bool more)
{
    struct tls *tls = tls_of(conn);
    if (tls->kernel) {
        return tls_kernel_flush(conn);
    }
    struct tls_loop *shared = tls->shared;
    size_t len = shared->out_len;
    shared->out_len = 0;
    if (shared->out_failed) {
        shared->out_failed = false;
        errno = ENOMEM;
        return TLS_FAILED;
    }
    enum tls_sent result = give_held(conn, tls);
    if (result == TLS_SENT && len == 0) {
        result = put_replies(tls) ? TLS_SENT : TLS_FAILED;
        len = shared->out_len;
        shared->out_len = 0;
    }
    ssize_t n = 0;
    if (result == TLS_SENT && len > 0) {
        n = give(conn, shared->out, len, more);
        result = n < 0 ? TLS_FAILED : (size_t)n < len ? TLS_BLOCKED : TLS_SENT;
    }
    if (result == TLS_BLOCKED && (size_t)n < len && !hold(tls, shared->out + n, len - (size_t)n)) {
        errno = ENOMEM;
        return TLS_FAILED;
    }
    return result;
}

/* ---- records ------------------------------------------------------------------------------------- */

static size_t record_size(struct conn *conn, struct tls *tls)
{
    uint64_t now = loop_now_ms(conn->loop);
    if (now - tls->sent_ms > IDLE_MS) {
        tls->run = 0;
    }
    tls->sent_ms = now;
    size_t size = tls->run < RUN_SMALL ? RECORD_SMALL : tls->run < RUN_MIDDLE ? RECORD_MIDDLE : RECORD_MAX;
    return size < tls->record_most ? size : tls->record_most;
}

static bool put_vectors(struct tls *tls, uint8_t type, const struct iovec *vectors, size_t len)
{
    struct tls_loop *shared = tls->shared;
    uint8_t *to = tls_loop_room(shared, len + RECORD_AROUND);
    size_t made = to != NULL ? record_seal(&tls->out, tls->format, type, vectors, len, to) : 0;
    if (made == 0) {
        tls->failed = true;
        errno = to != NULL ? EPROTO : ENOMEM;
        return false;
    }
    shared->out_len += made;
    return true;
}

bool tls_put(struct tls *tls, uint8_t type, const void *data, size_t len)
{
    struct iovec vector = {(void *)(uintptr_t)data, len};
    return put_vectors(tls, type, &vector, len);
}

void tls_put_alert(struct tls *tls, enum tls_alert alert)
{
    bool warning = alert == ALERT_CLOSE_NOTIFY || alert == ALERT_NO_RENEGOTIATION;
    const uint8_t bytes[] = {warning ? 1 : 2, (uint8_t)alert};
    if (tls->kernel || (alert == ALERT_NO_RENEGOTIATION && tls->held != NULL)) {
        memcpy(tls->alert, bytes, sizeof bytes);
        tls->alert_waits = true;
        return;
    }
    if (alert != ALERT_NO_RENEGOTIATION) { /* it is the last word */
        tls->alert_waits = false;
        tls->update_waits = false;
    }
    tls_put(tls, RECORD_ALERT, bytes, sizeof bytes);
}

const uint8_t tls_key_update[5] = {24, 0, 0, 1, 0};

bool tls_put_key_update(struct tls *tls)
{
    if (tls->kernel || tls->held != NULL) {
        tls->update_waits = true;
        return true;
    }
    return tls_put(tls, RECORD_HANDSHAKE, tls_key_update, sizeof tls_key_update) &&
           tls_keys_update(&tls->out, tls->format, true);
}

/* ---- from memory ---------------------------------------------------------------------------------- */

struct source {
    const struct iovec *vectors;
    int left;
    size_t at; /* in the first of them */
};

static void skip(struct source *source, size_t len)
{
    while (source->left > 0 && len >= source->vectors->iov_len - source->at) {
        len -= source->vectors->iov_len - source->at;
        source->vectors++;
        source->left--;
        source->at = 0;
    }
    source->at += len;
}

/* Up to `most` of the bytes that come next, where they lie. */
static size_t look(const struct source *source, size_t most, struct iovec out[RECORD_VECTORS])
{
    size_t len = 0;
    size_t at = source->at;
    for (int i = 0; i < source->left && i < RECORD_VECTORS && len < most; i++) {
        const struct iovec *vector = &source->vectors[i];
        size_t n = vector->iov_len - at < most - len ? vector->iov_len - at : most - len;
        out[i] = (struct iovec){(char *)vector->iov_base + at, n};
        len += n;
        at = 0;
    }
    return len;
}

/* Records of up to TLS_BATCH bytes into the loop's buffer. The bytes in them; 0: it failed. */
static size_t make_batch(struct conn *conn, struct tls *tls, struct source *source)
{
    size_t made = 0;
    while (source->left > 0 && made < TLS_BATCH) {
        struct iovec vectors[RECORD_VECTORS];
        size_t len = look(source, record_size(conn, tls), vectors);
        if (tls->out.sequence >= RECORDS_A_KEY && tls->format->tls13 && !tls_put_key_update(tls)) {
            return 0;
        }
        if (!put_vectors(tls, RECORD_DATA, vectors, len)) {
            return 0;
        }
        tls->run = tls->run < RUN_MIDDLE ? tls->run + (uint32_t)len : tls->run;
        skip(source, len);
        made += len;
    }
    return made;
}

static ssize_t blocked(size_t done)
{
    if (done > 0) {
        return (ssize_t)done;
    }
    errno = EAGAIN;
    return -1;
}

ssize_t tls_send(struct conn *conn, const struct iovec *vectors, int count, bool more)
{
    struct tls *tls = tls_of(conn);
    enum tls_sent sent = tls->held != NULL ? tls_flush(conn, false) : TLS_SENT;
    if (sent != TLS_SENT) {
        return sent == TLS_BLOCKED ? blocked(0) : -1;
    }
    size_t done = tls->ahead;
    struct source source = {vectors, count, 0};
    skip(&source, done);
    tls->ahead = 0;
    while (source.left > 0) {
        size_t made = make_batch(conn, tls, &source);
        if (made == 0) {
            return -1;
        }
        sent = tls_flush(conn, more || source.left > 0);
        if (sent == TLS_FAILED) {
            return -1;
        }
        if (sent == TLS_BLOCKED) {
            tls->ahead = (uint32_t)made;
            return blocked(done);
        }
        done += made;
    }
    return (ssize_t)done;
}

/* ---- from a file ------------------------------------------------------------------------------------ */

/* As sendfile: 0 at the end of the file. */
ssize_t tls_send_file(struct conn *conn, int fd, off_t offset, size_t len)
{
    struct tls *tls = tls_of(conn);
    struct tls_loop *shared = tls->shared;
    enum tls_sent sent = tls->held != NULL ? tls_flush(conn, false) : TLS_SENT;
    if (sent != TLS_SENT) {
        return sent == TLS_BLOCKED ? blocked(0) : -1;
    }
    if (tls->ahead > 0) {
        size_t done = tls->ahead;
        tls->ahead = 0;
        return (ssize_t)done;
    }
    if (tls_kernel_begin(conn, len)) {
        return conn->transport->send_file(conn, fd, offset, len);
    }
    if (shared->file == NULL && (shared->file = malloc(TLS_BATCH)) == NULL) {
        return -1;
    }
    ssize_t n = pread(fd, shared->file, len < TLS_BATCH ? len : TLS_BATCH, offset);
    if (n <= 0) {
        return n;
    }
    struct iovec vector = {shared->file, (size_t)n};
    struct source source = {&vector, 1, 0};
    if (make_batch(conn, tls, &source) == 0) {
        return -1;
    }
    sent = tls_flush(conn, (size_t)n < len);
    if (sent == TLS_BLOCKED) {
        tls->ahead = (uint32_t)n;
        return blocked(0);
    }
    return sent == TLS_SENT ? n : -1;
}
