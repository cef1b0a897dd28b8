/* Shared by conn.c and conn_write.c. */
#ifndef KILN_CONNECTION_CONN_PRIVATE_H
#define KILN_CONNECTION_CONN_PRIVATE_H

#include "connection/conn.h"

/* False: it is a tunnel through another connection; see conn_open_tunnel(). */
static inline bool conn_has_socket(const struct conn *conn)
{
    return conn->watch.fd >= 0;
}

/* conn.c: conn_flush() at the end of the iteration. */
void conn_queue_flush(struct conn *conn);

#endif
