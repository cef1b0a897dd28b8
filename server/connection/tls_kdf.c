#include "connection/tls_kdf.h"

#include "connection/hex.h"
#include "connection/hkdf.h"
#include "connection/tls_private.h"
#include "observe/log.h"

#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/provider.h>
#include <pthread.h>
#include <stdlib.h>

static _Thread_local struct tls_secrets *watching;

void tls_kdf_watch(struct tls_secrets *secrets)
{
    watching = secrets;
}

/* ---- what is asked for ------------------------------------------------------------------------------ */

struct request {
    int mode;
    struct str digest;
    struct str key; /* none: zeros */
    struct str salt; /* the secret of the stage before; none: there was none */
    struct str prefix;
    struct str label;
    struct str data;
};

static bool read_request(const OSSL_PARAM *params, struct request *request)
{
    const struct {
        const char *name;
        struct str *to;
    } texts[] = {
        {OSSL_KDF_PARAM_DIGEST, &request->digest}, {OSSL_KDF_PARAM_KEY, &request->key},
        {OSSL_KDF_PARAM_SALT, &request->salt},     {OSSL_KDF_PARAM_PREFIX, &request->prefix},
        {OSSL_KDF_PARAM_LABEL, &request->label},   {OSSL_KDF_PARAM_DATA, &request->data},
    };
    *request = (struct request){.mode = -1};
    for (const OSSL_PARAM *param = params; param != NULL && param->key != NULL; param++) {
        if (strcmp(param->key, OSSL_KDF_PARAM_MODE) == 0 && OSSL_PARAM_get_int(param, &request->mode) != 1) {
            return false;
        }
        for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
            if (strcmp(param->key, texts[i].name) == 0) {
                *texts[i].to = (struct str){param->data, param->data_size};
                break;
            }
        }
    }
    return str_eq(request->prefix, STR("tls13 "));
}

/* ---- derivations ---------------------------------------------------------------------------------------- */

/* From the secret of one stage of the schedule to that of the next (RFC 8446, 7.1). */
static bool extract(struct hkdf *hkdf, const struct request *request, uint8_t *out, size_t len)
{
    static const uint8_t zeros[HKDF_HASH_MAX];
    struct str secret = request->key.len > 0 ? request->key : (struct str){(const char *)zeros, hkdf->len};
    uint8_t salt[HKDF_HASH_MAX];
    if (len != hkdf->len || !str_eq(request->label, STR("derived"))) {
        return false;
    }
    if (request->salt.len == 0) {
        return hkdf_extract(hkdf, STR_NONE, secret, out);
    }
    bool ok = request->salt.len == hkdf->len && hkdf_derived(hkdf, (const uint8_t *)request->salt.ptr, salt) &&
              hkdf_extract(hkdf, (struct str){(char *)salt, hkdf->len}, secret, out);
    OPENSSL_cleanse(salt, sizeof salt);
    return ok;
}

static bool expand(struct hkdf *hkdf, const struct request *request, uint8_t *out, size_t len)
{
    if (request->key.len != hkdf->len ||
        !hkdf_expand(hkdf, (const uint8_t *)request->key.ptr, request->label, request->data, out, len)) {
        return false;
    }
    bool of_client = str_eq(request->label, STR("c ap traffic"));
    if (watching != NULL && (of_client || str_eq(request->label, STR("s ap traffic")))) {
        watching->seen(watching, of_client, out, len);
    }
    return true;
}

/* ---- as OpenSSL calls it -------------------------------------------------------------------------------- */

/* All that a derivation needs comes with it, so that a context has nothing to keep. */
static void *context_new(void *provider)
{
    return provider;
}

static void context_free(void *context)
{
    (void)context;
}

