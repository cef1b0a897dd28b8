/* What a loop needs from the kernel. epoll.c implements it; a completion backend (io_uring) would
 * implement the same functions. There is none, because it was measured: without a server's work an io_uring loop needs
 * 0.95-0.97 of an epoll loop's time for an echo (bench/peers/ws_ring.c and ws_bare.c, `make bench-websocket`), nine tenths of
 * which are TCP's. That does not pay for a second life time of every buffer that is being sent, nor for the many
 * places where io_uring is forbidden. */
#ifndef KILN_LOOP_BACKEND_H
#define KILN_LOOP_BACKEND_H

#include "loop/loop.h"

bool backend_open(struct loop *loop);
void backend_close(struct loop *loop);
/* Waits up to timeout_ms (-1: for ever) and fills loop->ready. */
void backend_wait(struct loop *loop, int timeout_ms);

#endif
