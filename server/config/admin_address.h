/* Where the admin listener may be reached: the value of AdminListen, and the Host that a request to it
 * has to name. A page of some other site that had its name resolve to 127.0.0.1 would otherwise
 * read the admin pages with the browser of whoever sits at this machine. */
#ifndef KILN_CONFIG_ADMIN_ADDRESS_H
#define KILN_CONFIG_ADMIN_ADDRESS_H

#include "base/str.h"

#include <sys/socket.h>

struct admin_address {
    struct sockaddr_storage address;
    socklen_t len;
    bool is_unix;
    bool is_loopback; /* nobody beyond this machine reaches it; unix too */
    char text[128]; /* regular spelling: "127.0.0.1:9180", "[::1]:9180", "unix:/run/kiln/admin.sock" */
};

/* "127.0.0.1:9180", "[::1]:9180", "localhost:9180", "9180", "unix:/absolute/path". False when it is
 * none of them. */
bool admin_address_parse(struct str text, struct admin_address *out);

/* "localhost", "127.0.0.1:9180", "[::1]": a loopback address or localhost. With `any_address` every
 * address written as number, which no name can be made to mean. */
bool admin_host_is_local(struct str host, bool any_address);
/* The host without its port, "[::1]" with its brackets. */
struct str admin_host_name(struct str host);

#endif
