/* DESIGN: commands to the running server, `kiln NAME`, one row of commands.def each. They come over a socket that
 * keeps message boundaries, with the messages of control.h: COMMAND {"name": text} is answered by ANSWER
 * {"ok": bool} and a memory file with what there is to print, so that an answer of any length is sent without
 * waiting for whoever asked.
 *
 * The socket is the supervisor's, in the abstract name space and named by its process: nothing is left behind, two
 * servers never meet, and an heir (upgrade.h) has its own from the start. Who asks finds the process in the
 * pid file. An answer about certificates that were read anew waits until the workers use them. Abstract names have no modes, so both sides look at who the other is: commands are taken from
 * root and the server's own user, answers likewise. Few may ask at once, and each has a few seconds for it. */
#ifndef KILN_SUPERVISOR_COMMANDS_H
#define KILN_SUPERVISOR_COMMANDS_H

#include "base/buffer.h"

#include <stdint.h>

struct config;
struct pollfd;
struct supervisor;

enum { COMMANDS_MOST = 8, COMMANDS_POLLED = COMMANDS_MOST + 1 };

struct commands {
    int listening; /* -1 */
    struct {
        int fd; /* -1: nobody */
        uint64_t until_ms;
        bool waits; /* for workers to take certificates over, with this answer */
        bool ok;
        struct buffer text;
    } asking[COMMANDS_MOST];
};

void commands_init(struct commands *commands);
/* Without it the server runs all the same; a line of the log says why. */
void commands_start(struct supervisor *s);
void commands_end(struct commands *commands);

/* Does what the name says, in any case; false when there is no such command. *ok: it could be done; what there is to say
 * is added to `out`. */
bool commands_run_one(struct supervisor *s, struct str name, struct buffer *out, bool *ok);

/* For the poll loop: COMMANDS_POLLED descriptors to wait for (-1: none); when it is due; what is to do. */
void commands_poll(const struct commands *commands, struct pollfd *fds);
uint64_t commands_due_ms(const struct commands *commands);
void commands_run(struct supervisor *s, const struct pollfd *fds);
/* Answers that wait for workers: those that need not any more are given. */
void commands_settle(struct supervisor *s);

/* ---- the other side (command_client.c) ---- */

enum command_result {
    COMMAND_DONE,
    COMMAND_REFUSED, /* the server could not do it; `out` says why */
    COMMAND_NO_SERVER, /* none runs with this config; `out` says how that was found */
    COMMAND_FAILED, /* `out` says why */
};
bool command_exists(const char *name);
/* A line for each, its name behind `before` and in so many columns. */
void commands_print_help(struct buffer *out, const char *before, int width);
/* Asks the server whose pid file the config names. */
enum command_result command_ask(const struct config *config, const char *name, struct buffer *out);

/* The address of the server that is this process, and who may be at the other end. */
struct sockaddr_un;
unsigned command_address(int pid, struct sockaddr_un *address);
bool command_peer_is_trusted(int socket);

#endif
