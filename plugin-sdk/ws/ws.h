/* DESIGN: the WebSocket protocol (RFC 6455, RFC 7692) as a machine that does no I/O: bytes go in
 * and come out as events, messages go in and come out as frames. It has no clock, no socket and no
 * thread of its own, so the server, the client of the SDK and the stand-alone library all run
 * this one implementation, and tests drive it byte by byte.
 *
 * What it guarantees
 * - Everything that the RFCs call a MUST about received frames is checked, and at the first byte
 *   that shows the fault: reserved bits and opcodes, the mask of the right side, minimal lengths,
 *   order of fragments, size and wholeness of control frames, close codes, UTF-8 (also inside
 *   a frame that is not whole yet, also behind compression).
 * - Memory is spent as bytes arrive, never because a length was announced, and never beyond
 *   max_message (plus one step of growth). A compressed message is cut off where it would pass that
 *   limit. Empty fragments and control frames cost nothing that stays.
 * - An idle connection holds `struct ws` and nothing else, unless it has agreed on a compression
 *   context that lives from message to message.
 * - A message that stands whole in the input and is not compressed is not copied: it is unmasked
 *   where it lies. With `own_messages` it is copied while it is unmasked, in one pass.
 *
 * Memory: `struct ws` is the caller's (its members are private). What an event points to belongs to
 * the core or lies in the caller's input, until the next ws_receive, ws_trim or ws_free. */
#ifndef KILN_WS_WS_H
#define KILN_WS_WS_H

#include "ws/deflate.h"
#include "ws/mask.h"
#include "ws/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ws_role {
    WS_SERVER, /* receives masked frames, sends unmasked ones */
    WS_CLIENT,
};

/* As in the frame's head. */
enum ws_opcode {
    WS_CONTINUATION = 0,
    WS_TEXT = 1,
    WS_BINARY = 2,
    WS_CLOSE = 8,
    WS_PING = 9,
    WS_PONG = 10,
};

/* Close codes. Those that may stand in a frame: ws_close_code_is_valid(). */
enum ws_close_code {
    WS_CLOSE_NORMAL = 1000,
    WS_CLOSE_GOING_AWAY = 1001,
    WS_CLOSE_PROTOCOL = 1002,
    WS_CLOSE_UNSUPPORTED = 1003,
    WS_CLOSE_NO_CODE = 1005, /* never sent: the peer's close frame had no code */
    WS_CLOSE_ABNORMAL = 1006, /* never sent: the connection ended without a close frame */
    WS_CLOSE_INVALID_DATA = 1007,
    WS_CLOSE_POLICY = 1008,
    WS_CLOSE_TOO_BIG = 1009,
    WS_CLOSE_EXTENSION = 1010,
    WS_CLOSE_INTERNAL = 1011,
    WS_CLOSE_RESTART = 1012,
    WS_CLOSE_TRY_LATER = 1013,
};

enum {
    WS_HEAD_MAX = 14, /* bytes of the longest frame head */
    WS_CONTROL_MAX = 125, /* payload of a control frame */
    WS_REASON_MAX = 123, /* of a close frame's reason */
};

/* How connections behave. Shared by any number of them; stays as it is while they live. */
struct ws_settings {
    uint64_t max_message; /* bytes of a received message after decompression; 0: no limit */
    size_t compress_from; /* shorter messages are sent uncompressed */
    bool own_messages; /* a message never lies in the input, so it survives the input's buffer */
    bool parts; /* data is handed out as it arrives instead of as whole messages */
    bool any_text; /* text is not checked to be UTF-8, neither received nor sent */
};

/* ---- a connection after its handshake -------------------------------------------------------- */

