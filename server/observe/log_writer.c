#include "observe/log_writer.h"

#include "base/check.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes that may wait for one file. */
static const size_t queue_limit[LOG_SINK_COUNT] = {
    [LOG_SINK_ERROR] = 1 << 20,
    [LOG_SINK_ACCESS] = 16 << 20,
};
static const char *const sink_name[LOG_SINK_COUNT] = {"error log", "access log"};

struct item {
    struct item *next;
    enum log_sink sink;
    char *data; /* NULL: a change of file */
    size_t len;
    unsigned lines;
    int fd;
};

/* Of the thread that writes, or under direct_lock while there is none. */
struct sink {
    int fd;
    bool failing; /* the last write failed; said once */
    bool mid_line; /* it failed inside a line */
    unsigned long lost;
};

static struct sink sinks[LOG_SINK_COUNT] = {{.fd = STDERR_FILENO}, {.fd = STDERR_FILENO}};
static _Atomic bool colour[LOG_SINK_COUNT];
static _Atomic bool colour_known[LOG_SINK_COUNT];
static pthread_mutex_t direct_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
/* Below: under lock. */
static struct item *oldest;
static struct item **newest = &oldest;
static size_t queued[LOG_SINK_COUNT];
static unsigned long dropped[LOG_SINK_COUNT];
static bool stopping;

static _Atomic bool running;
static pthread_t thread;

static bool wants_colour(int fd)
{
    const char *term = getenv("TERM");
    const char *no = getenv("NO_COLOR");
    return isatty(fd) == 1 && term != NULL && strcmp(term, "dumb") != 0 && (no == NULL || *no == '\0');
}

bool log_writer_colour(enum log_sink sink)
{
    if (!atomic_load_explicit(&colour_known[sink], memory_order_acquire)) {
        atomic_store_explicit(&colour[sink], wants_colour(STDERR_FILENO), memory_order_relaxed);
        atomic_store_explicit(&colour_known[sink], true, memory_order_release);
    }
    return atomic_load_explicit(&colour[sink], memory_order_relaxed);
}

static void say(const char *text)
{
    char line[LOG_LINE_MAX];
    size_t len = log_format(line, LOG_ERROR, log_writer_colour(LOG_SINK_ERROR), text);
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}

static void sink_failed(struct sink *sink, enum log_sink which, int error, bool mid_line, unsigned lines)
{
    sink->lost += lines;
    sink->mid_line = sink->mid_line || mid_line;
    if (!sink->failing) {
        sink->failing = true;
        char text[256];
        snprintf(text, sizeof text, "the %s cannot be written: %s; its lines are lost until it can be again",
                 sink_name[which], strerror(error));
        say(text);
    }
}

static void sink_recovered(struct sink *sink, enum log_sink which)
{
    char text[256];
    snprintf(text, sizeof text, "the %s can be written again; %lu lines were lost", sink_name[which], sink->lost);
    sink->failing = false;
    sink->lost = 0;
    say(text);
}

static bool wait_writable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    bool writable = poll(&wait, 1, 1000) == 1;
    errno = EAGAIN;
    return writable;
}

static void sink_write(enum log_sink which, const char *data, size_t len, unsigned lines)
{
    struct sink *sink = &sinks[which];
    if (sink->mid_line && write(sink->fd, "\n", 1) == 1) {
        sink->mid_line = false;
    }
    size_t done = 0;
    while (done < len) {
        ssize_t n = write(sink->fd, data + done, len - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EAGAIN && wait_writable(sink->fd)) {
            continue; /* standard error may be shared with a program that made it non-blocking */
        } else if (n < 0 && errno != EINTR) {
            sink_failed(sink, which, errno, done > 0 && data[done - 1] != '\n', lines);
            return;
        }
    }
    if (sink->failing) {
        sink_recovered(sink, which);
    }
}

static void sink_set_file(enum log_sink which, int fd)
{
    struct sink *sink = &sinks[which];
    if (sink->fd != STDERR_FILENO) {
        close(sink->fd);
    }
    sink->fd = fd < 0 ? STDERR_FILENO : fd;
    sink->mid_line = false;
    atomic_store_explicit(&colour[which], wants_colour(sink->fd), memory_order_relaxed);
    atomic_store_explicit(&colour_known[which], true, memory_order_release);
}

