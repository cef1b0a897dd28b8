#include "wsio/carrier.h"

#include "kiln_ws.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static ssize_t broken(struct carrier *t, int error)
{
    t->error = error;
    return CARRIER_BROKEN;
}

static ssize_t again(struct carrier *t, int wants)
{
    t->wants = wants;
    return CARRIER_AGAIN;
}

/* ---- plain ------------------------------------------------------------------------------------------ */

static ssize_t plain_read(struct carrier *t, void *buffer, size_t size)
{
    ssize_t n;
    do {
        n = recv(t->fd, buffer, size, 0);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return errno == EAGAIN ? again(t, KILN_READ) : broken(t, errno);
    }
    t->more = (size_t)n == size;
    return n;
}

static ssize_t plain_write(struct carrier *t, const struct iovec *vectors, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)vectors, .msg_iovlen = (size_t)count};
    ssize_t n;
    do {
        n = count == 1 ? send(t->fd, vectors->iov_base, vectors->iov_len, MSG_NOSIGNAL)
                       : sendmsg(t->fd, &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return errno == EAGAIN ? again(t, KILN_WRITE) : broken(t, errno);
    }
    return n;
}

static int plain_handshake(struct carrier *t)
{
    (void)t;
    return 0;
}

static int plain_shutdown(struct carrier *t)
{
    return shutdown(t->fd, SHUT_WR) == 0 ? 0 : (int)broken(t, errno);
}

static const struct carrier_ops plain_ops = {plain_read, plain_write, plain_handshake, plain_shutdown, false};

/* ---- TLS: a BIO that sends with MSG_NOSIGNAL ------------------------------------------------------------ */

static int bio_write(BIO *bio, const char *data, int len)
{
    int fd = (int)(intptr_t)BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = send(fd, data, (size_t)len, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        BIO_set_retry_write(bio);
    }
    return (int)n;
}

static int bio_read(BIO *bio, char *data, int len)
{
    int fd = (int)(intptr_t)BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = recv(fd, data, (size_t)len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        BIO_set_retry_read(bio);
    }
    if (n == 0) {
        BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    }
    return (int)n;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)number;
    (void)pointer;
    switch (command) {
    case BIO_CTRL_FLUSH: return 1;
    case BIO_CTRL_EOF: return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    default: return 0;
    }
}

static BIO_METHOD *bio_method;

static __attribute__((constructor)) void make_bio_method(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kilnws");
    if (bio_method != NULL) {
        BIO_meth_set_write(bio_method, bio_write);
        BIO_meth_set_read(bio_method, bio_read);
        BIO_meth_set_ctrl(bio_method, bio_ctrl);
    }
}

static __attribute__((destructor)) void free_bio_method(void)
{
    BIO_meth_free(bio_method);
}

/* Names what went wrong: the certificate's fault in words, else OpenSSL's own. */
static void describe(struct carrier *t, int error)
{
    bool verifying = (SSL_get_verify_mode(t->ssl) & SSL_VERIFY_PEER) != 0 && !SSL_is_init_finished(t->ssl);
    long verify = verifying ? SSL_get_verify_result(t->ssl) : X509_V_OK;
    unsigned long code = ERR_peek_last_error();
    t->error = 0;
    if (verify != X509_V_OK) {
        snprintf(t->text, sizeof t->text, "the peer's certificate is not accepted: %s",
                 X509_verify_cert_error_string(verify));
    } else if (code != 0 && ERR_reason_error_string(code) != NULL) {
        snprintf(t->text, sizeof t->text, "TLS: %s", ERR_reason_error_string(code));
    } else if (error != 0) {
        t->error = error;
    } else {
        snprintf(t->text, sizeof t->text, "TLS: the connection ended without a closing alert");
    }
    ERR_clear_error();
}

/* What a call of SSL_* that returned `n` <= 0 means; 0: the peer's end. */
static ssize_t meaning(struct carrier *t, int n, int error)
{
    switch (SSL_get_error(t->ssl, n)) {
    case SSL_ERROR_WANT_READ: return again(t, KILN_READ);
    case SSL_ERROR_WANT_WRITE: return again(t, KILN_WRITE);
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: describe(t, error); return CARRIER_BROKEN;
    }
}

