/* The manager: see isolate.h. */
#include "isolate/isolate_private.h"

#include "base/check.h"
#include "config/config.h"
#include "isolate/host_process.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    START_MS = 30000, /* for a host to be ready; its kiln_load may take a while */
    STOP_MS = 5000, /* for one that was told to end */
    STOP_ALL_MS = 3000, /* for all of them when the worker ends */
    LEAVE_MS = 600000, /* for requests of one that gets no more, when RequestTimeout does not bound them */
    END_KNOWN_MS = 2000, /* between its last word and the supervisor's about its end */
    TICK_MS = 1000,
    MESSAGES_AT_ONCE = 16,
    MESSAGES_MOST = 1000, /* of one host; one that works sends five */
    ALIVE_MS = 300, /* without its control socket */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a builder waits for it */
static struct list isolates = {&isolates, &isolates};
static struct list hosts = {&hosts, &hosts};
static pthread_t manager;
static bool running;
static bool stopping;
static bool cancelled;
static uint64_t stop_until_ms;
static int wake_fd = -1;

static void poke(void)
{
    uint64_t one = 1;
    if (write(wake_fd, &one, sizeof one) < 0) {
        /* It is awake already. */
    }
}

/* ---- from loops --------------------------------------------------------------------------------- */

void isolate_ask(struct isolate *isolate, enum ask what)
{
    if ((atomic_fetch_or(&isolate->asked, (unsigned)what) & (unsigned)what) == 0) {
        poke();
    }
}

struct host *isolate_take_host(struct isolate *isolate, unsigned loop, int *fd)
{
    pthread_mutex_lock(&lock);
    struct host *host = isolate->host;
    if (host != NULL && (host->state != HOST_READY || host->channels[loop] < 0)) {
        host = NULL;
    }
    if (host != NULL) {
        *fd = host->channels[loop];
        host->channels[loop] = -1;
        host_ref(host);
    }
    pthread_mutex_unlock(&lock);
    return host;
}

void host_lost(struct host *host, const char *why)
{
    atomic_store(&host->left, true);
    if (why != NULL) {
        log_error("%s: its isolated process %d sent %s; it is killed", host->isolate->file, (int)host->pid, why);
        pthread_mutex_lock(&lock);
        host->kill_at_ms = clock_now_ms();
        pthread_mutex_unlock(&lock);
    }
    isolate_ask(host->isolate, ASK_LOOK);
}

/* ---- the manager: hosts ---------------------------------------------------------------------------- */
/* All of it with the lock held. */

static void wake_berths(struct isolate *isolate)
{
    for (unsigned i = 0; i < isolate->loops; i++) {
        relay_wake(isolate, i);
    }
}

/* It gets no more requests; what it has it may finish. */
static void leave(struct host *host, uint64_t now)
{
    struct isolate *isolate = host->isolate;
    atomic_store(&host->left, true);
    if (isolate->host == host) {
        isolate->host = NULL;
    }
    if (host->state <= HOST_READY) {
        host->state = HOST_LEAVING;
        if (host->kill_at_ms == 0) {
            host->kill_at_ms = now + LEAVE_MS;
        }
    }
}

/* A builder hears how it went. */
static void tell_first(struct isolate *isolate, bool ok)
{
    if (!isolate->first_known) {
        isolate->first_known = true;
        isolate->first_ok = ok;
        pthread_cond_broadcast(&changed);
    }
}

static void start_host(struct isolate *isolate, uint64_t now)
{
    struct buffer why = BUFFER_EMPTY;
    isolate->start_at_ms = 0;
    struct host *host = host_create(isolate, &why);
    if (host == NULL) {
        log_error("%s: %.*s", isolate->file, STR_ARG(buffer_str(&why)));
        if (!isolate->first_known) {
            isolate->first->transient = true;
            build_fail(isolate->first, "%.*s", STR_ARG(buffer_str(&why)));
            tell_first(isolate, false);
        } else {
            isolate->start_at_ms = now + backoff_next(&isolate->backoff, 0);
        }
        buffer_free(&why);
        return;
    }
    host->kill_at_ms = now + START_MS;
    isolate->host = host;
    list_append(&hosts, &host->node);
    metric_add(METRIC_ISOLATED_STARTS, 1);
}

