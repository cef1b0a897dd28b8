/* Preloaded: a kernel that makes TLS records (kTLS), for machines whose kernel does not. It takes the protocol "tls"
 * and keys as Linux does, and what is sent then becomes records here. It is not the server's code that makes
 * them, so that client and server cannot agree on a mistake of both.
 * KERNEL_TLS_REKEY=0: keys are taken once, as before Linux 6.14. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FDS = 4096, TLS_LEVEL = 282, MOST = 16384, HEAD = 5, TAG = 16, DATA = 23 };

static struct way {
    int tls; /* the protocol was asked for */
    int keys; /* given */
    char info[128];
    socklen_t info_len;
    unsigned version, cipher;
    unsigned char key[32], iv[12], explicit_iv[8];
    unsigned long long sequence;
} ways[FDS];

static long kernel(long n, long a, long b, long c, long d, long e, long f)
{
    static long (*real)(long, ...);
    if (real == NULL) {
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    }
    return real(n, a, b, c, d, e, f);
}

static struct way *way_of(int fd)
{
    return fd >= 0 && fd < FDS && ways[fd].keys ? &ways[fd] : NULL;
}

static unsigned long long number(const unsigned char *from)
{
    unsigned long long n = 0;
    for (int i = 0; i < 8; i++) {
        n = n << 8 | from[i];
    }
    return n;
}

static void put(unsigned char *to, unsigned long long n)
{
    for (int i = 7; i >= 0; i--, n >>= 8) {
        to[i] = (unsigned char)n;
    }
}

static int take_keys(struct way *way, const void *info, socklen_t len)
{
    const struct tls_crypto_info *head = info;
    const char *rekey = getenv("KERNEL_TLS_REKEY");
    if (!way->tls || len > sizeof way->info || len < sizeof *head) {
        return EINVAL;
    }
    if (way->keys && (head->version != TLS_1_3_VERSION || (rekey != NULL && *rekey == '0'))) {
        return EBUSY;
    }
    if (way->keys && (head->version != way->version || head->cipher_type != way->cipher)) {
        return EINVAL;
    }
#define TAKE(type, salt_len) \
    do { \
        const struct type *its = info; \
        if (len != sizeof *its) { \
            return EINVAL; \
        } \
        memcpy(way->key, its->key, sizeof its->key); \
        memcpy(way->iv, its->salt, salt_len); \
        memcpy(way->iv + (salt_len), its->iv, 12 - (salt_len)); \
        memcpy(way->explicit_iv, its->iv, sizeof its->iv < 8 ? sizeof its->iv : 8); \
        way->sequence = number(its->rec_seq); \
    } while (0)
    switch (head->cipher_type) {
    case TLS_CIPHER_AES_GCM_128: TAKE(tls12_crypto_info_aes_gcm_128, 4); break;
    case TLS_CIPHER_AES_GCM_256: TAKE(tls12_crypto_info_aes_gcm_256, 4); break;
    case TLS_CIPHER_CHACHA20_POLY1305: TAKE(tls12_crypto_info_chacha20_poly1305, 0); break;
    default: return EINVAL;
    }
    memcpy(way->info, info, len);
    way->info_len = len;
    way->version = head->version;
    way->cipher = head->cipher_type;
    way->keys = 1;
    return 0;
}

/* What was given, with the number of the next record. */
static int tell_keys(const struct way *way, void *info, socklen_t *len)
{
    if (!way->keys || *len != way->info_len) {
        return EINVAL;
    }
    memcpy(info, way->info, way->info_len);
    put((unsigned char *)info + way->info_len - 8, way->sequence); /* rec_seq is the last of each struct */
    return 0;
}

static const EVP_CIPHER *cipher_of(const struct way *way)
{
    return way->cipher == TLS_CIPHER_AES_GCM_128   ? EVP_aes_128_gcm()
           : way->cipher == TLS_CIPHER_AES_GCM_256 ? EVP_aes_256_gcm()
                                                   : EVP_chacha20_poly1305();
}

/* One record (RFC 8446, 5.2; RFC 5288 and RFC 7905). Its length. */
static size_t seal(struct way *way, unsigned char type, const unsigned char *data, size_t len, unsigned char *out)
{
    int tls13 = way->version == TLS_1_3_VERSION;
    size_t front = !tls13 && way->cipher != TLS_CIPHER_CHACHA20_POLY1305 ? 8 : 0;
    size_t body = front + len + (tls13 ? 1 : 0) + TAG;
    unsigned char nonce[12], aad[13], sequence[8];
    int done = 0;
    memcpy(nonce, way->iv, sizeof nonce);
    put(sequence, way->sequence);
    if (front > 0) {
        memcpy(nonce + 4, way->explicit_iv, 8);
        memcpy(out + HEAD, way->explicit_iv, 8);
        put(way->explicit_iv, number(way->explicit_iv) + 1);
    } else {
        for (int i = 0; i < 8; i++) {
            nonce[4 + i] ^= sequence[i];
        }
    }
    memcpy(out, (unsigned char[]){tls13 ? DATA : type, 3, 3, (unsigned char)(body >> 8), (unsigned char)body}, HEAD);
    memcpy(aad, sequence, 8);
    memcpy(aad + 8, (unsigned char[]){type, 3, 3, (unsigned char)(len >> 8), (unsigned char)len}, 5);
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    unsigned char *to = out + HEAD + front;
    EVP_EncryptInit_ex(ctx, cipher_of(way), NULL, way->key, nonce);
    EVP_EncryptUpdate(ctx, NULL, &done, tls13 ? out : aad, tls13 ? HEAD : 13);
    EVP_EncryptUpdate(ctx, to, &done, data, (int)len);
    to += done;
    if (tls13) {
        EVP_EncryptUpdate(ctx, to, &done, &type, 1);
        to += done;
    }
    EVP_EncryptFinal_ex(ctx, to, &done);
    EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG, to + done);
    EVP_CIPHER_CTX_free(ctx);
    way->sequence++;
    return HEAD + body;
}