static int derive(void *context, unsigned char *out, size_t len, const OSSL_PARAM params[])
{
    (void)context;
    struct request request;
    struct hkdf hkdf;
    if (!read_request(params, &request) || !hkdf_begin(&hkdf, request.digest)) {
        return 0;
    }
    bool ok = request.mode == EVP_KDF_HKDF_MODE_EXTRACT_ONLY  ? extract(&hkdf, &request, out, len)
              : request.mode == EVP_KDF_HKDF_MODE_EXPAND_ONLY ? expand(&hkdf, &request, out, len)
                                                              : false;
    hkdf_end(&hkdf);
    return ok;
}

static const OSSL_ALGORITHM *query(void *provider, int operation, int *no_cache)
{
    static const OSSL_DISPATCH functions[] = {
        {OSSL_FUNC_KDF_NEWCTX, (void (*)(void))context_new},
        {OSSL_FUNC_KDF_FREECTX, (void (*)(void))context_free},
        {OSSL_FUNC_KDF_DERIVE, (void (*)(void))derive},
        {0, NULL},
    };
    static const OSSL_ALGORITHM kdfs[] = {{"TLS13-KDF", "provider=kiln", functions, "as TLS 1.3 has it"},
                                          {NULL, NULL, NULL, NULL}};
    (void)provider;
    *no_cache = 0;
    return operation == OSSL_OP_KDF ? kdfs : NULL;
}

static int begin_provider(const OSSL_CORE_HANDLE *handle, const OSSL_DISPATCH *in, const OSSL_DISPATCH **out,
                          void **provider)
{
    static const OSSL_DISPATCH functions[] = {
        {OSSL_FUNC_PROVIDER_QUERY_OPERATION, (void (*)(void))query},
        {0, NULL},
    };
    static char nothing;
    (void)handle;
    (void)in;
    *out = functions;
    *provider = &nothing; /* not NULL, which would be a failure */
    return 1;
}

/* ---- the other way: the log of keys ------------------------------------------------------------------------ */

/* "LABEL client-random secret", in hexadecimal. */
static void read_line(const SSL *ssl, const char *line)
{
    uint8_t secret[HKDF_HASH_MAX];
    struct str label = {line, strcspn(line, " ")};
    const char *last = strrchr(line, ' ');
    bool of_client = str_eq(label, STR("CLIENT_TRAFFIC_SECRET_0"));
    (void)ssl;
    if (watching == NULL || last == NULL || !(of_client || str_eq(label, STR("SERVER_TRAFFIC_SECRET_0")))) {
        return;
    }
    struct str text = str_of(last + 1);
    if (text.len <= 2 * sizeof secret && hex_read(text, secret)) {
        watching->seen(watching, of_client, secret, text.len / 2);
    }
    OPENSSL_cleanse(secret, sizeof secret);
}

/* ---- which of them -------------------------------------------------------------------------------------------- */

static const char *properties; /* NULL: the log of keys */

static OSSL_PROVIDER *ours; /* until the process ends, like the ones that OpenSSL loads by itself */

static void load_provider(void)
{
    if (OSSL_PROVIDER_add_builtin(NULL, "kiln", begin_provider) == 1) {
        ours = OSSL_PROVIDER_try_load(NULL, "kiln", 1);
    }
    ERR_clear_error();
}

static void choose(void)
{
    load_provider();
    if (ours != NULL && tls_trial(TLS_KDF_PROPERTIES, NULL)) {
        properties = TLS_KDF_PROPERTIES;
    } else if (tls_trial(NULL, read_line)) {
        log_warning("TLS handshakes are slower than they could be: %s %s key derivation",
                    OpenSSL_version(OPENSSL_VERSION), ours != NULL ? "does not use Kiln's" : "does not load Kiln's");
    } else {
        log_error("TLS 1.3 will fail: %s tells no secrets, neither by Kiln's key derivation nor by its log of keys",
                  OpenSSL_version(OPENSSL_VERSION));
    }
}

void tls_kdf_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}

SSL_CTX *tls_kdf_context(void)
{
    SSL_CTX *ctx = SSL_CTX_new_ex(NULL, properties, TLS_server_method());
    if (ctx != NULL && properties == NULL) {
        SSL_CTX_set_keylog_callback(ctx, read_line);
    }
    return ctx;
}