/* A host that should be there is not: another one, at once unless it keeps happening. */
static void follow(struct isolate *isolate, const struct host *host, uint64_t now)
{
    if (isolate->closing || !isolate->first_ok || isolate->host != NULL || isolate->start_at_ms != 0) {
        return;
    }
    bool served = host->ready_ms != 0;
    uint64_t pause = 0;
    if (!host->crashed || !served) { /* those that crash again and again are for the quarantine */
        pause = backoff_next(&isolate->backoff, served ? now - host->ready_ms : 0);
    }
    isolate->start_at_ms = now + (served && pause <= BACKOFF_FIRST_MS ? 0 : pause);
}

/* A file may be shown beside its message only if it is the endpoint's own. */
static bool is_source(const struct isolate *isolate, const char *file)
{
    const cJSON *source;
    cJSON_ArrayForEach(source, isolate->sources)
    {
        if (file != NULL && cJSON_IsString(source) && strcmp(source->valuestring, file) == 0) {
            return true;
        }
    }
    return false;
}

static void take_diagnostics(struct isolate *isolate, const struct control_message *message)
{
    struct build_result *result = isolate->first;
    const cJSON *item;
    result->transient = control_bool(message, "transient");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(message->body, "diagnostics"))
    {
        const char *file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "text"));
        const cJSON *line = cJSON_GetObjectItemCaseSensitive(item, "line");
        double number =
            cJSON_IsNumber(line) && line->valuedouble > 0 && line->valuedouble < 1e9 ? line->valuedouble : 0;
        if (text != NULL) {
            diagnostics_add(&result->diagnostics, SEVERITY_ERROR, str_of(is_source(isolate, file) ? file : ""),
                            (unsigned)number, str_of(text));
        }
    }
    if (diagnostics_first_error(&result->diagnostics) == NULL) {
        const char *text = control_text(message, "text");
        build_fail(result, "%.500s", text != NULL ? text : "its process cannot load it");
    }
    result->ok = false;
}

/* It cannot load the module, or set up its own confinement. */
static void host_failed(struct host *host, const struct control_message *message, uint64_t now)
{
    struct isolate *isolate = host->isolate;
    if (!isolate->first_known) {
        take_diagnostics(isolate, message);
        tell_first(isolate, false);
    } else {
        const char *text = control_text(message, "text");
        log_error("%s: its isolated process cannot start: %.1000s", isolate->file,
                  text != NULL ? text : "it does not say why");
        atomic_fetch_add(&isolate->failures, 1);
        wake_berths(isolate);
    }
    leave(host, now);
    follow(isolate, host, now);
    host_stop(host);
    host->kill_at_ms = now + STOP_MS;
}

static void host_ready(struct host *host, uint64_t now)
{
    if (host->state != HOST_STARTING) {
        return;
    }
    host->state = HOST_READY;
    host->ready_ms = now;
    host->kill_at_ms = 0;
    atomic_store(&host->isolate->failures, 0);
    log_info("%s runs in process %d of its own", host->isolate->file, (int)host->pid);
    tell_first(host->isolate, true);
    wake_berths(host->isolate);
}

static void host_crashed(struct host *host)
{
    if (host->crashed || host->isolate->closing) {
        return; /* one process, one crash that counts */
    }
    host->crashed = true;
    module_crashed_elsewhere(host->isolate->module);
}

static void take_message(struct host *host, const struct control_message *message, uint64_t now)
{
    switch (message->kind) {
    case CONTROL_READY: host_ready(host, now); break;
    case CONTROL_FAILED: host_failed(host, message, now); break;
    case CONTROL_CRASHED: host_crashed(host); break;
    case CONTROL_REPLACE: {
        const char *why = control_text(message, "why");
        bool news = host->state == HOST_READY;
        leave(host, now);
        if (news) {
            log_warning("%s: its isolated process %d is replaced: %.200s", host->isolate->file, (int)host->pid,
                        why != NULL ? why : "it asked to be");
            follow(host->isolate, host, now);
        }
        break;
    }
    default: break; /* of no use from there */
    }
}