/* A record that is begun leaves as a whole: then the socket is waited for, as it may be in a test. */
static ssize_t send_record(int fd, struct way *way, unsigned char type, const unsigned char *data, size_t len)
{
    unsigned char record[MOST + 64];
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    len = len < MOST ? len : MOST;
    size_t all = seal(way, type, data, len, record);
    for (size_t at = 0; at < all;) {
        long n = kernel(SYS_sendto, fd, (long)(record + at), (long)(all - at), MSG_NOSIGNAL, 0, 0);
        if (n < 0 && errno == EAGAIN) {
            poll(&ready, 1, -1);
        } else if (n < 0) {
            return -1;
        } else {
            at += (size_t)n;
        }
    }
    return (ssize_t)len;
}

static ssize_t send_message(int fd, struct way *way, const struct msghdr *message)
{
    const struct cmsghdr *head = message->msg_controllen > 0 ? CMSG_FIRSTHDR(message) : NULL;
    unsigned char type = head != NULL && head->cmsg_level == TLS_LEVEL ? *CMSG_DATA(head) : DATA;
    ssize_t done = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *vector = &message->msg_iov[i];
        for (size_t at = 0; at < vector->iov_len;) {
            ssize_t n = send_record(fd, way, type, (unsigned char *)vector->iov_base + at, vector->iov_len - at);
            if (n < 0) {
                return done > 0 ? done : -1;
            }
            at += (size_t)n;
            done += n;
        }
    }
    return done;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    if (level == IPPROTO_TCP && name == TCP_ULP && fd < FDS) {
        ways[fd] = (struct way){.tls = 1};
        return 0;
    }
    if (level == TLS_LEVEL && fd < FDS) {
        int error = take_keys(&ways[fd], value, len);
        if (error != 0) {
            errno = error;
        }
        return error == 0 ? 0 : -1;
    }
    return (int)kernel(SYS_setsockopt, fd, level, name, (long)value, (long)len, 0);
}

int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict len)
{
    if (level == TLS_LEVEL && fd < FDS) {
        int error = tell_keys(&ways[fd], value, len);
        if (error != 0) {
            errno = error;
        }
        return error == 0 ? 0 : -1;
    }
    return (int)kernel(SYS_getsockopt, fd, level, name, (long)value, (long)len, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct way *way = way_of(fd);
    return way != NULL ? send_message(fd, way, message) : kernel(SYS_sendmsg, fd, (long)message, flags, 0, 0, 0);
}

static ssize_t send_bytes(int fd, const void *data, size_t len, int flags)
{
    struct way *way = way_of(fd);
    struct iovec vector = {(void *)data, len};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    return way != NULL ? send_message(fd, way, &message) : kernel(SYS_sendto, fd, (long)data, (long)len, flags, 0, 0);
}

ssize_t send(int fd, const void *data, size_t len, int flags)
{
    return send_bytes(fd, data, len, flags);
}

ssize_t sendfile(int fd, int from, off_t *offset, size_t len)
{
    static __thread unsigned char part[MOST];
    struct way *way = way_of(fd);
    ssize_t done = 0;
    if (way == NULL) {
        return kernel(SYS_sendfile, fd, from, (long)offset, (long)len, 0, 0);
    }
    while ((size_t)done < len) {
        size_t want = len - (size_t)done < sizeof part ? len - (size_t)done : sizeof part;
        ssize_t n = pread(from, part, want, *offset);
        n = n > 0 ? send_record(fd, way, DATA, part, (size_t)n) : n;
        if (n <= 0) {
            return done > 0 ? done : n;
        }
        *offset += n;
        done += n;
    }
    return done;
}

/* By the next one's function: a sanitizer follows descriptors by it. */
int close(int fd)
{
    static int (*real)(int);
    if (real == NULL) {
        real = (int (*)(int))dlsym(RTLD_NEXT, "close");
    }
    if (fd >= 0 && fd < FDS) {
        ways[fd] = (struct way){0};
    }
    return real(fd);
}

/* The server calls some by their number. */
long syscall(long n, ...)
{
    va_list list;
    long a[6];
    va_start(list, n);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(list, long);
    }
    va_end(list);
    return n == SYS_sendto && way_of((int)a[0]) != NULL ? send_bytes((int)a[0], (void *)a[1], (size_t)a[2], (int)a[3])
                                                        : kernel(n, a[0], a[1], a[2], a[3], a[4], a[5]);
}
