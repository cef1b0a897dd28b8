/* DESIGN: endpoints that are trusted less run each in a process of its own, a host: the same program,
 * started by the supervisor (supervisor/hosts.c) as `kiln --host`, which gives up nearly all rights
 * (sandbox.h) before it loads the endpoint's module. Hosts belong to a worker and end with it. What
 * a host says is relayed to the client after each field was checked (relay.c); it can spoil its own answers
 * and nothing else.
 *
 * Three threads meet here, in this order:
 *   builder   loads a module, as always; this home starts a host and waits until it is ready
 *   manager   one thread: speaks with hosts over their control sockets (supervisor/control.h), starts the next
 *             when one crashed, does not answer or was idle, and passes on what they log
 *   loops     hand requests over, each on a socket of its own to every host that it needs (channel)
 * A request that waits for a host stays with its loop. One that was handed to a host that died before it had
 * begun with it (`begun`, a counter in shared memory) is handed to the next.
 *
 * An isolate is the home's part of a module and lives as long as anybody points to it (references): the module,
 * its hosts, tasks on their way to loops. A host lives as long as the manager and channels point to it. */
#ifndef KILN_ISOLATE_ISOLATE_H
#define KILN_ISOLATE_ISOLATE_H

struct control_message;
struct loop;

/* Builders that wait for a host give up: the worker ends. */
void isolation_cancel(void);
/* On the loop's thread, after its last request: closes its sockets to hosts. */
void isolation_loop_end(struct loop *loop);
/* After endpoints_stop(): no request and no loop is left. Ends every host. */
void isolation_stop(void);
/* First thread: what the supervisor tells of hosts. */
void isolation_message(struct control_message *message);

#endif
