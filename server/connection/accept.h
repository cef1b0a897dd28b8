/* DESIGN: every loop waits on the same listening sockets (EPOLLEXCLUSIVE: one wakes), so a
 * thread that is busy leaves new connections to the others, and sockets can be shared by an
 * old and a new worker. When descriptors run out, one kept in reserve is spent to accept
 * and close, so that clients are told at once instead of hanging, and accepting
 * pauses for a moment. */
#ifndef KILN_CONNECTION_ACCEPT_H
#define KILN_CONNECTION_ACCEPT_H

#include "connection/listener.h"

/* On the loop's thread. The listener outlives accept_stop. */
bool accept_start(struct loop *loop, const struct listener *listener);
void accept_stop(struct loop *loop, const struct listener *listener);
/* Every listener of the loop. */
void accept_stop_all(struct loop *loop);

#endif