static void say_dropped(const unsigned long *counts)
{
    for (unsigned i = 0; i < LOG_SINK_COUNT; i++) {
        if (counts[i] > 0) {
            char text[256];
            char line[LOG_LINE_MAX];
            snprintf(text, sizeof text, "%lu lines of the %s were dropped: it is written more slowly than they come",
                     counts[i], sink_name[i]);
            size_t len = log_format(line, LOG_WARNING, log_writer_colour(LOG_SINK_ERROR), text);
            sink_write(LOG_SINK_ERROR, line, len, 1);
        }
    }
}

static void write_items(struct item *items)
{
    while (items != NULL) {
        struct item *item = items;
        items = item->next;
        if (item->data == NULL) {
            sink_set_file(item->sink, item->fd);
        } else {
            sink_write(item->sink, item->data, item->len, item->lines);
            pthread_mutex_lock(&lock);
            queued[item->sink] -= item->len;
            pthread_mutex_unlock(&lock);
        }
        free(item->data);
        free(item);
    }
}

static void *writer_main(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "log");
    bool last = false;
    while (!last) {
        pthread_mutex_lock(&lock);
        while (oldest == NULL && !stopping) {
            pthread_cond_wait(&wake, &lock);
        }
        struct item *items = oldest;
        oldest = NULL;
        newest = &oldest;
        unsigned long counts[LOG_SINK_COUNT];
        memcpy(counts, dropped, sizeof counts);
        memset(dropped, 0, sizeof dropped);
        last = stopping;
        pthread_mutex_unlock(&lock);
        write_items(items);
        say_dropped(counts);
    }
    return NULL;
}

bool log_writer_start(void)
{
    CHECK(!log_writer_is_running());
    stopping = false;
    if (pthread_create(&thread, NULL, writer_main, NULL) != 0) {
        return false;
    }
    atomic_store(&running, true);
    return true;
}

void log_writer_stop(void)
{
    if (!log_writer_is_running()) {
        return;
    }
    atomic_store(&running, false);
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    /* A thread that saw `running` just before may have put one more. */
    pthread_mutex_lock(&lock);
    struct item *items = oldest;
    oldest = NULL;
    newest = &oldest;
    pthread_mutex_unlock(&lock);
    write_items(items);
}

bool log_writer_is_running(void)
{
    return atomic_load_explicit(&running, memory_order_acquire);
}

static void enqueue(struct item *item)
{
    item->next = NULL;
    bool was_empty = oldest == NULL;
    *newest = item;
    newest = &item->next;
    if (was_empty) {
        pthread_cond_signal(&wake);
    }
}

bool log_writer_put(enum log_sink sink, char *data, size_t len, unsigned lines)
{
    if (!log_writer_is_running()) {
        log_writer_direct(sink, data, len);
        free(data);
        return true;
    }
    struct item *item = malloc(sizeof *item);
    pthread_mutex_lock(&lock);
    bool fits = item != NULL && queued[sink] + len <= queue_limit[sink];
    if (fits) {
        *item = (struct item){.sink = sink, .data = data, .len = len, .lines = lines, .fd = -1};
        queued[sink] += len;
        enqueue(item);
    } else {
        dropped[sink] += lines;
        metric_add(METRIC_LOG_LINES_DROPPED, lines);
    }
    pthread_mutex_unlock(&lock);
    if (!fits) {
        free(item);
        free(data);
    }
    return fits;
}

void log_writer_direct(enum log_sink sink, const char *data, size_t len)
{
    pthread_mutex_lock(&direct_lock);
    sink_write(sink, data, len, 1);
    pthread_mutex_unlock(&direct_lock);
}

void log_writer_set_file(enum log_sink sink, int fd)
{
    if (!log_writer_is_running()) {
        pthread_mutex_lock(&direct_lock);
        sink_set_file(sink, fd);
        pthread_mutex_unlock(&direct_lock);
        return;
    }
    struct item *item = malloc(sizeof *item);
    CHECK(item != NULL);
    *item = (struct item){.sink = sink, .fd = fd};
    pthread_mutex_lock(&lock);
    enqueue(item);
    pthread_mutex_unlock(&lock);
}
