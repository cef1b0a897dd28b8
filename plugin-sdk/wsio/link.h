/* DESIGN: one WebSocket over one transport, without ever waiting: the protocol core (plugin-sdk/ws) with a socket
 * below it. The stand-alone library and the server's kiln_ws_connect both stand on it; they differ in how they
 * wait (poll, epoll, a coroutine), which is all that is left to them.
 *
 *     DIALING ----\
 *     GREETING -> ASKED -> OPEN -> ENDING -> CLOSED        client above, server below
 *        ^                  |
 *        +---- PAUSED <-----+   reconnection (clients)
 *
 * What it guarantees
 * - Messages come out of wslink_receive() in order; pings are answered, close frames returned, a peer that breaks
 *   the protocol is closed with the code that the core names.
 * - A message stays until the next wslink_receive(), also when a send breaks the connection before that: what
 *   was received is freed by receiving, never by sending.
 * - The end is orderly: both close frames, then what waits is sent, TLS's closing alert and FIN, then reading to
 *   the peer's end for a bounded time. A descriptor is never closed with unread bytes before it, which
 *   would be a reset that could overtake the last message.
 * - Bounded memory: one input buffer of 64 KB while something comes, what the core gathers up to max_message,
 *   what waits to be sent. Answers to pings that a peer does not read are dropped, the RFC allows
 *   that. All of it is the link's. */
#ifndef KILN_WSIO_LINK_H
#define KILN_WSIO_LINK_H

#include "wsio/dial.h"

enum { LINK_INPUT = 65536, LINK_PONGS = 65536 };

enum wslink_state {
    WSLINK_DIALING,
    WSLINK_PAUSED,
    WSLINK_GREETING,
    WSLINK_ASKED,
    WSLINK_OPEN,
    WSLINK_ENDING,
    WSLINK_CLOSED,
};

enum wslink_event {
    WSLINK_NOTHING, /* wait: wslink_fd(), wslink_wants(), wslink_until_us() */
    WSLINK_MESSAGE,
    WSLINK_OVER, /* no message comes any more */
};

/* Times in microseconds. */
struct wslink_limits {
    uint64_t send_queue;
    uint64_t close_us;
    uint64_t ping_us; /* 0: none */
    uint64_t pause_min_us;
    uint64_t pause_max_us;
    int connect_ms;
    int reconnect;
};

/* How a server receives those who ask; outlives its links. */
struct wslink_manners {
    SSL_CTX *context; /* NULL: plain */
    const char *page; /* HTML for a GET that is no WebSocket; NULL: 426 */
    const char *const *origins;
    size_t origin_count;
    int timeout_ms;
    struct ws_deflate_policy deflate;
};

struct link {
    enum wslink_state state;
    struct plan *plan; /* NULL: not a client that dials */
    struct dial *dial;
    struct carrier transport;
    struct ws core;
    struct ws_settings settings;
    struct ws_pool *pool;
    bool owns_pool;
    bool threads; /* names are looked up on threads */
    bool needs_preparation; /* dial->preparation: preparation_run() where blocking is allowed, then a step */
    bool corked; /* small messages wait for wslink_flush() */
    bool user_closed; /* our side asked for the end */
    bool pinged;
    bool fin_sent;
    bool fin_came; /* while ending: the peer sends nothing more, but may still take what waits */
    bool stale; /* what was received is of a connection that is gone */
    bool in_borrowed; /* `in` is `space` of a loop */
    bool more; /* receiving stopped although there is more */
    unsigned reads; /* that a loop allows until its next turn for this one: none after a read that took all */
    bool read_write; /* reading waits for writing (TLS) */
    bool stalled; /* the kernel took no more of `out` */
    struct wslink_limits limits;
    uint8_t *in;
    struct ws_input input; /* what of `in` is not used */
    uint8_t *nul_at; /* where a NUL was put behind a message, and what stood there */
    uint8_t nul_was;
    struct {
        uint8_t *data;
        size_t at;
        size_t len;
        size_t cap;
    } out;
    uint64_t heard_us; /* last byte of the peer */
    uint64_t end_by_us; /* of the closing */
    uint64_t again_at_us; /* of a pause */
    unsigned tries; /* in a row */
    unsigned connections;
    unsigned losses; /* connections that ended before all was sent */
    uint64_t pongs;
    uint64_t ping_sent_us;
    int64_t ping_took_us; /* -1: none */
    int close_code;
    char close_reason[WS_CONTROL_MAX];
    char *head; /* the peer's part of the handshake; NULL: none */
    size_t head_size;
    bool head_is_request;
    size_t greeted; /* bytes in `head` while it comes in; afterwards those behind it, until it is accepted */
    const struct wslink_manners *manners;
    char *protocol;
    int status;
    kiln_ws_times times;
    char peer[80];
    char error[URL_ERROR_MAX];
    void (*on_open)(struct link *link); /* may be NULL */
    void (*on_pong)(struct link *link, const struct ws_item *item); /* may be NULL */
};

