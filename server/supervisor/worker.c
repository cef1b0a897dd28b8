#include "supervisor/worker.h"

#include "answer/file_cache.h"
#include "base/epoch.h"
#include "config/config.h"
#include "connection/accept.h"
#include "endpoint/crash.h"
#include "endpoint/loader.h"
#include "endpoint/pace.h"
#include "endpoint/watchdog.h"
#include "isolate/isolate.h"
#include "loop/coroutine.h"
#include "loop/pool.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "protocol/websocket.h"
#include "route/site_index.h"
#include "sessions/session.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/privileges.h"
#include "supervisor/worker_certificates.h"
#include "supervisor/worker_config.h"
#include "supervisor/worker_figures.h"
#include "supervisor/worker_integrity.h"
#include "supervisor/worker_limits.h"
#include "supervisor/worker_loops.h"
#include "supervisor/worker_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    IDLE_MS = 1000, /* between looks at what may be reclaimed */
    MEMORY_AT_HAND = 8 << 20, /* free memory that each heap keeps */
    BUSY_MS = 100, /* while something waits to be reclaimed */
    DRAIN_MS = 10, /* between looks at whether all connections have ended */
    CLOSED_GRACE_MS = 2000, /* for handlers to return once their connection was closed */
};

enum drain { DRAIN_NO, DRAIN_WAIT, DRAIN_CLOSED };

struct worker {
    struct config *config; /* of the start: rooms keep what they read from it */
    bool supervisor_gone;
    enum drain drain;
    uint64_t drain_until_ms; /* of the present stage */
};

static struct sessions *sessions;

struct sessions *worker_sessions(void)
{
    return sessions;
}

/* ---- rooms --------------------------------------------------------------------------------- */

static unsigned thread_count(const struct config *config)
{
    if (config->threads > 0) {
        return (unsigned)config->threads;
    }
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores < 1 ? 1 : cores > ENDPOINT_MAX_LOOPS ? ENDPOINT_MAX_LOOPS : (unsigned)cores;
}

static bool start_log(struct config *config)
{
    return log_start(config);
}

static bool start_site_index(struct config *config)
{
    return site_index_start(config, true);
}

static bool start_endpoints(struct config *config)
{
    return endpoints_start(config, thread_count(config));
}

static bool start_isolation(struct config *config)
{
    (void)config; /* it starts with the first endpoint that is isolated */
    return true;
}

static bool start_sessions(struct config *config)
{
    struct session_settings settings;
    struct buffer error = BUFFER_EMPTY;
    session_settings_of(config, &settings);
    sessions = sessions_open(&settings, &error);
    if (sessions == NULL) {
        log_error("%.*s", STR_ARG(buffer_str(&error)));
    }
    buffer_free(&error);
    return sessions != NULL;
}

static void stop_sessions(void)
{
    sessions_close(sessions);
    sessions = NULL;
}

static bool start_pool(struct config *config)
{
    pool_start((unsigned)config->pool_threads);
    return true;
}

static bool start_watchdog(struct config *config)
{
    (void)config;
    return watchdog_start();
}

static bool start_file_cache(struct config *config)
{
    (void)config; /* it fills as files are asked for */
    return true;
}

static bool start_tls(struct config *config)
{
    worker_certificates_use(config);
    return true;
}

static bool start_loops(struct config *config)
{
    coroutine_stack_size_set((size_t)config->stack_size);
    pace_start(config->blocking_threshold);
    crash_start();
    return worker_loops_start(thread_count(config), config);
}

/* Started in this order, stopped in the reverse one. */
static const struct room {
    const char *name;
    bool (*start)(struct config *config); /* false after a log line */
    void (*stop)(void);
} rooms[] = {
    {"log", start_log, log_stop},
    {"isolation", start_isolation, isolation_stop},
    {"endpoints", start_endpoints, endpoints_stop}, /* before the index, which opens and closes them */
    {"site index", start_site_index, site_index_stop},
    {"file cache", start_file_cache, file_cache_stop},
    {"session store", start_sessions, stop_sessions},
    {"watchdog", start_watchdog, watchdog_stop},
    {"TLS", start_tls, worker_certificates_end},
    {"loops", start_loops, worker_loops_stop},
    {"thread pool", start_pool, pool_stop}, /* its jobs end while the loops still serve them */
};