static void read_control(struct host *host, uint64_t now)
{
    for (unsigned i = 0; host->control >= 0 && i < MESSAGES_AT_ONCE; i++) {
        struct control_message message;
        struct buffer why = BUFFER_EMPTY;
        enum control_result result = control_receive(host->control, &message, &why);
        if (result == CONTROL_EMPTY) {
            return;
        }
        if (result == CONTROL_OK) {
            take_message(host, &message, now);
            control_message_free(&message);
            if (++host->messages < MESSAGES_MOST) {
                continue;
            }
        }
        buffer_free(&why);
        close(host->control);
        host->control = -1;
        host->eof_ms = now;
    }
}

/* It ended by itself, or something else ended it. */
static void log_end(struct host *host, bool expected)
{
    const char *end = host->end[0] != '\0' ? host->end : "ended";
    if (expected) {
        log_debug("%s: its isolated process %d %s", host->isolate->file, (int)host->pid, end);
    } else if (host->killed_by_us) {
        log_warning("%s: its isolated process %d was killed because it did not end or answer", host->isolate->file,
                    (int)host->pid);
    } else {
        log_error("%s: its isolated process %d %s", host->isolate->file, (int)host->pid, end);
    }
}

/* The process is gone, or as good as. */
static void host_gone(struct host *host, uint64_t now)
{
    struct isolate *isolate = host->isolate;
    bool expected = host->state == HOST_STOPPING && !host->killed_by_us;
    if (host->log >= 0) {
        host_read_log(host);
        host_close_log(host);
    }
    log_end(host, expected);
    if (!isolate->first_known) {
        isolate->first->transient = true;
        build_fail(isolate->first, "its process %s before it was ready",
                   host->killed_by_us     ? "was killed because it took too long"
                   : host->end[0] != '\0' ? host->end
                                          : "ended");
        tell_first(isolate, false);
    }
    /* A signal that nobody outside sends is its own doing. */
    if (!expected && !host->killed_by_us && host->end_signal != SIGKILL && host->end_signal != SIGTERM) {
        host_crashed(host);
    }
    leave(host, now);
    if (!expected) {
        follow(isolate, host, now);
    }
    host->state = HOST_STOPPING;
    list_remove(&host->node);
    host_unref(host);
}

/* What time asks for. */
static void look_at_host(struct host *host, uint64_t now)
{
    bool silent = host->eof_ms != 0 && (stopping || host->ended || now - host->eof_ms >= END_KNOWN_MS);
    if (silent) {
        host_gone(host, now);
        return;
    }
    if (host->eof_ms != 0 && host->state <= HOST_READY) {
        leave(host, now); /* the next one starts before we know how it ended */
        follow(host->isolate, host, now);
    }
    if (atomic_load(&host->overdue) && host->state == HOST_READY) {
        leave(host, now);
        follow(host->isolate, host, now);
    }
    if (host->state == HOST_LEAVING && host->eof_ms == 0 && atomic_load(&host->live) == 0) {
        host_stop(host);
        host->kill_at_ms = now + (atomic_load(&host->overdue) ? 0 : STOP_MS);
    }
    bool hides = host->eof_ms != 0 && !host->killed_by_us && now - host->eof_ms >= ALIVE_MS;
    if (hides || (host->kill_at_ms != 0 && host->kill_at_ms <= now)) {
        host_kill(host);
    }
}

static void look_at_isolate(struct isolate *isolate, uint64_t now, bool tick, const struct config *config)
{
    unsigned asked = atomic_exchange(&isolate->asked, 0);
    if (isolate->closing) {
        return;
    }
    if ((asked & ASK_START) != 0) {
        if (isolate->host != NULL && isolate->host->state == HOST_READY && !atomic_load(&isolate->host->left)) {
            wake_berths(isolate); /* it became ready in between */
        } else if (isolate->host == NULL && isolate->start_at_ms == 0) {
            isolate->start_at_ms = now;
        }
    }
    if (isolate->host != NULL && atomic_load(&isolate->host->left)) {
        struct host *host = isolate->host;
        leave(host, now);
        follow(isolate, host, now);
    }
    if (isolate->host == NULL && isolate->start_at_ms != 0 && isolate->start_at_ms <= now) {
        start_host(isolate, now);
    }
    struct host *host = isolate->host;
    if (!tick || host == NULL || host->state != HOST_READY) {
        return;
    }
    uint64_t idle = (uint64_t)(config->isolate_idle * 1000);
    uint64_t used = atomic_load(&isolate->last_use_ms);
    used = used > host->ready_ms ? used : host->ready_ms;
    if (idle > 0 && atomic_load(&host->live) == 0 && now > used && now - used > idle) {
        log_info("%s: its isolated process %d ends, it had nothing to do for a while", isolate->file, (int)host->pid);
        leave(host, now);
    } else if (host_has_too_many_threads(host, (unsigned)config->isolate_threads)) {
        log_error("%s: its isolated process %d has more threads than IsolateThreads (%d) and is killed", isolate->file,
                  (int)host->pid, (int)config->isolate_threads);
        leave(host, now);
        host->kill_at_ms = now;
        follow(isolate, host, now);
    }
}

