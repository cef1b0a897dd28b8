/* DESIGN: processes for isolated endpoints (isolate/isolate.h). A worker asks for one and hands over its
 * end of the sockets; the supervisor, which alone may have the rights for another user, starts the
 * program again as `kiln --host` with orders (isolate/orders.h) that come from its own config, a directory for
 * temporary files, and a clean environment. A host is killed when its worker says so, when its worker
 * has ended, and by the kernel when the supervisor has. */
#ifndef KILN_SUPERVISOR_HOSTS_H
#define KILN_SUPERVISOR_HOSTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct supervisor;
struct worker_process;
struct control_message;

/* HOST_START and HOST_KILL. */
void hosts_message(struct supervisor *s, struct worker_process *worker, struct control_message *message);
/* True when the process was a host. */
bool hosts_ended(struct supervisor *s, pid_t pid, int wait_status);
/* The worker is gone: its hosts follow. */
void hosts_worker_ended(struct supervisor *s, const struct worker_process *worker);
/* No worker is left: waits a moment for those that unload, and kills the others. */
void hosts_end(struct supervisor *s);
/* When the next one is due to be killed, UINT64_MAX: none; and doing so. */
uint64_t hosts_due(const struct supervisor *s);
void hosts_run_due(struct supervisor *s, uint64_t now);

#endif
