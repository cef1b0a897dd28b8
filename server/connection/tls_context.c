#include "connection/tls_context.h"

#include "base/epoch.h"
#include "config/config.h"
#include "connection/certs.h"
#include "connection/staple.h"
#include "connection/tickets.h"
#include "connection/tls_private.h"
#include "loop/config_hold.h"
#include "protocol/alpn.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Mozilla's guidelines for servers, version 5.7. TLS 1.3 has the same suites in both profiles. */
#define SUITES "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CIPHERS_INTERMEDIATE \
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:" \
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:" \
    "DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305"
#define GROUPS "X25519:P-256:P-384"

/* Beside an SSL_CTX, for as long as it is there. */
struct context_data {
    struct cert_set *certs;
    bool refuse_unknown; /* UnknownNames */
};

static _Atomic(SSL_CTX *) current;
static pthread_once_t index_once = PTHREAD_ONCE_INIT;
static int data_index;

static void free_data(void *parent, void *data, CRYPTO_EX_DATA *all, int index, long arg, void *pointer)
{
    (void)parent;
    (void)all;
    (void)index;
    (void)arg;
    (void)pointer;
    struct context_data *mine = data;
    if (mine != NULL) {
        cert_set_unref(mine->certs);
        free(mine);
    }
}

static void make_index(void)
{
    data_index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, free_data);
}

static const struct context_data *data_of(const SSL *ssl)
{
    return SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), data_index);
}

struct cert_set *tls_context_certs(const SSL *ssl)
{
    return data_of(ssl)->certs;
}

/* ---- which certificate ---------------------------------------------------------------------------- */

static bool install(SSL *ssl, const struct cert_choice *choice)
{
    SSL_certs_clear(ssl);
    for (int kind = 0; kind < CERT_KINDS; kind++) {
        const struct cert_pair *pair = choice->by_kind[kind];
        if (pair != NULL && SSL_use_cert_and_key(ssl, pair->leaf, pair->key, pair->chain, 1) != 1) {
            ERR_clear_error();
            return false;
        }
    }
    return true;
}

