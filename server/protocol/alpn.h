/* DESIGN: the protocols that a TLS client may choose by name (ALPN), in the order in which we like
 * them: one table, one row each. A client that names none gets HTTP/1.1. */
#ifndef KILN_PROTOCOL_ALPN_H
#define KILN_PROTOCOL_ALPN_H

#include "base/str.h"

struct config;
struct protocol;

/* `offers` as in the handshake: each name with its length in front. The first of ours that is among
 * them and allowed by the config; len 0 when none is, or when they are malformed. Static. */
struct str alpn_select(struct str offers, const struct config *config);
/* What was negotiated; an empty name: nothing was. Never NULL. */
const struct protocol *protocol_for_alpn(struct str name);

#endif
