/* DESIGN: one end of a frame socket (frame.h) on a loop. What is sent is gathered and leaves with one
 * system call at the end of the loop's iteration; what the socket does not take waits. What
 * arrives is handed on frame by frame, where it lies. A descriptor travels with the first byte of
 * its frame; received ones wait in order for the frames that claim them, and a peer that sends more
 * than a few without such a frame is not answered any more.
 *
 * Frames ask for answers. A worker's end takes no more of them while much waits to be sent: a process that asks and
 * does not read would else fill the worker's memory. The other end takes everything always, or both could wait for
 * each other. */
#ifndef KILN_ISOLATE_WIRE_H
#define KILN_ISOLATE_WIRE_H

#include "base/buffer.h"
#include "isolate/frame.h"
#include "loop/loop.h"

enum { WIRE_FDS = 16 };

struct wire;

struct wire_calls {
    /* False: the peer broke the rules; on_end follows. */
    bool (*on_frame)(struct wire *wire, const struct frame *frame, const uint8_t *payload);
    /* Once; nothing is called after it. `why` is NULL for an orderly end. */
    void (*on_end)(struct wire *wire, const char *why);
};

struct wire_mark; /* a descriptor that leaves with a byte of the output */

struct wire {
    struct loop *loop;
    const struct wire_calls *calls;
    struct watch watch;
    struct task flush_task;
    bool flush_queued;
    bool ended;
    bool in_read;
    bool bounded; /* a worker's end; set after wire_open() */
    bool choked; /* takes no frames until less waits to be sent */
    bool resumes; /* it does again */
    struct buffer in;
    struct buffer out;
    size_t sent; /* of out */
    struct wire_mark *marks;
    size_t mark_count;
    size_t mark_cap;
    int fds[WIRE_FDS];
    unsigned fd_count;
};

/* Takes the descriptor, which does not block. False with errno; then it is closed. */
bool wire_open(struct wire *wire, struct loop *loop, int fd, const struct wire_calls *calls);
/* Without a call of on_end. Safe inside on_frame. */
void wire_close(struct wire *wire);

void wire_send(struct wire *wire, enum frame_kind kind, uint64_t id, const void *payload, size_t len);
/* With a payload of fields; false when it is broken or too long: nothing was sent. */
bool wire_send_fields(struct wire *wire, enum frame_kind kind, uint64_t id, const struct buffer *fields);
/* Takes the descriptor. */
void wire_send_file(struct wire *wire, uint64_t id, const struct buffer *fields, int fd);
/* Sends now what the socket takes. */
void wire_flush(struct wire *wire);
/* Bytes that wait to be sent. */
size_t wire_pending(const struct wire *wire);

/* The next descriptor that came, the caller's from now on; -1: none. */
int wire_take_fd(struct wire *wire);

/* The loop's thread ends. */
void wire_thread_end(void);

/* ---- without a socket, for tests ------------------------------------------------------------ */
/* Gives the bytes to on_frame as if they had arrived. False after on_end. */
bool wire_feed(struct wire *wire, const uint8_t *data, size_t len);

#endif
