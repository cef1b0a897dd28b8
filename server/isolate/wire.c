#include "isolate/wire.h"

#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECEIVE = 131072, OUT_KEPT = 65536, OUT_MOST = 4 << 20 /* of a bounded wire, and what one frame adds */ };

struct wire_mark {
    size_t at; /* in out */
    int fd;
};

/* ---- the end ------------------------------------------------------------------------------- */

static void drop_output(struct wire *wire)
{
    for (size_t i = 0; i < wire->mark_count; i++) {
        close(wire->marks[i].fd);
    }
    wire->mark_count = 0;
    wire->out.len = wire->sent = 0;
}

void wire_close(struct wire *wire)
{
    if (wire->ended) {
        return;
    }
    wire->ended = true;
    if (wire->watch.fd >= 0) {
        loop_watch_remove(wire->loop, &wire->watch);
        close(wire->watch.fd);
        wire->watch.fd = -1;
    }
    drop_output(wire);
    for (int fd = wire_take_fd(wire); fd >= 0; fd = wire_take_fd(wire)) {
        close(fd);
    }
    free(wire->marks);
    wire->marks = NULL;
    wire->mark_cap = 0;
    buffer_free(&wire->out);
    if (!wire->in_read) { /* else the reader looks at it once more */
        buffer_free(&wire->in);
    }
}

static void end(struct wire *wire, const char *why)
{
    if (!wire->ended) {
        wire_close(wire);
        wire->calls->on_end(wire, why);
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

int wire_take_fd(struct wire *wire)
{
    if (wire->fd_count == 0) {
        return -1;
    }
    int fd = wire->fds[0];
    wire->fd_count--;
    memmove(wire->fds, wire->fds + 1, wire->fd_count * sizeof wire->fds[0]);
    return fd;
}

static void queue_flush(struct wire *wire);

/* Hands on whole frames; how many bytes were used. SIZE_MAX: the wire has ended. */
static size_t take_frames(struct wire *wire, const uint8_t *data, size_t len)
{
    size_t used = 0;
    while (len - used >= sizeof(struct frame)) {
        if (wire->bounded && wire_pending(wire) > OUT_MOST) {
            wire->choked = true;
            queue_flush(wire);
            break;
        }
        struct frame frame;
        memcpy(&frame, data + used, sizeof frame);
        if (frame.length > FRAME_MAX || frame.zero != 0) {
            end(wire, "a frame that is too long");
            return SIZE_MAX;
        }
        if (len - used - sizeof frame < frame.length) {
            break;
        }
        bool ok = wire->calls->on_frame(wire, &frame, data + used + sizeof frame);
        if (!ok) {
            end(wire, "a frame that may not stand there");
        }
        if (wire->ended) {
            return SIZE_MAX;
        }
        used += sizeof frame + frame.length;
    }
    return used;
}

bool wire_feed(struct wire *wire, const uint8_t *data, size_t len)
{
    wire->in_read = true;
    size_t used = 0;
    if (wire->in.len == 0) {
        used = take_frames(wire, data, len);
        if (used != SIZE_MAX && used < len && !buffer_append(&wire->in, data + used, len - used)) {
            end(wire, "no memory");
        }
    } else if (len > 0 && !buffer_append(&wire->in, data, len)) {
        end(wire, "no memory");
    } else {
        used = take_frames(wire, (const uint8_t *)wire->in.data, wire->in.len);
        if (used != SIZE_MAX && used > 0) {
            buffer_consume(&wire->in, used);
        }
    }
    wire->in_read = false;
    if (wire->ended) {
        buffer_free(&wire->in);
        return false;
    }
    if (wire->in.len == 0 && wire->in.cap > OUT_KEPT) {
        buffer_free(&wire->in);
    }
    return true;
}

/* False: more than anybody may send. */
static bool take_descriptors(struct wire *wire, struct msghdr *message)
{
    bool ok = (message->msg_flags & MSG_CTRUNC) == 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (wire->fd_count < WIRE_FDS) {
                wire->fds[wire->fd_count++] = fd;
            } else {
                close(fd);
                ok = false;
            }
        }
    }
    return ok;
}

static _Thread_local uint8_t *room; /* for what arrives, of all wires of a loop */

void wire_thread_end(void)
{
    free(room);
    room = NULL;
}

static void receive(struct wire *wire)
{
    if (room == NULL && (room = malloc(RECEIVE)) == NULL) {
        end(wire, "no memory");
        return;
    }
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(WIRE_FDS * sizeof(int))];
    } ancillary;
    struct iovec part = {room, RECEIVE};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    ssize_t len = recvmsg(wire->watch.fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (len < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            end(wire, errno == ECONNRESET ? NULL : "an error of the socket");
        }
        return;
    }
    if (len == 0) {
        end(wire, NULL);
        return;
    }
    if (!take_descriptors(wire, &message)) {
        end(wire, "too many descriptors");
        return;
    }
    wire_feed(wire, room, (size_t)len);
}

/* ---- sending ----------------------------------------------------------------------------------- */

size_t wire_pending(const struct wire *wire)
{
    return wire->out.len - wire->sent;
}

