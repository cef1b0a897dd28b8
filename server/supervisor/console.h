/* DESIGN: the commands of commands.def, typed on the terminal that the server was started on.
 *
 * There is a console when standard input and standard error are terminals and the option Console is
 * true. The supervisor must neither be stopped nor held up by it: the terminal is opened once more, so
 * that reading and writing never wait and nobody else's descriptor changes; what a terminal does not take
 * soon is dropped; nothing is read while another program has the terminal (the server is in the
 * background), so that no line is taken away from a shell. Ctrl-D and a closed terminal end the
 * console and not the server.
 *
 * It shows what the supervisor knows (status.c), and so answers whatever the workers do. Names of files are
 * written so that they cannot drive the terminal. */
#ifndef KILN_SUPERVISOR_CONSOLE_H
#define KILN_SUPERVISOR_CONSOLE_H

#include <stdbool.h>
#include <stdint.h>

struct supervisor;
struct pollfd;

enum { CONSOLE_LINE = 128 };

struct console {
    int fd; /* -1: none */
    char line[CONSOLE_LINE]; /* what was typed since the last line feed */
    unsigned len;
    bool too_long; /* the line is passed over */
    uint64_t rest_until_ms; /* another program has the terminal; 0: it has not */
};

void console_init(struct console *console);
/* The server serves. */
void console_start(struct supervisor *s);
void console_end(struct console *console);

/* For the poll loop: the descriptor to wait for; when it is due; what it says. */
void console_poll(const struct console *console, struct pollfd *fd);
uint64_t console_due_ms(const struct console *console);
void console_polled(struct supervisor *s, const struct pollfd *fd);

#endif