struct ws {
    const struct ws_settings *settings;
    struct ws_pool *pool; /* of compression contexts; NULL: no compression agreed */
    struct ws_context *inflater; /* NULL between messages unless kept */
    struct ws_context *deflater;
    uint8_t *message; /* what was gathered of a message */
    size_t message_cap;
    size_t message_len; /* bytes in `message` */
    uint64_t message_total; /* bytes of the message so far, wherever they lie */
    uint64_t frame_left; /* payload still to come */
    uint8_t *control; /* a control frame that came in pieces */
    uint8_t key[4]; /* of the running frame, turned so that key[0] is for the next byte */
    struct ws_utf8 text_in;
    struct ws_utf8 text_out;
    uint8_t head[WS_HEAD_MAX]; /* the part of a head that has come */
    uint8_t head_len;
    uint8_t opcode; /* of the running frame */
    uint8_t message_opcode; /* 0: no message runs */
    uint8_t control_len;
    uint8_t out_opcode; /* of a message that is being sent in fragments; 0: none */
    uint8_t bits_in; /* window */
    uint8_t bits_out;
    bool client : 1;
    bool in_frame : 1;
    bool fin : 1;
    bool compressed : 1; /* the running message */
    bool delivered : 1; /* `message` was handed out and is void at the next call */
    bool part_begun : 1; /* a first part was handed out */
    bool ended : 1; /* a close frame or a failure: further input is dropped */
    bool closing : 1; /* our close frame was made: nothing follows it */
    bool keep_in : 1; /* contexts live from message to message */
    bool keep_out : 1;
    bool out_compressed : 1; /* the message that is being sent in fragments */
    bool out_borrowed : 1; /* the deflater goes back after the message */
    bool inflate_more : 1; /* output is waiting inside, input may be used up */
};

/* `settings` and, later, the pool outlive the connection. */
void ws_init(struct ws *ws, enum ws_role role, const struct ws_settings *settings);
/* What the handshake agreed on, before the first frame. The pool is used by one thread at a time,
 * and so are all connections of one pool. */
void ws_use_deflate(struct ws *ws, struct ws_pool *pool, const struct ws_deflate *agreed);
/* Gives everything back. */
void ws_free(struct ws *ws);
/* The connection will be idle for a while: gives back what only the last event needed. */
void ws_trim(struct ws *ws);
/* True while part of a frame or message has come: idle connections are not in the middle. */
bool ws_in_message(const struct ws *ws);

/* ---- receiving ----------------------------------------------------------------------------------- */

/* Bytes as they came. ws_receive() moves it on; it writes into the bytes (unmasking in place). What
 * is left over when it returns an event is given to the next call. */
struct ws_input {
    uint8_t *data;
    size_t len;
};

enum ws_event {
    WS_EVENT_NONE, /* the input is used up */
    WS_EVENT_DATA, /* a message, or a part of one with settings->parts */
    WS_EVENT_PING, /* answer it: ws_frame_make(WS_PONG) with the same payload */
    WS_EVENT_PONG,
    WS_EVENT_CLOSE, /* answer it, unless ws->closing: ws_close_answer(); then end the connection */
    WS_EVENT_FAILED, /* the peer broke the protocol: ws_close_make(item->code), then end the connection */
};

struct ws_item {
    const uint8_t *data; /* payload; of a close frame the reason; of a failure its text */
    size_t len;
    uint16_t code; /* of a close frame (1005: none), or for the one to send after a failure */
    uint8_t opcode; /* of DATA: WS_TEXT or WS_BINARY, for every part */
    bool first; /* of DATA: the message begins here */
    bool final; /* and ends here; both true for whole messages */
};

/* Uses input until there is an event or no input. After CLOSE and FAILED all input is dropped. With
 * settings->parts the end of a part may lie within a character. */
enum ws_event ws_receive(struct ws *ws, struct ws_input *input, struct ws_item *item);

/* In the middle of a long frame: where its next *room bytes may be received, which saves copying them there. The
 * next ws_receive() is given the bytes that came, in this place. NULL: they may lie anywhere. */
uint8_t *ws_receive_room(struct ws *ws, size_t *room);

/* The memory of a message of the last event, when it was gathered: malloc'ed, now the caller's, with one
 * spare byte behind it. NULL: it lies in the input (or is a part), and has to be copied. */
