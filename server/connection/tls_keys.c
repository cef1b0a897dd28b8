/* From a handshake to the keys of its records.
 *
 * TLS 1.3: OpenSSL tells each traffic secret in the moment in which it comes into use, by the callback that it
 * has for key logs; the keys are made from it as RFC 8446 (7.3) says, and so are the next ones after a
 * KeyUpdate (7.2). Nothing is written anywhere. TLS 1.2: the key block is made from the session's master
 * secret (RFC 5246, 6.3). */
#include "connection/hex.h"
#include "connection/tls_private.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <pthread.h>

enum { RANDOM = 32, MASTER = 48, LABEL_MAX = 32, KEY_BLOCK_MAX = 2 * (32 + RECORD_IV) };

static EVP_MAC *hmac;
static EVP_KDF *prf;
static pthread_once_t kdf_once = PTHREAD_ONCE_INIT;

static void fetch_kdfs(void)
{
    hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    prf = EVP_KDF_fetch(NULL, "TLS1-PRF", NULL);
    CHECK(hmac != NULL && prf != NULL);
}

void tls_keys_begin(void)
{
    pthread_once(&kdf_once, fetch_kdfs);
}

/* ---- TLS 1.3 --------------------------------------------------------------------------------------- */

/* Makes keys of one suite. Its hash is looked up once for all of them, which is most of the work. */
struct expander {
    EVP_MAC_CTX *mac;
    const char *digest;
    size_t digest_len;
    bool begun;
};

static struct expander begin_expander(const struct record_format *format)
{
    /* Each suite of TLS 1.3 has its hash: SHA-384 with AES-256-GCM (RFC 8446, B.4). */
    bool big = format->nid == NID_aes_256_gcm;
    return (struct expander){EVP_MAC_CTX_new(hmac), big ? "SHA384" : "SHA256", big ? 48 : 32, false};
}

static void end_expander(struct expander *expander)
{
    EVP_MAC_CTX_free(expander->mac);
    ERR_clear_error();
}

/* HKDF-Expand-Label with an empty context (RFC 8446, 7.1). What is asked for is never longer than the hash, so that
 * one HMAC makes it (RFC 5869, 2.3). */
static bool expand(struct expander *expander, const uint8_t *secret, const char *label, uint8_t *out, size_t len)
{
    uint8_t info[4 + LABEL_MAX + 1];
    uint8_t made[RECORD_SECRET_MAX];
    size_t made_len = 0;
    size_t label_len = strlen(label);
    CHECK(label_len + 6 <= LABEL_MAX && len <= expander->digest_len);
    info[0] = (uint8_t)(len >> 8);
    info[1] = (uint8_t)len;
    info[2] = (uint8_t)(6 + label_len);
    memcpy(info + 3, "tls13 ", 6);
    memcpy(info + 9, label, label_len);
    info[9 + label_len] = 0;
    info[10 + label_len] = 1; /* HKDF's counter */
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)(uintptr_t)expander->digest, 0),
        OSSL_PARAM_construct_end(),
    };
    bool ok = expander->mac != NULL &&
              EVP_MAC_init(expander->mac, secret, expander->digest_len, expander->begun ? NULL : params) == 1 &&
              EVP_MAC_update(expander->mac, info, 11 + label_len) == 1 &&
              EVP_MAC_final(expander->mac, made, &made_len, sizeof made) == 1 && made_len == expander->digest_len;
    expander->begun = ok;
    if (ok) {
        memcpy(out, made, len);
    }
    OPENSSL_cleanse(made, sizeof made);
    return ok;
}

/* From way->secret. */
static bool use_secret(struct record_way *way, const struct record_format *format, struct expander *expander, bool seal)
{
    uint8_t key[32];
    uint8_t iv[RECORD_IV];
    bool ok = expand(expander, way->secret, "key", key, format->key_len) &&
              expand(expander, way->secret, "iv", iv, RECORD_IV) && record_way_set(way, format, key, iv, seal);
    OPENSSL_cleanse(key, sizeof key);
    return ok;
}

bool tls_keys_update(struct record_way *way, const struct record_format *format, bool seal)
{
    struct expander expander = begin_expander(format);
    uint8_t next[RECORD_SECRET_MAX];
    bool ok = expand(&expander, way->secret, "traffic upd", next, expander.digest_len);
    if (ok) {
        memcpy(way->secret, next, expander.digest_len);
        way->sequence = 0;
        ok = use_secret(way, format, &expander, seal);
    }
    end_expander(&expander);
    OPENSSL_cleanse(next, sizeof next);
    return ok;
}

/* "LABEL client-random secret", in hexadecimal. */
void tls_keys_logged(const SSL *ssl, const char *line)
{
    struct tls_opening *opening = SSL_get_app_data(ssl);
    struct str rest = str_of(line);
    struct str label = {rest.ptr, strcspn(line, " ")};
    struct record_way *way = NULL;
    if (str_eq(label, STR("CLIENT_TRAFFIC_SECRET_0"))) {
        way = &opening->in;
    } else if (str_eq(label, STR("SERVER_TRAFFIC_SECRET_0"))) {
        way = &opening->out;
    }
    const char *hex = strrchr(line, ' ');
    if (way == NULL || hex == NULL) {
        return;
    }
    struct str secret = str_of(hex + 1);
    if (secret.len <= (size_t)2 * RECORD_SECRET_MAX && hex_read(secret, way->secret)) {
        opening->secrets++;
        way->sequence = 0;
    }
}

