/* From a handshake to the keys of its records.
 *
 * TLS 1.3: each traffic secret is seen when it is derived (tls_kdf.h), which is when it comes into use; the keys are
 * made from it as RFC 8446 (7.3) says, and so are the next ones after a KeyUpdate (7.2). TLS 1.2: the key block is
 * made from the session's master secret (RFC 5246, 6.3). */
#include "connection/hkdf.h"
#include "connection/tls_kdf.h"
#include "connection/tls_private.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <pthread.h>

enum { RANDOM = 32, MASTER = 48, KEY_BLOCK_MAX = 2 * (32 + RECORD_IV) };

static EVP_KDF *prf;
static pthread_once_t kdf_once = PTHREAD_ONCE_INIT;

static void fetch_kdf(void)
{
    prf = EVP_KDF_fetch(NULL, "TLS1-PRF", NULL);
    CHECK(prf != NULL);
}

void tls_keys_begin(void)
{
    pthread_once(&kdf_once, fetch_kdf);
    tls_kdf_begin();
}

/* ---- TLS 1.3 --------------------------------------------------------------------------------------- */

static bool begin_hkdf(struct hkdf *hkdf, const struct record_format *format)
{
    /* Each suite of TLS 1.3 has its hash: SHA-384 with AES-256-GCM (RFC 8446, B.4). */
    return hkdf_begin(hkdf, format->nid == NID_aes_256_gcm ? STR("SHA384") : STR("SHA256"));
}

/* From way->secret. */
static bool use_secret(struct record_way *way, const struct record_format *format, struct hkdf *hkdf, bool seal)
{
    uint8_t key[32];
    uint8_t iv[RECORD_IV];
    bool ok = hkdf_expand(hkdf, way->secret, STR("key"), STR_NONE, key, format->key_len) &&
              hkdf_expand(hkdf, way->secret, STR("iv"), STR_NONE, iv, RECORD_IV) &&
              record_way_set(way, format, key, iv, seal);
    OPENSSL_cleanse(key, sizeof key);
    return ok;
}

bool tls_keys_update(struct record_way *way, const struct record_format *format, bool seal)
{
    struct hkdf hkdf;
    if (!begin_hkdf(&hkdf, format)) {
        return false;
    }
    way->sequence = 0;
    bool ok = hkdf_expand(&hkdf, way->secret, STR("traffic upd"), STR_NONE, way->secret, hkdf.len) &&
              use_secret(way, format, &hkdf, seal);
    hkdf_end(&hkdf);
    return ok;
}

static void take_secret(struct tls_secrets *watch, bool of_client, const uint8_t *secret, size_t len)
{
    struct tls_opening *opening = CONTAINER_OF(watch, struct tls_opening, watch);
    struct record_way *way = of_client ? &opening->in : &opening->out;
    if (len <= RECORD_SECRET_MAX) {
        memcpy(way->secret, secret, len);
        way->sequence = 0;
        opening->secrets++;
    }
}

bool tls_keys_shake(struct tls_opening *opening)
{
    opening->watch.seen = take_secret;
    tls_kdf_watch(&opening->watch);
    bool done = SSL_do_handshake(opening->ssl) == 1;
    tls_kdf_watch(NULL);
    return done;
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
    struct hkdf hkdf;
    tls->in = opening->in;
    tls->out = opening->out;
    if (opening->secrets != 2 || !begin_hkdf(&hkdf, tls->format)) {
        return false;
    }
    bool ok = use_secret(&tls->in, tls->format, &hkdf, false) && use_secret(&tls->out, tls->format, &hkdf, true);
    hkdf_end(&hkdf);
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
    struct hkdf hkdf;
    if (!begin_hkdf(&hkdf, format)) {
        return false;
    }
    bool ok = hkdf_expand(&hkdf, way->secret, STR("key"), STR_NONE, key, format->key_len);
    hkdf_end(&hkdf);
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
