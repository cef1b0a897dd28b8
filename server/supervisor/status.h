/* The state of the server as the supervisor knows it; nobody is asked. */
#ifndef KILN_SUPERVISOR_STATUS_H
#define KILN_SUPERVISOR_STATUS_H

#include "observe/status.h"

struct supervisor;

/* False when out of memory. */
bool supervisor_status(const struct supervisor *s, struct status *out);
void supervisor_status_free(struct status *status);
/* Sums over all workers, that ever were or that are. */
void supervisor_metrics(const struct supervisor *s, int64_t metric[METRIC_COUNT]);
/* Why no requests should be sent to this server now; NULL: they should. */
const char *supervisor_unready(const struct supervisor *s);

#endif