/* ---- the manager: its thread --------------------------------------------------------------------------- */

static uint64_t next_due(uint64_t now)
{
    uint64_t due = now + TICK_MS;
    LIST_EACH(node, &hosts) {
        const struct host *host = LIST_ENTRY(node, struct host, node);
        due = host->kill_at_ms != 0 && host->kill_at_ms < due ? host->kill_at_ms : due;
        due = host->eof_ms != 0 && now + ALIVE_MS < due ? now + ALIVE_MS : due;
    }
    LIST_EACH(node, &isolates) {
        const struct isolate *isolate = LIST_ENTRY(node, struct isolate, node);
        due = isolate->start_at_ms != 0 && isolate->start_at_ms < due ? isolate->start_at_ms : due;
    }
    return due;
}

struct watched {
    struct pollfd *fds;
    struct host **hosts; /* of fds[i]; [0] is the wake-up */
    size_t count;
    size_t cap;
};

static bool watch(struct watched *w, int fd, struct host *host)
{
    if (w->count == w->cap) {
        size_t cap = w->cap == 0 ? 16 : w->cap * 2;
        struct pollfd *fds = realloc(w->fds, cap * sizeof *fds);
        if (fds == NULL) {
            return false;
        }
        w->fds = fds;
        struct host **of = realloc(w->hosts, cap * sizeof(struct host *));
        if (of == NULL) {
            return false;
        }
        w->hosts = of;
        w->cap = cap;
    }
    w->fds[w->count] = (struct pollfd){.fd = fd, .events = POLLIN};
    w->hosts[w->count++] = host;
    return true;
}

static void watch_all(struct watched *w)
{
    w->count = 0;
    watch(w, wake_fd, NULL);
    LIST_EACH(node, &hosts) {
        struct host *host = LIST_ENTRY(node, struct host, node);
        if (host->log >= 0) {
            watch(w, host->log, host);
        }
        if (host->control >= 0) {
            watch(w, host->control, host);
        }
    }
}

static void serve(const struct watched *w, bool tick)
{
    uint64_t now = clock_now_ms();
    for (size_t i = 1; i < w->count; i++) {
        struct host *host = w->hosts[i];
        if (w->fds[i].revents != 0 && w->fds[i].fd == host->log) {
            host_read_log(host);
        } else if (w->fds[i].revents != 0 && w->fds[i].fd == host->control) {
            read_control(host, now);
        }
    }
    LIST_EACH(node, &hosts) {
        struct host *host = LIST_ENTRY(node, struct host, node);
        if (tick) {
            host_log_tick(host);
        }
        look_at_host(host, now);
    }
    struct config *config = config_acquire();
    LIST_EACH(node, &isolates) {
        look_at_isolate(LIST_ENTRY(node, struct isolate, node), now, tick, config);
    }
    config_unref(config);
}

static void *manager_main(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "isolation", 0, 0, 0);
    struct watched w = {0};
    uint64_t ticked = clock_now_ms();
    pthread_mutex_lock(&lock);
    while (!stopping || (!list_is_empty(&hosts) && clock_now_ms() < stop_until_ms)) {
        watch_all(&w);
        uint64_t now = clock_now_ms();
        uint64_t due = next_due(now);
        pthread_mutex_unlock(&lock);
        poll(w.fds, w.count, due > now ? (int)(due - now) : 0);
        uint64_t count;
        if (read(wake_fd, &count, sizeof count) < 0) {
            /* Something else woke us. */
        }
        pthread_mutex_lock(&lock);
        bool tick = clock_now_ms() - ticked >= TICK_MS;
        ticked = tick ? clock_now_ms() : ticked;
        serve(&w, tick);
    }
    pthread_mutex_unlock(&lock);
    free(w.fds);
    free(w.hosts);
    return NULL;
}

