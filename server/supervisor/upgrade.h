/* DESIGN: SIGUSR2 lets another version of the program take over without a connection refused.
 * The running supervisor (the elder) starts the program file that it was started from, with
 * the same arguments, and keeps serving. Over a control socket (control.h) the heir gets the
 * listening sockets and the locked pid file. It reads the config anew, opens the log files,
 * starts a worker on those sockets and, once that accepts, writes its number into the pid
 * file and says READY. Then the elder tells the service manager who is the main process now,
 * drains its workers as at any end, and exits with 0.
 *
 * What had been counted goes over as well: the elder tells its sums (ledger.h) at once, when it accepts no
 * more requests to the admin listener, and again each second until its last worker has ended.
 *
 * An heir that says FAILED, ends, or is not READY within UpgradeTimeout changes nothing: it
 * is killed, the pid file says what it said before, and the log says why. Until READY the
 * heir touches nothing that the elder needs. */
#ifndef KILN_SUPERVISOR_UPGRADE_H
#define KILN_SUPERVISOR_UPGRADE_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct supervisor;
struct figures;
struct pollfd;

enum { UPGRADE_POLLED = 2 };

struct upgrade {
    /* The elder's side. */
    pid_t heir; /* 0: none */
    int control; /* to the heir; -1 */
    uint64_t until_ms; /* 0: nothing is awaited */
    struct buffer failure; /* what FAILED said */
    bool handed_over;
    bool pid_file_given; /* the heir goes on with the same file */
    uint64_t tell_at_ms; /* the figures; 0: no more */
    /* The heir's side. */
    int elder; /* -1: this server was started by no other, or that one has ended */
    bool took_over;
    struct figures *elder_figures;
};

/* For the poll loop, either side: UPGRADE_POLLED descriptors to wait for (-1: none); what they say;
 * when something is due; what is to do then. */
void upgrade_poll(const struct supervisor *s, struct pollfd *fds);
void upgrade_polled(struct supervisor *s, const struct pollfd *fds);
uint64_t upgrade_due_ms(const struct supervisor *s);
void upgrade_run(struct supervisor *s);
/* At the end. */
void upgrade_end(struct supervisor *s);

/* ---- the elder ---- */
/* SIGUSR2. */
void upgrade_begin(struct supervisor *s);
/* The heir's socket is readable. */
void upgrade_read(struct supervisor *s);
/* A child ended; false when it is not the heir. */
bool upgrade_child_ended(struct supervisor *s, pid_t pid, int wait_status);
/* At until_ms. */
void upgrade_expired(struct supervisor *s);
/* The server ends before the heir was ready. */
void upgrade_cancel(struct supervisor *s);

/* ---- the heir ---- */
/* Takes what the elder hands over, if one started us, into s->listeners, s->pid_file and
 * s->admin.socket. False with a message in `why`. */
bool upgrade_inherit(struct supervisor *s, struct buffer *why);
/* Until it has taken over. */
bool upgrade_is_heir(const struct supervisor *s);
/* The first worker accepts. */
void upgrade_ready(struct supervisor *s);
/* After that the elder's socket is readable: figures. */
void upgrade_read_elder(struct supervisor *s);
/* This server cannot start. */
void upgrade_failed(struct supervisor *s, const char *text);

#endif
