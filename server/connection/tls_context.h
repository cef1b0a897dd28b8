/* DESIGN: what all TLS connections of a worker share: one SSL_CTX made from the config and the
 * certificates in use. It is replaced whole when either changes; a connection keeps the one it
 * began with, by OpenSSL's own counter, so that nothing is dropped. Which pair a client gets is
 * decided in its handshake, by name (certs.h), without a lock. */
#ifndef KILN_CONNECTION_TLS_CONTEXT_H
#define KILN_CONNECTION_TLS_CONTEXT_H

#include "base/buffer.h"

#include <openssl/ssl.h>

struct config;
struct cert_set;

/* A new one from what is there becomes current. False with a message in `why`; then the one before
 * stays. Not on a loop: it may take a while. */
/* The caller keeps its reference of `certs`; `client_ca` is PEM, of which ClientCertificates makes use. */
bool tls_context_use(const struct config *config, struct cert_set *certs, struct str client_ca, struct buffer *why);
/* For connections that begin now, loop threads only; NULL before the first. */
SSL_CTX *tls_context_current(void);
void tls_context_end(void);

/* The certificates that a connection was offered from. */
struct cert_set *tls_context_certs(const SSL *ssl);

#endif
