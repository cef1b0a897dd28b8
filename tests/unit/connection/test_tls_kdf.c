/* TLS 1.3's derivations: RFC 8448's trace, the same as OpenSSL's own, what is seen of them, and what is refused. */
#include "connection/hex.h"
#include "connection/hkdf.h"
#include "connection/tls_kdf.h"
#include "connection/tls_private.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { OUT = 64 };

static struct str bytes(const char *hex, uint8_t out[OUT])
{
    assert_true(hex_read(str_of(hex), out));
    return (struct str){(char *)out, strlen(hex) / 2};
}

/* RFC 8448, 3. */
static void as_in_rfc_8448(void **state)
{
    (void)state;
    static const uint8_t zeros[32];
    uint8_t expected[OUT];
    uint8_t early[32];
    uint8_t secret[OUT];
    struct hkdf hkdf;
    assert_true(hkdf_begin(&hkdf, STR("SHA2-256")));
    assert_true(hkdf_extract(&hkdf, STR_NONE, (struct str){(const char *)zeros, sizeof zeros}, early));
    bytes("33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a", expected);
    assert_memory_equal(early, expected, 32);
    assert_true(hkdf_derived(&hkdf, early, early));
    bytes("6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba", expected);
    assert_memory_equal(early, expected, 32);
    struct str shared = bytes("8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d", secret);
    assert_true(hkdf_extract(&hkdf, (struct str){(char *)early, 32}, shared, early));
    bytes("1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac", expected);
    assert_memory_equal(early, expected, 32);
    bytes("b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38", secret);
    assert_true(hkdf_expand(&hkdf, secret, STR("key"), STR_NONE, early, 16));
    bytes("3fce516009c21727d0f2e4e86ee403bc", expected);
    assert_memory_equal(early, expected, 16);
    assert_true(hkdf_expand(&hkdf, secret, STR("iv"), STR_NONE, early, 12));
    bytes("5d313eb2671276ee13000b30", expected);
    assert_memory_equal(early, expected, 12);
    hkdf_end(&hkdf);
}

struct derivation {
    int mode;
    const char *digest;
    size_t key;
    size_t salt;
    const char *label;
    size_t data;
    size_t out;
};

static int derive(const char *properties, const struct derivation *d, uint8_t *out)
{
    static uint8_t text[256];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)(i * 7 + d->out);
    }
    int mode = d->mode;
    OSSL_PARAM params[8];
    size_t n = 0;
    params[n++] = OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode);
    params[n++] = OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)(uintptr_t)d->digest, 0);
    if (d->key > 0) {
        params[n++] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, text, d->key);
    }
    if (d->salt > 0) {
        params[n++] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, text + 1, d->salt);
    }
    params[n++] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, "tls13 ", 6);
    params[n++] =
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_LABEL, (char *)(uintptr_t)d->label, strlen(d->label));
    if (d->data > 0) {
        params[n++] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_DATA, text + 2, d->data);
    }
    params[n] = OSSL_PARAM_construct_end();
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "TLS13-KDF", properties);
    assert_non_null(kdf);
    EVP_KDF_CTX *ctx = EVP_KDF_CTX_new(kdf);
    assert_non_null(ctx);
    int done = EVP_KDF_derive(ctx, out, d->out, params);
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    return done;
}

static void the_same_as_openssl(void **state)
{
    (void)state;
    static const struct derivation all[] = {
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA256", 0, 0, "derived", 0, 32},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA2-256", 32, 0, "derived", 0, 32},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA2-256", 48, 32, "derived", 0, 32},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA2-256", 0, 32, "derived", 0, 32},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA384", 0, 0, "derived", 0, 48},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA2-384", 32, 48, "derived", 0, 48},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA2-384", 128, 48, "derived", 0, 48},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-256", 32, 0, "c hs traffic", 32, 32},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-256", 32, 0, "finished", 0, 32},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-256", 32, 0, "resumption", 8, 32},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-256", 32, 0, "iv", 0, 12},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-256", 32, 0, "exporter of some length", 64, 1000},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-384", 48, 0, "s ap traffic", 48, 48},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-384", 48, 0, "key", 0, 32},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-384", 48, 0, "exporter", 48, 97},
    };
    tls_kdf_begin();
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        uint8_t ours[1000];
        uint8_t theirs[sizeof ours];
        assert_int_equal(derive("provider=default", &all[i], theirs), 1);
        assert_int_equal(derive(TLS_KDF_PROPERTIES, &all[i], ours), 1);
        assert_memory_equal(ours, theirs, all[i].out);
        assert_int_equal(derive("provider=kiln", &all[i], ours), 1); /* it was ours */
    }
}

