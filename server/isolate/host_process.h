/* A host as its worker sees it: how it is started, and what it says on its control socket and its standard
 * error. For the manager (manager.c), with its lock held. */
#ifndef KILN_ISOLATE_HOST_PROCESS_H
#define KILN_ISOLATE_HOST_PROCESS_H

#include "isolate/isolate_private.h"

/* Asks the supervisor for the process and gives it what it needs. NULL with the reason in `why`. The caller's
 * reference. */
struct host *host_create(struct isolate *isolate, struct buffer *why);
/* When nobody points to it any more. */
void host_free(struct host *host);

/* Asks the supervisor to kill it. */
void host_kill(struct host *host);
/* Tells it to end when what it does is done. */
void host_stop(struct host *host);

/* What it wrote to its standard error becomes lines of our log, marked with its process. */
void host_read_log(struct host *host);
/* Once a second. */
void host_log_tick(struct host *host);
void host_close_log(struct host *host);

/* True when it has more threads than `most`. */
bool host_has_too_many_threads(const struct host *host, unsigned most);

#endif
