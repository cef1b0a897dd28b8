/* DESIGN: the loop threads of a worker, and the way its first thread reaches all of them:
 * a broadcast runs a function once on each loop and, when the last has run it, another
 * one on the first thread. Nobody waits for a loop that is busy: several broadcasts may be
 * on their way; each loop runs them in order. */
#ifndef KILN_SUPERVISOR_WORKER_LOOPS_H
#define KILN_SUPERVISOR_WORKER_LOOPS_H

#include "loop/loop.h"

#include <stdbool.h>

struct config;

/* Creates the loops and their threads. False after a log line. */
bool worker_loops_start(unsigned count, struct config *config);
/* Ends the loops and waits for their threads. Every broadcast has ended then. */
void worker_loops_stop(void);
unsigned worker_loops_count(void);
/* loop_post() to one of them. */
void worker_loops_post(unsigned index, struct task *task);

/* Any thread but its own: this loop's thread will never run again. Its connections are cut, what it was
 * to run is not waited for; the process must end by _exit. */
void worker_loops_lose(struct loop *loop);

/* on_loop(loop, arg) on each loop, then done(arg) (may be NULL) from worker_loops_collect(). */
void worker_loops_broadcast(void (*on_loop)(struct loop *loop, void *arg), void (*done)(void *arg), void *arg);
/* No broadcast is under way. */
bool worker_loops_idle(void);
/* Readable when a broadcast has ended. */
int worker_loops_wake_fd(void);
/* Calls what is due. */
void worker_loops_collect(void);

#endif
