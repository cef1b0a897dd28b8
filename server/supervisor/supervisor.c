#include "supervisor/supervisor.h"

#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/hosts.h"
#include "supervisor/notify.h"
#include "supervisor/privileges.h"
#include "supervisor/supervisor_private.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STARTS_MOST = 5, /* failed first starts in a row that end the server */
    GRACE_MS = 5000, /* beyond ShutdownTimeout, for a worker to end by itself */
    GRACE_HURRIED_MS = 3000, /* after the second signal */
    WORKERS_MOST = 16, /* at once: one that crashed serves on until an older one has drained */
};

struct worker_orders supervisor_orders(const struct supervisor *s)
{
    return (struct worker_orders){
        .config = s->config, .config_file = s->config_file, .generation = s->generation, .listeners = &s->listeners};
}

/* For the end: to the log, and to the terminal when the log is elsewhere. */
static void say_fatal(const struct supervisor *s, const char *text)
{
    log_error("%s", text);
    if (s->logs.error >= 0) {
        fprintf(stderr, "kiln: %s; see %s\n", text, s->config->error_log.ptr);
    }
}

/* ---- workers ---------------------------------------------------------------------------- */

static void start_worker(struct supervisor *s)
{
    s->restart_at_ms = 0;
    struct buffer why = BUFFER_EMPTY;
    struct worker_process *worker = worker_process_spawn(&why);
    if (worker == NULL) {
        log_error("%.*s", STR_ARG(buffer_str(&why)));
        s->restart_at_ms = clock_now_ms() + backoff_next(&s->backoff, 0);
        buffer_free(&why);
        return;
    }
    list_append(&s->workers, &worker->node);
    s->ledger.server[SERVER_FIGURE_WORKERS_STARTED]++;
    supervisor_tell_quarantines(s, worker);
    struct worker_orders orders = supervisor_orders(s);
    if (!worker_process_send_logs(worker, &s->logs) || !certificates_tell(s, worker) ||
        !worker_process_send_config(worker, &orders)) {
        log_error("worker %d cannot be given its config", (int)worker->pid);
        worker_process_kill(worker);
    }
}

void supervisor_shut_down(struct supervisor *s)
{
    uint64_t now = clock_now_ms();
    s->hurried = s->shutting_down;
    if (!s->shutting_down) {
        LIST_EACH(node, &s->workers) {
            struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
            worker->replaced = worker->state == WORKER_DRAINING;
        }
        s->shutting_down = true;
        s->restart_at_ms = 0;
        upgrade_cancel(s);
        if (!s->upgrade.handed_over) {
            notify_send("STOPPING=1");
        }
        listeners_close(&s->listeners, NULL); /* refused from now on, so that balancers turn elsewhere */
    }
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (s->hurried) {
            worker_process_stop(worker, now + GRACE_HURRIED_MS);
        } else {
            double seconds = s->config->shutdown_timeout;
            worker_process_drain(worker, seconds, now + (uint64_t)(seconds * 1000) + GRACE_MS, s->upgrade.handed_over);
        }
    }
}

static void end_with_failure(struct supervisor *s, const char *text)
{
    say_fatal(s, text);
    upgrade_failed(s, text);
    s->exit_code = EXIT_FAILURE;
    supervisor_shut_down(s);
}

/* "104,233" */
static const char *group_digits(char out[32], uint64_t value)
{
    char digits[24];
    size_t len = str_put_u64(digits, value);
    size_t used = 0;
    for (size_t i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) {
            out[used++] = ',';
        }
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

static void say_serving(struct supervisor *s, const struct control_message *ready)
{
    struct buffer urls = BUFFER_EMPTY;
    listeners_print_urls(&s->listeners, &urls);
    unsigned threads = (unsigned)control_number(ready, "threads", 0);
    uint64_t files = (uint64_t)control_number(ready, "files", 0);
    char digits[32];
    char line[1024];
    snprintf(line, sizeof line, "serving %s on %.*s (%u thread%s, %s file%s)", s->config->web_root.ptr,
             STR_ARG(buffer_str(&urls)), threads, threads == 1 ? "" : "s", group_digits(digits, files),
             files == 1 ? "" : "s");
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "kiln " KILN_VERSION ": %s; Ctrl-C stops\n", line);
        if (s->logs.error >= 0) {
            log_notice("kiln " KILN_VERSION " %s", line);
        }
    } else {
        log_notice("kiln " KILN_VERSION " %s", line);
    }
    buffer_free(&urls);
}