void tls_keys_watch(int sent, int version, int type, const void *data, size_t len, SSL *ssl, void *arg)
{
    (void)version;
    (void)data;
    (void)len;
    (void)arg;
    struct tls_opening *opening = SSL_get_app_data(ssl);
    /* The tickets are records of the new key. */
    if (sent && type == SSL3_RT_HEADER && opening != NULL) {
        opening->out.sequence++;
    }
}

static bool take_13(struct tls *tls, const struct tls_opening *opening)
{
    struct expander expander = begin_expander(tls->format);
    tls->in = opening->in;
    tls->out = opening->out;
    bool ok = opening->secrets == 2 && use_secret(&tls->in, tls->format, &expander, false) &&
              use_secret(&tls->out, tls->format, &expander, true);
    end_expander(&expander);
    return ok;
}

/* ---- TLS 1.2 ----------------------------------------------------------------------------------------- */

static bool make_key_block(const SSL *ssl, uint8_t *block, size_t len)
{
    uint8_t master[MASTER];
    uint8_t randoms[2 * RANDOM];
    const EVP_MD *digest = SSL_CIPHER_get_handshake_digest(SSL_get_current_cipher(ssl));
    size_t master_len = SSL_SESSION_get_master_key(SSL_get_session(ssl), master, sizeof master);
    SSL_get_server_random(ssl, randoms, RANDOM);
    SSL_get_client_random(ssl, randoms + RANDOM, RANDOM);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)(uintptr_t)EVP_MD_get0_name(digest), 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SECRET, master, master_len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, "key expansion", 13),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, randoms, sizeof randoms),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF_CTX *kdf = EVP_KDF_CTX_new(prf);
    bool ok = kdf != NULL && digest != NULL && EVP_KDF_derive(kdf, block, len, params) == 1;
    EVP_KDF_CTX_free(kdf);
    OPENSSL_cleanse(master, sizeof master);
    return ok;
}

static bool take_12(struct tls *tls, const struct tls_opening *opening)
{
    const struct record_format *format = tls->format;
    uint8_t block[KEY_BLOCK_MAX];
    size_t key = format->key_len;
    bool ok = make_key_block(opening->ssl, block, 2 * (key + format->fixed_iv));
    const uint8_t *ivs = block + 2 * key; /* after the client's key and ours */
    ok = ok && record_way_set(&tls->in, format, block, ivs, false) &&
         record_way_set(&tls->out, format, block + key, ivs + format->fixed_iv, true);
    if (ok) { /* for tls_keys_of() */
        memcpy(tls->in.secret, block, key);
        memcpy(tls->out.secret, block + key, key);
    }
    OPENSSL_cleanse(block, sizeof block);
    /* The first record of each key was its Finished. */
    tls->in.sequence = 1;
    tls->out.sequence = 1;
    tls->out.explicit_iv = opening->finished_iv + 1;
    return ok;
}

bool tls_keys_of(const struct record_way *way, const struct record_format *format, uint8_t key[32])
{
    if (!format->tls13) {
        memcpy(key, way->secret, format->key_len);
        return true;
    }
    struct expander expander = begin_expander(format);
    bool ok = expand(&expander, way->secret, "key", key, format->key_len);
    end_expander(&expander);
    return ok;
}

bool tls_keys_take(struct tls *tls)
{
    const struct tls_opening *opening = tls->opening;
    bool tls13 = SSL_version(opening->ssl) == TLS1_3_VERSION;
    tls->format = record_format_find(SSL_CIPHER_get_cipher_nid(SSL_get_current_cipher(opening->ssl)), tls13);
    if (tls->format == NULL || SSL_has_pending(opening->ssl) || (!tls13 && !opening->finished_sent)) {
        return false;
    }
    bool ok = tls13 ? take_13(tls, opening) : take_12(tls, opening);
    ERR_clear_error();
    return ok;
}

/* TLS 1.2 with AES-GCM: OpenSSL begins with a nonce of its own choice, and what follows must not repeat it. */
void tls_keys_see_sent(struct tls_opening *opening, const uint8_t *data, size_t len)
{
    while (len >= RECORD_HEAD) {
        size_t record = RECORD_HEAD + ((size_t)data[3] << 8 | data[4]);
        if (record > len) {
            return;
        }
        if (data[0] == RECORD_CHANGE_CIPHER) {
            opening->encrypts = true;
        } else if (opening->encrypts && data[0] == RECORD_HANDSHAKE && record >= RECORD_HEAD + 8) {
            opening->finished_sent = true;
            opening->finished_iv = 0;
            for (int i = 0; i < 8; i++) {
                opening->finished_iv = opening->finished_iv << 8 | data[RECORD_HEAD + i];
            }
        }
        data += record;
        len -= record;
    }
}
