/* libkilnws over TLS, where bytes may be inside OpenSSL while the descriptor is silent. */
#include "kilnws_support.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>

static char cert_file[] = "/tmp/kilnws-test-XXXXXX";

/* A certificate that has signed itself, and its key, in one file. */
static int make_certificate(void **state)
{
    (void)state;
    int fd = mkstemp(cert_file);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    EVP_PKEY *key = EVP_RSA_gen(2048);
    X509 *cert = X509_new();
    if (file == NULL || key == NULL || cert == NULL) {
        return -1;
    }
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1,
                               -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    bool ok = X509_sign(cert, key, EVP_sha256()) > 0 && PEM_write_X509(file, cert) == 1 &&
              PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1;
    fclose(file);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ok ? 0 : -1;
}

static int remove_certificate(void **state)
{
    (void)state;
    return unlink(cert_file);
}

static kiln_ws_listener *listen_with_tls(void)
{
    kiln_ws_listener *listener =
        kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1", .cert_file = cert_file});
    assert_non_null(listener);
    return listener;
}

/* ---- many clients, one context ----------------------------------------------------------------------------- */

static atomic_int contexts;

/* The library's calls come here. */
SSL_CTX *SSL_CTX_new(const SSL_METHOD *method)
{
    SSL_CTX *(*real)(const SSL_METHOD *);
    *(void **)&real = dlsym(RTLD_NEXT, "SSL_CTX_new");
    atomic_fetch_add(&contexts, 1);
    return real(method);
}

static void *serve_each(void *listener)
{
    kiln_ws_message m;
    kiln_ws *ws;
    while ((ws = kiln_ws_listener_accept(listener, -1)) != NULL) {
        kiln_ws_recv(ws, &m);
        kiln_ws_free(ws);
    }
    return NULL;
}

static void copy_file(const char *from, const char *to)
{
    char command[256];
    snprintf(command, sizeof command, "cp %s %s.new && mv %s.new %s", from, to, to, to);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
}

static bool connects(const kiln_ws_listener *listener, const char *ca, char error[200])
{
    kiln_ws *ws = kiln_ws_connect(
        url_of(listener, "wss"),
        &(kiln_ws_options){.ca_file = ca, .server_name = "localhost", .error = error, .error_size = 200});
    kiln_ws_free(ws);
    return ws != NULL;
}

static void test_a_context_is_made_once_for_the_same_files(void **state)
{
    (void)state;
    kiln_ws_listener *listener = listen_with_tls();
    char ca[64];
    char error[200];
    pthread_t server;
    snprintf(ca, sizeof ca, "%s.ca", cert_file);
    copy_file(cert_file, ca);
    pthread_create(&server, NULL, serve_each, listener);
    int before = atomic_load(&contexts);
    for (int i = 0; i < 20; i++) {
        assert_true(connects(listener, ca, error));
    }
    assert_int_equal(atomic_load(&contexts), before + 1);
    copy_file("/dev/null", ca);
    assert_false(connects(listener, ca, error)); /* what stands there now is what holds */
    assert_non_null(strstr(error, "authorities cannot be read"));
    copy_file(cert_file, ca);
    assert_true(connects(listener, ca, error));
    for (int i = 0; i < 20; i++) { /* and no more are kept than a few */
        char other[80];
        snprintf(other, sizeof other, "%s.%d", cert_file, i);
        copy_file(cert_file, other);
        assert_true(connects(listener, other, error));
        unlink(other);
    }
    unlink(ca);
    kiln_ws_listener_close(listener);
    pthread_join(server, NULL);
    kiln_ws_listener_free(listener);
}

/* ---- no descriptor is free ----------------------------------------------------------------------------------- */

static void test_a_lack_of_descriptors_leaves_nothing_behind(void **state)
{
    (void)state;
    kiln_ws_listener *listener = listen_with_tls();
    char error[200] = "";
    char url[64];
    pthread_t server;
    struct rlimit before;
    snprintf(url, sizeof url, "wss://localhost:%d/", kiln_ws_listener_port(listener));
    setenv("SSL_CERT_FILE", cert_file, 1);
    getrlimit(RLIMIT_NOFILE, &before);
    int next = dup(0); /* the lowest number that is free: it will be the resolver's, and none is left for files */
    close(next);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next + 1, before.rlim_max});
    kiln_ws_options options = {.error = error, .error_size = sizeof error};
    assert_null(kiln_ws_connect(url, &options));
    setrlimit(RLIMIT_NOFILE, &before);
    pthread_create(&server, NULL, serve_each, listener);
    assert_non_null(strstr(error, "Too many open files"));
    kiln_ws *ws = kiln_ws_connect(url, &options);
    assert_string_equal(ws != NULL ? "" : error, "");
    kiln_ws_free(ws);
    unsetenv("SSL_CERT_FILE");
    kiln_ws_listener_close(listener);
    pthread_join(server, NULL);
    kiln_ws_listener_free(listener);
}