/* The lock is held. */
static bool start_manager(void)
{
    if (running) {
        return true;
    }
    if (wake_fd < 0) {
        wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    running = wake_fd >= 0 && pthread_create(&manager, NULL, manager_main, NULL) == 0;
    return running;
}

void isolation_cancel(void)
{
    pthread_mutex_lock(&lock);
    cancelled = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void isolation_stop(void)
{
    pthread_mutex_lock(&lock);
    bool was_running = running;
    stopping = true;
    stop_until_ms = clock_now_ms() + STOP_ALL_MS;
    pthread_mutex_unlock(&lock);
    if (was_running) {
        poke();
        pthread_join(manager, NULL);
    }
    LIST_EACH(node, &hosts) {
        struct host *host = LIST_ENTRY(node, struct host, node);
        list_remove(&host->node);
        host_unref(host); /* the end of its sockets ends it */
    }
    running = stopping = cancelled = false;
    if (wake_fd >= 0) {
        close(wake_fd);
        wake_fd = -1;
    }
}

void manager_forget_loop(const struct loop *loop)
{
    pthread_mutex_lock(&lock); /* who wakes berths holds it */
    LIST_EACH(node, &isolates) {
        struct isolate *isolate = LIST_ENTRY(node, struct isolate, node);
        for (unsigned i = 0; i < isolate->loops; i++) {
            if (atomic_load(&isolate->berths[i].loop) == loop) {
                atomic_store(&isolate->berths[i].loop, NULL);
            }
        }
    }
    pthread_mutex_unlock(&lock);
}

static struct host *find_host(unsigned id)
{
    LIST_EACH(node, &hosts) {
        struct host *host = LIST_ENTRY(node, struct host, node);
        if (host->id == id) {
            return host;
        }
    }
    return NULL;
}

void isolation_message(struct control_message *message)
{
    pthread_mutex_lock(&lock);
    struct host *host = find_host((unsigned)control_number(message, "id", 0));
    if (host != NULL && message->kind == CONTROL_HOST_STARTED) {
        host->pid = (pid_t)control_number(message, "pid", 0);
    } else if (host != NULL) {
        const char *end = control_text(message, "end");
        host->ended = true;
        host->end_signal = (int)control_number(message, "signal", 0);
        snprintf(host->end, sizeof host->end, "%s", end != NULL ? end : "ended");
        if (host->control < 0 && host->eof_ms == 0) {
            host->eof_ms = clock_now_ms();
        }
        poke();
    }
    pthread_mutex_unlock(&lock);
}

/* ---- for the home ---------------------------------------------------------------------------------------- */

bool manager_add(struct isolate *isolate, struct build_result *result)
{
    isolate->first = result;
    pthread_mutex_lock(&lock);
    if (!start_manager()) {
        pthread_mutex_unlock(&lock);
        result->transient = true;
        build_fail(result, "cannot start the thread that looks after isolated endpoints");
        return false;
    }
    list_append(&isolates, &isolate->node);
    isolate->start_at_ms = clock_now_ms();
    poke();
    while (!isolate->first_known && !cancelled) {
        pthread_cond_wait(&changed, &lock);
    }
    bool ok = isolate->first_known && isolate->first_ok;
    if (!isolate->first_known) {
        result->transient = true;
        build_fail(result, "the server is stopping");
    }
    isolate->first_known = true;
    isolate->first = NULL;
    pthread_mutex_unlock(&lock);
    return ok;
}

void manager_remove(struct isolate *isolate)
{
    pthread_mutex_lock(&lock);
    isolate->closing = true;
    list_remove(&isolate->node);
    if (isolate->host != NULL) {
        struct host *host = isolate->host;
        leave(host, clock_now_ms());
        host_stop(host);
        host->kill_at_ms = clock_now_ms() + STOP_MS;
    }
    pthread_mutex_unlock(&lock);
}
