/* The config and the listening sockets of a worker, and how a new set is taken over. */
#ifndef KILN_SUPERVISOR_WORKER_CONFIG_H
#define KILN_SUPERVISOR_WORKER_CONFIG_H

#include "supervisor/control.h"

struct config;

/* The first CONFIG message: the snapshot, with a reference of the caller's, which is
 * current from now on. NULL with a message in `why`. */
struct config *worker_config_first(struct control_message *message, struct buffer *why);
/* The loops run: they begin to accept. */
void worker_config_accept(void);
/* A later one, taken over by each loop between two events; answers CONFIG_DONE. */
void worker_config_change(struct control_message *message);
/* False when a socket that it accepts on is none any more. */
bool worker_config_listens(void);
/* No loop accepts any more: connections that come now are refused. */
void worker_config_close_listeners(void);
/* The loops are gone. */
void worker_config_end(void);

#endif
