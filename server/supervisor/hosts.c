#include "supervisor/hosts.h"

#include "base/check.h"
#include "base/file.h"
#include "config/config.h"
#include "endpoint/build.h"
#include "isolate/orders.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/privileges.h"
#include "supervisor/supervisor_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    HOSTS_MAX = 1000, /* of all workers */
    FOLLOW_MS = 3000, /* for a host to end by itself after its worker */
    HIGH_FD = 100, /* above those that the child gets */
    DEPTH_MAX = 32,
};

struct host_process {
    struct list node;
    pid_t pid;
    unsigned id; /* the worker's name for it */
    struct worker_process *worker; /* NULL: it is gone */
    uint64_t kill_at_ms;
    char temp[PATH_MAX];
};

/* ---- temporary files ------------------------------------------------------------------------ */

/* Nothing in it is followed: it was made by somebody who is not trusted. */
static void remove_tree(int parent, const char *name, unsigned depth)
{
    if (unlinkat(parent, name, 0) == 0) {
        return;
    }
    int fd = depth > 0 ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            remove_tree(fd, entry->d_name, depth - 1);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    } else if (fd >= 0) {
        close(fd);
    }
    unlinkat(parent, name, AT_REMOVEDIR);
}

static bool make_temp(const struct config *config, const struct host_orders *orders, char *temp)
{
    const char *environment = getenv("TMPDIR");
    const char *base = config->temp_dir.len > 0                       ? config->temp_dir.ptr
                       : environment != NULL && environment[0] == '/' ? environment
                                                                      : "/tmp";
    int len = snprintf(temp, PATH_MAX, "%s/kiln-isolated-XXXXXX", base);
    if (len < 0 || len >= PATH_MAX || mkdtemp(temp) == NULL) {
        return false;
    }
    if (orders->other_user && lchown(temp, orders->uid, orders->gid) != 0) {
        rmdir(temp);
        return false;
    }
    return true;
}

/* ---- orders ------------------------------------------------------------------------------------ */

static bool fill_orders(const struct config *config, struct str file, struct host_orders *orders, struct buffer *why)
{
    size_t slash = str_find_last(file, '/');
    if (file.len == 0 || file.ptr[0] != '/' || slash == SIZE_MAX || slash >= sizeof orders->directory ||
        !config_isolates(config, file)) {
        buffer_printf(why, "%.*s is no endpoint that Isolate names", STR_ARG(file));
        return false;
    }
    *orders = (struct host_orders){
        .magic = HOST_ORDERS_MAGIC,
        .write = config_isolated_writes(config, file),
        .without_landlock = config->isolate_without_landlock,
        .memory = (uint64_t)config->isolate_memory,
        .cpu = (uint64_t)config->isolate_cpu,
        .files = (uint64_t)config->isolate_files,
        .threads = (uint64_t)config->isolate_threads,
        .file_size = (uint64_t)config->isolate_file_size,
    };
    memcpy(orders->directory, slash > 0 ? file.ptr : "/", slash > 0 ? slash : 1);
    for (size_t i = 0; i < config->isolate_connect.count && i < HOST_PORTS; i++) {
        orders->ports[orders->port_count++] = config->isolate_connect.items[i];
    }
    if (!privileges_of_isolated(config, &orders->uid, &orders->gid, &orders->count_processes, why)) {
        return false;
    }
    orders->other_user = orders->uid != geteuid() || orders->gid != getegid();
    if (!make_temp(config, orders, orders->temp)) {
        buffer_printf(why, "cannot make a directory for its temporary files (option TempDir): %s", strerror(errno));
        return false;
    }
    return true;
}

