#include "connection/tls.h"

#include "config/config.h"
#include "connection/certs.h"
#include "connection/handshakes.h"
#include "connection/tls_context.h"
#include "connection/tls_private.h"
#include "loop/config_hold.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "protocol/alpn.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the handshake --------------------------------------------------------------------------------- */

static void free_opening(struct tls *tls)
{
    struct tls_opening *opening = tls->opening;
    if (opening != NULL) {
        tls->opening = NULL;
        /* No session is kept here, so there is none to take out of a cache. */
        SSL_set_shutdown(opening->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
        SSL_free(opening->ssl);
        OPENSSL_cleanse(opening, sizeof *opening);
        free(opening);
    }
}

static bool make_opening(struct tls *tls)
{
    SSL_CTX *ctx = tls_context_current();
    struct tls_opening *opening = calloc(1, sizeof *opening);
    SSL *ssl = ctx != NULL && opening != NULL ? SSL_new(ctx) : NULL;
    if (ssl == NULL || SSL_set_app_data(ssl, opening) != 1) {
        ERR_clear_error();
        SSL_free(ssl);
        free(opening);
        return false;
    }
    BIO_up_ref(tls->shared->bio);
    SSL_set_bio(ssl, tls->shared->bio, tls->shared->bio);
    SSL_set_accept_state(ssl);
    opening->ssl = ssl;
    tls->opening = opening;
    return true;
}

static void end_count(struct conn *conn, struct tls *tls)
{
    if (tls->counted) {
        tls->counted = false;
        handshakes_end(&conn->peer);
    }
}

/* Somebody speaks HTTP without encryption: told so, in a way that a person can read. */
static void answer_plain(struct conn *conn)
{
    static const char page[] =
        "<!DOCTYPE html><html lang=\"en\"><title>400 Bad Request</title><h1>400 Bad Request</h1><p>This port speaks "
        "HTTPS, and the request came as plain HTTP. Write <code>https://</code> in front of the address instead of "
        "<code>http://</code>.</p></html>\n";
    char head[160];
    int head_len = snprintf(head, sizeof head,
                            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/html; charset=utf-8\r\n"
                            "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                            sizeof page - 1);
    metric_add(METRIC_TLS_PLAIN, 1);
    end_count(conn, tls_of(conn));
    free(tls_of(conn));
    conn->transport_state = NULL;
    conn->transport = &transport_plain;
    conn_write(conn, head, (size_t)head_len);
    conn_write(conn, page, sizeof page - 1);
    conn_finish(conn, CONN_CLOSE_ERROR);
}

/* The handshake ended badly: what OpenSSL has to say to the peer (an alert) goes out, and the
 * connection lingers until the peer has had time to read it. */
static void refuse_handshake(struct conn *conn, struct tls *tls)
{
    if (log_enabled(LOG_DEBUG)) {
        char peer[ADDRESS_TEXT];
        address_text(&conn->peer, peer);
        log_debug("TLS handshake of %s failed: %s", peer, openssl_error());
    }
    ERR_clear_error();
    metric_add(METRIC_TLS_FAILED, 1);
    tls->failed = true;
    tls->closing = true;
    tls_flush(conn, false);
    conn_finish(conn, CONN_CLOSE_ERROR);
}

/* What requests may ask of the handshake later. */
static bool remember(struct tls *tls, const SSL *ssl)
{
    const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
    uint8_t most = SSL_SESSION_get_max_fragment_length(SSL_get_session(ssl)); /* RFC 6066, 4 */
    tls->record_most = (uint16_t)(most > 0 ? 256 << most : RECORD_MAX);
    tls->certs = cert_set_ref(tls_context_certs(ssl));
    tls->shown = SSL_get_certificate(ssl);
    if (name != NULL && (tls->name = strdup(name)) == NULL) {
        return false;
    }
    return tls_client_read(tls, ssl);
}

/* The negotiated protocol takes the place of protocol_tls, and records that of OpenSSL's object. */
static bool begin_protocol(struct conn *conn, struct tls *tls)
{
    const SSL *ssl = tls->opening->ssl;
    const unsigned char *name = NULL;
    unsigned len = 0;
    SSL_get0_alpn_selected(ssl, &name, &len);
    const struct protocol *protocol = protocol_for_alpn((struct str){(const char *)name, len});
    if (!tls_keys_take(tls)) {
        /* More behind the client's Finished in one record does this, too: no error of ours. */
        log_debug("a TLS connection was closed: its keys could not be set up");
        return false;
    }
    metric_add(METRIC_TLS_HANDSHAKES, 1);
    if (SSL_session_reused(ssl)) {
        metric_add(METRIC_TLS_RESUMED, 1);
    }
    if (!remember(tls, ssl)) {
        return false;
    }
    free_opening(tls);
    tls->established = true;
    end_count(conn, tls);
    if (!protocol->on_open(conn)) {
        return false;
    }
    conn->protocol = protocol;
    return true;
}

enum handshake_result {
    HANDSHAKE_WAITS, /* for more bytes */
    HANDSHAKE_DONE, /* application data may follow */
    HANDSHAKE_ENDED, /* it was no good, or none at all; the connection may be gone */
};

static enum handshake_result handshake(struct conn *conn, struct tls *tls)
{
    struct tls_loop *shared = tls->shared;
    if (tls->opening == NULL) {
        uint8_t first = shared->in[0];
        if (first >= 'A' && first <= 'z') {
            answer_plain(conn);
            return HANDSHAKE_ENDED;
        }
        if (!make_opening(tls)) {
            log_error("a TLS connection was refused: there is no certificate, or no memory");
            refuse_handshake(conn, tls);
            return HANDSHAKE_ENDED;
        }
    }
    shared->starved = false;
    bool done = tls_keys_shake(tls->opening);
    tls_keys_see_sent(tls->opening, shared->out, shared->out_len);
    if (!done && shared->starved) {
        return HANDSHAKE_WAITS;
    }
    if (!done || !begin_protocol(conn, tls)) {
        refuse_handshake(conn, tls);
        return HANDSHAKE_ENDED;
    }
    return HANDSHAKE_DONE;
}

/* ---- input ------------------------------------------------------------------------------------------- */

static ssize_t receive_bytes(struct conn *conn, uint8_t *to, size_t cap)
{
    ssize_t n;
    do {
        n = recv(conn->watch.fd, to, cap, 0);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* OpenSSL may have written: an answer in the handshake, tickets, a change of keys. */
static bool send_own(struct conn *conn, struct tls *tls)
{
    if (tls->shared->out_len == 0 && !tls->alert_waits && !tls->update_waits) {
        return true;
    }
    switch (tls_flush(conn, false)) {
    case TLS_SENT: return true;
    case TLS_BLOCKED: conn_transport_waits(conn, true); return true;
    case TLS_FAILED: break;
    }
    return false;
}

/* Behind what was kept of a record, so that both lie in one piece. */
static ssize_t receive_behind(struct conn *conn, struct tls *tls)
{
    struct tls_loop *shared = tls->shared;
    size_t kept = tls->partial_len;
    ssize_t n = receive_bytes(conn, shared->received + kept, TLS_RECEIVE_BYTES);
    if (n <= 0) {
        return n;
    }
    if (tls->partial != NULL) {
        memcpy(shared->received, tls->partial, kept);
        free(tls->partial);
        tls->partial = NULL;
        tls->partial_len = 0;
    }
    shared->in = shared->received;
    shared->in_left = kept + (size_t)n;
    return n;
}

/* One recv and what it held. False: nothing more comes of it now; errno says why. */
static bool receive_once(struct conn *conn, struct tls *tls, uint8_t *to, size_t cap, size_t *used, bool *more)
{
    struct tls_loop *shared = tls->shared;
    ssize_t n = receive_behind(conn, tls);
    *more = n == TLS_RECEIVE_BYTES;
    if (n <= 0) {
        tls->ended = tls->ended || n == 0;
        return n == 0;
    }
    enum handshake_result ready = tls->established ? HANDSHAKE_DONE : handshake(conn, tls);
    if (ready == HANDSHAKE_ENDED) {
        shared->in_left = 0;
        errno = EAGAIN;
        return false;
    }
    bool ok = ready == HANDSHAKE_WAITS || tls_input(tls, to, cap, used);
    shared->in_left = 0;
    if (!send_own(conn, tls) || !ok) {
        errno = ok ? errno : EPROTO;
        return false;
    }
    return true;
}

ssize_t tls_receive(struct conn *conn, void *to, size_t cap)
{
    struct tls *tls = tls_of(conn);
    conn->input_held = false;
    if (tls->closing) {
        return receive_bytes(conn, to, cap);
    }
    CHECK(cap > TLS_RECEIVE_BYTES + TLS_RECORD_ROOM); /* one recv and the rest of a record always fit */
    size_t used = 0;
    bool more = true;
    while (more && !tls->ended && cap - used > TLS_RECEIVE_BYTES + TLS_RECORD_ROOM) {
        if (!receive_once(conn, tls, to, cap, &used, &more)) {
            return used > 0 && errno == EAGAIN ? (ssize_t)used : -1;
        }
    }
    if (used == 0 && !tls->ended) {
        errno = EAGAIN;
        return -1;
    }
    /* Nobody will be told again of what was seen already. */
    conn->input_held = used > 0 && (tls->ended || more);
    return (ssize_t)used;
}

/* ---- the rest of the transport ------------------------------------------------------------------------- */

bool tls_resume(struct conn *conn)
{
    switch (tls_flush(conn, false)) {
    case TLS_SENT: conn_transport_waits(conn, false); return true;
    case TLS_BLOCKED: return true;
    case TLS_FAILED: break;
    }
    return false;
}

void tls_shutdown(struct conn *conn)
{
    struct tls *tls = tls_of(conn);
    if (tls->established && !tls->failed && !tls->closing) {
        tls_put_alert(tls, ALERT_CLOSE_NOTIFY);
        if (tls_flush(conn, !conn->eof_seen) == TLS_BLOCKED) { /* the end of the stream follows (conn.c) */
            conn_transport_waits(conn, true);
        }
    }
    tls->closing = true;
}

void tls_close(struct conn *conn)
{
    struct tls *tls = tls_of(conn);
    conn->transport_state = NULL;
    end_count(conn, tls);
    free_opening(tls);
    record_way_free(&tls->in);
    record_way_free(&tls->out);
    free(tls->partial);
    free(tls->held);
    free(tls->client);
    free(tls->name);
    cert_set_unref(tls->certs);
    tls->magic = 0;
    free(tls);
}

const struct transport transport_tls = {
    .name = "tls",
    .secure = true,
    .receive = tls_receive,
    .send = tls_send,
    .send_file = tls_send_file,
    .resume = tls_resume,
    .shutdown = tls_shutdown,
    .close = tls_close,
};

/* ---- until the handshake is done ------------------------------------------------------------------------- */

static bool opening_on_open(struct conn *conn)
{
    const struct config *config = config_hold_current(conn->loop);
    const struct handshake_limits limits = {.unfinished = (unsigned)config->handshakes_per_address,
                                            .per_second = (unsigned)config->handshake_rate};
    if (!handshakes_begin(&conn->peer, loop_now_ms(conn->loop), &limits)) {
        metric_add(METRIC_TLS_LIMITED, 1);
        return false;
    }
    struct tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL) {
        handshakes_end(&conn->peer);
        return false;
    }
    tls->counted = true;
    tls->magic = TLS_MAGIC;
    tls->shared = tls_loop_of(conn->loop);
    conn->transport_state = tls;
    conn_deadline_set(conn, loop_now_ms(conn->loop) + (uint64_t)(config->handshake_timeout * 1000));
    return true;
}

static void opening_on_data(struct conn *conn, const uint8_t *data, size_t len)
{
    (void)conn;
    (void)data;
    (void)len;
    CHECK(false); /* the transport hands out nothing before the handshake is done */
}

static void opening_on_eof(struct conn *conn)
{
    conn_close(conn, CONN_CLOSE_PEER);
}

static void opening_on_nothing(struct conn *conn)
{
    (void)conn;
}

static void opening_on_deadline(struct conn *conn)
{
    metric_add(METRIC_TLS_FAILED, 1);
    conn_close(conn, CONN_CLOSE_TIMEOUT);
}

static void opening_on_close(struct conn *conn, enum conn_close_reason reason)
{
    (void)conn;
    (void)reason;
}

const struct protocol protocol_tls = {
    .name = "tls",
    .on_open = opening_on_open,
    .on_data = opening_on_data,
    .on_eof = opening_on_eof,
    .on_drained = opening_on_nothing,
    .on_deadline = opening_on_deadline,
    .on_shutdown = opening_on_nothing, /* it has its deadline, and its request is yet to come */
    .on_close = opening_on_close,
};

/* ---- what requests ask ------------------------------------------------------------------------------------- */

struct str tls_server_name(const struct conn *conn)
{
    return str_of(tls_of(conn)->name);
}

const struct tls_client *tls_client_of(const struct conn *conn)
{
    return tls_of(conn)->client;
}

bool tls_covers_host(const struct conn *conn, struct str host)
{
    const struct tls *tls = tls_of(conn);
    struct str name = tls_server_name(conn);
    if (name.len == 0 || str_eq_nocase(name, host)) {
        return true;
    }
    const struct cert_choice *choice = cert_set_find(tls->certs, host);
    for (int kind = 0; choice != NULL && kind < CERT_KINDS; kind++) {
        if (choice->by_kind[kind] != NULL && choice->by_kind[kind]->leaf == tls->shown) {
            return true;
        }
    }
    return false;
}