/* The limits and settings of `options`; `pool` NULL: one of its own. Nothing is allocated. */
void wslink_init(struct link *link, const kiln_ws_options *options, struct ws_pool *pool);
/* A client; takes the reference of the plan. */
void wslink_dial(struct link *link, struct plan *plan);
/* A connected descriptor; the handshake is behind it. */
void wslink_open(struct link *link, int fd, enum ws_role role);
/* A server's: wslink_greet.c. False: no memory. */
bool wslink_greet(struct link *link, int fd, const struct wslink_manners *manners);
void wslink_greet_step(struct link *link);

/* Goes on as far as it can without waiting. */
void wslink_step(struct link *link);
/* The next message, until the next call; steps an open link as well. But connecting and the taking of requests are
 * wslink_step()'s alone, whose caller then sees that it is open, or answers: happening here, after the caller has
 * looked, it would be seen by nobody, since no event comes again. `space` (may be NULL): LINK_INPUT + 1
 * bytes for the time of the call, all of whose messages must be taken before another link uses it. With it,
 * link->reads says how often is read: a peer that sends without end is no reason to forget others, and after a read that
 * took all the loop's epoll tells of what comes, of an end too. */
enum wslink_event wslink_receive(struct link *link, struct ws_item *item, uint8_t *space);
int wslink_fd(const struct link *link);
int wslink_wants(const struct link *link);
/* When wslink_step() has something to do anyway; UINT64_MAX: never. */
uint64_t wslink_until_us(const struct link *link);
/* The epoll descriptor that knows wslink_fd(), plus one, or 0: set by whoever has told it, and made to forget before the
 * descriptor is closed. Closing alone is not enough: a child of fork(2) may still hold the same socket, whose events
 * would go on naming what is freed here. */
int *wslink_watcher(struct link *link);

/* A kiln_result. KILN_TOO_LARGE where more than send_queue waits and the kernel takes nothing. */
int wslink_send(struct link *link, int type, const void *data, size_t len);
int wslink_send_part(struct link *link, int type, const void *data, size_t len, bool final);
int wslink_ping(struct link *link, const void *data, size_t len); /* its answer's time is taken */
int wslink_ping_alive(struct link *link); /* not of this one's */
int wslink_close(struct link *link, int code, const char *reason);
static inline size_t wslink_pending(const struct link *link)
{
    return link->out.len;
}
/* Sends what waits; false: the connection is broken. */
bool wslink_flush(struct link *link);

/* What a server answers; wslink_greet.c. */
int wslink_accept(struct link *link, const char *protocol);
int wslink_refuse(struct link *link, int status, const char *detail);
struct ws_headers wslink_headers(const struct link *link, struct ws_head *space);

/* The connection is gone, or given up: 1006, or a pause before the next. */
void wslink_broken(struct link *link, const char *why);
/* Frees what was received over a connection that is gone. */
void wslink_forget(struct link *link);
/* The core is ready for `agreed`; head and what follows it are taken over. */
void wslink_begin(struct link *link, enum ws_role role, const struct ws_deflate *agreed, const char *rest,
                  size_t rest_len);
/* Sends what waits, then ends as written above. */
void wslink_end(struct link *link);
bool wslink_queue(struct link *link, const void *data, size_t len);
void wslink_free(struct link *link);

#endif
