/* DESIGN: records made by the kernel (kTLS), so that a large file goes by sendfile without passing through this
 * process. It begins with the first large file of a connection, where the kernel has the "tls" protocol for this
 * suite, and stays until its end: the connection goes over to another transport, which differs from
 * transport_tls in its way out alone. What comes in is opened here as before. A kernel that has it not is
 * asked once.
 *
 * What is no data (an alert, a KeyUpdate) is handed over beside its kind; when the kernel takes nothing at the moment,
 * it waits in `struct tls` for the socket, and no data overtakes it.
 *
 * A client of TLS 1.3 may ask for new keys at any time (RFC 8446, 4.6.3). The kernel takes them since Linux 6.14.
 * Whether this one does is found out before the KeyUpdate leaves, by giving it the keys that it has once more;
 * where it does not, nothing that we could send would be right, and the client gets the alert internal_error. */
#include "connection/tls_private.h"

#include "config/config.h"
#include "loop/config_hold.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/objects.h>
#include <stdatomic.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef SOL_TLS
#define SOL_TLS 282
#endif

enum { KERNEL_LEAST = 256 * 1024 }; /* of a file: for less, setting it up would cost more than it saves */

static atomic_bool missing; /* the kernel has no "tls" */

/* ---- keys to the kernel ------------------------------------------------------------------------------- */

union crypto_info {
    struct tls_crypto_info head;
    struct tls12_crypto_info_aes_gcm_128 aes_128;
    struct tls12_crypto_info_aes_gcm_256 aes_256;
    struct tls12_crypto_info_chacha20_poly1305 chacha;
};

static void put_number(uint8_t to[8], uint64_t number)
{
    for (int i = 7; i >= 0; i--) {
        to[i] = (uint8_t)number;
        number >>= 8;
    }
}

/* Each suite has a struct of its own, with members of the same names. */
#define FILL(to, number) \
    do { \
        (to).info.cipher_type = (number); \
        memcpy((to).key, key, sizeof(to).key); \
        memcpy((to).rec_seq, sequence, sizeof(to).rec_seq); \
    } while (0)

static size_t describe(const struct tls *tls, const uint8_t *key, union crypto_info *out)
{
    const struct record_way *way = &tls->out;
    uint8_t sequence[8];
    uint8_t rest[8]; /* of the nonce, behind the salt */
    put_number(sequence, way->sequence);
    put_number(rest, way->explicit_iv);
    if (tls->format->explicit_iv == 0) {
        memcpy(rest, way->iv + 4, sizeof rest);
    }
    *out = (union crypto_info){0};
    size_t len = 0;
    switch (tls->format->nid) {
    case NID_aes_128_gcm:
        FILL(out->aes_128, TLS_CIPHER_AES_GCM_128);
        memcpy(out->aes_128.salt, way->iv, sizeof out->aes_128.salt);
        memcpy(out->aes_128.iv, rest, sizeof out->aes_128.iv);
        len = sizeof out->aes_128;
        break;
    case NID_aes_256_gcm:
        FILL(out->aes_256, TLS_CIPHER_AES_GCM_256);
        memcpy(out->aes_256.salt, way->iv, sizeof out->aes_256.salt);
        memcpy(out->aes_256.iv, rest, sizeof out->aes_256.iv);
        len = sizeof out->aes_256;
        break;
    default:
        FILL(out->chacha, TLS_CIPHER_CHACHA20_POLY1305);
        memcpy(out->chacha.iv, way->iv, sizeof out->chacha.iv);
        len = sizeof out->chacha;
        break;
    }
    out->head.version = tls->format->tls13 ? TLS_1_3_VERSION : TLS_1_2_VERSION;
    return len;
}

static bool give_keys(const struct conn *conn, const struct tls *tls)
{
    uint8_t key[32];
    union crypto_info info;
    if (!tls_keys_of(&tls->out, tls->format, key)) {
        return false;
    }
    size_t len = describe(tls, key, &info);
    bool ok = setsockopt(conn->watch.fd, SOL_TLS, TLS_TX, &info, (socklen_t)len) == 0;
    OPENSSL_cleanse(key, sizeof key);
    OPENSSL_cleanse(&info, sizeof info);
    return ok;
}