static void stop_rooms(size_t count)
{
    while (count > 0) {
        count--;
        log_debug("stopping: %s", rooms[count].name);
        rooms[count].stop();
    }
}

/* NULL, or the name of the one that could not. */
static const char *start_rooms(struct config *config)
{
    for (size_t i = 0; i < ARRAY_LEN(rooms); i++) {
        if (!rooms[i].start(config)) {
            stop_rooms(i);
            return rooms[i].name;
        }
    }
    return NULL;
}

/* ---- start ----------------------------------------------------------------------------------- */

static void send_failed(const char *text)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "text", text);
    control_send(CONTROL_FD, CONTROL_FAILED, body, NULL, 0);
    cJSON_Delete(body);
}

static void send_ready(void)
{
    struct site_index_counts counts = {0};
    site_index_counts(&counts);
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "threads", worker_loops_count());
    cJSON_AddNumberToObject(body, "files", (double)counts.files);
    cJSON_AddNumberToObject(body, "directories", (double)counts.directories);
    cJSON_AddNumberToObject(body, "endpoints", (double)counts.endpoints);
    control_send(CONTROL_FD, CONTROL_READY, body, NULL, 0);
    cJSON_Delete(body);
}

static bool open_control(void)
{
    int type = 0;
    socklen_t len = sizeof type;
    if (getsockopt(CONTROL_FD, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_SEQPACKET) {
        fprintf(stderr, "kiln: --worker is how the server starts its own worker; run kiln without it\n");
        return false;
    }
    return fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC) == 0;
}

static void use_logs(struct control_message *message)
{
    struct log_files files = {-1, -1};
    if (control_bool(message, "error_log")) {
        files.error = control_take_fd(message);
    }
    if (control_bool(message, "access_log")) {
        files.access = control_take_fd(message);
    }
    log_files_use(files);
}

static void quarantine(const struct control_message *message)
{
    const char *file = control_text(message, "file");
    const char *build = control_text(message, "build");
    if (file != NULL && build != NULL) {
        endpoint_quarantine(str_of(file), str_of(build), (uint64_t)control_number(message, "until", 0));
    }
}

/* Waits for LOGS and CONFIG. False when the supervisor is gone or says something else. */
static bool receive_orders(struct worker *w, struct buffer *why)
{
    while (w->config == NULL) {
        struct pollfd wait = {.fd = CONTROL_FD, .events = POLLIN};
        poll(&wait, 1, -1);
        struct control_message message;
        enum control_result result = control_receive(CONTROL_FD, &message, why);
        if (result == CONTROL_EMPTY) {
            continue;
        }
        if (result != CONTROL_OK) {
            return false;
        }
        bool ok = true;
        if (message.kind == CONTROL_LOGS) {
            use_logs(&message);
        } else if (message.kind == CONTROL_CONFIG) {
            w->config = worker_config_first(&message, why);
            ok = w->config != NULL;
        } else if (message.kind == CONTROL_QUARANTINE) {
            quarantine(&message);
        } else if (message.kind == CONTROL_CERTIFICATES) {
            worker_certificates_take(&message);
        } else if (message.kind == CONTROL_TICKETS) {
            worker_tickets_take(&message);
        } else {
            buffer_printf(why, "the supervisor sent a message of kind %d first", (int)message.kind);
            ok = false;
        }
        control_message_free(&message);
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* Everything up to serving. False after FAILED was sent. */
static bool start(struct worker *w)
{
    struct buffer why = BUFFER_EMPTY;
    bool ok = receive_orders(w, &why);
    if (ok) {
        privileges_raise_limits();
        log_level_set((enum log_level)w->config->log_level);
        ok = privileges_drop(w->config, &why);
    }
    crash_guard_threads();
    worker_integrity_start();
    const char *failed = ok ? start_rooms(w->config) : NULL;
    if (failed != NULL) {
        buffer_printf(&why, "the %s could not be started, the log says why", failed);
        ok = false;
    }
    if (!ok) {
        buffer_append_char(&why, '\0');
        send_failed(why.data);
    }
    buffer_free(&why);
    return ok;
}

void worker_replace(const char *why)
{
    static _Atomic bool asked;
    if (atomic_exchange(&asked, true)) {
        return;
    }
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "why", why);
    control_send(CONTROL_FD, CONTROL_REPLACE, body, NULL, 0);
    cJSON_Delete(body);
}

/* An object of two texts. */
static void send_texts(enum control_kind kind, const char *name, const char *text, const char *other, const char *more)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, name, text);
    cJSON_AddStringToObject(body, other, more);
    control_send(CONTROL_FD, kind, body, NULL, 0);
    cJSON_Delete(body);
}

