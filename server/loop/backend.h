/* What a loop needs from the kernel. epoll.c implements it; a completion backend
 * (io_uring) would implement the same functions. */
#ifndef KILN_LOOP_BACKEND_H
#define KILN_LOOP_BACKEND_H

#include "loop/loop.h"

bool backend_open(struct loop *loop);
void backend_close(struct loop *loop);
/* Waits up to timeout_ms (-1: for ever) and fills loop->ready. */
void backend_wait(struct loop *loop, int timeout_ms);

#endif
