/* DESIGN: OCSP stapling for certificates that ask for it (must-staple, RFC 7633): their clients refuse
 * them without a fresh word of the authority that they are not revoked. A thread of the worker
 * fetches it from the responder that the certificate names, checks it as a client would, and
 * hangs it on the pair, where handshakes take it without a lock. It is renewed at half of
 * its life; an old one is used to its end when the responder does not answer. The supervisor
 * keeps a copy for the next worker. */
#ifndef KILN_CONNECTION_STAPLE_H
#define KILN_CONNECTION_STAPLE_H

#include "connection/cert_pair.h"

#include <openssl/ssl.h>

struct staple {
    time_t until; /* nextUpdate */
    time_t renew; /* when to ask again */
    size_t len;
    unsigned char der[];
};

/* Any thread; a copy of the bytes. False when out of memory. */
bool staple_set(struct cert_pair *pair, const void *der, size_t len, time_t until, time_t renew);
/* Of a pair that nobody uses any more. */
void staple_free(struct cert_pair *pair);

/* ---- the worker ---- */
/* The thread looks after these pairs from now on, of which it keeps its own references. `tell` is
 * called on it with each new staple. Pairs that do not ask for staples are passed over. */
void staples_watch(struct cert_pair *const *pairs, size_t count,
                   void (*tell)(const struct cert_pair *pair, const struct staple *staple));
void staples_end(void);
/* OpenSSL's question in a handshake, on a loop. */
int staple_callback(SSL *ssl, void *arg);

#endif