void worker_crashed(const char *file, const char *build)
{
    send_texts(CONTROL_CRASHED, "file", file, "build", build);
}

void worker_released(const char *file, const char *why)
{
    send_texts(CONTROL_RELEASED, "file", file, "why", why);
}

/* ---- end ---------------------------------------------------------------------------------------- */

static void drain_on_loop(struct loop *loop, void *arg)
{
    (void)arg;
    accept_stop_all(loop);
    conn_shutdown_all(loop);
}

static void drain_begun(void *arg)
{
    (void)arg;
    worker_config_close_listeners();
}

static void close_on_loop(struct loop *loop, void *arg)
{
    (void)arg;
    conn_close_all(loop);
}

/* `code` is what WebSockets are closed with shortly before the time is over. */
static void begin_drain(struct worker *w, double seconds, unsigned code)
{
    uint64_t until = clock_now_ms() + (uint64_t)(seconds * 1000);
    websocket_drain(until, code);
    if (w->drain == DRAIN_NO) {
        w->drain = DRAIN_WAIT;
        w->drain_until_ms = until;
        worker_loops_broadcast(drain_on_loop, drain_begun, NULL);
    } else if (w->drain == DRAIN_WAIT && until < w->drain_until_ms) {
        w->drain_until_ms = until;
    }
}

static bool all_ended(void)
{
    return conn_count_all() == 0 && metric_sum(METRIC_REQUESTS_ACTIVE) <= 0;
}

/* True when the worker may end. */
static bool drain_step(struct worker *w)
{
    uint64_t now = clock_now_ms();
    if (!worker_loops_idle()) {
        return now >= w->drain_until_ms + CLOSED_GRACE_MS; /* a loop that does not come back */
    }
    if (all_ended()) {
        return true;
    }
    if (now < w->drain_until_ms) {
        return false;
    }
    if (w->drain == DRAIN_WAIT) {
        log_notice("the time to stop is over: closing %u connections", conn_count_all());
        w->drain = DRAIN_CLOSED;
        w->drain_until_ms = now + CLOSED_GRACE_MS;
        worker_loops_broadcast(close_on_loop, NULL, NULL);
        return false;
    }
    return true;
}

/* A handler that never returns cannot be unwound: what it uses must stay until the end. A thread that was
 * given up has been told of. */
static void leave_at_once(void)
{
    if (!worker_loops_idle() || !all_ended() || watchdog_stuck() > 0) {
        log_warning("left behind at the end: %u connections and %d requests whose handlers do not return",
                    conn_count_all(), (int)metric_sum(METRIC_REQUESTS_ACTIVE));
    }
    log_stop();
    _exit(EXIT_SUCCESS);
}

/* ---- the loop of the first thread ------------------------------------------------------------------ */

