/* DESIGN: the process of one isolated endpoint: the same SDK, coroutines, pool, watchdog and crash handling
 * as in a worker, over requests that come by frames (frame.h) instead of connections. The order at
 * its start is what protects everybody else: orders of the supervisor (orders.h), confinement (sandbox.h),
 * only then what the worker sends, and last the module, which nobody trusts.
 *
 * It ends when its worker says so or is gone. What it keeps for itself is not trusted by anyone once the
 * module has run: the worker checks all that comes back. */
#ifndef KILN_ISOLATE_HOST_H
#define KILN_ISOLATE_HOST_H

#include <stdbool.h>
#include <stdint.h>

struct begun;
struct endpoint;
struct loop;

/* main() of a host; the exit code. */
int host_run(void);

/* ---- link.c: one loop's side of its channel --------------------------------------------------------- */
/* In the process of an isolated endpoint, before there are loops: sessions are the worker's. */
void links_prepare(void);
/* On the loop: requests that come over the socket are answered by the endpoint. False with errno. */
bool link_open(struct loop *loop, int fd, struct begun *begun, struct endpoint *endpoint);

#endif
