/* DESIGN: a TLS handshake costs the server far more than the client, so how many one address may
 * have unfinished at a time, and begin in a second, is limited before any of the work is done.
 * IPv6 addresses count by their /64, which is what one customer has. Shared by all loops of a
 * worker: a table in parts with a lock each, held for a few instructions, once a connection. */
#ifndef KILN_CONNECTION_HANDSHAKES_H
#define KILN_CONNECTION_HANDSHAKES_H

#include "connection/conn.h"

struct handshake_limits {
    unsigned unfinished; /* at a time; 0: no limit */
    unsigned per_second; /* with as many again at once after a pause; 0: no limit */
};

/* False: one too many. True: handshakes_end() follows. */
bool handshakes_begin(const struct address *address, uint64_t now_ms, const struct handshake_limits *limits);
void handshakes_end(const struct address *address);
/* What is kept for addresses that were here; at the end. */
void handshakes_free(void);

#endif
