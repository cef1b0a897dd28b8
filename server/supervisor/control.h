/* DESIGN: what the supervisor and a worker say to each other, over a socket pair that keeps
 * message boundaries. A message is a small fixed header (magic, version, kind), a JSON
 * object that its kind describes, and descriptors that travel beside it. Both ends are
 * the same program file, except while a running server is upgraded; then an unknown
 * version or kind is refused, never guessed at. Sending never waits: whoever does not
 * read is treated as not answering. End of file is the message that the other died.
 *
 * Supervisor to worker
 *   CONFIG       {"generation": n, "file": path or null, "logs": bool, "listeners": [...]}
 *                and, in this order: a memory file with the config as JSON, the two log
 *                files when "logs" (-1 is sent as a missing one: "error_log": bool, ...),
 *                and the sockets of those listeners that say "new". The list is complete:
 *                the worker lets go of listeners that are no longer in it.
 *   LOGS         {"error_log": bool, "access_log": bool} and those files
 *   DRAIN        {"seconds": n}: stop accepting, finish what runs, exit
 *   STOP         {}: exit now
 *   QUARANTINE   {"file": path, "build": hash, "until": monotonic ms}: this build is not to be run
 *                until then; also before the first CONFIG
 *   HOST_STARTED {"id": n, "pid": n}
 *   HOST_ENDED   {"id": n, "signal": n or 0, "end": text}: also of one that could not be started
 *   CERTIFICATES {} and a memory file, JSON: {"certificates": [{"directory": name, "chain": PEM,
 *                "key": PEM, "staple": hexadecimal, "until": n, "renew": n}...],
 *                "client_ca": PEM}: all that there are, from now on; before the first CONFIG
 *                too. None is sent to a server without HTTPS
 *   TICKETS      {"keys": hexadecimal}: of TLS sessions, newest first; likewise
 * Supervisor to the supervisor that takes over (upgrade.h)
 *   INHERIT      {"listeners": [{"kind": n, "configured_port": n}...], "pid_file": bool,
 *                "tickets": as in TICKETS or absent}, the
 *                listening sockets, and the locked pid file when there is one
 *                It answers READY {"pid_file": it goes on with that file} or FAILED
 * Worker to supervisor
 *   READY        {"threads": n, "files": n, ...}: it accepts
 *   FAILED       {"text": why}: it cannot start and exits; trying again will not help
 *   CONFIG_DONE  {"generation": n, "text": error or null}
 *   CERTIFICATES_DONE {}: to each CERTIFICATES; from now on new connections are shown those, or those before where the
 *                log says why
 *   REPLACE      {"why": text}: it serves, but should be followed by another
 *   CRASHED      {"file": path, "build": hash}: an endpoint did, and it was caught
 *   STAPLE       {"fingerprint": of a certificate, "der": an OCSP answer for it, both hexadecimal, "until": n,
 *                "renew": n}: for the next worker
 *   RELEASED     {"file": path, "why": text}: it is run again
 *   HOST_START   {"id": n, "file": path of an endpoint}, and its control socket and its standard error: a process
 *                for an isolated endpoint (isolate/isolate.h), which ends with the worker
 *   HOST_KILL    {"id": n}
 * Worker to such a process
 *   CONFIG       {"file": path, "build": hash, "threads": n, "sources": [paths]}, and memory files with the config that it needs as
 *                JSON, the build, and the counters of begun requests; and a socket for each thread
 *   STOP         {}: finish what runs, exit
 *   It answers READY, or FAILED {"text": why, "transient": bool, "diagnostics": [{"file", "line", "text"}...]};
 *   later CRASHED and REPLACE as a worker does
 * Who asks for a command (commands.h) to the supervisor
 *   COMMAND      {"name": text}
 *   It answers ANSWER {"ok": bool} and a memory file with text for a person
 * Worker to supervisor each second (ledger.h), and once READY was said the supervisor that is succeeded
 * to its heir, until it ends
 *   ENDPOINTS    {"endpoints": [{"file": path, "hits": n ...}...]}: those whose figures have changed
 *   FIGURES      {"metrics": {name: n...}, "server": {key: n...}, "worker": {key: n...},
 *                "loops": [{"lag_seconds": microseconds, "waiting": microseconds ...}...]}: rows of
 *                observe/metrics.def as they are held; counters are since the teller began */
#ifndef KILN_SUPERVISOR_CONTROL_H
#define KILN_SUPERVISOR_CONTROL_H

#include "base/buffer.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

enum control_kind {
    CONTROL_CONFIG = 1,
    CONTROL_LOGS,
    CONTROL_DRAIN,
    CONTROL_STOP,
    CONTROL_INHERIT,
    CONTROL_QUARANTINE,
    CONTROL_HOST_STARTED,
    CONTROL_HOST_ENDED,
    CONTROL_CERTIFICATES,
    CONTROL_TICKETS,
    CONTROL_READY = 64,
    CONTROL_FAILED,
    CONTROL_CONFIG_DONE,
    CONTROL_REPLACE,
    CONTROL_CRASHED,
    CONTROL_RELEASED,
    CONTROL_STAPLE,
    CONTROL_HOST_START,
    CONTROL_HOST_KILL,
    CONTROL_ENDPOINTS,
    CONTROL_FIGURES,
    CONTROL_COMMAND,
    CONTROL_ANSWER,
    CONTROL_CERTIFICATES_DONE,
};

enum {
    CONTROL_VERSION = 1,
    CONTROL_BODY_MAX = 65536,
    CONTROL_FDS_MAX = 200, /* the kernel's own limit is 253 */
    CONTROL_FD = 3, /* a worker's end */
};

struct control_message {
    enum control_kind kind;
    cJSON *body; /* an object */
    int fds[CONTROL_FDS_MAX];
    unsigned fd_count;
    unsigned fds_taken;
};

enum control_result {
    CONTROL_OK,
    CONTROL_EMPTY, /* nothing to read now */
    CONTROL_CLOSED, /* the other end is gone */
    CONTROL_BAD, /* not a message of ours; `why` says what is wrong */
};

/* Both ends non-blocking and close-on-exec. False with errno. */
bool control_pair(int fds[2]);

/* `body` NULL: an empty object; it stays the caller's. The descriptors stay open here. */
enum control_result control_send(int socket, enum control_kind kind, const cJSON *body, const int *fds,
                                 unsigned fd_count);
enum control_result control_receive(int socket, struct control_message *message, struct buffer *why);

/* The next descriptor that came along, the caller's from now on; -1 when there is none. */
int control_take_fd(struct control_message *message);
/* Frees the body and closes descriptors that nobody took. */
void control_message_free(struct control_message *message);

/* Members of the body; the default when absent or of another type. */
bool control_bool(const struct control_message *message, const char *name);
double control_number(const struct control_message *message, const char *name, double otherwise);
const char *control_text(const struct control_message *message, const char *name); /* NULL */

#endif
