/* The certificates and ticket keys of a worker, as the supervisor sends them (certificates.h). On the
 * first thread alone. */
#ifndef KILN_SUPERVISOR_WORKER_CERTIFICATES_H
#define KILN_SUPERVISOR_WORKER_CERTIFICATES_H

#include "supervisor/control.h"

struct config;

/* CERTIFICATES. */
void worker_certificates_take(struct control_message *message);
/* TICKETS. */
void worker_tickets_take(struct control_message *message);
/* What was taken and this config are used by handshakes from now on; nothing to do without HTTPS. */
void worker_certificates_use(const struct config *config);
void worker_certificates_end(void);

#endif
