#include "observe/log.h"

#include "base/buffer.h"
#include "config/config.h"
#include "observe/escape.h"
#include "observe/log_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *const level_name[] = {"debug", "info", "notice", "warning", "error"};
static const char *const level_colour[] = {"\033[2m", "\033[36m", "\033[32m", "\033[33m", "\033[1;31m"};

static _Atomic int least_level = LOG_NOTICE;
static bool files_given;

bool log_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&least_level, memory_order_relaxed);
}

void log_level_set(enum log_level level)
{
    atomic_store_explicit(&least_level, (int)level, memory_order_relaxed);
}

/* "2026-11-30T12:00:00.123Z"; the part that changes once a second is kept by the thread. */
static size_t put_time(char out[static 32])
{
    static _Thread_local time_t second = -1;
    static _Thread_local char text[24];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec != second) {
        struct tm tm;
        gmtime_r(&now.tv_sec, &tm);
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
        second = now.tv_sec;
    }
    return (size_t)snprintf(out, 32, "%s.%03uZ", text, (unsigned)(now.tv_nsec / 1000000) % 1000);
}

size_t log_format(char out[LOG_LINE_MAX], enum log_level level, bool colour, const char *text)
{
    size_t used = put_time(out);
    used += (size_t)snprintf(out + used, 64, " %s%s%s [%d] ", colour ? level_colour[level] : "", level_name[level],
                             colour ? "\033[0m" : "", (int)getpid());
    struct str rest = str_of(text);
    used += escape_text(out + used, LOG_LINE_MAX - used - strlen("...\n"), &rest);
    if (rest.len > 0) {
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used++] = '\n';
    return used;
}

void log_write(enum log_level level, const char *format, ...)
{
    if (!log_enabled(level)) {
        return;
    }
    int saved = errno;
    char text[LOG_LINE_MAX];
    va_list args;
    va_start(args, format);
    errno = saved; /* for %m */
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char line[LOG_LINE_MAX];
    size_t len = log_format(line, level, log_writer_colour(LOG_SINK_ERROR), text);
    char *copy = log_writer_is_running() ? malloc(len) : NULL;
    if (copy != NULL) {
        memcpy(copy, line, len);
        log_writer_put(LOG_SINK_ERROR, copy, len, 1);
    } else {
        log_writer_direct(LOG_SINK_ERROR, line, len);
    }
    errno = saved;
}

/* ---- files --------------------------------------------------------------------------- */

static bool open_file(const char *option, struct str path, int *fd, struct buffer *why)
{
    *fd = -1;
    if (path.len == 0) {
        return true;
    }
    *fd = open(path.ptr, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0640);
    if (*fd < 0) {
        int error = errno;
        buffer_printf(why, "cannot open %s %s: %s", option, path.ptr, strerror(error));
        if (error == ENOENT) {
            buffer_append_z(why, "; create its directory first");
        } else if (error == EACCES || error == EROFS) {
            buffer_printf(why, "; choose a place that may be written, or leave %s empty for standard error", option);
        }
        return false;
    }
    return true;
}

bool log_files_open(const struct config *config, struct log_files *files, struct buffer *why)
{
    *files = (struct log_files){-1, -1};
    if (!open_file("ErrorLog", config->error_log, &files->error, why)) {
        return false;
    }
    if (config->logging && !open_file("AccessLog", config->access_log, &files->access, why)) {
        if (files->error >= 0) {
            close(files->error);
        }
        return false;
    }
    return true;
}

void log_files_use(struct log_files files)
{
    files_given = true;
    log_writer_set_file(LOG_SINK_ERROR, files.error);
    log_writer_set_file(LOG_SINK_ACCESS, files.access);
}

static bool open_own_files(const struct config *config)
{
    struct buffer why = BUFFER_EMPTY;
    struct log_files files;
    bool ok = log_files_open(config, &files, &why);
    if (ok) {
        log_writer_set_file(LOG_SINK_ERROR, files.error);
        log_writer_set_file(LOG_SINK_ACCESS, files.access);
    } else {
        log_error("%.*s", STR_ARG(buffer_str(&why)));
    }
    buffer_free(&why);
    return ok;
}

bool log_start(const struct config *config)
{
    log_level_set((enum log_level)config->log_level);
    if (!files_given && !open_own_files(config)) {
        return false;
    }
    if (!log_writer_start()) {
        log_error("cannot start the thread that writes the logs");
        return false;
    }
    return true;
}

void log_stop(void)
{
    log_writer_stop();
}
