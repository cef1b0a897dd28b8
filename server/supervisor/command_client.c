/* `kiln loadcerts` and its like: asks the running server. */
#include "base/file.h"
#include "config/config.h"
#include "supervisor/commands.h"
#include "supervisor/control.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PID_TEXT_MAX = 32, WAIT_MS = 30000, ANSWER_MAX = 64 << 20 };

/* 0 with a line in `out`. */
static int find_server(const struct config *config, struct buffer *out)
{
    const char *path = config->pid_file.ptr;
    if (*path == '\0') {
        buffer_append_z(out, "which server? Its config has no PidFile, by which it could be found\n");
        return 0;
    }
    struct buffer text = BUFFER_EMPTY;
    bool ok = file_read(path, PID_TEXT_MAX, &text);
    long pid = ok ? strtol(buffer_str(&text).ptr, NULL, 10) : 0;
    if (!ok) {
        buffer_printf(out, "no server runs here: its PidFile %s cannot be read: %s\n", path, strerror(errno));
    } else if (pid <= 0 || pid > 1 << 30) {
        buffer_printf(out, "no server runs here: there is no number in its PidFile %s\n", path);
        pid = 0;
    }
    buffer_free(&text);
    return (int)pid;
}

static int open_socket(const struct config *config, int pid, struct buffer *out, enum command_result *result)
{
    struct sockaddr_un address;
    socklen_t len = command_address(pid, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *result = COMMAND_FAILED;
    if (fd < 0) {
        buffer_printf(out, "no socket: %s\n", strerror(errno));
        return -1;
    }
    if (connect(fd, (const struct sockaddr *)&address, len) != 0) {
        bool gone = errno == ECONNREFUSED;
        *result = gone ? COMMAND_NO_SERVER : COMMAND_FAILED;
        buffer_printf(out,
                      gone ? "no server runs as process %d, which its PidFile %s names\n"
                           : "the server (process %d, by its PidFile %s) takes no commands now\n",
                      pid, config->pid_file.ptr);
    } else if (!command_peer_is_trusted(fd)) {
        buffer_printf(out, "the server (process %d) runs as another user: ask as that user, or as root\n", pid);
    } else {
        return fd;
    }
    close(fd);
    return -1;
}

static enum command_result read_answer(struct control_message *message, struct buffer *out)
{
    int memory = control_take_fd(message);
    char part[4096];
    ssize_t n;
    off_t at = 0;
    while (memory >= 0 && at < ANSWER_MAX && (n = pread(memory, part, sizeof part, at)) > 0) {
        buffer_append(out, part, (size_t)n);
        at += n;
    }
    if (memory < 0) {
        buffer_append_z(out, "the server's answer cannot be understood: is it another version?\n");
        return COMMAND_FAILED;
    }
    close(memory);
    return control_bool(message, "ok") ? COMMAND_DONE : COMMAND_REFUSED;
}

static enum command_result talk(int fd, const char *name, struct buffer *out)
{
    cJSON *body = cJSON_CreateObject();
    bool sent = body != NULL && cJSON_AddStringToObject(body, "name", name) != NULL &&
                control_send(fd, CONTROL_COMMAND, body, NULL, 0) == CONTROL_OK;
    cJSON_Delete(body);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (!sent || poll(&wait, 1, WAIT_MS) <= 0) {
        buffer_append_z(out, "the server does not answer\n");
        return COMMAND_FAILED;
    }
    struct control_message message;
    struct buffer why = BUFFER_EMPTY;
    enum control_result got = control_receive(fd, &message, &why);
    buffer_free(&why);
    if (got != CONTROL_OK) {
        buffer_append_z(out, "the server refuses: it takes commands from root and from its own user\n");
        return COMMAND_FAILED;
    }
    enum command_result result = read_answer(&message, out);
    control_message_free(&message);
    return result;
}

enum command_result command_ask(const struct config *config, const char *name, struct buffer *out)
{
    int pid = find_server(config, out);
    if (pid == 0) {
        return COMMAND_NO_SERVER;
    }
    enum command_result result;
    int fd = open_socket(config, pid, out, &result);
    if (fd < 0) {
        return result;
    }
    result = talk(fd, name, out);
    close(fd);
    return result;
}
