/* What the files of the supervisor share. */
#ifndef KILN_SUPERVISOR_PRIVATE_H
#define KILN_SUPERVISOR_PRIVATE_H

#include "base/list.h"
#include "observe/log.h"
#include "supervisor/admin.h"
#include "supervisor/backoff.h"
#include "supervisor/certificates.h"
#include "supervisor/commands.h"
#include "supervisor/console.h"
#include "supervisor/crash_list.h"
#include "supervisor/ledger.h"
#include "supervisor/listeners.h"
#include "supervisor/pid_file.h"
#include "supervisor/upgrade.h"
#include "supervisor/worker_process.h"

struct supervisor {
    struct config *config; /* a reference */
    const struct config_overrides *overrides;
    const char *config_file; /* as named by the user; NULL: the default file, if there is one */
    unsigned generation; /* of the config, counts reloads */
    struct listener_set listeners;
    struct pid_file pid_file;
    struct log_files logs; /* our own descriptors of them, handed to workers */
    int signals; /* a signalfd */
    struct list workers;
    struct list hosts; /* hosts.h */
    struct crash_list crashes;
    struct certificates certificates;
    struct commands commands;
    struct backoff backoff;
    uint64_t restart_at_ms; /* 0: no worker is due */
    uint64_t looked_ms; /* silence.c: for workers that say nothing */
    unsigned failed_starts; /* in a row, before any worker was ever ready */
    bool ever_ready;
    struct upgrade upgrade;
    struct ledger ledger; /* what workers told */
    struct admin admin;
    struct console console;
    int64_t started; /* wall clock, seconds */
    uint64_t started_ms;
    bool shutting_down;
    bool hurried; /* told twice */
    int exit_code;
};

struct worker_orders supervisor_orders(const struct supervisor *s);
/* Opens the log files of the config; on failure the old ones stay. */
bool supervisor_open_logs(struct supervisor *s, const struct config *config, struct buffer *why);
/* Workers drain, then the process ends; called again: at once. */
void supervisor_shut_down(struct supervisor *s);
/* A successor is started, and the worker drained when it serves. */
void supervisor_replace_worker(struct supervisor *s, struct worker_process *worker, const char *why);
/* silence.c: workers that serve nobody any more without having ended. */
uint64_t silence_due_ms(const struct supervisor *s);
void silence_run(struct supervisor *s, uint64_t now);
/* crashes.c: what a worker said, and what a new one must know first. */
struct control_message;
void supervisor_crashed(struct supervisor *s, const struct control_message *message);
void supervisor_released(struct supervisor *s, const struct control_message *message);
void supervisor_tell_quarantines(struct supervisor *s, struct worker_process *worker);
/* For who takes over: an array of those that crashed last, within the bytes of one message. */
cJSON *supervisor_print_quarantines(const struct supervisor *s, size_t bytes);
void supervisor_take_quarantines(struct supervisor *s, const cJSON *list);
/* Fresh workers take over from all that serve, without a drop. False when none serves. */
bool supervisor_restart_workers(struct supervisor *s);
/* SIGHUP (reload.c). What is said goes to the log, and to `out` unless that is NULL. False when the old config stays. */
bool supervisor_reload(struct supervisor *s, struct buffer *out);
/* Each line of the text as a line of the log. */
void supervisor_log_lines(enum log_level level, const char *prefix, struct str text);
/* At the end (orphans.c): kills what workers left behind, until no child remains but `heir` (0: none). */
void orphans_end(pid_t heir);

#endif
