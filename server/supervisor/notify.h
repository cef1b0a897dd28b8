/* Tells a service manager how we are, as systemd's sd_notify does: a datagram to the socket
 * named by NOTIFY_SOCKET. Nothing happens where there is none. */
#ifndef KILN_SUPERVISOR_NOTIFY_H
#define KILN_SUPERVISOR_NOTIFY_H

#include <stdbool.h>

/* Remembers the socket and removes the variable, so that children do not speak for us. */
void notify_init(void);
/* "READY=1", "STOPPING=1", several lines are allowed. */
void notify_send(const char *state);
/* Gives the variable to the next child that is started (the heir of an upgrade), and takes it back. */
void notify_share(bool on);

#endif