static int on_server_name(SSL *ssl, int *alert, void *arg)
{
    (void)arg;
    const struct context_data *data = data_of(ssl);
    const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
    const struct cert_choice *fallback = cert_set_default(data->certs);
    const struct cert_choice *choice = name != NULL ? cert_set_find(data->certs, str_of(name)) : fallback;
    if (choice == NULL && data->refuse_unknown) {
        *alert = SSL_AD_UNRECOGNIZED_NAME;
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    if (choice != NULL && choice != fallback && !install(ssl, choice)) {
        *alert = SSL_AD_INTERNAL_ERROR;
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    return name != NULL && choice != NULL ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                   unsigned in_len, void *arg)
{
    (void)ssl;
    (void)arg;
    struct str chosen = alpn_select((struct str){(const char *)in, in_len}, config_hold_current(loop_self()));
    if (chosen.len == 0) {
        return SSL_TLSEXT_ERR_ALERT_FATAL; /* a client of another protocol must not take us for its server */
    }
    *out = (const unsigned char *)chosen.ptr;
    *out_len = (unsigned char)chosen.len;
    return SSL_TLSEXT_ERR_OK;
}

/* ---- making one -------------------------------------------------------------------------------------- */

static bool set_profile(SSL_CTX *ctx, const struct config *config)
{
    bool modern = config->tls_profile == TLS_PROFILE_MODERN;
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_SSLv3 |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    return SSL_CTX_set_min_proto_version(ctx, modern ? TLS1_3_VERSION : TLS1_2_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(ctx, SUITES) == 1 && SSL_CTX_set_cipher_list(ctx, CIPHERS_INTERMEDIATE) == 1 &&
           SSL_CTX_set1_groups_list(ctx, GROUPS) == 1 && SSL_CTX_set_dh_auto(ctx, 1) == 1;
}

/* A session is resumed only where the same authorities would be asked. */
static bool set_sessions(SSL_CTX *ctx, const struct config *config, struct str client_ca)
{
    unsigned char id[32];
    if (config->client_certificates == CLIENT_CERTIFICATES_NONE) {
        client_ca = STR("");
    }
    if (EVP_Digest(client_ca.ptr, client_ca.len, id, NULL, EVP_sha256(), NULL) != 1) {
        return false;
    }
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); /* tickets alone: the client keeps the session */
    SSL_CTX_set_session_id_context(ctx, id, sizeof id);
    /* One with each handshake, where OpenSSL would give two: each connection brings its own, also a resumed one. */
    SSL_CTX_set_num_tickets(ctx, 1);
    SSL_CTX_set_timeout(ctx, (long)(config->ticket_rotation * TICKET_PERIODS));
    SSL_CTX_set_tlsext_ticket_key_evp_cb(ctx, tickets_callback);
    return true;
}

static bool ask_clients(SSL_CTX *ctx, const struct config *config, struct str client_ca)
{
    X509_STORE *store = X509_STORE_new();
    STACK_OF(X509_NAME) *names = sk_X509_NAME_new_null();
    BIO *bio = BIO_new_mem_buf(client_ca.ptr != NULL ? client_ca.ptr : "", (int)client_ca.len);
    int count = 0;
    X509 *cert;
    bool ok = store != NULL && names != NULL && bio != NULL;
    while (ok && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) {
        X509_NAME *name = X509_NAME_dup(X509_get_subject_name(cert));
        ok = X509_STORE_add_cert(store, cert) == 1 && name != NULL && sk_X509_NAME_push(names, name) > 0;
        X509_free(cert);
        count++;
    }
    BIO_free(bio);
    ok = ok && count > 0 && SSL_CTX_set1_verify_cert_store(ctx, store) == 1;
    X509_STORE_free(store);
    if (!ok) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return false;
    }
    ERR_clear_error();
    SSL_CTX_set_client_CA_list(ctx, names);
    bool required = config->client_certificates == CLIENT_CERTIFICATES_REQUIRED;
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
    return true;
}

static bool set_default_certificate(SSL_CTX *ctx, const struct cert_set *certs)
{
    const struct cert_choice *choice = cert_set_default(certs);
    for (int kind = 0; choice != NULL && kind < CERT_KINDS; kind++) {
        const struct cert_pair *pair = choice->by_kind[kind];
        if (pair != NULL && SSL_CTX_use_cert_and_key(ctx, pair->leaf, pair->key, pair->chain, 1) != 1) {
            return false;
        }
    }
    return true;
}

/* The reference of `certs` is taken over on success. */
static SSL_CTX *make(const struct config *config, struct cert_set *certs, struct str client_ca)
{
    SSL_CTX *ctx = tls_kdf_context();
    if (ctx == NULL || !set_profile(ctx, config) || !set_default_certificate(ctx, certs) ||
        !set_sessions(ctx, config, client_ca) ||
        (config->client_certificates != CLIENT_CERTIFICATES_NONE && !ask_clients(ctx, config, client_ca))) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
    SSL_CTX_set_read_ahead(ctx, 0); /* what follows a handshake is left to tls_input.c */
    SSL_CTX_set_msg_callback(ctx, tls_keys_watch);
    SSL_CTX_set_tlsext_servername_callback(ctx, on_server_name);
    SSL_CTX_set_tlsext_status_cb(ctx, staple_callback);
    SSL_CTX_set_alpn_select_cb(ctx, on_alpn, NULL);
    struct context_data *data = calloc(1, sizeof *data);
    if (data == NULL || SSL_CTX_set_ex_data(ctx, data_index, data) != 1) {
        free(data);
        SSL_CTX_free(ctx);
        return NULL;
    }
    data->certs = certs;
    data->refuse_unknown = config->unknown_names == UNKNOWN_NAMES_REFUSE;
    return ctx;
}

static void free_context(void *ctx)
{
    SSL_CTX_free(ctx);
}

bool tls_context_use(const struct config *config, struct cert_set *certs, struct str client_ca, struct buffer *why)
{
    pthread_once(&index_once, make_index);
    tls_keys_begin();
    ERR_clear_error();
    SSL_CTX *ctx = make(config, certs, client_ca);
    if (ctx == NULL) {
        buffer_printf(why, "TLS cannot be set up: %s", openssl_error());
        return false;
    }
    cert_set_ref(certs);
    SSL_CTX *before = atomic_exchange_explicit(&current, ctx, memory_order_acq_rel);
    if (before != NULL) {
        epoch_retire(free_context, before);
    }
    return true;
}

SSL_CTX *tls_context_current(void)
{
    return atomic_load_explicit(&current, memory_order_acquire);
}

void tls_context_end(void)
{
    SSL_CTX_free(atomic_exchange_explicit(&current, NULL, memory_order_acq_rel));
}
