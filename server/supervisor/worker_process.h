/* A worker as the supervisor sees it: a child process and a control socket. */
#ifndef KILN_SUPERVISOR_WORKER_PROCESS_H
#define KILN_SUPERVISOR_WORKER_PROCESS_H

#include "base/buffer.h"
#include "base/list.h"
#include "observe/log.h"
#include "supervisor/listeners.h"

#include <sys/types.h>

struct config;
struct figures;

enum worker_state {
    WORKER_STARTING,
    WORKER_READY,
    WORKER_DRAINING, /* told to end */
};

struct worker_process {
    struct list node;
    pid_t pid;
    int control; /* -1 once the worker closed it */
    enum worker_state state;
    uint64_t started_ms;
    uint64_t ready_ms; /* 0: not yet */
    uint64_t kill_at_ms; /* 0: never; SIGKILL when it is still there then */
    bool killed_by_us;
    bool replaced; /* told to end while the server goes on */
    unsigned certificates_owed; /* CERTIFICATES that it has not said DONE to */
    uint64_t hung_up_ms; /* when it closed its control socket; 0: it has not */
    uint64_t heard_ms; /* silence.c: figures->told_ms at the last look */
    unsigned silent_looks; /* in a row */
    bool to_be_replaced; /* it asked: drained as soon as another is ready */
    struct buffer failure; /* what FAILED said */
    struct listener_set known; /* listeners it was given */
    struct figures *figures; /* what it told last (ledger.h) */
};

/* What a worker needs to begin or to go on with. */
struct worker_orders {
    const struct config *config;
    const char *config_file; /* names it in messages; NULL: none */
    unsigned generation;
    const struct listener_set *listeners;
};

/* Starts the program again as a worker. NULL with a message in `why`. */
struct worker_process *worker_process_spawn(struct buffer *why);
/* Of a worker that is gone. */
void worker_process_free(struct worker_process *worker);

/* False when the worker does not take messages any more. */
bool worker_process_send_config(struct worker_process *worker, const struct worker_orders *orders);
bool worker_process_send_logs(struct worker_process *worker, const struct log_files *files);
/* Tells it to end within `seconds`; past `kill_at_ms` it is killed. */
void worker_process_drain(struct worker_process *worker, double seconds, uint64_t kill_at_ms, bool replaced);
void worker_process_stop(struct worker_process *worker, uint64_t kill_at_ms);
void worker_process_kill(struct worker_process *worker);

/* "was killed by signal 9 (Killed)", "ended with exit code 1". */
void worker_process_print_end(int wait_status, struct buffer *out);

#endif