uint8_t *ws_take_message(struct ws *ws, const struct ws_item *item);

/* ---- sending ---------------------------------------------------------------------------------------- */

enum ws_result {
    WS_OK,
    WS_ERROR_ARGUMENT, /* a control frame over 125 bytes, a code that may not be sent, a wrong opcode */
    WS_ERROR_TEXT, /* not UTF-8 */
    WS_ERROR_CLOSED, /* our close frame was made already */
    WS_ERROR_ORDER, /* a new message while one is being sent in fragments, or a fragment without one */
    WS_ERROR_MEMORY,
};

/* A frame that is ready: its head, and where its payload lies. A server's payload goes out as it lies;
 * a client's must pass through ws_frame_copy, which masks it. */
struct ws_frame {
    uint8_t head[WS_HEAD_MAX];
    uint8_t head_len;
    bool masked;
    bool borrowed; /* payload is the caller's own memory, else the core's until its next call */
    uint8_t key[4];
    const uint8_t *payload;
    size_t payload_len;
};

static inline size_t ws_frame_size(const struct ws_frame *frame)
{
    return frame->head_len + frame->payload_len;
}

/* Head and payload (masked where it must be) into ws_frame_size() bytes at `to`. */
void ws_frame_copy(const struct ws_frame *frame, uint8_t *to);

/* A whole message (TEXT or BINARY) or a PING or PONG. */
enum ws_result ws_frame_make(struct ws *ws, struct ws_frame *frame, enum ws_opcode opcode, const void *data,
                             size_t len);
/* A message in fragments: each call makes one frame; `opcode` is that of the message in each. The
 * last one has `final`, and may be empty. Control frames may be made between them. */
enum ws_result ws_fragment_make(struct ws *ws, struct ws_frame *frame, enum ws_opcode opcode, const void *data,
                                size_t len, bool final);
/* True while a message is being sent in fragments. */
static inline bool ws_is_fragmenting(const struct ws *ws)
{
    return ws->out_opcode != 0;
}

/* A close frame; its bytes lie in frame->head and `space`. Code 1005 sends none. A reason over
 * WS_REASON_MAX bytes is cut between characters; one that is not UTF-8 is an error. */
enum ws_result ws_close_make(struct ws *ws, struct ws_frame *frame, uint8_t space[WS_CONTROL_MAX], unsigned code,
                             const char *reason, size_t reason_len);
/* The answer to the peer's close frame: its own code. */
enum ws_result ws_close_answer(struct ws *ws, struct ws_frame *frame, uint8_t space[WS_CONTROL_MAX],
                               const struct ws_item *close);
/* May it stand in a close frame? 1000-1003, 1007-1014, 3000-4999. */
bool ws_close_code_is_valid(unsigned code);

/* A frame for many connections at once: an uncompressed one as every server sends it. Compressed
 * ones: ws_shared_make, for connections that agreed on compression with `bits` or more of window. */
void ws_plain_make(struct ws_frame *frame, enum ws_opcode opcode, const void *data, size_t len);
/* The payload is compressed afresh, by nobody's context, so that every such connection can
 * read it. False: it does not pay, or there is no memory; send the plain one. */
bool ws_shared_make(struct ws_pool *pool, unsigned bits, struct ws_frame *frame, enum ws_opcode opcode,
                    const void *data, size_t len);
/* May this connection be sent such a frame now? Not between its fragments nor after its close. */
static inline bool ws_takes_shared(const struct ws *ws)
{
    return !ws->client && ws->out_opcode == 0 && !ws->closing;
}
/* Its window for compressed ones; 0: it takes none. */
static inline unsigned ws_shared_bits(const struct ws *ws)
{
    return ws->pool != NULL ? ws->bits_out : 0;
}
/* It was sent a compressed one: the peer's window has moved on without our context, which starts anew. */
void ws_shared_sent(struct ws *ws);

#endif
