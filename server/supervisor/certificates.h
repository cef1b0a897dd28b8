/* DESIGN: the supervisor reads the certificates, because it alone has kept the right to read their
 * keys, and gives workers what is in use. CertDir is watched: a change is taken over a moment
 * after the last of its events, as the files of a pair are written one after the other; and
 * looked at once a minute, for file systems that send no events. Workers swap the whole set
 * between two handshakes (tls_context.h). Ticket keys are made here too, so that they outlive
 * any worker; an heir (upgrade.h) inherits them. */
#ifndef KILN_SUPERVISOR_CERTIFICATES_H
#define KILN_SUPERVISOR_CERTIFICATES_H

#include "connection/cert_dir.h"
#include "connection/tickets.h"

struct supervisor;
struct worker_process;
struct control_message;

struct certificates {
    struct cert_dir dir;
    char *path; /* of CertDir; NULL: this server has no HTTPS */
    int events; /* inotify; -1 */
    uint64_t first_event_ms; /* of those that wait to be acted on; 0: none do */
    uint64_t rescan_at_ms;
    uint64_t warn_at_ms;
    uint64_t rotate_at_ms;
    struct ticket_keys tickets;
    struct buffer client_ca; /* PEM */
};

void certificates_init(struct certificates *c);
void certificates_free(struct certificates *c);
/* At the start and at a reload: what the config asks for now. */
void certificates_config_changed(struct supervisor *s);
/* What a new worker must know before its config. */
bool certificates_tell(struct supervisor *s, struct worker_process *worker);
/* Has every worker that serves, or will, said that it uses what it was told last? */
bool certificates_are_taken(const struct supervisor *s);
/* STAPLE: kept for the workers that come. */
void certificates_staple(struct supervisor *s, const struct control_message *message);
/* `events` is readable. */
void certificates_read_events(struct supervisor *s);
uint64_t certificates_due(const struct supervisor *s); /* UINT64_MAX: never */
void certificates_run_due(struct supervisor *s);

/* ---- commands ---- */
/* Reads every file again; a pair that cannot be used leaves the one before in its place. */
void certificates_load(struct supervisor *s);
/* The same, but what cannot be read now is no longer used. */
void certificates_clear(struct supervisor *s);

#endif
