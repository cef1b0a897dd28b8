/* DESIGN: bytes over a connected, non-blocking socket, plain or through TLS; one vtable, and nobody above asks
 * which. No call waits. SIGPIPE is never raised: everything is sent with MSG_NOSIGNAL, TLS records too, through
 * a BIO of our own. A transport owns its descriptor.
 *
 * TLS contexts are made once and shared by reference (tls.c): reading the system's authorities takes tens of milliseconds
 * and reads files, so it belongs where blocking is allowed. */
#ifndef KILN_WSIO_CARRIER_H
#define KILN_WSIO_CARRIER_H

#include "wsio/url.h"

#include <openssl/ssl.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum carrier_result {
    CARRIER_AGAIN = -1, /* wait for transport->wants */
    CARRIER_BROKEN = -2, /* carrier_error() tells */
};

struct carrier_ops;

struct carrier {
    const struct carrier_ops *ops;
    int fd;
    int watcher; /* an epoll descriptor that is to forget `fd` before it is closed, plus one; 0: none */
    int wants; /* enum kiln_events, after CARRIER_AGAIN */
    int error; /* errno of what broke; 0: see `text` */
    SSL *ssl; /* NULL: plain */
    bool more; /* there may be more without a wait: the last read filled its buffer, or has an end behind its bytes */
    char text[URL_ERROR_MAX];
};

struct carrier_ops {
    ssize_t (*read)(struct carrier *t, void *buffer, size_t size);
    ssize_t (*write)(struct carrier *t, const struct iovec *vectors, int count);
    int (*handshake)(struct carrier *t);
    int (*shutdown)(struct carrier *t);
    bool copies; /* vectors are sent one by one: gather small ones */
};

/* The descriptor is the transport's, and is made non-blocking. */
void carrier_init(struct carrier *t, int fd);
/* TLS from here on. `name`: of the server, for a client; NULL: a server. `verify`: the name must be the
 * certificate's. False: no memory, or a name that cannot be. */
bool carrier_use_tls(struct carrier *t, SSL_CTX *context, const char *name, bool verify);
/* TLS's handshake: 0 when done (at once for plain), or a carrier_result. */
int carrier_handshake(struct carrier *t);
/* Bytes; 0: the peer's end; or a carrier_result. */
ssize_t carrier_read(struct carrier *t, void *buffer, size_t size);
ssize_t carrier_write(struct carrier *t, const struct iovec *vectors, int count);
/* Nothing more is sent: TLS's close_notify, then FIN. 0 or a carrier_result. */
int carrier_shutdown(struct carrier *t);
/* Why it is broken. */
const char *carrier_error(struct carrier *t);
/* "TLSv1.3 NAME" into `text`; false: no TLS. */
bool carrier_describe(const struct carrier *t, char *text, size_t room);
void carrier_close(struct carrier *t);

/* What a client or a server trusts and shows; members may be NULL. */
struct tls_files {
    const char *ca; /* file or directory */
    const char *cert;
    const char *key;
    bool insecure;
};

/* One reference each; SSL_CTX_free gives it back. NULL: `error` tells. May read many files; a client's is made once for
 * the same files, as long as they do not change. */
SSL_CTX *tls_client_context(const struct tls_files *files, char error[URL_ERROR_MAX]);
SSL_CTX *tls_server_context(const struct tls_files *files, char error[URL_ERROR_MAX]);
/* A client's that was made already, without reading any; NULL: none. */
SSL_CTX *tls_client_context_made(const struct tls_files *files);

#endif
