/* DESIGN: the listening socket of the admin listener (AdminListen). A socket file is made with its
 * permissions from the first moment, takes the place of one that nobody listens on any more, and is
 * removed at the end if it is still the one that was made. At a reload and an upgrade the same
 * address keeps its socket, so that nobody is refused. */
#ifndef KILN_SUPERVISOR_ADMIN_SOCKET_H
#define KILN_SUPERVISOR_ADMIN_SOCKET_H

#include "base/buffer.h"

#include <sys/types.h>

struct config;

struct admin_socket {
    int fd; /* -1: none */
    char text[128]; /* AdminListen, in its regular spelling */
    dev_t device; /* of a socket file */
    ino_t inode;
    bool kept; /* fd is that of `keep` */
};

#define ADMIN_SOCKET_NONE ((struct admin_socket){.fd = -1})

/* What the config wants, `keep` if that is it. False with a message in `why`, naming what is wrong and
 * what to do. */
bool admin_socket_open(const struct config *config, const struct admin_socket *keep, struct admin_socket *out,
                       struct buffer *why);
/* One that another process bound; false when it does not listen. */
bool admin_socket_adopt(struct admin_socket *out, int fd, const char *text);
/* With `leave_file`, another process goes on with it. */
void admin_socket_close(struct admin_socket *socket, bool leave_file);
/* "http://127.0.0.1:9180/", "unix:/run/kiln/admin.sock" */
void admin_socket_print_url(const struct admin_socket *socket, struct buffer *out);

#endif
