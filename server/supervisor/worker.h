/* DESIGN: the process that serves. It is this program again, started by the supervisor
 * with `--worker` and a control socket (control.h), over which it receives its config, its
 * log files and its listening sockets. The first thread never serves: it starts the rooms
 * and one thread for each loop (worker_loops.h), then waits for the supervisor and for
 * signals, and takes changes to the loops. Rooms are stopped in the reverse order of their
 * start.
 *
 * Ends by DRAIN or SIGTERM, and when the supervisor is gone (end of file): no more
 * connections are accepted, what runs may finish for ShutdownTimeout, then connections are
 * closed; a handler that even then does not return is left behind by _exit. */
#ifndef KILN_SUPERVISOR_WORKER_H
#define KILN_SUPERVISOR_WORKER_H

/* main() of a worker; the exit code. */
int worker_run(void);

/* Any thread: asks the supervisor for a successor. This worker serves on until that is ready,
 * then finishes what it has begun and ends. Only the first call counts. */
void worker_replace(const char *why);

/* Any thread: tells the supervisor of a crash of an endpoint, whose build has this hash (in
 * hexadecimal); and that a file is run again after its quarantine. */
void worker_crashed(const char *file, const char *build);
void worker_released(const char *file, const char *why);

struct sessions;
/* The session service of this worker; NULL outside of workers. */
struct sessions *worker_sessions(void);

#endif