static int orders_to_memory(const struct host_orders *orders)
{
    int fd = memfd_create("kiln orders", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool ok = fd >= 0 && fd_write_all(fd, orders, sizeof *orders) &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
    if (!ok && fd >= 0) {
        close(fd);
    }
    return ok ? fd : -1;
}

/* ---- start --------------------------------------------------------------------------------------- */

/* What a program may need to know of where it runs; nothing that was set for the server. */
static void fill_environment(char *environment[static 8], char (*text)[PATH_MAX + 16], const char *temp)
{
    static const char *const kept[] = {"TZ", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"};
    size_t count = 0;
    snprintf(text[0], sizeof text[0], "TMPDIR=%s", temp);
    environment[count++] = text[0];
    environment[count++] = (char *)"PATH=/usr/bin:/bin";
    environment[count++] = (char *)"LANG=C.UTF-8";
    for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
        const char *value = getenv(kept[i]);
        if (value != NULL &&
            (size_t)snprintf(text[i + 1], sizeof text[i + 1], "%s=%s", kept[i], value) < sizeof text[i + 1]) {
            environment[count++] = text[i + 1];
        }
    }
    environment[count] = NULL;
}

static int spawn(pid_t *pid, const int fds[static 3], const char *temp)
{
    /* As 0 to 4: nothing, its standard error twice, control, orders. */
    int high[3];
    for (size_t i = 0; i < 3; i++) {
        high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, high[1], 1);
    posix_spawn_file_actions_adddup2(&actions, high[1], 2);
    posix_spawn_file_actions_adddup2(&actions, high[0], CONTROL_FD);
    posix_spawn_file_actions_adddup2(&actions, high[2], HOST_ORDERS_FD);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    char text[5][PATH_MAX + 16];
    char *environment[8];
    fill_environment(environment, text, temp);
    char *arguments[] = {"kiln", "--host", NULL};
    int error = posix_spawn(pid, "/proc/self/exe", &actions, &attributes, arguments, environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    for (size_t i = 0; i < 3; i++) {
        if (high[i] >= 0) {
            close(high[i]);
        }
    }
    return error;
}

static void tell_ended(const struct worker_process *worker, unsigned id, const char *end, int signal)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "id", id);
    cJSON_AddNumberToObject(body, "signal", signal);
    cJSON_AddStringToObject(body, "end", end);
    control_send(worker->control, CONTROL_HOST_ENDED, body, NULL, 0);
    cJSON_Delete(body);
}

static void tell_started(const struct worker_process *worker, const struct host_process *host)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "id", host->id);
    cJSON_AddNumberToObject(body, "pid", host->pid);
    control_send(worker->control, CONTROL_HOST_STARTED, body, NULL, 0);
    cJSON_Delete(body);
}

static unsigned count(const struct supervisor *s)
{
    unsigned n = 0;
    LIST_EACH(node, &s->hosts) {
        n++;
    }
    return n;
}

