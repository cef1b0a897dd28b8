/* DESIGN: a WebSocket of the server: the protocol core (plugin-sdk/ws) on a connection that HTTP/1.1
 * handed over. `struct kiln_ws` is what an endpoint's `kiln_ws *` points to, and all that an idle
 * connection costs beside struct conn. Who receives is behind one vtable (struct ws_owner): a coroutine
 * with a queue (endpoint/socket_inbox.c) or callbacks without a stack (endpoint/socket_handler.c).
 *
 * It belongs to its loop: everything here is called on that thread. Pings are answered, close frames
 * returned and wrong peers refused here, whatever the owner is doing.
 *
 * The end: one side's close frame, then the other's, then conn_finish(): our output is sent, the
 * socket half-closed, what still comes is read and dropped for a bounded time. So the last message
 * is never lost to a reset. A peer's close is answered when the owner is done with what came before
 * it, so that the answer to the last message is not lost either. owner->on_closed is called once, when no further message can come;
 * the memory goes when the connection is closed and the owner has let go (websocket_release).
 *
 * Silence: the sockets of a loop stand in one list by the time of their last byte, so one timer a
 * loop serves them all (websocket_loop.c). Past half of WebSocketEndpointTimeout a ping goes out; past
 * all of it the connection ends. A peer that answers its pings but exchanges no message for WebSocketTimeout
 * is closed when that is noticed, at its next ping or pong. */
#ifndef KILN_PROTOCOL_WEBSOCKET_H
#define KILN_PROTOCOL_WEBSOCKET_H

#include "base/list.h"
#include "connection/conn.h"
#include "ws/ws.h"

struct config;
struct kiln_ws;
struct module;
struct room_member;
struct room_late;

enum { WEBSOCKET_MAGIC = 0x4b575353 };

struct ws_owner {
    const char *name;
    /* A whole message; `item` is valid during the call. False: no more until websocket_resume(). */
    bool (*on_message)(struct kiln_ws *ws, const struct ws_item *item);
    /* All output was taken by the kernel, after websocket_notify_drained(). */
    void (*on_drained)(struct kiln_ws *ws);
    /* The peer has closed (or failed): no message comes any more. True: it may be answered at once; false:
     * what was received is still being worked on, websocket_end() follows, or LingerTimeout. */
    bool (*on_ending)(struct kiln_ws *ws);
    /* It is over, nothing can be sent; close_code and close_reason are set. */
    void (*on_closed)(struct kiln_ws *ws);
};

struct kiln_ws {
    uint32_t magic;
    uint32_t active_s; /* loop time of the last byte from the peer */
    uint32_t message_s; /* ... of the last message, of either side */
    struct ws core;
    struct loop *loop;
    struct conn *conn; /* NULL before the handshake was answered and after the connection ended */
    const struct ws_owner *owner; /* NULL: what comes is dropped */
    void *owner_state;
    void *user; /* the endpoint's */
    struct module *module; /* held while the endpoint's code may be called */
    struct room_member *rooms;
    struct room_late *late; /* rooms.c */
    uint64_t id; /* never the same twice in this process */
    char *close_reason; /* the peer's, NUL-terminated; NULL: none */
    struct list node; /* in the loop's list, longest silent first */
    struct task end_task;
    struct task close_task; /* on_closed of callbacks */
    size_t unsent; /* of the last bytes, when the deadline was set */
    uint8_t *held; /* input that waits for the owner; NULL: none */
    uint32_t held_at; /* what is used of it */
    uint32_t held_len;
    uint16_t close_code; /* 0: still open */
    uint16_t end_code; /* what close_code will be; 0: the peer has not closed */
    bool parked : 1; /* all input is held until websocket_unpark() */
    bool told : 1; /* on_closed was called */
    bool pinged : 1; /* since the last byte came */
    bool released : 1; /* the owner has let go */
    bool resume_queued : 1;
    bool ended : 1; /* the connection is closed */
    bool counted : 1;
    bool peer_ended : 1; /* TCP: nothing more comes */
    bool failed : 1; /* the peer broke the protocol: end_code is ours */
};

extern const struct protocol protocol_websocket;

/* ---- life ---------------------------------------------------------------------------------- */

/* NULL: no memory. */
struct kiln_ws *websocket_create(struct loop *loop);
/* Room for one more under MaxConcurrentUpgradedConnections? Taken at once; given back with the ws. */
bool websocket_count_take(struct kiln_ws *ws, const struct config *config);
/* The handshake is answered: frames may go out. `own_messages`: see struct ws_settings. */
void websocket_open(struct kiln_ws *ws, struct conn *conn, const struct ws_deflate *agreed, bool own_messages);
/* The owner will not look at it again. */
void websocket_release(struct kiln_ws *ws);
/* True while messages may be sent: the handshake is over, no close frame was sent or received. */
static inline bool websocket_is_open(const struct kiln_ws *ws)
{
    return ws->conn != NULL && !ws->core.closing && ws->close_code == 0;
}

/* ---- sending ----------------------------------------------------------------------------------- */

/* Queued; what they return is the core's. WS_ERROR_CLOSED also when the connection is gone. */
enum ws_result websocket_send(struct kiln_ws *ws, enum ws_opcode opcode, const void *data, size_t len);
enum ws_result websocket_send_fragment(struct kiln_ws *ws, enum ws_opcode opcode, const void *data, size_t len,
                                       bool final);
/* Sends a close frame and waits, for LingerTimeout, for the peer's. */
enum ws_result websocket_close(struct kiln_ws *ws, unsigned code, const char *reason, size_t len);
/* After on_ending said false. */
void websocket_end(struct kiln_ws *ws);
/* The connection is cut: a peer that does not take what it is sent. */
void websocket_abort(struct kiln_ws *ws);
/* Bytes that wait for the peer. */
static inline size_t websocket_pending(const struct kiln_ws *ws)
{
    return ws->conn != NULL ? conn_pending(ws->conn) : 0;
}
void websocket_notify_drained(struct kiln_ws *ws);
/* After on_message said no more. */
void websocket_resume(struct kiln_ws *ws);
/* Nothing reaches the owner in between. */
void websocket_park(struct kiln_ws *ws);
void websocket_unpark(struct kiln_ws *ws);

/* A message in memory of its own, which the caller frees; NUL behind its last byte. NULL: no memory. */
uint8_t *websocket_keep(struct kiln_ws *ws, const struct ws_item *item);

/* ---- of a loop ----------------------------------------------------------------------------------- */

/* Contexts for compression of this loop. */
struct ws_pool *websocket_pool(struct loop *loop);
/* The loop has ended. */
void websocket_loop_free(struct loop *loop);
/* The worker drains: sockets are closed with `code` (1001, 1012) a little before that time
 * (clock of loop_now_ms). Before conn_shutdown_all(); any thread. */
void websocket_drain(uint64_t until_ms, unsigned code);
/* WebSocketCloseOnChange: calls of a function for each open socket of the loop. */
void websocket_each(struct loop *loop, void (*fn)(struct kiln_ws *ws, void *arg), void *arg);

#endif