/* A successor serves: those that asked for one may go. Not itself, which may have crashed before it was ready. */
static void drain_replaced(struct supervisor *s, const struct worker_process *successor)
{
    double seconds = s->config->shutdown_timeout;
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (worker != successor && worker->to_be_replaced && worker->state == WORKER_READY) {
            worker_process_drain(worker, seconds, clock_now_ms() + (uint64_t)(seconds * 1000) + GRACE_MS, true);
        }
    }
}

static bool one_is_starting(const struct supervisor *s)
{
    LIST_EACH(node, &s->workers) {
        if (LIST_ENTRY(node, struct worker_process, node)->state == WORKER_STARTING) {
            return true;
        }
    }
    return s->restart_at_ms != 0;
}

static unsigned count_workers(const struct supervisor *s)
{
    unsigned count = 0;
    LIST_EACH(node, &s->workers) {
        count++;
    }
    return count;
}

/* Starts a successor for whoever waits for one. */
static void start_successor(struct supervisor *s)
{
    bool wanted = false;
    LIST_EACH(node, &s->workers) {
        const struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        wanted = wanted || (worker->to_be_replaced && worker->state == WORKER_READY);
    }
    if (wanted && !s->shutting_down && !one_is_starting(s) && count_workers(s) < WORKERS_MOST) {
        start_worker(s);
    }
}

void supervisor_replace_worker(struct supervisor *s, struct worker_process *worker, const char *why)
{
    log_warning("worker %d is replaced%s: %s", (int)worker->pid,
                count_workers(s) < WORKERS_MOST ? "" : ", once one of those before it has ended", why);
    worker->to_be_replaced = true;
    start_successor(s);
}

static void worker_asks(struct supervisor *s, struct worker_process *worker, const struct control_message *message)
{
    const char *why = control_text(message, "why");
    supervisor_replace_worker(s, worker, why != NULL ? why : "it asked to be");
}

bool supervisor_restart_workers(struct supervisor *s)
{
    bool any = false;
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (worker->state == WORKER_READY) {
            worker->to_be_replaced = true;
            any = true;
        }
    }
    start_successor(s);
    return any;
}

static void worker_ready(struct supervisor *s, struct worker_process *worker, const struct control_message *ready)
{
    if (worker->state != WORKER_STARTING) {
        return;
    }
    worker->state = WORKER_READY;
    worker->ready_ms = clock_now_ms();
    if (s->ever_ready) {
        log_notice("worker %d serves", (int)worker->pid);
    } else {
        s->ever_ready = true;
        say_serving(s, ready);
        if (upgrade_is_heir(s)) {
            upgrade_ready(s); /* the service manager hears it from the elder, whom it knows */
        } else {
            notify_send("READY=1");
        }
        console_start(s);
    }
    drain_replaced(s, worker);
    start_successor(s);
}

static void config_done(const struct worker_process *worker, const struct control_message *message)
{
    const char *text = control_text(message, "text");
    if (text != NULL) {
        log_error("config not reloaded: worker %d: %s", (int)worker->pid, text);
    } else {
        log_notice("config reloaded");
    }
}

static void certificates_done(struct supervisor *s, struct worker_process *worker)
{
    worker->certificates_owed -= worker->certificates_owed > 0;
    commands_settle(s);
}

static void handle_message(struct supervisor *s, struct worker_process *worker, struct control_message *message)
{
    switch (message->kind) {
    case CONTROL_READY: worker_ready(s, worker, message); break;
    case CONTROL_FAILED: {
        const char *text = control_text(message, "text");
        buffer_append_z(&worker->failure, text != NULL ? text : "it cannot start");
        break;
    }
    case CONTROL_CONFIG_DONE: config_done(worker, message); break;
    case CONTROL_REPLACE: worker_asks(s, worker, message); break;
    case CONTROL_CRASHED: supervisor_crashed(s, message); break;
    case CONTROL_STAPLE: certificates_staple(s, message); break;
    case CONTROL_CERTIFICATES_DONE: certificates_done(s, worker); break;
    case CONTROL_RELEASED: supervisor_released(s, message); break;
    case CONTROL_HOST_START:
    case CONTROL_HOST_KILL: hosts_message(s, worker, message); break;
    case CONTROL_ENDPOINTS: ledger_take_endpoints(&s->ledger, worker->figures, message->body); break;
    case CONTROL_FIGURES: ledger_take_figures(&s->ledger, worker->figures, message->body, clock_now_ms()); break;
    default:
        log_warning("worker %d sent a message of kind %d, which is unknown here", (int)worker->pid, (int)message->kind);
        break;
    }
}

