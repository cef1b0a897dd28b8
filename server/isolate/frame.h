/* DESIGN: what a worker and the process of an isolated endpoint (a host) say to each other about
 * requests: frames over a stream socket, one socket for each loop of the worker, so that nothing is
 * shared between threads. A frame is a fixed header and a payload; many requests are under way on one
 * socket, told apart by an id that the worker gives.
 *
 * The worker trusts nothing that comes back. A frame is taken whole or not at all: its length, its
 * kind, the state of the request that it names and each field are checked by whoever takes it
 * (relay.c), and what cannot be ends the host. The host is the same program file as the worker, so
 * that fields may change with it: both always agree.
 *
 * Fields are written one after another without padding, numbers in the machine's order, texts as
 * their length (4 bytes), their bytes and a NUL, so that they can be used where they lie. */
#ifndef KILN_ISOLATE_FRAME_H
#define KILN_ISOLATE_FRAME_H

#include "base/buffer.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

enum frame_kind {
    /* to the host */
    FRAME_REQUEST = 1, /* a head (heads.h) */
    FRAME_BODY, /* bytes of the request's body, never more than was asked for by ROOM and one receive */
    FRAME_BODY_END, /* count, then name and value of each trailer */
    FRAME_BODY_FAILED, /* u32 status, 0: the client is gone */
    FRAME_TAKEN, /* u64: so many bytes of DATA went to the client */
    FRAME_LEAVING, /* the client closed its sending side */
    FRAME_GONE, /* nobody listens any more; the id is free after it */
    FRAME_SESSION_DONE, /* u32 enum session_result, u64 number, text */
    /* from the host */
    FRAME_HEAD = 64, /* status, length, headers (heads.h) */
    FRAME_DATA, /* bytes of the answer */
    FRAME_FILE, /* u64 offset, u64 length of a file whose descriptor travels with it */
    FRAME_END, /* the answer is complete; nothing, or count, then name and value of each trailer */
    FRAME_ABORT, /* it cannot be completed */
    FRAME_ERROR, /* as HEAD, and a text: the site's error page */
    FRAME_ROOM, /* u64: so many more bytes of the body are wanted */
    FRAME_BACK, /* it was not begun and will not be here */
    FRAME_SESSION, /* u32 enum session_op, u64 number, text key, text value */
};

struct frame {
    uint32_t length; /* of the payload */
    uint16_t kind;
    uint16_t zero;
    uint64_t id;
};

enum {
    FRAME_MAX = 2 * 1024 * 1024, /* bytes of a payload */
    FRAME_DATA_MAX = 65536, /* of a BODY or DATA frame */
    FRAME_WINDOW = 1024 * 1024, /* bytes of DATA that may be on their way to the client */
    FRAME_WINDOW_STEP = 65536, /* how often they are reported as taken */
    FRAME_ROOM_BODY = 262144, /* bytes of a body that a host lets come ahead */
    FRAME_ROOM_MAX = 1024 * 1024,
    FRAME_FILES = 4, /* of one answer: each is an open descriptor of the worker until the client has it */
};

/* ---- writing: into a buffer, whose `failed` is looked at once ------------------------------ */
void frame_put_u16(struct buffer *out, uint16_t value);
void frame_put_u32(struct buffer *out, uint32_t value);
void frame_put_u64(struct buffer *out, uint64_t value);
/* ptr NULL stays NULL. */
void frame_put_str(struct buffer *out, struct str text);

/* ---- reading: past the end everything is 0 or STR_NONE, and `bad` is set --------------------- */
struct frame_reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};
uint16_t frame_get_u16(struct frame_reader *in);
uint32_t frame_get_u32(struct frame_reader *in);
uint64_t frame_get_u64(struct frame_reader *in);
/* Points into the payload; a NUL follows, and there is none inside. */
struct str frame_get_str(struct frame_reader *in);
/* The same for bytes that may hold NUL. */
struct str frame_get_bytes(struct frame_reader *in);
/* True when all was read and nothing was bad. */
bool frame_done(const struct frame_reader *in);

#endif