struct onlooker {
    struct tls_secrets secrets;
    int of_client;
    int of_server;
    uint8_t secret[HKDF_HASH_MAX];
};

static void see(struct tls_secrets *secrets, bool of_client, const uint8_t *secret, size_t len)
{
    struct onlooker *watch = (struct onlooker *)secrets;
    watch->of_client += of_client;
    watch->of_server += !of_client;
    assert_true(len <= sizeof watch->secret);
    memcpy(watch->secret, secret, len);
}

static void secrets_of_data_are_seen(void **state)
{
    (void)state;
    static const struct derivation client = {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-256", 32, 0, "c ap traffic", 32, 32};
    static const struct derivation server = {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-384", 48, 0, "s ap traffic", 48, 48};
    static const struct derivation early = {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-256", 32, 0, "c hs traffic", 32, 32};
    struct onlooker watch = {{see}, 0, 0, {0}};
    uint8_t out[OUT];
    tls_kdf_begin();
    tls_kdf_watch(&watch.secrets);
    assert_int_equal(derive(TLS_KDF_PROPERTIES, &early, out), 1);
    assert_int_equal(watch.of_client + watch.of_server, 0);
    assert_int_equal(derive(TLS_KDF_PROPERTIES, &client, out), 1);
    assert_int_equal(watch.of_client, 1);
    assert_memory_equal(watch.secret, out, 32);
    assert_int_equal(derive(TLS_KDF_PROPERTIES, &server, out), 1);
    assert_int_equal(watch.of_server, 1);
    assert_memory_equal(watch.secret, out, 48);
    tls_kdf_watch(NULL);
    assert_int_equal(derive(TLS_KDF_PROPERTIES, &client, out), 1);
    assert_int_equal(watch.of_client, 1);
}

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    static const struct derivation all[] = {
        {EVP_KDF_HKDF_MODE_EXTRACT_AND_EXPAND, "SHA256", 32, 0, "derived", 0, 32},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA256", 32, 0, "derived", 0, 31}, /* not the hash's length */
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA256", 32, 31, "derived", 0, 32},
        {EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "SHA256", 32, 32, "other", 0, 32},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA256", 31, 0, "key", 0, 16},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA256", 0, 0, "key", 0, 16},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA256", 32, 0, "key", HKDF_CONTEXT_MAX + 1, 16},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA256", 32, 0, "key", 0, 255 * 32 + 1},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "MD5", 16, 0, "key", 0, 16},
        {EVP_KDF_HKDF_MODE_EXPAND_ONLY, "SHA2-512", 64, 0, "key", 0, 16},
    };
    static uint8_t out[255 * 32 + 1];
    tls_kdf_begin();
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_true(derive("provider=kiln", &all[i], out) <= 0);
    }
}

static void a_trial_tells_whether_secrets_are_seen(void **state)
{
    (void)state;
    tls_kdf_begin();
    assert_true(tls_trial(TLS_KDF_PROPERTIES, NULL));
    assert_false(tls_trial("provider=default", NULL));
    assert_false(tls_trial("provider=nobody", NULL));
    SSL_CTX *ctx = tls_kdf_context();
    assert_non_null(ctx);
    assert_null(SSL_CTX_get_keylog_callback(ctx));
    SSL_CTX_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_rfc_8448),
        cmocka_unit_test(the_same_as_openssl),
        cmocka_unit_test(secrets_of_data_are_seen),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(a_trial_tells_whether_secrets_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