static void read_control(struct supervisor *s, struct worker_process *worker)
{
    while (worker->control >= 0) {
        struct control_message message;
        struct buffer why = BUFFER_EMPTY;
        enum control_result result = control_receive(worker->control, &message, &why);
        if (result == CONTROL_EMPTY) {
            return;
        }
        if (result == CONTROL_OK) {
            handle_message(s, worker, &message);
            control_message_free(&message);
            continue;
        }
        if (result == CONTROL_BAD) {
            log_error("worker %d: %.*s; it is replaced", (int)worker->pid, STR_ARG(buffer_str(&why)));
        }
        buffer_free(&why);
        /* Its exit follows; one that lives on without us is not left to itself. */
        close(worker->control);
        worker->control = -1;
        if (worker->kill_at_ms == 0) {
            worker->kill_at_ms = clock_now_ms() + (result == CONTROL_BAD ? 0 : GRACE_MS);
        }
        worker->hung_up_ms = clock_now_ms();
    }
}

/* ---- the end of a worker ------------------------------------------------------------------ */

/* It was not told to end. */
static void worker_lost(struct supervisor *s, const struct worker_process *worker, const char *end)
{
    if (!s->ever_ready) {
        char text[1024];
        s->failed_starts++;
        if (worker->failure.len > 0) {
            snprintf(text, sizeof text, "the server cannot start: %.*s", STR_ARG(buffer_str(&worker->failure)));
            end_with_failure(s, text);
            return;
        }
        if (s->failed_starts >= STARTS_MOST) {
            snprintf(text, sizeof text, "the server cannot start: the worker %s before it was ready, %d times in a row",
                     end, STARTS_MOST);
            end_with_failure(s, text);
            return;
        }
    }
    uint64_t now = clock_now_ms();
    uint64_t pause = backoff_next(&s->backoff, worker->ready_ms != 0 ? now - worker->ready_ms : 0);
    s->restart_at_ms = now + pause;
    struct buffer text = BUFFER_EMPTY;
    buffer_printf(&text, "worker %d %s", (int)worker->pid, end);
    if (worker->failure.len > 0) {
        buffer_printf(&text, ": %.*s", STR_ARG(buffer_str(&worker->failure)));
    }
    if (pause == 0) {
        buffer_append_z(&text, "; a new one starts");
    } else {
        buffer_printf(&text, "; a new one starts in %.1f s", (double)pause / 1000);
    }
    log_error("%.*s", STR_ARG(buffer_str(&text)));
    buffer_free(&text);
}

static void worker_ended(struct supervisor *s, struct worker_process *worker, int wait_status)
{
    read_control(s, worker); /* its last words */
    struct buffer end = BUFFER_EMPTY;
    worker_process_print_end(wait_status, &end);
    buffer_append_char(&end, '\0');
    bool clean = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
    bool told = worker->state == WORKER_DRAINING;
    if (told && !clean && !s->hurried && worker->failure.len == 0) {
        log_error("worker %d %s while it was stopping%s", (int)worker->pid, end.data,
                  worker->killed_by_us ? ": it did not end by itself" : "");
        if (s->shutting_down && !worker->replaced) { /* of one that was replaced earlier the log tells */
            s->exit_code = EXIT_FAILURE;
        }
    }
    if (!told) {
        s->ledger.server[SERVER_FIGURE_WORKERS_LOST]++;
        list_remove(&worker->node);
        bool followed = worker->to_be_replaced && one_is_starting(s);
        if (followed) {
            log_error("worker %d %s before its successor was ready", (int)worker->pid, end.data);
        } else {
            worker_lost(s, worker, end.data);
        }
    }
    buffer_free(&end);
    hosts_worker_ended(s, worker);
    worker_process_free(worker);
    commands_settle(s);
    start_successor(s);
}

