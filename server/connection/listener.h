/* A listening socket as a worker has it: bound by the supervisor, shared by all loops of
 * all workers, so that connections wait in it while a worker is replaced. Immutable while
 * any loop accepts from it; connections point to it for as long as they live. */
#ifndef KILN_CONNECTION_LISTENER_H
#define KILN_CONNECTION_LISTENER_H

#include "connection/conn.h"

enum listener_kind { LISTENER_PLAIN, LISTENER_TLS };

struct listener {
    uint32_t id; /* the supervisor's number for it, the same in each worker */
    int fd; /* non-blocking, close-on-exec */
    struct address address; /* as bound; the port is the real one */
    uint16_t configured_port; /* as in the config: 0 lets the kernel choose */
    enum listener_kind kind;
};

#endif
