/* DESIGN: which way to the secrets of TLS 1.3 works with the OpenSSL that is here (tls_kdf.h) is not asked of versions and
 * names but tried, by a handshake between two ends in memory, before there are contexts: both secrets for data have to be
 * seen, once each, while the server's end derives them. The two ends know each other by a key that
 * is no secret, so that neither needs a certificate, and nothing is sent with it. */
#include "connection/tls_private.h"

#include <openssl/err.h>

enum { KEY = 32, ROUNDS = 10 };

static const unsigned char suite[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

static SSL_SESSION *make_session(SSL *ssl)
{
    static const unsigned char key[KEY];
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session == NULL || cipher == NULL || SSL_SESSION_set1_master_key(session, key, KEY) != 1 ||
        SSL_SESSION_set_cipher(session, cipher) != 1 ||
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        return NULL;
    }
    return session;
}

static int find_session(SSL *ssl, const unsigned char *name, size_t len, SSL_SESSION **session)
{
    (void)name;
    (void)len;
    *session = make_session(ssl);
    return *session != NULL;
}

static int use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **name, size_t *len, SSL_SESSION **session)
{
    (void)digest;
    *name = (const unsigned char *)"trial";
    *len = 5;
    *session = make_session(ssl);
    return *session != NULL;
}

struct trial {
    struct tls_secrets secrets;
    unsigned of_client;
    unsigned of_server;
};

static void count(struct tls_secrets *secrets, bool of_client, const uint8_t *secret, size_t len)
{
    struct trial *trial = CONTAINER_OF(secrets, struct trial, secrets);
    (void)secret;
    trial->of_client += of_client && len == KEY;
    trial->of_server += !of_client && len == KEY;
}

static bool shake(SSL *client, SSL *server, struct trial *trial)
{
    bool asked = false;
    bool answered = false;
    for (int i = 0; i < ROUNDS && !(asked && answered); i++) {
        asked = SSL_do_handshake(client) == 1;
        tls_kdf_watch(&trial->secrets);
        answered = SSL_do_handshake(server) == 1;
        tls_kdf_watch(NULL);
    }
    return asked && answered;
}

/* What one end writes, the other reads. */
static bool join(SSL *a, SSL *b)
{
    BIO *ends[2];
    if (BIO_new_bio_pair(&ends[0], 0, &ends[1], 0) != 1) {
        return false;
    }
    SSL_set_bio(a, ends[0], ends[0]);
    SSL_set_bio(b, ends[1], ends[1]);
    return true;
}

static SSL_CTX *make_end(const char *properties, const SSL_METHOD *method)
{
    SSL_CTX *ctx = SSL_CTX_new_ex(NULL, properties, method);
    if (ctx != NULL && (SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
                        SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1)) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}

bool tls_trial(const char *properties, void (*key_log)(const SSL *, const char *))
{
    struct trial trial = {.secrets.seen = count};
    SSL_CTX *server_end = make_end(properties, TLS_server_method());
    SSL_CTX *client_end = make_end(NULL, TLS_client_method());
    SSL *server = server_end != NULL ? SSL_new(server_end) : NULL;
    SSL *client = client_end != NULL ? SSL_new(client_end) : NULL;
    bool ok = false;
    if (server != NULL && client != NULL && join(client, server)) {
        SSL_CTX_set_keylog_callback(server_end, key_log);
        SSL_set_psk_find_session_callback(server, find_session);
        SSL_set_psk_use_session_callback(client, use_session);
        SSL_set_accept_state(server);
        SSL_set_connect_state(client);
        ok = shake(client, server, &trial) && trial.of_client == 1 && trial.of_server == 1;
    }
    SSL_free(client);
    SSL_free(server);
    SSL_CTX_free(client_end);
    SSL_CTX_free(server_end);
    ERR_clear_error();
    return ok;
}