static ssize_t tls_read(struct carrier *t, void *buffer, size_t size)
{
    size_t got = 0;
    ssize_t result = 0;
    while (got < size) {
        ERR_clear_error();
        errno = 0;
        int n = SSL_read(t->ssl, (char *)buffer + got, (int)(size - got));
        if (n <= 0) {
            result = meaning(t, n, errno);
            break;
        }
        got += (size_t)n;
        result = CARRIER_AGAIN;
        if (!SSL_has_pending(t->ssl)) { /* all of a read of the socket is used: it tells of what follows */
            break;
        }
    }
    t->more = got == size || result != CARRIER_AGAIN; /* the end's alert is inside, no descriptor tells of it */
    return got > 0 ? (ssize_t)got : result; /* an end or an error is found again by the next call */
}

static ssize_t tls_write(struct carrier *t, const struct iovec *vectors, int count)
{
    size_t sent = 0;
    for (int i = 0; i < count; i++) {
        size_t at = 0;
        while (at < vectors[i].iov_len) {
            ERR_clear_error();
            errno = 0;
            int n = SSL_write(t->ssl, (const char *)vectors[i].iov_base + at, (int)(vectors[i].iov_len - at));
            if (n <= 0) {
                ssize_t result = meaning(t, n, errno);
                return sent > 0 && result == CARRIER_AGAIN ? (ssize_t)sent : result == 0 ? broken(t, EPIPE) : result;
            }
            at += (size_t)n;
            sent += (size_t)n;
        }
    }
    return (ssize_t)sent;
}

static int tls_handshake(struct carrier *t)
{
    ERR_clear_error();
    errno = 0;
    int n = SSL_do_handshake(t->ssl);
    if (n == 1) {
        return 0;
    }
    ssize_t result = meaning(t, n, errno);
    return result == 0 ? (int)broken(t, ECONNRESET) : (int)result;
}

static int tls_shutdown(struct carrier *t)
{
    ERR_clear_error();
    int n = SSL_shutdown(t->ssl);
    if (n < 0 && SSL_get_error(t->ssl, n) == SSL_ERROR_WANT_WRITE) {
        return (int)again(t, KILN_WRITE);
    }
    ERR_clear_error();
    return plain_shutdown(t);
}

static const struct carrier_ops tls_ops = {tls_read, tls_write, tls_handshake, tls_shutdown, true};

/* ---- both -------------------------------------------------------------------------------------------------- */

void carrier_init(struct carrier *t, int fd)
{
    *t = (struct carrier){.ops = &plain_ops, .fd = fd};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static bool expect_name(SSL *ssl, const char *name, bool verify)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (!verify) {
        SSL_set_verify(ssl, SSL_VERIFY_NONE, NULL);
    }
    if (X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1) {
        return true; /* an address is not asked for by name */
    }
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return X509_VERIFY_PARAM_set1_host(param, name, 0) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

bool carrier_use_tls(struct carrier *t, SSL_CTX *context, const char *name, bool verify)
{
    SSL *ssl = SSL_new(context);
    BIO *bio = bio_method != NULL ? BIO_new(bio_method) : NULL;
    if (ssl == NULL || bio == NULL || (name != NULL && !expect_name(ssl, name, verify))) {
        SSL_free(ssl);
        BIO_free(bio);
        ERR_clear_error();
        return false;
    }
    BIO_set_data(bio, (void *)(intptr_t)t->fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    if (name != NULL) {
        SSL_set_connect_state(ssl);
    } else {
        SSL_set_accept_state(ssl);
    }
    t->ssl = ssl;
    t->ops = &tls_ops;
    return true;
}

int carrier_handshake(struct carrier *t)
{
    return t->ops->handshake(t);
}

ssize_t carrier_read(struct carrier *t, void *buffer, size_t size)
{
    return t->ops->read(t, buffer, size);
}

ssize_t carrier_write(struct carrier *t, const struct iovec *vectors, int count)
{
    return t->ops->write(t, vectors, count);
}

int carrier_shutdown(struct carrier *t)
{
    return t->ops->shutdown(t);
}

const char *carrier_error(struct carrier *t)
{
    if (t->error != 0) {
        snprintf(t->text, sizeof t->text, "%s", strerror(t->error));
    }
    return t->text;
}

bool carrier_describe(const struct carrier *t, char *text, size_t room)
{
    if (t->ssl == NULL) {
        return false;
    }
    snprintf(text, room, "%s %s", SSL_get_version(t->ssl), SSL_get_cipher_name(t->ssl));
    return true;
}

void carrier_close(struct carrier *t)
{
    SSL_free(t->ssl);
    t->ssl = NULL;
    if (t->fd >= 0 && t->watcher > 0) {
        epoll_ctl(t->watcher - 1, EPOLL_CTL_DEL, t->fd, NULL);
    }
    if (t->fd >= 0) {
        close(t->fd);
    }
    t->fd = -1;
    t->watcher = 0;
}
