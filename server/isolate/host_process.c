#include "isolate/host_process.h"

#include "base/file.h"
#include "config/config.h"
#include "observe/log.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOG_LINES = 2000, LOG_LINE = 2000 };

static _Atomic unsigned ids;

/* ---- what a host is told ------------------------------------------------------------------- */

/* All that the SDK and the loop of a host look at: no paths of ours, no secrets. */
static const char *const told[] = {
    "WWWdir",           "SiteDir",       "BackendDir", "RequestMemoryLimit",  "BodyMemoryLimit", "RequestTimeout",
    "EndpointTimeouts", "ExtTypes",      "DebugPages", "PoolThreads",         "StackSize",       "BlockingThreshold",
    "OffloadEndpoints", "Rand_Alphabet", "LogLevel",   "DownloadIfExtension",
};

static void print_config(const struct config *config, struct buffer *out)
{
    struct buffer all = BUFFER_EMPTY;
    config_print(config, &all);
    cJSON *tree = cJSON_ParseWithLength(all.data, all.len);
    cJSON *part = cJSON_CreateObject();
    for (size_t i = 0; i < ARRAY_LEN(told); i++) {
        cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(tree, told[i]);
        if (item != NULL) {
            cJSON_AddItemToObject(part, told[i], item);
        }
    }
    char *text = cJSON_PrintUnformatted(part);
    if (text != NULL) {
        buffer_append_z(out, text);
    }
    cJSON_free(text);
    cJSON_Delete(part);
    cJSON_Delete(tree);
    buffer_free(&all);
}

static int memory_file(const char *name, const void *data, size_t len)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool ok = fd >= 0 && fd_write_all(fd, data, len) &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
    if (!ok && fd >= 0) {
        close(fd);
    }
    return ok ? fd : -1;
}

/* The counters: the host may write them, and must not be able to take the memory away. */
static int make_begun(struct host *host)
{
    size_t size = sizeof(struct begun) * ENDPOINT_MAX_LOOPS;
    int fd = memfd_create("kiln begun", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool ok = fd >= 0 && ftruncate(fd, (off_t)size) == 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
    void *map = ok ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (map == MAP_FAILED) {
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    host->begun = map;
    return fd;
}

/* The other ends of its channels go to `fds`; how many, or -1. */
static int make_channels(struct host *host, unsigned loops, int *fds)
{
    for (unsigned i = 0; i < loops; i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
            return (int)i;
        }
        host->channels[i] = ends[0];
        fds[i] = ends[1];
    }
    return (int)loops;
}

static bool send_setup(struct host *host, const struct config *config, struct buffer *why)
{
    const struct isolate *isolate = host->isolate;
    int fds[3 + ENDPOINT_MAX_LOOPS];
    struct buffer text = BUFFER_EMPTY;
    print_config(config, &text);
    fds[0] = memory_file("kiln host config", text.data, text.len);
    buffer_free(&text);
    fds[1] = isolate->object;
    fds[2] = make_begun(host);
    int channels = make_channels(host, isolate->loops, fds + 3);
    bool ok = fds[0] >= 0 && fds[2] >= 0 && channels == (int)isolate->loops;
    if (ok) {
        char build[HASH_HEX + 1];
        hash_hex(isolate->module->content, build);
        cJSON *body = cJSON_CreateObject();
        cJSON_AddStringToObject(body, "file", isolate->file);
        cJSON_AddStringToObject(body, "build", build);
        cJSON_AddNumberToObject(body, "threads", isolate->loops);
        cJSON_AddItemReferenceToObject(body, "sources", isolate->sources);
        ok = control_send(host->control, CONTROL_CONFIG, body, fds, 3 + isolate->loops) == CONTROL_OK;
        cJSON_Delete(body);
    }
    if (!ok) {
        buffer_printf(why, "cannot set up its process: %s", strerror(errno));
    }
    for (int i = 0; i < channels + 3; i++) {
        if (i != 1 && fds[i] >= 0) {
            close(fds[i]);
        }
    }
    return ok;
}

static bool ask_supervisor(struct host *host, int control, int log, struct buffer *why)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "id", host->id);
    cJSON_AddStringToObject(body, "file", host->isolate->file);
    int fds[] = {control, log};
    bool ok = control_send(CONTROL_FD, CONTROL_HOST_START, body, fds, 2) == CONTROL_OK;
    if (!ok) {
        buffer_printf(why, "cannot ask the supervisor for a process: %s", strerror(errno));
    }
    cJSON_Delete(body);
    return ok;
}

struct host *host_create(struct isolate *isolate, struct buffer *why)
{
    struct host *host = calloc(1, sizeof *host);
    int control[2] = {-1, -1};
    int log[2] = {-1, -1};
    if (host == NULL || !control_pair(control) || pipe2(log, O_CLOEXEC | O_NONBLOCK) != 0) {
        buffer_printf(why, "cannot start its process: %s", strerror(errno));
        free(host);
        if (control[0] >= 0) {
            close(control[0]);
            close(control[1]);
        }
        return NULL;
    }
    fcntl(log[1], F_SETFL, 0); /* whoever floods it waits */
    atomic_init(&host->references, 1);
    host->id = atomic_fetch_add(&ids, 1) + 1;
    host->isolate = isolate;
    isolate_ref(isolate);
    host->control = control[0];
    host->log = log[0];
    host->log_room = LOG_LINES;
    host->started_ms = clock_now_ms();
    list_init(&host->node);
    for (size_t i = 0; i < ARRAY_LEN(host->channels); i++) {
        host->channels[i] = -1;
    }
    struct config *config = config_acquire();
    bool ok = config != NULL && send_setup(host, config, why) && ask_supervisor(host, control[1], log[1], why);
    config_unref(config);
    close(control[1]);
    close(log[1]);
    if (!ok) {
        host_unref(host);
        return NULL;
    }
    return host;
}

