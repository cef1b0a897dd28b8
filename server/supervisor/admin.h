/* DESIGN: where the server tells its state: libmicrohttpd in the supervisor, so that it answers whatever
 * the workers do. It shows what the supervisor knows (status.c) and asks nobody. No thread: the
 * supervisor starts processes; the library's epoll descriptor is one more in its poll.
 *
 * It is careful, because the supervisor may be root and must not be kept busy:
 * - loopback or a socket file, unless AdminAllowRemote; requests have to name this machine in Host,
 *   so that no foreign page gets at it by a name of its own that leads here; no CORS;
 * - GET and HEAD only. Bodies are not read: the library can be kept spinning by some;
 * - one request a connection, AdminConnections of them, each over within AdminTimeout from its
 *   beginning, however it trickles.
 *
 * A reload or an upgrade lets the daemon go on with the connections that it has (it is `leaving`),
 * while a new one accepts on the same or another socket. An heir (upgrade.h) accepts once it knows
 * what the elder had counted, so that no counter is seen to go back. */
#ifndef KILN_SUPERVISOR_ADMIN_H
#define KILN_SUPERVISOR_ADMIN_H

#include "base/list.h"
#include "supervisor/admin_socket.h"

#include <stdint.h>

struct supervisor;
struct MHD_Daemon;
struct pollfd;

enum { ADMIN_POLLED = 2 };

struct admin {
    struct admin_socket socket;
    struct MHD_Daemon *daemon; /* accepts on it; NULL: none */
    struct MHD_Daemon *leaving; /* finishes what it has begun; NULL: none */
    struct list connections;
    uint64_t start_at_ms; /* an heir waits for the elder's figures until then; 0: it does not */
};

void admin_init(struct admin *admin);
/* At the start; an heir accepts once the elder has handed over. False with a message in `why`. */
bool admin_prepare(struct supervisor *s, struct buffer *why);
/* Goes over to this socket, from whatever was before. False when the daemon cannot be started. */
bool admin_use(struct supervisor *s, const struct admin_socket *socket);
/* Accepts from now on, if there is a socket. */
void admin_start(struct supervisor *s);
/* An heir took over: the socket is ours, and admin_start() is called soon, or called for. */
void admin_take_over(struct supervisor *s);
/* Accepts no more; the socket and its file are another's. */
void admin_hand_over(struct supervisor *s);
void admin_end(struct supervisor *s);

/* For the poll loop: ADMIN_POLLED descriptors to wait for (-1: none); when it is due; what is to do. */
void admin_poll(const struct admin *admin, struct pollfd *fds);
uint64_t admin_due_ms(const struct supervisor *s);
void admin_run(struct supervisor *s);

#endif
