#include "supervisor/admin_socket.h"

#include "config/admin_address.h"
#include "config/config.h"
#include "observe/log.h"
#include "supervisor/port_holder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128 };

static const char *socket_path(const struct admin_address *address)
{
    return ((const struct sockaddr_un *)&address->address)->sun_path;
}

/* NOLINTBEGIN(clang-analyzer-core.CallAndMessage): getsockname() or the config has filled it */
static uint16_t port_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)address)->sin6_port)
                                          : ntohs(((const struct sockaddr_in *)address)->sin_port);
}
/* NOLINTEND(clang-analyzer-core.CallAndMessage) */

/* ---- socket files ------------------------------------------------------------------------------- */

/* Takes away a socket that nobody listens on. False with errno: something is there that must stay. */
static bool make_room(const struct admin_address *address)
{
    struct stat st;
    if (lstat(socket_path(address), &st) != 0) {
        return errno == ENOENT;
    }
    if (!S_ISSOCK(st.st_mode)) {
        errno = EEXIST;
        return false;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return false;
    }
    bool dead = connect(fd, (const struct sockaddr *)&address->address, address->len) != 0 && errno == ECONNREFUSED;
    close(fd);
    if (!dead) {
        errno = EADDRINUSE;
        return false;
    }
    return unlink(socket_path(address)) == 0;
}

/* No moment with other permissions; the supervisor has one thread, which the mask is of. */
static bool bind_file(int fd, const struct admin_address *address, mode_t mode)
{
    if (!make_room(address)) {
        return false;
    }
    mode_t before = umask(~mode & 0777);
    bool ok = bind(fd, (const struct sockaddr *)&address->address, address->len) == 0;
    umask(before);
    return ok;
}

static bool remember_file(struct admin_socket *made)
{
    struct stat st;
    if (lstat(made->text + strlen("unix:"), &st) != 0) {
        return false;
    }
    made->device = st.st_dev;
    made->inode = st.st_ino;
    return true;
}

static bool is_file(const struct admin_socket *of)
{
    return str_starts(str_of(of->text), STR("unix:"));
}

/* ---- opening -------------------------------------------------------------------------------------- */

static int open_socket(const struct admin_address *address, mode_t mode)
{
    int fd = socket(address->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    int on = 1;
    bool ok;
    if (address->is_unix) {
        ok = bind_file(fd, address, mode);
    } else {
        ok = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
             (address->address.ss_family != AF_INET6 ||
              setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0) &&
             bind(fd, (const struct sockaddr *)&address->address, address->len) == 0;
    }
    if (ok && listen(fd, BACKLOG) == 0) {
        return fd;
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void explain(const struct admin_address *address, int error, struct buffer *why)
{
    buffer_printf(why, "the admin listener cannot listen on %s (AdminListen): ", address->text);
    switch (error) {
    case EADDRINUSE:
        buffer_append_z(why, "it is in use");
        if (!address->is_unix) {
            port_holder_print(port_of(&address->address), why);
        }
        buffer_append_z(why, "; stop that program, or choose another address");
        break;
    case EEXIST: buffer_append_z(why, "there is a file that is no socket; remove it, or choose another path"); break;
    case ENOENT: buffer_append_z(why, "its directory does not exist; create it"); break;
    case EACCES:
        buffer_append_z(why, address->is_unix ? "no permission to create it there"
                                              : "ports below 1024 need root; choose one from 1024 up");
        break;
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT: buffer_append_z(why, "this machine does not have that address"); break;
    default: buffer_append_z(why, strerror(error)); break;
    }
}

bool admin_socket_open(const struct config *config, const struct admin_socket *keep, struct admin_socket *out,
                       struct buffer *why)
{
    *out = ADMIN_SOCKET_NONE;
    struct admin_address address;
    if (config->admin_listen.len == 0 || !admin_address_parse(config->admin_listen, &address)) {
        return true;
    }
    mode_t mode = (mode_t)strtoul(config->admin_socket_mode.ptr, NULL, 8);
    if (keep->fd >= 0 && strcmp(keep->text, address.text) == 0) {
        *out = *keep;
        out->kept = true;
        if (address.is_unix) {
            chmod(socket_path(&address), mode);
        }
        return true;
    }
    int fd = open_socket(&address, mode);
    if (fd < 0) {
        explain(&address, errno, why);
        if (config->admin_listen_optional) {
            log_warning("%.*s; going on without it", STR_ARG(buffer_str(why)));
            buffer_free(why);
            return true;
        }
        return false;
    }
    out->fd = fd;
    snprintf(out->text, sizeof out->text, "%s", address.text);
    if (address.is_unix) {
        remember_file(out);
    }
    return true;
}

bool admin_socket_adopt(struct admin_socket *out, int fd, const char *text)
{
    int listening = 0;
    socklen_t len = sizeof listening;
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) != 0 || listening == 0) {
        return false;
    }
    *out = (struct admin_socket){.fd = fd};
    snprintf(out->text, sizeof out->text, "%s", text);
    return !is_file(out) || remember_file(out);
}

void admin_socket_close(struct admin_socket *of, bool leave_file)
{
    if (of->fd < 0) {
        return;
    }
    close(of->fd);
    of->fd = -1;
    struct stat st;
    const char *path = of->text + strlen("unix:");
    if (!leave_file && is_file(of) && lstat(path, &st) == 0 && st.st_dev == of->device && st.st_ino == of->inode) {
        unlink(path);
    }
}

void admin_socket_print_url(const struct admin_socket *of, struct buffer *out)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof address;
    if (is_file(of) || getsockname(of->fd, (struct sockaddr *)&address, &len) != 0) {
        buffer_append_z(out, of->text);
        return;
    }
    size_t colon = str_find_last(str_of(of->text), ':');
    buffer_printf(out, "http://%.*s:%u/", (int)colon, of->text, port_of(&address)); /* what the system chose */
}