bool tls_kernel_begin(struct conn *conn, size_t file_len)
{
    struct tls *tls = tls_of(conn);
    if (file_len < KERNEL_LEAST || tls->kernel_asked || tls->record_most < RECORD_MAX ||
        atomic_load_explicit(&missing, memory_order_relaxed) || !config_hold_current(conn->loop)->kernel_tls) {
        return false;
    }
    tls->kernel_asked = true;
    CHECK(tls->held == NULL && tls->ahead == 0 && tls->shared->out_len == 0);
    if (setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") != 0) {
        if (errno == ENOENT || errno == ENOPROTOOPT) {
            atomic_store_explicit(&missing, true, memory_order_relaxed);
            log_debug("the kernel makes no TLS records (module tls)");
        }
        return false;
    }
    if (!give_keys(conn, tls)) {
        log_debug("the kernel makes no TLS records of %s: %s", tls->format->cipher, strerror(errno));
        return false;
    }
    tls->kernel = true;
    conn->transport = &transport_tls_kernel;
    metric_add(METRIC_TLS_KERNEL, 1);
    return true;
}

/* Whether the kernel lets keys be changed: it is given what it has. */
static bool takes_new_keys(const struct conn *conn, const struct tls *tls)
{
    union crypto_info info;
    uint8_t none[32] = {0};
    socklen_t len = (socklen_t)describe(tls, none, &info); /* for the length */
    bool ok = getsockopt(conn->watch.fd, SOL_TLS, TLS_TX, &info, &len) == 0 &&
              setsockopt(conn->watch.fd, SOL_TLS, TLS_TX, &info, len) == 0;
    OPENSSL_cleanse(&info, sizeof info);
    return ok;
}

/* ---- the way out ------------------------------------------------------------------------------------------ */

/* A record that is no data. */
static bool send_record(const struct conn *conn, uint8_t type, const uint8_t *data, size_t len)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(1)];
    } control = {.head = {.cmsg_level = SOL_TLS, .cmsg_type = TLS_SET_RECORD_TYPE, .cmsg_len = CMSG_LEN(1)}};
    *CMSG_DATA(&control.head) = type;
    struct iovec vector = {(void *)(uintptr_t)data, len};
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    return sendmsg(conn->watch.fd, &message, MSG_NOSIGNAL) == (ssize_t)len;
}

/* The last record of the old keys, and the new ones for what follows. */
static enum tls_sent send_key_update(const struct conn *conn, struct tls *tls)
{
    if (!takes_new_keys(conn, tls)) {
        static const uint8_t alert[] = {2, ALERT_INTERNAL_ERROR};
        log_debug("TLS connection failed: the peer wants new keys, and the kernel takes none: %s", strerror(errno));
        send_record(conn, RECORD_ALERT, alert, sizeof alert);
        tls->failed = true;
        errno = EPROTO;
        return TLS_FAILED;
    }
    if (!send_record(conn, RECORD_HANDSHAKE, tls_key_update, sizeof tls_key_update)) {
        return errno == EAGAIN ? TLS_BLOCKED : TLS_FAILED;
    }
    tls->update_waits = false;
    if (!tls_keys_update(&tls->out, tls->format, true) || !give_keys(conn, tls)) {
        errno = EPROTO;
        return TLS_FAILED;
    }
    return TLS_SENT;
}

enum tls_sent tls_kernel_flush(struct conn *conn)
{
    struct tls *tls = tls_of(conn);
    if (tls->update_waits) {
        enum tls_sent sent = send_key_update(conn, tls);
        if (sent != TLS_SENT) {
            return sent;
        }
    }
    if (!tls->alert_waits) {
        return TLS_SENT;
    }
    if (!send_record(conn, RECORD_ALERT, tls->alert, sizeof tls->alert)) {
        return errno == EAGAIN ? TLS_BLOCKED : TLS_FAILED;
    }
    tls->alert_waits = false;
    return TLS_SENT;
}

static bool what_waits_is_sent(struct conn *conn)
{
    enum tls_sent sent = tls_kernel_flush(conn);
    errno = sent == TLS_BLOCKED ? EAGAIN : errno;
    return sent == TLS_SENT;
}

static ssize_t kernel_send(struct conn *conn, const struct iovec *vectors, int count, bool more)
{
    return !what_waits_is_sent(conn) ? -1 : transport_plain.send(conn, vectors, count, more);
}

static ssize_t kernel_send_file(struct conn *conn, int fd, off_t offset, size_t len)
{
    return !what_waits_is_sent(conn) ? -1 : sendfile(conn->watch.fd, fd, &offset, len);
}

const struct transport transport_tls_kernel = {
    .name = "tls, records by the kernel",
    .secure = true,
    .receive = tls_receive,
    .send = kernel_send,
    .send_file = kernel_send_file,
    .resume = tls_resume,
    .shutdown = tls_shutdown,
    .close = tls_close,
};
