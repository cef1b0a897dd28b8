/* DESIGN: TLS 1.3's key derivation in OpenSSL's handshakes is ours, by a provider that has nothing but
 * "TLS13-KDF". Why:
 * - Traffic secrets. Each is the result of a derivation, and so it is seen here in the moment in which it is made.
 *   The other way to them, the callback for key logs, prints all five secrets of a handshake as text:
 *   320 times sprintf, a tenth of what a resumed connection costs.
 * - OpenSSL's own is slow (hkdf.h).
 * A context asks for it by its properties; all that is not derived, and what other contexts derive, stays OpenSSL's. */
#ifndef KILN_CONNECTION_TLS_KDF_H
#define KILN_CONNECTION_TLS_KDF_H

#include "base/str.h"

#define TLS_KDF_PROPERTIES "?provider=kiln"

/* Once, before contexts are made with these properties. */
void tls_kdf_begin(void);

/* What this thread derives for application data from now on; NULL: nobody looks any more. */
struct tls_secrets {
    void (*seen)(struct tls_secrets *secrets, bool of_client, const uint8_t *secret, size_t len);
};
void tls_kdf_watch(struct tls_secrets *secrets);

#endif