void host_free(struct host *host)
{
    for (size_t i = 0; i < ARRAY_LEN(host->channels); i++) {
        if (host->channels[i] >= 0) {
            close(host->channels[i]);
        }
    }
    if (host->control >= 0) {
        close(host->control);
    }
    if (host->log >= 0) {
        close(host->log);
    }
    if (host->begun != NULL) {
        munmap(host->begun, sizeof(struct begun) * ENDPOINT_MAX_LOOPS);
    }
    buffer_free(&host->log_rest);
    isolate_unref(host->isolate);
    free(host);
}

/* ---- its end ----------------------------------------------------------------------------------- */

void host_kill(struct host *host)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "id", host->id);
    control_send(CONTROL_FD, CONTROL_HOST_KILL, body, NULL, 0);
    cJSON_Delete(body);
    host->killed_by_us = true;
    host->kill_at_ms = 0;
}

void host_stop(struct host *host)
{
    if (host->control >= 0) {
        control_send(host->control, CONTROL_STOP, NULL, NULL, 0);
    }
    host->state = HOST_STOPPING;
}

bool host_has_too_many_threads(const struct host *host, unsigned most)
{
    char path[64];
    char text[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)host->pid);
    int fd = host->pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        return false;
    }
    ssize_t len = read(fd, text, sizeof text - 1);
    close(fd);
    /* The name stands in brackets and is the process's own choice. */
    const char *end = len > 0 ? strrchr(text, ')') : NULL;
    unsigned threads = 0;
    return end != NULL &&
           sscanf(end, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %u", &threads) == 1 &&
           threads > most;
}

/* ---- its log -------------------------------------------------------------------------------------- */

static enum log_level level_of(struct str word)
{
    static const struct str words[] = {{"debug", 5}, {"info", 4}, {"notice", 6}, {"warning", 7}, {"error", 5}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (str_eq(word, words[i])) {
            return (enum log_level)i;
        }
    }
    return LOG_NOTICE;
}

/* "2026-11-30T12:00:00.123Z level [pid] text" is what log_write() makes there; anything else is the endpoint's. */
static bool split_line(struct str line, enum log_level *level, struct str *text)
{
    size_t first = str_find(line, ' ');
    if (first != 24 || line.ptr[first - 1] != 'Z') {
        return false;
    }
    struct str rest = str_from(line, first + 1);
    size_t second = str_find(rest, ' ');
    if (second == SIZE_MAX || rest.len < second + 2 || rest.ptr[second + 1] != '[') {
        return false;
    }
    size_t close_bracket = str_find(rest, ']');
    if (close_bracket == SIZE_MAX || close_bracket + 2 > rest.len) {
        return false;
    }
    *level = level_of(str_first(rest, second));
    *text = str_from(rest, close_bracket + 2);
    return true;
}

static void log_line(struct host *host, struct str line)
{
    if (host->log_room == 0) {
        host->log_dropped++;
        return;
    }
    host->log_room--;
    enum log_level level = LOG_NOTICE;
    struct str text = line;
    if (split_line(line, &level, &text)) {
        log_write(level, "%.*s (isolated process %d)", STR_ARG(str_first(text, LOG_LINE)), (int)host->pid);
    } else if (line.len > 0) {
        log_write(level, "%s wrote: %.*s (isolated process %d)", host->isolate->file,
                  STR_ARG(str_first(text, LOG_LINE)), (int)host->pid);
    }
}

void host_log_tick(struct host *host)
{
    if (host->log_dropped > 0) {
        log_warning("%s: %u lines of its isolated process were dropped: it writes more than %d in a second",
                    host->isolate->file, host->log_dropped, LOG_LINES);
    }
    host->log_dropped = 0;
    host->log_room = LOG_LINES;
}

static void take_lines(struct host *host, bool all)
{
    struct str rest = buffer_str(&host->log_rest);
    size_t used = 0;
    for (;;) {
        struct str now = str_from(rest, used);
        size_t end = str_find(now, '\n');
        if (end == SIZE_MAX) {
            if (now.len > 2 * LOG_LINE || (all && now.len > 0)) {
                log_line(host, now);
                used = rest.len;
            }
            break;
        }
        log_line(host, str_first(now, end));
        used += end + 1;
    }
    buffer_consume(&host->log_rest, used);
}

void host_close_log(struct host *host)
{
    if (host->log < 0) {
        return;
    }
    take_lines(host, true);
    close(host->log);
    host->log = -1;
}

void host_read_log(struct host *host)
{
    char bytes[16384];
    ssize_t len = read(host->log, bytes, sizeof bytes);
    if (len < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (len <= 0 || !buffer_append(&host->log_rest, bytes, (size_t)len)) {
        host_close_log(host);
        return;
    }
    take_lines(host, false);
}
