#include "supervisor/worker_process.h"

#include "base/file.h"
#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* By /proc/self/exe: the very program that runs, also when its file was replaced. Signals
 * stay blocked over the exec, so that none is lost before the worker reads them. */
static int spawn(pid_t *pid, int control)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    char *arguments[] = {"kiln", "--worker", NULL};
    error = posix_spawn_file_actions_adddup2(&actions, control, CONTROL_FD);
    if (error == 0) {
        error = posix_spawn(pid, "/proc/self/exe", &actions, NULL, arguments, environ);
    }
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

struct worker_process *worker_process_spawn(struct buffer *why)
{
    struct worker_process *worker = calloc(1, sizeof *worker);
    struct figures *figures = figures_create();
    int ends[2];
    if (worker == NULL || figures == NULL || !control_pair(ends)) {
        buffer_printf(why, "cannot start a worker: %s", strerror(errno));
        figures_free(figures);
        free(worker);
        return NULL;
    }
    worker->figures = figures;
    int error = spawn(&worker->pid, ends[1]);
    close(ends[1]);
    if (error != 0) {
        buffer_printf(why, "cannot start a worker from /proc/self/exe: %s", strerror(error));
        close(ends[0]);
        figures_free(figures);
        free(worker);
        return NULL;
    }
    worker->control = ends[0];
    worker->state = WORKER_STARTING;
    worker->started_ms = clock_now_ms();
    list_init(&worker->node);
    return worker;
}

void worker_process_free(struct worker_process *worker)
{
    if (worker->control >= 0) {
        close(worker->control);
    }
    list_remove(&worker->node);
    buffer_free(&worker->failure);
    figures_free(worker->figures);
    free(worker);
}

/* A sealed memory file: the worker reads what was written, whatever happens here. */
static int config_to_memory(const struct config *config)
{
    struct buffer text = BUFFER_EMPTY;
    config_print(config, &text);
    int fd = memfd_create("kiln config", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool ok = fd >= 0 && !text.failed && fd_write_all(fd, text.data, text.len) &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
    buffer_free(&text);
    if (!ok && fd >= 0) {
        close(fd);
    }
    return ok ? fd : -1;
}

/* The list for the message; the sockets that the worker does not have go to `fds`. */
static cJSON *describe_listeners(const struct worker_process *worker, const struct listener_set *set, int *fds,
                                 unsigned *count)
{
    cJSON *list = cJSON_CreateArray();
    for (unsigned i = 0; i < set->count; i++) {
        const struct listener *listener = &set->items[i];
        bool new = listeners_find(&worker->known, listener->id) == NULL;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "id", listener->id);
        cJSON_AddNumberToObject(item, "kind", listener->kind);
        cJSON_AddNumberToObject(item, "configured_port", listener->configured_port);
        cJSON_AddBoolToObject(item, "new", new);
        cJSON_AddItemToArray(list, item);
        if (new) {
            fds[(*count)++] = listener->fd;
        }
    }
    return list;
}

bool worker_process_send_config(struct worker_process *worker, const struct worker_orders *orders)
{
    _Static_assert(1 + LISTENERS_MAX <= CONTROL_FDS_MAX, "all listeners fit into one message");
    int memory = config_to_memory(orders->config);
    if (memory < 0 || worker->control < 0) {
        return false;
    }
    int fds[CONTROL_FDS_MAX] = {memory};
    unsigned count = 1;
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "generation", orders->generation);
    if (orders->config_file != NULL) {
        cJSON_AddStringToObject(body, "file", orders->config_file);
    }
    cJSON_AddItemToObject(body, "listeners", describe_listeners(worker, orders->listeners, fds, &count));
    bool ok = control_send(worker->control, CONTROL_CONFIG, body, fds, count) == CONTROL_OK;
    cJSON_Delete(body);
    close(memory);
    if (ok) {
        worker->known = *orders->listeners;
    }
    return ok;
}

bool worker_process_send_logs(struct worker_process *worker, const struct log_files *files)
{
    int fds[2];
    unsigned count = 0;
    cJSON *body = cJSON_CreateObject();
    cJSON_AddBoolToObject(body, "error_log", files->error >= 0);
    cJSON_AddBoolToObject(body, "access_log", files->access >= 0);
    if (files->error >= 0) {
        fds[count++] = files->error;
    }
    if (files->access >= 0) {
        fds[count++] = files->access;
    }
    bool ok = worker->control >= 0 && control_send(worker->control, CONTROL_LOGS, body, fds, count) == CONTROL_OK;
    cJSON_Delete(body);
    return ok;
}

/* A worker that was told before, or that has closed its control socket, and does not listen any more is about to
 * end: it keeps the time that it was given. Another that does not listen will not end by itself. */
static void ends_by(struct worker_process *worker, bool told, uint64_t kill_at_ms)
{
    bool ending = (worker->state == WORKER_DRAINING || worker->hung_up_ms != 0) && worker->kill_at_ms != 0;
    worker->state = WORKER_DRAINING;
    if (!told) {
        kill_at_ms = !ending ? clock_now_ms() : worker->kill_at_ms < kill_at_ms ? worker->kill_at_ms : kill_at_ms;
    }
    worker->kill_at_ms = kill_at_ms;
}

void worker_process_drain(struct worker_process *worker, double seconds, uint64_t kill_at_ms, bool replaced)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "replaced", replaced);
    cJSON_AddNumberToObject(body, "seconds", seconds);
    bool ok = worker->control >= 0 && control_send(worker->control, CONTROL_DRAIN, body, NULL, 0) == CONTROL_OK;
    cJSON_Delete(body);
    ends_by(worker, ok, kill_at_ms);
}

void worker_process_stop(struct worker_process *worker, uint64_t kill_at_ms)
{
    bool ok = worker->control >= 0 && worker->ready_ms != 0 &&
              control_send(worker->control, CONTROL_STOP, NULL, NULL, 0) == CONTROL_OK;
    ends_by(worker, ok, kill_at_ms);
}

void worker_process_kill(struct worker_process *worker)
{
    worker->killed_by_us = true;
    worker->kill_at_ms = 0;
    kill(worker->pid, SIGKILL);
}

void worker_process_print_end(int wait_status, struct buffer *out)
{
    if (WIFSIGNALED(wait_status)) {
        buffer_printf(out, "was killed by signal %d (%s)%s", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)),
                      WCOREDUMP(wait_status) ? ", a core file was written" : "");
    } else {
        buffer_printf(out, "ended with exit code %d", WEXITSTATUS(wait_status));
    }
}
