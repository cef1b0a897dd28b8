/* DESIGN: once a handshake is done, its connection's records are made and opened here, with OpenSSL's
 * AEAD ciphers but without its SSL object, which is given back. Why:
 * - Memory. An SSL object with its session, certificate table, key shares and digests is 13 KB that an
 *   idle connection has no use for. The two cipher contexts that it does need are 2.3 KB.
 * - Copies. OpenSSL copies each record's bytes into a buffer of its own, encrypts them there and hands
 *   the result out to be copied again. Here a record is encrypted from where the answer's bytes
 *   lie into the batch that the next send() takes.
 * - The keys are at hand for the kernel, where it encrypts by itself (tls_kernel.h).
 *
 * All suites that are offered are AEAD (tls_context.c), so there are three formats, rows of one table:
 * TLS 1.3 (RFC 8446, 5.2), and TLS 1.2 with AES-GCM (RFC 5288) and with ChaCha20-Poly1305 (RFC 7905).
 *
 * Guarantees: nothing of a record is seen by anybody before its tag has been verified; no nonce is used
 * twice with a key, as sequence numbers only grow and a connection ends before they wrap; lengths are
 * checked before anything is read. */
#ifndef KILN_CONNECTION_TLS_RECORD_H
#define KILN_CONNECTION_TLS_RECORD_H

#include "base/str.h"

#include <openssl/evp.h>
#include <sys/uio.h>

enum {
    RECORD_CHANGE_CIPHER = 20,
    RECORD_ALERT = 21,
    RECORD_HANDSHAKE = 22,
    RECORD_DATA = 23,

    RECORD_HEAD = 5,
    RECORD_TAG = 16,
    RECORD_MAX = 16384, /* bytes that one may carry */
    RECORD_AROUND = RECORD_HEAD + 8 + 1 + RECORD_TAG, /* at most, beside them */
    RECORD_CIPHERTEXT_13 = RECORD_MAX + 256, /* what RFC 8446 lets a peer send */
    RECORD_CIPHERTEXT_12 = RECORD_MAX + 2048,

    RECORD_IV = 12,
    RECORD_SECRET_MAX = 48,
};

/* What RFC 8446 calls them (section 6). */
enum tls_alert {
    ALERT_NONE = -1,
    ALERT_CLOSE_NOTIFY = 0,
    ALERT_UNEXPECTED_MESSAGE = 10,
    ALERT_BAD_RECORD_MAC = 20,
    ALERT_RECORD_OVERFLOW = 22,
    ALERT_ILLEGAL_PARAMETER = 47,
    ALERT_DECODE_ERROR = 50,
    ALERT_INTERNAL_ERROR = 80,
    ALERT_USER_CANCELED = 90,
    ALERT_NO_RENEGOTIATION = 100,
};

/* A suite, by what its records and keys look like. */
struct record_format {
    const char *cipher; /* as OpenSSL fetches it */
    int nid;
    bool tls13;
    uint8_t key_len;
    uint8_t fixed_iv; /* bytes of the nonce that come from the handshake */
    uint8_t explicit_iv; /* bytes of it that each record carries */
};
/* NULL: no such suite is offered. */
const struct record_format *record_format_find(int nid, bool tls13);

/* One direction of a connection. */
struct record_way {
    EVP_CIPHER_CTX *cipher;
    uint64_t sequence;
    uint64_t explicit_iv; /* TLS 1.2 with AES-GCM: of the next record that is sent */
    uint8_t iv[RECORD_IV];
    uint8_t secret[RECORD_SECRET_MAX]; /* TLS 1.3: what keys are made from; TLS 1.2: the key */
};

/* The cipher of a direction gets another key; key and iv are the format's length. False: no memory. */
bool record_way_set(struct record_way *way, const struct record_format *format, const uint8_t *key, const uint8_t *iv,
                    bool seal);
void record_way_free(struct record_way *way);

/* One record with `len` bytes (at most RECORD_MAX) from `vectors` into `out`, where len + RECORD_AROUND bytes
 * of room are. Its length; 0: it cannot be done, and the connection must end. */
size_t record_seal(struct record_way *way, const struct record_format *format, uint8_t type,
                   const struct iovec *vectors, size_t len, uint8_t *out);

/* The length of the record that begins here, head included; 0: no record begins like this, and *alert says why. */
size_t record_length(const struct record_format *format, const uint8_t head[RECORD_HEAD], enum tls_alert *alert);

/* Opens a record that is there as a whole. `out` has room for all of its bytes. *len and *type are what was
 * in it. An alert other than ALERT_NONE: it was forged, or broke the rules. */
enum tls_alert record_open(struct record_way *way, const struct record_format *format, const uint8_t *record,
                           size_t record_len, uint8_t *out, size_t *len, uint8_t *type);

#endif