/* ---- both halves of both ends at once ---------------------------------------------------------------------- */

enum { BULK = 8 << 20 };

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 31 ^ i >> 9);
}

static void *write_bulk(void *arg)
{
    uint8_t chunk[7001];
    for (size_t at = 0; at < BULK;) {
        size_t n = BULK - at < sizeof chunk ? BULK - at : sizeof chunk;
        for (size_t i = 0; i < n; i++) {
            chunk[i] = byte_at(at + i);
        }
        if (kiln_ws_stream_write(arg, chunk, n) != KILN_OK) {
            return arg;
        }
        at += n;
    }
    return kiln_ws_stream_flush(arg) == KILN_OK ? NULL : arg;
}

static void *read_bulk(void *arg)
{
    uint8_t chunk[10007];
    for (size_t at = 0; at < BULK;) {
        size_t want = BULK - at < sizeof chunk ? BULK - at : sizeof chunk;
        ssize_t n = kiln_ws_stream_read(arg, chunk, want);
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] != byte_at(at + (size_t)i)) {
                return arg;
            }
        }
        if (n <= 0) {
            return arg;
        }
        at += (size_t)n;
    }
    return NULL;
}

static bool to_and_fro(kiln_ws_stream *s)
{
    pthread_t writer;
    void *failed;
    pthread_create(&writer, NULL, write_bulk, s);
    bool ok = read_bulk(s) == NULL;
    pthread_join(writer, &failed);
    kiln_ws_stream_free(s);
    return ok && failed == NULL;
}

static void *serve_bulk(void *listener)
{
    kiln_ws *ws = kiln_ws_listener_accept(listener, -1);
    return to_and_fro(kiln_ws_stream_open(ws)) ? NULL : listener;
}

static void test_streams_of_two_threads_each(void **state)
{
    (void)state;
    kiln_ws_listener *listener = listen_with_tls();
    pthread_t server;
    void *failed;
    pthread_create(&server, NULL, serve_bulk, listener);
    kiln_ws *ws = kiln_ws_connect(url_of(listener, "wss"), &(kiln_ws_options){.insecure = 1});
    assert_non_null(ws);
    assert_non_null(kiln_ws_tls(ws));
    assert_true(to_and_fro(kiln_ws_stream_open(ws)));
    pthread_join(server, &failed);
    assert_null(failed);
    kiln_ws_listener_free(listener);
}

/* ---- one message for each wait ------------------------------------------------------------------------------- */

enum { MESSAGES = 200, SIZE = 3000 };

static void *serve_many(void *listener)
{
    char data[SIZE] = "";
    kiln_ws_message m;
    kiln_ws *ws = kiln_ws_listener_accept(listener, -1);
    for (int i = 0; i < MESSAGES; i++) {
        kiln_ws_send(ws, KILN_WS_BINARY, data, sizeof data);
    }
    kiln_ws_recv(ws, &m); /* says nothing more until the client closes */
    kiln_ws_free(ws);
    return NULL;
}

static void test_one_message_for_each_wait_in_a_loop_of_ones_own(void **state)
{
    (void)state;
    kiln_ws_listener *listener = listen_with_tls();
    pthread_t server;
    pthread_create(&server, NULL, serve_many, listener);
    kiln_ws *ws = kiln_ws_open(url_of(listener, "wss"), &(kiln_ws_options){.insecure = 1});
    assert_non_null(ws);
    int got = 0;
    while (kiln_ws_step(ws) != KILN_WS_CLOSED) {
        kiln_ws_message m;
        if (kiln_ws_recv(ws, &m) == 1) {
            assert_int_equal(m.length, SIZE);
            got++;
        }
        if (got == MESSAGES) {
            kiln_ws_close(ws, 1000, NULL);
        }
        int wanted = kiln_ws_wanted(ws);
        int ms = kiln_ws_timeout(ws);
        struct pollfd fd = {kiln_ws_fd(ws),
                            (short)((wanted & KILN_READ ? POLLIN : 0) | (wanted & KILN_WRITE ? POLLOUT : 0)), 0};
        int ready = poll(&fd, 1, ms >= 0 ? ms : 30000);
        assert_true(ready > 0 || ms >= 0); /* it is never silent while messages are here */
    }
    assert_int_equal(got, MESSAGES);
    assert_int_equal(kiln_ws_close_code(ws), 1000);
    kiln_ws_free(ws);
    pthread_join(server, NULL);
    kiln_ws_listener_free(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_context_is_made_once_for_the_same_files),
        cmocka_unit_test(test_a_lack_of_descriptors_leaves_nothing_behind),
        cmocka_unit_test(test_streams_of_two_threads_each),
        cmocka_unit_test(test_one_message_for_each_wait_in_a_loop_of_ones_own),
    };
    return cmocka_run_group_tests(tests, make_certificate, remove_certificate);
}