static struct worker_process *find_worker(struct supervisor *s, pid_t pid)
{
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (worker->pid == pid) {
            return worker;
        }
    }
    return NULL;
}

static void reap(struct supervisor *s)
{
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        struct worker_process *worker = find_worker(s, pid);
        if (worker != NULL) {
            worker_ended(s, worker, wait_status);
        } else if (!hosts_ended(s, pid, wait_status) && !upgrade_child_ended(s, pid, wait_status)) {
            log_debug("process %d, left behind by a worker, ended", (int)pid);
        }
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* All signals that wait are taken before any is acted upon: when a service manager tells
 * the whole group to end, a worker that ended first must not be replaced. */
static void read_signals(struct supervisor *s)
{
    unsigned stops = 0;
    bool reload = false;
    bool upgrade = false;
    bool child = false;
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        stops += info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT || info.ssi_signo == SIGQUIT;
        reload = reload || info.ssi_signo == SIGHUP;
        upgrade = upgrade || info.ssi_signo == SIGUSR2;
        child = child || info.ssi_signo == SIGCHLD;
    }
    if (stops > 0) {
        supervisor_shut_down(s);
    }
    if (reload) {
        supervisor_reload(s, NULL);
    }
    if (upgrade) {
        upgrade_begin(s);
    }
    if (child) {
        reap(s);
    }
}

static uint64_t next_due(const struct supervisor *s)
{
    uint64_t due = s->restart_at_ms != 0 ? s->restart_at_ms : UINT64_MAX;
    const uint64_t others[] = {
        upgrade_due_ms(s),           admin_due_ms(s),  hosts_due(s), certificates_due(s), commands_due_ms(&s->commands),
        console_due_ms(&s->console), silence_due_ms(s)};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        due = others[i] < due ? others[i] : due;
    }
    LIST_EACH(node, &s->workers) {
        uint64_t at = LIST_ENTRY(node, struct worker_process, node)->kill_at_ms;
        due = at != 0 && at < due ? at : due;
    }
    return due;
}

static void run_due(struct supervisor *s)
{
    uint64_t now = clock_now_ms();
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (worker->kill_at_ms != 0 && worker->kill_at_ms <= now) {
            worker_process_kill(worker);
        }
    }
    hosts_run_due(s, now);
    silence_run(s, now);
    if (s->restart_at_ms != 0 && s->restart_at_ms <= now) {
        start_worker(s);
    }
    certificates_run_due(s);
    upgrade_run(s);
    admin_run(s);
}

static void wait_and_handle(struct supervisor *s)
{
    enum {
        SIGNALS,
        CERTIFICATES,
        UPGRADE,
        ADMIN = UPGRADE + UPGRADE_POLLED,
        COMMANDS = ADMIN + ADMIN_POLLED,
        CONSOLE = COMMANDS + COMMANDS_POLLED,
        WORKERS,
    };
    struct pollfd fds[WORKERS + WORKERS_MOST] = {
        [SIGNALS] = {.fd = s->signals, .events = POLLIN},
        [CERTIFICATES] = {.fd = s->certificates.events, .events = POLLIN},
    };
    upgrade_poll(s, fds + UPGRADE);
    admin_poll(&s->admin, fds + ADMIN);
    commands_poll(&s->commands, fds + COMMANDS);
    console_poll(&s->console, fds + CONSOLE);
    struct worker_process *workers[WORKERS_MOST];
    unsigned count = 0;
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (worker->control >= 0 && count < WORKERS_MOST) {
            workers[count] = worker;
            fds[WORKERS + count++] = (struct pollfd){.fd = worker->control, .events = POLLIN};
        }
    }
    uint64_t due = next_due(s);
    uint64_t now = clock_now_ms();
    int timeout = due == UINT64_MAX ? -1 : due <= now ? 0 : due - now > 60000 ? 60000 : (int)(due - now);
    if (poll(fds, WORKERS + count, timeout) < 0) {
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        if (fds[WORKERS + i].revents != 0) {
            read_control(s, workers[i]);
        }
    }
    upgrade_polled(s, fds + UPGRADE);
    if (fds[CERTIFICATES].revents != 0) {
        certificates_read_events(s);
    }
    if (fds[SIGNALS].revents != 0) {
        read_signals(s);
    }
    commands_run(s, fds + COMMANDS);
    console_polled(s, fds + CONSOLE);
    run_due(s);
}

