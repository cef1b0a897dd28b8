/* The way in of a TLS connection: records become bytes. What is no data is answered here. */
#include "connection/tls_private.h"

#include "observe/log.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>

enum {
    ALERT_BYTES = 2,
    LEVEL_WARNING = 1,
    KEY_UPDATE = 24, /* type of the message */
    KEY_UPDATE_BYTES = 5, /* type, length (3), request_update */
};

/* A record of data or none: true while a peer that sends nothing but the latter is borne. */
static bool count_nothing(struct tls *tls, size_t len)
{
    tls->nothings = len > 0 ? 0 : (uint8_t)(tls->nothings + 1);
    return tls->nothings <= TLS_NOTHINGS;
}

/* What the peer says of itself. *failed: it gives up, and needs no answer. */
static enum tls_alert take_alert(struct tls *tls, const uint8_t *data, size_t len, bool *failed)
{
    if (len != ALERT_BYTES) {
        return ALERT_DECODE_ERROR;
    }
    if (data[1] == ALERT_CLOSE_NOTIFY) {
        tls->ended = true;
        return ALERT_NONE;
    }
    bool harmless = tls->format->tls13 ? data[1] == ALERT_USER_CANCELED : data[0] == LEVEL_WARNING;
    if (!harmless) {
        log_debug("TLS connection failed: the peer sent alert %u", data[1]);
        *failed = true;
    }
    return ALERT_NONE;
}

/* TLS 1.3: a client sends nothing but KeyUpdate after its handshake (it was not asked for a certificate then). */
static enum tls_alert take_key_update(struct tls *tls, const uint8_t *data, size_t len)
{
    if (len == 0 || len > (size_t)(KEY_UPDATE_BYTES - tls->message_len)) {
        return ALERT_UNEXPECTED_MESSAGE;
    }
    memcpy(tls->message + tls->message_len, data, len);
    tls->message_len = (uint8_t)(tls->message_len + len);
    if (tls->message[0] != KEY_UPDATE) {
        return ALERT_UNEXPECTED_MESSAGE;
    }
    if (tls->message_len < KEY_UPDATE_BYTES) {
        return ALERT_NONE;
    }
    static const uint8_t head[] = {KEY_UPDATE, 0, 0, 1};
    uint8_t wanted = tls->message[4];
    tls->message_len = 0;
    if (memcmp(tls->message, head, sizeof head) != 0) {
        return ALERT_DECODE_ERROR;
    }
    if (wanted > 1) {
        return ALERT_ILLEGAL_PARAMETER;
    }
    if (!tls_keys_update(&tls->in, tls->format, false) || (wanted == 1 && !tls_put_key_update(tls))) {
        return ALERT_INTERNAL_ERROR;
    }
    return ALERT_NONE;
}

static enum tls_alert take_other(struct tls *tls, uint8_t type, const uint8_t *data, size_t len, bool *failed)
{
    switch (type) {
    case RECORD_ALERT: return take_alert(tls, data, len, failed);
    case RECORD_HANDSHAKE:
        if (tls->format->tls13) {
            return take_key_update(tls, data, len);
        }
        tls_put_alert(tls, ALERT_NO_RENEGOTIATION);
        return ALERT_NONE;
    default: return ALERT_UNEXPECTED_MESSAGE;
    }
}

static bool fail(struct tls *tls, enum tls_alert alert)
{
    log_debug("TLS connection failed: what the peer sent gets alert %d", (int)alert);
    tls->failed = true;
    tls->shared->in_left = 0;
    tls_put_alert(tls, alert);
    return false;
}

/* One record that is there as a whole. */
static bool take_record(struct tls *tls, size_t record_len, uint8_t *to, size_t *used)
{
    struct tls_loop *shared = tls->shared;
    uint8_t type;
    size_t len;
    enum tls_alert alert = record_open(&tls->in, tls->format, shared->in, record_len, to + *used, &len, &type);
    shared->in += record_len;
    shared->in_left -= record_len;
    if (alert != ALERT_NONE) {
        return fail(tls, alert);
    }
    bool data = type == RECORD_DATA;
    if (!count_nothing(tls, data ? len : 0)) {
        return fail(tls, ALERT_UNEXPECTED_MESSAGE);
    }
    if (data && tls->message_len > 0) {
        return fail(tls, ALERT_UNEXPECTED_MESSAGE); /* in the midst of a message */
    }
    if (data) {
        *used += len;
        return true;
    }
    bool failed = false;
    alert = take_other(tls, type, to + *used, len, &failed);
    if (alert != ALERT_NONE) {
        return fail(tls, alert);
    }
    tls->failed = tls->failed || failed;
    return !failed;
}

static bool keep(struct tls *tls)
{
    struct tls_loop *shared = tls->shared;
    if (shared->in_left == 0) {
        return true;
    }
    CHECK(tls->partial == NULL && shared->in_left < TLS_RECORD_ROOM);
    tls->partial = malloc(shared->in_left);
    if (tls->partial == NULL) {
        return fail(tls, ALERT_INTERNAL_ERROR);
    }
    memcpy(tls->partial, shared->in, shared->in_left);
    tls->partial_len = (uint32_t)shared->in_left;
    shared->in_left = 0;
    return true;
}

bool tls_input(struct tls *tls, uint8_t *to, size_t cap, size_t *used)
{
    struct tls_loop *shared = tls->shared;
    while (shared->in_left >= RECORD_HEAD && !tls->ended) {
        enum tls_alert alert;
        size_t len = record_length(tls->format, shared->in, &alert);
        if (len == 0) {
            return fail(tls, alert);
        }
        if (len > shared->in_left) {
            break;
        }
        CHECK(cap - *used >= len);
        if (!take_record(tls, len, to, used)) {
            return false;
        }
    }
    if (tls->ended) {
        shared->in_left = 0; /* nothing counts behind close_notify */
    }
    return keep(tls);
}