static ssize_t send_some(struct wire *wire)
{
    size_t to = wire->out.len;
    bool with_fd = wire->mark_count > 0 && wire->marks[0].at == wire->sent;
    if (wire->mark_count > 0) {
        to = with_fd ? (wire->mark_count > 1 ? wire->marks[1].at : to) : wire->marks[0].at;
    }
    struct iovec part = {wire->out.data + wire->sent, to - wire->sent};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
    if (with_fd) {
        memset(&ancillary, 0, sizeof ancillary);
        message.msg_control = &ancillary;
        message.msg_controllen = sizeof ancillary;
        struct cmsghdr *first = CMSG_FIRSTHDR(&message);
        first->cmsg_level = SOL_SOCKET;
        first->cmsg_type = SCM_RIGHTS;
        first->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(first), &wire->marks[0].fd, sizeof(int));
    }
    ssize_t n = sendmsg(wire->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0 && with_fd) {
        close(wire->marks[0].fd);
        wire->mark_count--;
        memmove(wire->marks, wire->marks + 1, wire->mark_count * sizeof wire->marks[0]);
    }
    return n;
}

/* What was sent does not stay for as long as something always waits. */
static void compact(struct wire *wire)
{
    if (wire->sent < OUT_KEPT || wire->sent < wire->out.len / 2) {
        return;
    }
    for (size_t i = 0; i < wire->mark_count; i++) {
        wire->marks[i].at -= wire->sent;
    }
    buffer_consume(&wire->out, wire->sent);
    wire->sent = 0;
}

void wire_flush(struct wire *wire)
{
    if (wire->ended || wire->watch.fd < 0) {
        return;
    }
    if (wire->out.failed) {
        end(wire, "no memory");
        return;
    }
    while (wire->sent < wire->out.len) {
        ssize_t n = send_some(wire);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno != EAGAIN) {
            /* What the peer had sent before it ended is still to be read; its end is found there. */
            drop_output(wire);
            break;
        }
        if (n < 0) {
            break;
        }
        wire->sent += (size_t)n;
    }
    bool all = wire->sent == wire->out.len;
    if (all) {
        wire->sent = wire->out.len = 0;
        if (wire->out.cap > OUT_KEPT) {
            buffer_free(&wire->out);
        }
    } else {
        compact(wire);
    }
    if (wire->choked && wire_pending(wire) <= OUT_MOST / 2) {
        wire->choked = false;
        wire->resumes = true;
    }
    loop_watch_change(wire->loop, &wire->watch, (wire->choked ? 0 : LOOP_READ) | (all ? 0 : LOOP_WRITE));
}

/* What came before it was choked is here, and nothing will tell of it. */
static void flush_and_resume(struct wire *wire)
{
    wire_flush(wire);
    if (!wire->ended && wire->resumes) {
        wire->resumes = false;
        wire_feed(wire, NULL, 0);
    }
}

static void flush_later(struct task *task)
{
    struct wire *wire = CONTAINER_OF(task, struct wire, flush_task);
    wire->flush_queued = false;
    flush_and_resume(wire);
}

static void queue_flush(struct wire *wire)
{
    if (!wire->flush_queued && wire->watch.fd >= 0) {
        wire->flush_queued = true;
        loop_defer(wire->loop, &wire->flush_task);
    }
}

void wire_send(struct wire *wire, enum frame_kind kind, uint64_t id, const void *payload, size_t len)
{
    CHECK(len <= FRAME_MAX);
    if (wire->ended) {
        return;
    }
    struct frame frame = {.length = (uint32_t)len, .kind = (uint16_t)kind, .id = id};
    char *to = buffer_reserve(&wire->out, sizeof frame + len);
    if (to == NULL) {
        drop_output(wire);
        wire->out.failed = true; /* the flush ends it: not here, in the middle of the caller's work */
        queue_flush(wire);
        return;
    }
    memcpy(to, &frame, sizeof frame);
    if (len > 0) {
        memcpy(to + sizeof frame, payload, len);
    }
    wire->out.len += sizeof frame + len;
    queue_flush(wire);
}

bool wire_send_fields(struct wire *wire, enum frame_kind kind, uint64_t id, const struct buffer *fields)
{
    if (fields->failed || fields->len > FRAME_MAX) {
        return false;
    }
    wire_send(wire, kind, id, fields->data, fields->len);
    return true;
}

void wire_send_file(struct wire *wire, uint64_t id, const struct buffer *fields, int fd)
{
    if (wire->mark_count == wire->mark_cap) {
        size_t cap = wire->mark_cap == 0 ? 8 : wire->mark_cap * 2;
        struct wire_mark *marks = wire->ended ? NULL : realloc(wire->marks, cap * sizeof *marks);
        if (marks == NULL) {
            close(fd);
            wire_send(wire, FRAME_ABORT, id, NULL, 0);
            return;
        }
        wire->marks = marks;
        wire->mark_cap = cap;
    }
    size_t at = wire->out.len;
    if (!wire_send_fields(wire, FRAME_FILE, id, fields) || wire->ended) {
        close(fd);
        return;
    }
    wire->marks[wire->mark_count++] = (struct wire_mark){at, fd};
}

/* ---- life ---------------------------------------------------------------------------------------- */

static void on_ready(struct watch *watch, uint32_t ready)
{
    struct wire *wire = CONTAINER_OF(watch, struct wire, watch);
    if ((ready & (LOOP_WRITE | LOOP_ERROR)) != 0) {
        flush_and_resume(wire);
    }
    if (!wire->ended && !wire->choked && (ready & (LOOP_READ | LOOP_ERROR)) != 0) {
        receive(wire);
    }
}

bool wire_open(struct wire *wire, struct loop *loop, int fd, const struct wire_calls *calls)
{
    *wire = (struct wire){.loop = loop, .calls = calls};
    wire->watch = (struct watch){.fd = fd, .wanted = LOOP_READ, .on_ready = on_ready};
    wire->flush_task.run = flush_later;
    if (loop != NULL && !loop_watch_add(loop, &wire->watch)) {
        int error = errno;
        close(fd);
        wire->watch.fd = -1;
        errno = error;
        return false;
    }
    return true;
}
