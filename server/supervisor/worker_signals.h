/* DESIGN: a worker acts on SIGTERM alone; SIGINT and SIGHUP from a terminal reach the whole
 * group, and it is the supervisor that acts on them. They are caught, not blocked or ignored:
 * blocked and ignored signals stay so in the programs that endpoints start, where nobody
 * could end them any more; handlers end at exec. */
#ifndef KILN_SUPERVISOR_WORKER_SIGNALS_H
#define KILN_SUPERVISOR_WORKER_SIGNALS_H

#include <stdbool.h>

/* The supervisor left all of them blocked; what came since then is not lost. */
bool worker_signals_open(void);
void worker_signals_close(void);
/* Readable when SIGTERM came. */
int worker_signals_fd(void);
/* How often it came since the last call. */
unsigned worker_signals_read(void);

#endif