/* ---- start and end ---------------------------------------------------------------------------- */

static bool open_signals(struct supervisor *s)
{
    sigset_t set;
    sigemptyset(&set);
    const int wanted[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGCHLD, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        sigaddset(&set, wanted[i]);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* a parent may have left it ignored: then nobody could be waited for */
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) {
        return false;
    }
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals >= 0;
}

static bool open_pid_file(struct supervisor *s, struct buffer *why)
{
    if (s->pid_file.fd >= 0) {
        return true; /* inherited */
    }
    enum pid_file_result result = pid_file_open(&s->pid_file, s->config->pid_file.ptr, why);
    if (result == PID_FILE_FAILED) {
        log_warning("%.*s; going on without it", STR_ARG(buffer_str(why)));
        buffer_free(why);
    }
    return result != PID_FILE_TAKEN;
}

/* Those that were inherited and are still wanted stay. */
static bool open_listeners(struct supervisor *s, struct buffer *why)
{
    struct listener_set inherited = s->listeners;
    if (!listeners_open(&s->listeners, s->config, &inherited, why)) {
        s->listeners = inherited; /* closed by release() */
        return false;
    }
    listeners_close(&inherited, &s->listeners);
    return true;
}

/* Everything that can be refused is asked for before the first worker starts. */
static bool prepare(struct supervisor *s)
{
    struct buffer why = BUFFER_EMPTY;
    bool ok = upgrade_inherit(s, &why) && open_pid_file(s, &why) && open_listeners(s, &why) &&
              supervisor_open_logs(s, s->config, &why) && admin_prepare(s, &why);
    if (ok && !open_signals(s)) {
        buffer_printf(&why, "cannot set up signals: %s", strerror(errno));
        ok = false;
    }
    if (!ok) {
        buffer_append_char(&why, '\0');
        fprintf(stderr, "kiln: %s\n", why.data);
        upgrade_failed(s, why.data);
    }
    buffer_free(&why);
    return ok;
}

static void release(struct supervisor *s)
{
    upgrade_end(s);
    admin_end(s);
    commands_end(&s->commands);
    console_end(&s->console);
    listeners_close(&s->listeners, NULL);
    if (s->upgrade.pid_file_given) {
        pid_file_leave(&s->pid_file);
    }
    pid_file_close(&s->pid_file);
    if (s->signals >= 0) {
        close(s->signals);
    }
    if (s->logs.error >= 0) {
        close(s->logs.error);
    }
    if (s->logs.access >= 0) {
        close(s->logs.access);
    }
    log_files_use((struct log_files){-1, -1});
    crash_list_free(&s->crashes);
    ledger_free(&s->ledger);
    certificates_free(&s->certificates);
    config_unref(s->config);
}

int supervisor_run(struct config *config, const struct config_overrides *overrides, const char *config_file)
{
    struct supervisor s = {
        .config = config_ref(config),
        .overrides = overrides,
        .config_file = config_file,
        .generation = 1,
        .pid_file.fd = -1,
        .logs = {-1, -1},
        .signals = -1,
        .upgrade = {.control = -1, .elder = -1},
        .started = (int64_t)time(NULL),
        .started_ms = clock_now_ms(),
    };
    list_init(&s.workers);
    list_init(&s.hosts);
    crash_list_init(&s.crashes);
    ledger_init(&s.ledger, (size_t)config->admin_endpoints);
    admin_init(&s.admin);
    console_init(&s.console);
    certificates_init(&s.certificates);
    commands_init(&s.commands);
    notify_init();
    log_level_set((enum log_level)config->log_level);
    if (!prepare(&s)) {
        release(&s);
        return EXIT_FAILURE;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    commands_start(&s);
    privileges_warn(config);
    certificates_config_changed(&s);
    start_worker(&s);
    while (!list_is_empty(&s.workers) || !s.shutting_down) {
        wait_and_handle(&s);
    }
    hosts_end(&s);
    orphans_end(s.upgrade.handed_over ? s.upgrade.heir : 0);
    if (s.exit_code == EXIT_SUCCESS) {
        log_notice("stopped");
    }
    release(&s);
    return s.exit_code;
}
