#include "connection/tls_record.h"

#include "base/check.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/objects.h>
#include <pthread.h>

enum {
    VERSION_HIGH = 3, /* in the head of every record: TLS 1.2 */
    VERSION_LOW = 3,
    AAD_12 = 13,
};

static const struct record_format formats[] = {
    {"AES-128-GCM", NID_aes_128_gcm, true, 16, 12, 0},
    {"AES-256-GCM", NID_aes_256_gcm, true, 32, 12, 0},
    {"ChaCha20-Poly1305", NID_chacha20_poly1305, true, 32, 12, 0},
    {"AES-128-GCM", NID_aes_128_gcm, false, 16, 4, 8},
    {"AES-256-GCM", NID_aes_256_gcm, false, 32, 4, 8},
    {"ChaCha20-Poly1305", NID_chacha20_poly1305, false, 32, 12, 0},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* Fetching a cipher takes locks; they are fetched once, and live as long as the process. */
static EVP_CIPHER *ciphers[FORMATS];
static pthread_once_t ciphers_once = PTHREAD_ONCE_INIT;

static void fetch_ciphers(void)
{
    for (size_t i = 0; i < FORMATS; i++) {
        ciphers[i] = EVP_CIPHER_fetch(NULL, formats[i].cipher, NULL);
        CHECK(ciphers[i] != NULL);
    }
}

const struct record_format *record_format_find(int nid, bool tls13)
{
    for (size_t i = 0; i < FORMATS; i++) {
        if (formats[i].nid == nid && formats[i].tls13 == tls13) {
            return &formats[i];
        }
    }
    return NULL;
}

bool record_way_set(struct record_way *way, const struct record_format *format, const uint8_t *key, const uint8_t *iv,
                    bool seal)
{
    pthread_once(&ciphers_once, fetch_ciphers);
    if (way->cipher == NULL) {
        way->cipher = EVP_CIPHER_CTX_new();
    }
    /* The length of the nonce is 12 by itself. */
    if (way->cipher == NULL || EVP_CipherInit_ex2(way->cipher, ciphers[format - formats], key, NULL, seal, NULL) != 1) {
        ERR_clear_error();
        return false;
    }
    memcpy(way->iv, iv, format->fixed_iv);
    return true;
}

void record_way_free(struct record_way *way)
{
    EVP_CIPHER_CTX_free(way->cipher);
    OPENSSL_cleanse(way, sizeof *way);
}

static void put_number(uint8_t *to, uint64_t number)
{
    for (int i = 7; i >= 0; i--) {
        to[i] = (uint8_t)number;
        number >>= 8;
    }
}

/* The nonce: what came from the handshake, and the number of the record. */
static bool set_nonce(const struct record_way *way, const struct record_format *format, const uint8_t *explicit_iv)
{
    uint8_t nonce[RECORD_IV];
    memcpy(nonce, way->iv, sizeof nonce);
    if (format->explicit_iv > 0) {
        memcpy(nonce + format->fixed_iv, explicit_iv, format->explicit_iv);
    } else {
        uint8_t number[8];
        put_number(number, way->sequence);
        for (int i = 0; i < 8; i++) {
            nonce[4 + i] ^= number[i];
        }
    }
    return EVP_CipherInit_ex2(way->cipher, NULL, NULL, nonce, -1, NULL) == 1;
}

/* What is authenticated without being encrypted. */
static bool set_aad(const struct record_way *way, const struct record_format *format, const uint8_t *head, size_t len)
{
    uint8_t aad[AAD_12];
    int done;
    if (format->tls13) {
        return EVP_CipherUpdate(way->cipher, NULL, &done, head, RECORD_HEAD) == 1;
    }
    put_number(aad, way->sequence);
    memcpy(aad + 8, head, 3);
    aad[11] = (uint8_t)(len >> 8);
    aad[12] = (uint8_t)len;
    return EVP_CipherUpdate(way->cipher, NULL, &done, aad, AAD_12) == 1;
}

static bool update(const struct record_way *way, uint8_t **out, const void *data, size_t len)
{
    int done = 0;
    if (EVP_CipherUpdate(way->cipher, *out, &done, data, (int)len) != 1) {
        return false;
    }
    *out += done;
    return true;
}

static bool encrypt(const struct record_way *way, const struct record_format *format, uint8_t type,
                    const struct iovec *vectors, size_t len, uint8_t *out)
{
    while (len > 0) {
        size_t n = vectors->iov_len < len ? vectors->iov_len : len;
        if (n > 0 && !update(way, &out, vectors->iov_base, n)) {
            return false;
        }
        len -= n;
        vectors++;
    }
    int done = 0;
    return (!format->tls13 || update(way, &out, &type, 1)) && EVP_CipherFinal_ex(way->cipher, out, &done) == 1 &&
           EVP_CIPHER_CTX_ctrl(way->cipher, EVP_CTRL_AEAD_GET_TAG, RECORD_TAG, out) == 1;
}

size_t record_seal(struct record_way *way, const struct record_format *format, uint8_t type,
                   const struct iovec *vectors, size_t len, uint8_t *out)
{
    CHECK(len <= RECORD_MAX);
    size_t encrypted = len + (format->tls13 ? 1 : 0) + RECORD_TAG;
    size_t body = format->explicit_iv + encrypted;
    out[0] = format->tls13 ? RECORD_DATA : type;
    out[1] = VERSION_HIGH;
    out[2] = VERSION_LOW;
    out[3] = (uint8_t)(body >> 8);
    out[4] = (uint8_t)body;
    if (format->explicit_iv > 0) {
        put_number(out + RECORD_HEAD, way->explicit_iv++);
    }
    if (way->sequence == UINT64_MAX || !set_nonce(way, format, out + RECORD_HEAD) || !set_aad(way, format, out, len) ||
        !encrypt(way, format, type, vectors, len, out + RECORD_HEAD + format->explicit_iv)) {
        ERR_clear_error();
        return 0;
    }
    way->sequence++;
    return RECORD_HEAD + body;
}

size_t record_length(const struct record_format *format, const uint8_t head[RECORD_HEAD], enum tls_alert *alert)
{
    size_t len = (size_t)head[3] << 8 | head[4];
    size_t least = format->explicit_iv + (size_t)(format->tls13 ? 1 : 0) + RECORD_TAG;
    bool type_ok = format->tls13 ? head[0] == RECORD_DATA : head[0] >= RECORD_CHANGE_CIPHER && head[0] <= RECORD_DATA;
    *alert = ALERT_NONE;
    if (!type_ok || head[1] != VERSION_HIGH) {
        *alert = ALERT_UNEXPECTED_MESSAGE;
    } else if (len > (format->tls13 ? RECORD_CIPHERTEXT_13 : RECORD_CIPHERTEXT_12)) {
        *alert = ALERT_RECORD_OVERFLOW;
    } else if (len < least) {
        *alert = ALERT_BAD_RECORD_MAC;
    }
    return *alert == ALERT_NONE ? RECORD_HEAD + len : 0;
}

/* TLS 1.3: the type stands behind the bytes, and zeros may follow it. */
static enum tls_alert find_type(const uint8_t *data, size_t *len, uint8_t *type)
{
    size_t end = *len;
    while (end > 0 && data[end - 1] == 0) {
        end--;
    }
    if (end == 0) {
        return ALERT_UNEXPECTED_MESSAGE;
    }
    *type = data[end - 1];
    *len = end - 1;
    return ALERT_NONE;
}

enum tls_alert record_open(struct record_way *way, const struct record_format *format, const uint8_t *record,
                           size_t record_len, uint8_t *out, size_t *len, uint8_t *type)
{
    const uint8_t *body = record + RECORD_HEAD + format->explicit_iv;
    size_t body_len = record_len - RECORD_HEAD - format->explicit_iv - RECORD_TAG;
    uint8_t *end = out;
    int done = 0;
    uint8_t tag[RECORD_TAG];
    memcpy(tag, body + body_len, RECORD_TAG);
    *type = record[0];
    *len = body_len;
    if (way->sequence == UINT64_MAX || !set_nonce(way, format, record + RECORD_HEAD) ||
        !set_aad(way, format, record, body_len) || !update(way, &end, body, body_len) ||
        EVP_CIPHER_CTX_ctrl(way->cipher, EVP_CTRL_AEAD_SET_TAG, RECORD_TAG, tag) != 1 ||
        EVP_CipherFinal_ex(way->cipher, end, &done) != 1) {
        ERR_clear_error();
        OPENSSL_cleanse(out, body_len);
        return ALERT_BAD_RECORD_MAC;
    }
    way->sequence++;
    /* Of TLS 1.3 the type is one byte more. */
    if (body_len > (size_t)(format->tls13 ? RECORD_MAX + 1 : RECORD_MAX)) {
        return ALERT_RECORD_OVERFLOW;
    }
    return format->tls13 ? find_type(out, len, type) : ALERT_NONE;
}
