/* DESIGN: the process that people start. It binds the ports, holds the pid file and the
 * logs, starts a worker, replaces one that dies, reads the config again on SIGHUP, and
 * ends everything in order. It parses nothing that comes from other machines (requests to the
 * admin listener, admin.h, are this machine's) and runs no code of the site, so that there is always
 * somebody left who can start anew.
 *
 * One thread: a poll over a signalfd, a control socket (control.h) for each worker and the admin listener.
 * Workers are a list, because at a replacement the old one drains while the new one
 * serves. Listening sockets belong to the supervisor (listeners.h): clients that come while
 * no worker accepts wait, and are not refused.
 *
 * SIGTERM, SIGINT, SIGQUIT: requests end, then exit code 0; a second one: at once.
 * SIGHUP: log files are opened again, the config is read again.
 * SIGUSR2: the program file, which may be another version, takes over (upgrade.h). */
#ifndef KILN_SUPERVISOR_SUPERVISOR_H
#define KILN_SUPERVISOR_SUPERVISOR_H

#include "config/config.h"

/* Serves until told to stop; the exit code. `config` was loaded from `config_file` (NULL:
 * none was named) and the overrides, which are used again at a reload. */
int supervisor_run(struct config *config, const struct config_overrides *overrides, const char *config_file);

#endif
