/* SIGHUP: log files are opened again, whatever comes of the rest; then the config is read.
 * A bad one changes nothing. A good one becomes the supervisor's, new ports are opened
 * before anything else changes, and the worker takes it over between two requests. */
#include "config/config.h"
#include "supervisor/notify.h"
#include "supervisor/privileges.h"
#include "supervisor/supervisor_private.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <unistd.h>

/* Options that a running worker cannot change under itself. */
static const char *const fixed_options[] = {
    "Threads",
    "User",
    "Group",
    "NoNewPrivileges",
    "PidFile",
    "Console",
    "WWWdir",
    "SiteDir",
    "BackendDir",
    "SessionStore",
    "SessionsDir",
    "SessionSync",
    "SessionSyncMs",
    "SessionTimeout",
    "SessionMaxValue",
    "SessionMaxSize",
    "SessionStoreSize",
    "SessionCookieName",
    "Rand_Alphabet",
    "ClearSessEveryXMin",
    "CacheDir",
    "PoolThreads",
    "StackSize",
    "BlockingThreshold",
};

void supervisor_log_lines(enum log_level level, const char *prefix, struct str text)
{
    while (text.len > 0) {
        size_t end = str_find(text, '\n');
        struct str line = str_first(text, end);
        if (line.len > 0) {
            log_write(level, "%s%.*s", prefix, STR_ARG(line));
        }
        text = end == SIZE_MAX ? STR_NONE : str_from(text, end + 1);
    }
}

static cJSON *config_to_json(const struct config *config)
{
    struct buffer text = BUFFER_EMPTY;
    config_print(config, &text);
    cJSON *json = text.failed ? NULL : cJSON_ParseWithLength(text.data, text.len);
    buffer_free(&text);
    return json;
}

static void say_what_waits(const struct config *old, const struct config *new)
{
    cJSON *before = config_to_json(old);
    cJSON *after = config_to_json(new);
    struct buffer names = BUFFER_EMPTY;
    for (size_t i = 0; i < ARRAY_LEN(fixed_options); i++) {
        const cJSON *a = cJSON_GetObjectItemCaseSensitive(before, fixed_options[i]);
        const cJSON *b = cJSON_GetObjectItemCaseSensitive(after, fixed_options[i]);
        if (a != NULL && b != NULL && !cJSON_Compare(a, b, true)) {
            buffer_printf(&names, "%s%s", names.len > 0 ? ", " : "", fixed_options[i]);
        }
    }
    if (names.len > 0) {
        log_warning("changed, but used only after a restart of the server: %.*s", STR_ARG(buffer_str(&names)));
    }
    buffer_free(&names);
    cJSON_Delete(before);
    cJSON_Delete(after);
}

static int copy_fd(int fd)
{
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

bool supervisor_open_logs(struct supervisor *s, const struct config *config, struct buffer *why)
{
    struct log_files files;
    if (!log_files_open(config, &files, why)) {
        return false;
    }
    if (!config->logging && s->config != NULL && s->config->logging) {
        /* Logging ends, but workers still hold lines of the last second: where the others went. */
        files.access = copy_fd(s->logs.access);
    }
    log_files_use((struct log_files){copy_fd(files.error), copy_fd(files.access)});
    if (s->logs.error >= 0) {
        close(s->logs.error);
    }
    if (s->logs.access >= 0) {
        close(s->logs.access);
    }
    s->logs = files;
    LIST_EACH(node, &s->workers) {
        worker_process_send_logs(LIST_ENTRY(node, struct worker_process, node), &s->logs);
    }
    return true;
}

/* For whoever asked, if it was not a signal. */
static void tell(struct buffer *out, struct str text)
{
    if (out != NULL) {
        buffer_append_str(out, text);
    }
}

static struct config *read_config(const struct supervisor *s, struct buffer *out)
{
    struct config_errors errors = {0};
    struct config *config = config_load(s->config_file, false, s->overrides, &errors);
    supervisor_log_lines(LOG_WARNING, "", buffer_str(&errors.warnings));
    supervisor_log_lines(LOG_ERROR, "", buffer_str(&errors.text));
    tell(out, buffer_str(&errors.warnings));
    tell(out, buffer_str(&errors.text));
    config_errors_free(&errors);
    return config;
}

/* The new config is good: it becomes ours and the workers'. False with a log line when its
 * ports cannot be had. */
static bool take_over(struct supervisor *s, struct config *config, struct buffer *out)
{
    struct buffer why = BUFFER_EMPTY;
    struct listener_set listeners;
    struct admin_socket admin;
    bool ok = admin_socket_open(config, &s->admin.socket, &admin, &why);
    if (ok && !listeners_open(&listeners, config, &s->listeners, &why)) {
        if (!admin.kept) {
            admin_socket_close(&admin, false);
        }
        ok = false;
    }
    if (!ok) {
        log_error("%.*s", STR_ARG(buffer_str(&why)));
        tell(out, buffer_str(&why));
        tell(out, STR("\n"));
        buffer_free(&why);
        return false;
    }
    buffer_free(&why);
    say_what_waits(s->config, config);
    listeners_close(&s->listeners, &listeners);
    s->listeners = listeners;
    if (s->config->user.len > 0) {
        privileges_warn(config);
    }
    config_unref(s->config);
    s->config = config;
    s->generation++;
    certificates_config_changed(s);
    s->ledger.server[SERVER_FIGURE_RELOADS]++;
    ledger_limit(&s->ledger, (size_t)config->admin_endpoints);
    admin_use(s, &admin);
    struct worker_orders orders = supervisor_orders(s);
    unsigned told = 0;
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (worker->state == WORKER_DRAINING) {
            continue;
        }
        if (worker_process_send_config(worker, &orders)) {
            told++;
        } else {
            log_error("worker %d does not take the new config; it is replaced", (int)worker->pid);
            worker_process_kill(worker);
        }
    }
    if (told == 0) {
        log_notice("config reloaded; the next worker begins with it");
    }
    return true;
}

bool supervisor_reload(struct supervisor *s, struct buffer *out)
{
    if (s->shutting_down) {
        tell(out, STR("the server is about to end\n"));
        return false;
    }
    notify_send("RELOADING=1");
    struct config *config = read_config(s, out);
    struct buffer why = BUFFER_EMPTY;
    if (!supervisor_open_logs(s, config != NULL ? config : s->config, &why)) {
        log_error("%.*s", STR_ARG(buffer_str(&why)));
    }
    buffer_free(&why);
    bool taken = config != NULL && take_over(s, config, out);
    if (!taken) {
        config_unref(config);
        log_error("config not reloaded: the server goes on with the one it has");
        tell(out, STR("config not reloaded: the server goes on with the one it has\n"));
    } else {
        log_level_set((enum log_level)config->log_level);
        tell(out, STR("the new config is taken over\n"));
    }
    notify_send("READY=1");
    return taken;
}