/* False with the reason. */
static bool start(struct supervisor *s, struct worker_process *worker, struct control_message *message,
                  struct buffer *why)
{
    const char *file = control_text(message, "file");
    int fds[3] = {control_take_fd(message), control_take_fd(message), -1};
    struct host_process *host = calloc(1, sizeof *host);
    struct host_orders *orders = calloc(1, sizeof *orders);
    bool ok = false;
    if (host == NULL || orders == NULL || file == NULL || fds[1] < 0) {
        buffer_append_z(why, "the supervisor did not understand, or has no memory");
    } else if (count(s) >= HOSTS_MAX) {
        buffer_printf(why, "there are %d processes of isolated endpoints already", HOSTS_MAX);
    } else if (fill_orders(s->config, str_of(file), orders, why)) {
        fds[2] = orders_to_memory(orders);
        int error = fds[2] >= 0 ? spawn(&host->pid, fds, orders->temp) : errno;
        ok = error == 0;
        if (!ok) {
            buffer_printf(why, "the supervisor cannot start a process: %s", strerror(error));
            rmdir(orders->temp);
        }
        memcpy(host->temp, orders->temp, sizeof host->temp);
    }
    for (size_t i = 0; i < 3; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    free(orders);
    if (!ok) {
        free(host);
        return false;
    }
    host->id = (unsigned)control_number(message, "id", 0);
    host->worker = worker;
    list_append(&s->hosts, &host->node);
    tell_started(worker, host);
    return true;
}

static void kill_host(struct supervisor *s, const struct worker_process *worker, unsigned id)
{
    LIST_EACH(node, &s->hosts) {
        struct host_process *host = LIST_ENTRY(node, struct host_process, node);
        if (host->worker == worker && host->id == id) {
            kill(host->pid, SIGKILL);
        }
    }
}

void hosts_message(struct supervisor *s, struct worker_process *worker, struct control_message *message)
{
    unsigned id = (unsigned)control_number(message, "id", 0);
    if (message->kind == CONTROL_HOST_KILL) {
        kill_host(s, worker, id);
        return;
    }
    struct buffer why = BUFFER_EMPTY;
    if (!start(s, worker, message, &why)) {
        buffer_append_char(&why, '\0');
        struct buffer end = BUFFER_EMPTY;
        buffer_printf(&end, "could not be started: %s", why.failed ? "no memory" : why.data);
        tell_ended(worker, id, end.failed ? "could not be started" : end.data, 0);
        buffer_free(&end);
    }
    buffer_free(&why);
}

/* ---- end -------------------------------------------------------------------------------------------- */

bool hosts_ended(struct supervisor *s, pid_t pid, int wait_status)
{
    LIST_EACH(node, &s->hosts) {
        struct host_process *host = LIST_ENTRY(node, struct host_process, node);
        if (host->pid != pid) {
            continue;
        }
        struct buffer end = BUFFER_EMPTY;
        worker_process_print_end(wait_status, &end);
        buffer_append_char(&end, '\0');
        if (host->worker != NULL && host->worker->control >= 0) {
            tell_ended(host->worker, host->id, end.failed ? "ended" : end.data,
                       WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0);
        }
        buffer_free(&end);
        remove_tree(AT_FDCWD, host->temp, DEPTH_MAX);
        list_remove(&host->node);
        free(host);
        return true;
    }
    return false;
}

void hosts_worker_ended(struct supervisor *s, const struct worker_process *worker)
{
    LIST_EACH(node, &s->hosts) {
        struct host_process *host = LIST_ENTRY(node, struct host_process, node);
        if (host->worker == worker) {
            host->worker = NULL;
            host->kill_at_ms = clock_now_ms() + FOLLOW_MS;
        }
    }
}

uint64_t hosts_due(const struct supervisor *s)
{
    uint64_t due = UINT64_MAX;
    LIST_EACH(node, &s->hosts) {
        uint64_t at = LIST_ENTRY(node, struct host_process, node)->kill_at_ms;
        due = at != 0 && at < due ? at : due;
    }
    return due;
}

void hosts_run_due(struct supervisor *s, uint64_t now)
{
    LIST_EACH(node, &s->hosts) {
        struct host_process *host = LIST_ENTRY(node, struct host_process, node);
        if (host->kill_at_ms != 0 && host->kill_at_ms <= now) {
            kill(host->pid, SIGKILL);
            host->kill_at_ms = 0;
        }
    }
}

void hosts_end(struct supervisor *s)
{
    uint64_t until = clock_now_ms() + FOLLOW_MS;
    bool killed = false;
    /* hosts_ended() takes the host out of the list and frees it.
     * NOLINTBEGIN(clang-analyzer-unix.Malloc) */
    while (!list_is_empty(&s->hosts)) {
        struct host_process *first = LIST_ENTRY(s->hosts.next, struct host_process, node);
        if (clock_now_ms() >= until && !killed) {
            killed = true;
            LIST_EACH(node, &s->hosts) {
                kill(LIST_ENTRY(node, struct host_process, node)->pid, SIGKILL);
            }
        }
        int wait_status = 0;
        pid_t pid = waitpid(first->pid, &wait_status, killed ? 0 : WNOHANG);
        if (pid == first->pid || (pid < 0 && errno != EINTR)) {
            hosts_ended(s, first->pid, wait_status);
        } else if (pid == 0) {
            poll(NULL, 0, 5);
        }
    }
    /* NOLINTEND(clang-analyzer-unix.Malloc) */
}
