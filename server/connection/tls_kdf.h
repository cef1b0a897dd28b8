/* DESIGN: TLS 1.3's key derivation in OpenSSL's handshakes is ours, by a provider that has nothing but
 * "TLS13-KDF". Why:
 * - Traffic secrets. Each is the result of a derivation, and so it is seen here in the moment in which it is made.
 *   The other way to them, the callback for key logs, prints all five secrets of a handshake as text:
 *   320 times sprintf, a tenth of what a resumed connection costs.
 * - OpenSSL's own is slow (hkdf.h).
 * A context asks for it by its properties; all that is not derived, and what other contexts derive, stays OpenSSL's.
 *
 * Another version of OpenSSL may not take such a provider, or not ask for it. That is tried (tls_trial.c), and then the log
 * of keys is the way, as slow as it is: the server says so when it starts. */
#ifndef KILN_CONNECTION_TLS_KDF_H
#define KILN_CONNECTION_TLS_KDF_H

#include "base/str.h"

#include <openssl/ssl.h>

#define TLS_KDF_PROPERTIES "?provider=kiln"

/* Finds out which way works. Once, before the others. */
void tls_kdf_begin(void);
/* A server's context, whose secrets will be seen. NULL: OpenSSL's error says why. */
SSL_CTX *tls_kdf_context(void);

/* What this thread derives for application data from now on; NULL: nobody looks any more. */
struct tls_secrets {
    void (*seen)(struct tls_secrets *secrets, bool of_client, const uint8_t *secret, size_t len);
};
void tls_kdf_watch(struct tls_secrets *secrets);

#endif
