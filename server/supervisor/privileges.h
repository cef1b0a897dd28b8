/* DESIGN: the supervisor keeps the rights it was started with: to bind ports, open logs
 * and start workers. A worker, which parses what strangers send and runs the site's code,
 * gives them up before it reads a byte: User and Group when configured; otherwise, as root,
 * the owner of the web directory; where that is root too it stays root, and the supervisor says so. */
#ifndef KILN_SUPERVISOR_PRIVILEGES_H
#define KILN_SUPERVISOR_PRIVILEGES_H

#include "base/buffer.h"

#include <sys/types.h>

struct config;

/* Called once, with one thread. False with a message in `why`. Warnings are logged. */
bool privileges_drop(const struct config *config, struct buffer *why);
/* The supervisor's word, once for all workers: that they serve as root, if they do. */
void privileges_warn(const struct config *config);
/* Who the process of an isolated endpoint becomes: IsolateUser, or as the worker. *own: no worker has that
 * user. */
bool privileges_of_isolated(const struct config *config, uid_t *uid, gid_t *gid, bool *own, struct buffer *why);
/* As many descriptors as the system allows us; before privileges_drop(). */
void privileges_raise_limits(void);

#endif
