/* DESIGN: key derivation with HMAC (HKDF: RFC 5869), as TLS 1.3 uses it (RFC 8446, 7.1). A handshake has twenty
 * derivations, and for each of them OpenSSL looks up a KDF, a MAC and a digest by their names, takes locks for it
 * and makes copies: most of what they cost. Here HMAC is made of a digest that was looked up once, by one context.
 *
 * Guarantees: every length is checked here, whoever calls; what was made on the way is wiped. */
#ifndef KILN_CONNECTION_HKDF_H
#define KILN_CONNECTION_HKDF_H

#include "base/str.h"

#include <openssl/evp.h>

enum {
    HKDF_HASH_MAX = 48, /* SHA-384: no suite of TLS 1.3 has a longer one */
    HKDF_LABEL_MAX = 249, /* behind "tls13 " */
    HKDF_CONTEXT_MAX = 64,
    HKDF_MOST = 255, /* hashes that one secret expands to */
};

struct hkdf {
    EVP_MD_CTX *ctx;
    const EVP_MD *digest;
    size_t len; /* of the hash, and so of each secret */
};

/* False, also when the hash is not one of TLS 1.3: nothing is held. */
bool hkdf_begin(struct hkdf *hkdf, struct str digest);
void hkdf_end(struct hkdf *hkdf);

/* HKDF-Extract: out is the hash's length. */
bool hkdf_extract(struct hkdf *hkdf, struct str salt, struct str secret, uint8_t *out);
/* HKDF-Expand-Label. `secret` is the hash's length; `out` may be `secret` where `len` is that too. */
bool hkdf_expand(struct hkdf *hkdf, const uint8_t *secret, struct str label, struct str context, uint8_t *out,
                 size_t len);
/* Derive-Secret for no messages: what the schedule goes on with from one stage to the next. */
bool hkdf_derived(struct hkdf *hkdf, const uint8_t *secret, uint8_t *out);

#endif
