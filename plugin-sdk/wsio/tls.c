/* TLS contexts of clients and servers. */
#include "wsio/carrier.h"

#include "ws/text.h"

#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static SSL_CTX *fail(SSL_CTX *context, char error[URL_ERROR_MAX], const char *what, const char *file)
{
    unsigned long code = ERR_SYSTEM_ERROR(ERR_peek_error()) ? ERR_peek_error() : ERR_peek_last_error();
    const char *why = code != 0 ? ERR_reason_error_string(code) : NULL;
    if (code != 0 && why == NULL) {
        why = strerror(ERR_GET_REASON(code)); /* of the system */
    }
    snprintf(error, URL_ERROR_MAX, "%s%s%.120s%s%.80s", what, file != NULL ? " " : "", file != NULL ? file : "",
             why != NULL ? ": " : "", why != NULL ? why : "");
    ERR_clear_error();
    SSL_CTX_free(context);
    return NULL;
}

static SSL_CTX *create(const SSL_METHOD *method)
{
    SSL_CTX *context = SSL_CTX_new(method);
    if (context == NULL) {
        return NULL;
    }
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_read_ahead(context, 1); /* one system call for a record, or several, and not two for each */
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    return context;
}

static bool trust(SSL_CTX *context, const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        return SSL_CTX_load_verify_dir(context, path) == 1;
    }
    return SSL_CTX_load_verify_file(context, path) == 1;
}

/* As SSL_CTX_set_default_verify_paths() does, which hides that no descriptor was free: nobody would be trusted, by a
 * context that others get, too. */
static bool trust_system(SSL_CTX *context)
{
    const char *file = secure_getenv(X509_get_default_cert_file_env());
    file = file != NULL ? file : X509_get_default_cert_file();
    ERR_clear_error();
    bool ok = access(file, R_OK) != 0 || SSL_CTX_load_verify_file(context, file) == 1;
    if (!ok && ERR_SYSTEM_ERROR(ERR_peek_error())) {
        return false;
    }
    ERR_clear_error(); /* what is no certificate there is passed over */
    return SSL_CTX_set_default_verify_dir(context) == 1;
}

static bool show(SSL_CTX *context, const struct tls_files *files)
{
    return SSL_CTX_use_certificate_chain_file(context, files->cert) == 1 &&
           SSL_CTX_use_PrivateKey_file(context, files->key != NULL ? files->key : files->cert, SSL_FILETYPE_PEM) == 1;
}

static SSL_CTX *make_client_context(const struct tls_files *files, char error[URL_ERROR_MAX])
{
    SSL_CTX *context = create(TLS_client_method());
    if (context == NULL) {
        return fail(NULL, error, "TLS cannot be set up", NULL);
    }
    SSL_CTX_set_verify(context, files->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (files->ca != NULL && !trust(context, files->ca)) {
        return fail(context, error, "the authorities cannot be read:", files->ca);
    }
    if (files->ca == NULL && !files->insecure && !trust_system(context)) {
        return fail(context, error, "the system's authorities cannot be read", NULL);
    }
    if (files->cert != NULL && !show(context, files)) {
        return fail(context, error, "the client certificate or its key cannot be read:", files->cert);
    }
    ERR_clear_error();
    return context;
}

/* ---- the clients' contexts that were made last: thousands of connections share one ------------------------- */

enum { SHARED_MOST = 8 };

static struct shared {
    char *key;
    SSL_CTX *context;
    uint64_t used; /* the turn of its last use */
} shared[SHARED_MOST];
static uint64_t shared_turn;
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

static void add_file(struct ws_buffer *key, const char *path)
{
    struct stat info = {0};
    if (path != NULL) {
        stat(path, &info);
    }
    ws_buffer_format(key, "%zu %s %llu %llu %lld %lld.%09ld\n", path != NULL ? strlen(path) : 0,
                     path != NULL ? path : "", (unsigned long long)info.st_dev, (unsigned long long)info.st_ino,
                     (long long)info.st_size, (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

/* The same for the same files with the same contents; malloc'ed. NULL: no memory. */
static char *key_of(const struct tls_files *files)
{
    struct ws_buffer key = {0};
    add_file(&key, files->ca);
    add_file(&key, files->cert);
    add_file(&key, files->key);
    ws_buffer_add(&key, files->insecure ? "insecure" : "", files->insecure ? sizeof "insecure" : 1);
    if (key.failed) {
        ws_buffer_free(&key);
    }
    return key.data;
}

static SSL_CTX *find_shared(const char *key)
{
    SSL_CTX *context = NULL;
    pthread_mutex_lock(&shared_lock);
    for (size_t i = 0; context == NULL && i < SHARED_MOST; i++) {
        if (shared[i].key != NULL && strcmp(shared[i].key, key) == 0) {
            context = shared[i].context;
            SSL_CTX_up_ref(context);
            shared[i].used = ++shared_turn;
        }
    }
    pthread_mutex_unlock(&shared_lock);
    return context;
}

/* In the place of the one that was used longest ago. Takes the key. */
static void share(char *key, SSL_CTX *context)
{
    SSL_CTX_up_ref(context);
    pthread_mutex_lock(&shared_lock);
    struct shared *place = &shared[0];
    for (size_t i = 1; i < SHARED_MOST; i++) {
        place = shared[i].used < place->used ? &shared[i] : place;
    }
    free(place->key);
    SSL_CTX_free(place->context);
    *place = (struct shared){key, context, ++shared_turn};
    pthread_mutex_unlock(&shared_lock);
}

SSL_CTX *tls_client_context_made(const struct tls_files *files)
{
    char *key = key_of(files);
    SSL_CTX *context = key != NULL ? find_shared(key) : NULL;
    free(key);
    return context;
}

SSL_CTX *tls_client_context(const struct tls_files *files, char error[URL_ERROR_MAX])
{
    SSL_CTX *context = tls_client_context_made(files);
    if (context != NULL) {
        return context;
    }
    /* One after the other: many that begin at once are to make one, not as many. */
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&making);
    char *key = key_of(files); /* before they are read: who changes them meanwhile has another */
    context = key != NULL ? find_shared(key) : NULL;
    if (context == NULL) {
        context = make_client_context(files, error);
        if (context != NULL && key != NULL) {
            share(key, context);
            key = NULL;
        }
    }
    pthread_mutex_unlock(&making);
    free(key);
    return context;
}

SSL_CTX *tls_server_context(const struct tls_files *files, char error[URL_ERROR_MAX])
{
    SSL_CTX *context = create(TLS_server_method());
    if (context == NULL) {
        return fail(NULL, error, "TLS cannot be set up", NULL);
    }
    if (!show(context, files)) {
        return fail(context, error, "the certificate or its key cannot be read:", files->cert);
    }
    if (files->ca != NULL) {
        if (!trust(context, files->ca)) {
            return fail(context, error, "the clients' authorities cannot be read:", files->ca);
        }
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
    static const unsigned char id[] = "kilnws";
    SSL_CTX_set_session_id_context(context, id, sizeof id - 1);
    ERR_clear_error();
    return context;
}
