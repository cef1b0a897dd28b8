#include "supervisor/control.h"

#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONTROL_MAGIC = 0x4e4c494b };

struct header {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;
};

bool control_pair(int fds[2])
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0;
}

static enum control_result send_message(int socket, struct msghdr *message)
{
    for (;;) {
        if (sendmsg(socket, message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return CONTROL_OK;
        }
        if (errno == EPIPE || errno == ECONNRESET) {
            return CONTROL_CLOSED;
        }
        if (errno != EINTR) {
            return CONTROL_BAD;
        }
    }
}

enum control_result control_send(int socket, enum control_kind kind, const cJSON *body, const int *fds,
                                 unsigned fd_count)
{
    CHECK(fd_count <= CONTROL_FDS_MAX);
    char *text = body != NULL ? cJSON_PrintUnformatted(body) : strdup("{}");
    if (text == NULL || strlen(text) > CONTROL_BODY_MAX) {
        free(text);
        errno = text == NULL ? ENOMEM : EMSGSIZE;
        return CONTROL_BAD;
    }
    struct header header = {.magic = CONTROL_MAGIC, .version = CONTROL_VERSION, .kind = (uint16_t)kind};
    struct iovec parts[2] = {{&header, sizeof header}, {text, strlen(text)}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(CONTROL_FDS_MAX * sizeof(int))];
    } ancillary;
    if (fd_count > 0) {
        memset(&ancillary, 0, sizeof ancillary);
        message.msg_control = &ancillary;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *first = CMSG_FIRSTHDR(&message);
        first->cmsg_level = SOL_SOCKET;
        first->cmsg_type = SCM_RIGHTS;
        first->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(first), fds, fd_count * sizeof(int));
    }
    enum control_result result = send_message(socket, &message);
    int saved = errno;
    free(text);
    errno = saved;
    return result;
}

static void take_descriptors(struct msghdr *from, struct control_message *message)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(from); part != NULL; part = CMSG_NXTHDR(from, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        CHECK(message->fd_count + count <= CONTROL_FDS_MAX);
        memcpy(message->fds + message->fd_count, CMSG_DATA(part), count * sizeof(int));
        message->fd_count += (unsigned)count;
    }
}

static bool check_header(const struct header *header, size_t len, int flags, struct buffer *why)
{
    if (len < sizeof *header || header->magic != CONTROL_MAGIC) {
        buffer_append_z(why, "not a control message");
        return false;
    }
    if (header->version != CONTROL_VERSION) {
        buffer_printf(why, "control message of version %u, this program speaks %d", header->version, CONTROL_VERSION);
        return false;
    }
    if ((flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        buffer_printf(why, "control message %u does not fit", header->kind);
        return false;
    }
    return true;
}

static enum control_result parse_message(const struct header *header, size_t len, int flags,
                                         struct control_message *message, struct buffer *why)
{
    if (!check_header(header, len, flags, why)) {
        return CONTROL_BAD;
    }
    message->kind = (enum control_kind)header->kind;
    message->body = cJSON_ParseWithLength((const char *)(header + 1), len - sizeof *header);
    if (!cJSON_IsObject(message->body)) {
        buffer_printf(why, "control message %u is not a JSON object", header->kind);
        return CONTROL_BAD;
    }
    return CONTROL_OK;
}

enum control_result control_receive(int socket, struct control_message *message, struct buffer *why)
{
    *message = (struct control_message){0};
    size_t room = sizeof(struct header) + CONTROL_BODY_MAX;
    struct header *bytes = malloc(room);
    if (bytes == NULL) {
        buffer_append_z(why, "out of memory");
        return CONTROL_BAD;
    }
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(CONTROL_FDS_MAX * sizeof(int))];
    } ancillary;
    struct iovec part = {bytes, room};
    struct msghdr received = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    ssize_t len;
    do {
        len = recvmsg(socket, &received, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (len < 0 && errno == EINTR);
    enum control_result result;
    if (len > 0) {
        take_descriptors(&received, message);
        result = parse_message(bytes, (size_t)len, received.msg_flags, message, why);
    } else {
        result = len < 0 && errno == EAGAIN ? CONTROL_EMPTY : CONTROL_CLOSED;
    }
    free(bytes);
    if (result != CONTROL_OK) {
        control_message_free(message);
    }
    return result;
}

int control_take_fd(struct control_message *message)
{
    return message->fds_taken < message->fd_count ? message->fds[message->fds_taken++] : -1;
}

void control_message_free(struct control_message *message)
{
    for (int fd = control_take_fd(message); fd >= 0; fd = control_take_fd(message)) {
        close(fd);
    }
    cJSON_Delete(message->body);
    message->body = NULL;
}

bool control_bool(const struct control_message *message, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(message->body, name));
}

double control_number(const struct control_message *message, const char *name, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(message->body, name);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

const char *control_text(const struct control_message *message, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message->body, name));
}
