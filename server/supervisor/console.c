#include "supervisor/console.h"

#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/supervisor_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    REST_MS = 1000, /* between looks whether the terminal is ours again */
    WRITE_MS = 200, /* for a terminal to take more */
};

static void run_line(struct supervisor *s, struct str line, struct buffer *out)
{
    line = str_trim(line);
    bool ok;
    if (line.len == 0 || commands_run_one(s, line, out, &ok)) {
        return;
    }
    buffer_append_z(out,
                    str_eq_nocase(line, STR("help")) ? "Commands:\n" : "There is no such command; these there are:\n");
    commands_print_help(out, "", 10);
}

/* ---- the terminal ------------------------------------------------------------------------------ */

static void tell(const struct console *console, const struct buffer *text)
{
    struct str left = buffer_str(text);
    while (left.len > 0 && console->fd >= 0) {
        ssize_t sent = write(console->fd, left.ptr, left.len);
        if (sent >= 0) {
            left = str_from(left, (size_t)sent);
            continue;
        }
        struct pollfd room = {.fd = console->fd, .events = POLLOUT};
        if (errno != EINTR && (errno != EAGAIN || poll(&room, 1, WRITE_MS) <= 0)) {
            return;
        }
    }
}

static bool has_the_terminal(const struct console *console)
{
    return tcgetpgrp(console->fd) == getpgrp(); /* -1: it is no longer, or never was, that of our session */
}

/* As the other program may get the terminal between the look and the reading, which then fails
 * instead of stopping us. */
static ssize_t read_unstoppable(int fd, char *out, size_t size)
{
    sigset_t set;
    sigset_t before;
    sigemptyset(&set);
    sigaddset(&set, SIGTTIN);
    sigprocmask(SIG_BLOCK, &set, &before);
    ssize_t len = read(fd, out, size);
    int error = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return len;
}

static void take(struct supervisor *s, const char *bytes, size_t count)
{
    struct console *console = &s->console;
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '\n') {
            console->too_long = console->too_long || console->len == CONSOLE_LINE;
            if (!console->too_long) {
                console->line[console->len++] = bytes[i];
            }
            continue;
        }
        struct buffer out = BUFFER_EMPTY;
        run_line(s, (struct str){console->line, console->too_long ? 0 : console->len}, &out);
        console->len = 0;
        console->too_long = false;
        tell(console, &out);
        buffer_free(&out);
    }
}

/* ---- for the supervisor ------------------------------------------------------------------------ */

void console_init(struct console *console)
{
    *console = (struct console){.fd = -1};
}

void console_start(struct supervisor *s)
{
    if (!s->config->console || isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
        return;
    }
    s->console.fd = open("/proc/self/fd/0", O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (s->console.fd >= 0 && has_the_terminal(&s->console)) {
        struct buffer hint = BUFFER_EMPTY;
        buffer_append_z(&hint, "Type help for what may be typed here.\n");
        tell(&s->console, &hint);
        buffer_free(&hint);
    }
}

void console_end(struct console *console)
{
    if (console->fd >= 0) {
        close(console->fd);
    }
    console_init(console);
}

void console_poll(const struct console *console, struct pollfd *fd)
{
    *fd = (struct pollfd){.fd = console->rest_until_ms == 0 ? console->fd : -1, .events = POLLIN};
}

uint64_t console_due_ms(const struct console *console)
{
    return console->rest_until_ms != 0 ? console->rest_until_ms : UINT64_MAX;
}

void console_polled(struct supervisor *s, const struct pollfd *fd)
{
    struct console *console = &s->console;
    if (console->rest_until_ms != 0 && console->rest_until_ms <= clock_now_ms()) {
        console->rest_until_ms = 0;
    }
    if (console->fd < 0 || fd->fd < 0 || fd->revents == 0) {
        return;
    }
    if ((fd->revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
        console_end(console);
        return;
    }
    if (!has_the_terminal(console)) {
        console->rest_until_ms = clock_now_ms() + REST_MS;
        return;
    }
    char bytes[512];
    ssize_t len = read_unstoppable(console->fd, bytes, sizeof bytes);
    if (len > 0) {
        take(s, bytes, (size_t)len);
    } else if (len == 0) {
        console_end(console); /* Ctrl-D */
    } else if (errno != EAGAIN && errno != EINTR) {
        console->rest_until_ms = clock_now_ms() + REST_MS;
    }
}