static void handle_message(struct worker *w, struct control_message *message)
{
    switch (message->kind) {
    case CONTROL_CONFIG:
        if (w->drain == DRAIN_NO) {
            worker_config_change(message);
        }
        break;
    case CONTROL_LOGS: use_logs(message); break;
    case CONTROL_DRAIN:
        begin_drain(w, control_number(message, "seconds", 0),
                    control_number(message, "replaced", 0) != 0 ? WS_CLOSE_RESTART : WS_CLOSE_GOING_AWAY);
        break;
    case CONTROL_STOP: begin_drain(w, 0, WS_CLOSE_GOING_AWAY); break;
    case CONTROL_QUARANTINE: quarantine(message); break;
    case CONTROL_HOST_STARTED:
    case CONTROL_HOST_ENDED: isolation_message(message); break;
    case CONTROL_CERTIFICATES: worker_certificates_take(message); break;
    case CONTROL_TICKETS: worker_tickets_take(message); break;
    default: log_warning("the supervisor sent a message of kind %d, which is unknown here", (int)message->kind); break;
    }
}

static void read_control(struct worker *w)
{
    while (!w->supervisor_gone) {
        struct control_message message;
        struct buffer why = BUFFER_EMPTY;
        enum control_result result = control_receive(CONTROL_FD, &message, &why);
        if (result == CONTROL_EMPTY) {
            return;
        }
        if (result == CONTROL_OK) {
            handle_message(w, &message);
            control_message_free(&message);
            continue;
        }
        if (w->drain == DRAIN_NO) {
            log_error("the supervisor is gone%s%.*s; ending", why.len > 0 ? ": " : "", STR_ARG(buffer_str(&why)));
        }
        buffer_free(&why);
        w->supervisor_gone = true;
        begin_drain(w, w->config->shutdown_timeout, WS_CLOSE_GOING_AWAY);
    }
}

static void read_signals(struct worker *w)
{
    for (unsigned left = worker_signals_read(); left > 0; left--) {
        begin_drain(w, w->drain == DRAIN_NO ? w->config->shutdown_timeout : 0, WS_CLOSE_GOING_AWAY);
    }
}

static void run(struct worker *w)
{
    for (;;) {
        worker_figures_look();
        struct pollfd fds[] = {
            {.fd = worker_signals_fd(), .events = POLLIN},
            {.fd = worker_loops_wake_fd(), .events = POLLIN},
            {.fd = w->supervisor_gone ? -1 : CONTROL_FD, .events = POLLIN},
        };
        int timeout = epoch_reclaim() > 0 ? BUSY_MS : IDLE_MS;
        poll(fds, ARRAY_LEN(fds), w->drain != DRAIN_NO ? DRAIN_MS : timeout);
        worker_loops_collect();
        read_signals(w);
        read_control(w);
        if (w->drain == DRAIN_NO) {
            worker_limits_look();
        } else if (drain_step(w)) {
            return;
        }
    }
}

/* A thread's heap gives its top back to the kernel as soon as 128 KB of it are free, and with messages and
 * answers of some size that is over and over: what the next one needs is then faulted in page by page. */
static void keep_memory_at_hand(void)
{
    mallopt(M_TRIM_THRESHOLD, MEMORY_AT_HAND);
    mallopt(M_MMAP_THRESHOLD, MEMORY_AT_HAND);
}

int worker_run(void)
{
    struct worker w = {0};
    prctl(PR_SET_NAME, "kiln-worker", 0, 0, 0);
    keep_memory_at_hand();
    if (!open_control()) {
        return EXIT_FAILURE;
    }
    if (!worker_signals_open() || !start(&w)) {
        return EXIT_FAILURE;
    }
    worker_config_accept();
    send_ready();
    run(&w);
    worker_figures_last();
    if (!worker_loops_idle() || !all_ended() || watchdog_stuck() > 0 || watchdog_lost() > 0) {
        leave_at_once();
    }
    log_debug("every connection has ended");
    stop_rooms(ARRAY_LEN(rooms));
    worker_config_end();
    config_unref(w.config);
    worker_signals_close();
    close(CONTROL_FD);
    if (crash_has_happened()) {
        _exit(EXIT_SUCCESS); /* without destructors of modules that crashed */
    }
    return EXIT_SUCCESS;
}
