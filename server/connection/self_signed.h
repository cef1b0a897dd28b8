/* DESIGN: with no certificate at all, HTTPS works with one that the server makes for itself: ECDSA
 * P-256, for localhost and the machine's own name, in CertDir/localhost/, the key readable for
 * its owner alone. It is kept, so that whoever has trusted it once is not asked again, and made
 * anew shortly before it ends. Browsers warn of it until it is trusted. */
#ifndef KILN_CONNECTION_SELF_SIGNED_H
#define KILN_CONNECTION_SELF_SIGNED_H

#include "connection/cert_pair.h"

#define SELF_SIGNED_DIRECTORY "localhost"

/* Writes fullchain.pem and privkey.pem into `cert_dir`/localhost/, made when missing. False with
 * one line in `why`. */
bool self_signed_make(const char *cert_dir, struct buffer *why);
/* One that self_signed_make() made. */
bool self_signed_is_ours(const struct cert_pair *pair);

#endif
