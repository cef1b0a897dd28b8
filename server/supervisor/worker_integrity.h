/* What belongs to the whole process, and what an endpoint can therefore spoil for all: looked at once a second. */
#ifndef KILN_SUPERVISOR_WORKER_INTEGRITY_H
#define KILN_SUPERVISOR_WORKER_INTEGRITY_H

#include "base/buffer.h"

/* Before any endpoint runs: this is how it should be. */
void worker_integrity_start(void);
/* Mends what can be mended, with a line in the log; else `why` says why this worker is of no use any more. */
void worker_integrity_judge(struct buffer *why);

#endif
