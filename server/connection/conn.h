/* DESIGN: a connection is a transport (plain or TLS) below a protocol (HTTP/1, later
 * HTTP/2 and WebSocket), each behind one vtable. The protocol is handed bytes and hands
 * back vectors; only the transport's backend calls recv, send or sendfile. Output is
 * gathered while input is processed and leaves with one system call per event (cork).
 * An idle connection holds this struct and nothing else: buffers come and go. */
#ifndef KILN_CONNECTION_CONN_H
#define KILN_CONNECTION_CONN_H

#include "base/str.h"
#include "loop/loop.h"

#include <sys/socket.h>
#include <sys/types.h>

struct conn;

enum conn_close_reason {
    CONN_CLOSE_PEER, /* orderly end by the peer */
    CONN_CLOSE_LOCAL, /* we are done */
    CONN_CLOSE_TIMEOUT,
    CONN_CLOSE_ERROR, /* reset, broken pipe, protocol error */
    CONN_CLOSE_SHUTDOWN, /* server stops */
};

struct protocol {
    const char *name; /* "http/1.1" */
    /* False: refuse the connection. Sets conn->proto. */
    bool (*on_open)(struct conn *conn);
    /* Bytes in order; valid only during the call. The protocol copies what it keeps.
     * May close the connection (conn_is_closed() afterwards). */
    void (*on_data)(struct conn *conn, const uint8_t *data, size_t len);
    /* Where the protocol would have its next bytes, and *cap, how many; on_data follows with them. NULL, also for
     * the function: anywhere. Plain connections only. */
    uint8_t *(*room)(struct conn *conn, size_t *cap);
    /* The peer will send no more. */
    void (*on_eof)(struct conn *conn);
    /* Everything queued was handed to the kernel, after conn_write() had to queue. */
    void (*on_drained)(struct conn *conn);
    /* conn_deadline_set()'s time has passed. */
    void (*on_deadline)(struct conn *conn);
    /* The server drains: finish what runs, then close. */
    void (*on_shutdown)(struct conn *conn);
    /* Last call; the protocol frees conn->proto. */
    void (*on_close)(struct conn *conn, enum conn_close_reason reason);
};

struct address {
    uint8_t family; /* AF_INET, AF_INET6, AF_UNIX */
    uint16_t port; /* host order */
    uint8_t ip[16]; /* IPv4 in the first four bytes; mapped IPv4 is unmapped */
};

void address_from_sockaddr(struct address *address, const struct sockaddr_storage *from);

/* Writes "192.0.2.1" or "2001:db8::1" ("unix" for AF_UNIX), NUL-terminated. */
enum { ADDRESS_TEXT = 46 };
size_t address_text(const struct address *address, char out[ADDRESS_TEXT]);

struct output;
struct listener;
struct iovec;

/* Below the protocol: moves bytes. Results as of recv and send: -1 with errno, 0 from
 * receive is the peer's orderly end. Fewer bytes than asked for mean that the kernel has no more
 * for now, or takes no more; where receive stops before that, it sets conn->input_held. */
struct transport {
    const char *name;
    bool secure;
    ssize_t (*receive)(struct conn *conn, void *to, size_t cap);
    /* `more`: further output follows at once. */
    ssize_t (*send)(struct conn *conn, const struct iovec *vectors, int count, bool more);
    ssize_t (*send_file)(struct conn *conn, int fd, off_t offset, size_t len);
    /* The socket takes bytes again that the transport waits to send; see conn_transport_waits(). False:
     * the connection has failed. NULL when it never has any of its own. */
    bool (*resume)(struct conn *conn);
    /* Before the socket is half-closed (TLS sends its close_notify). */
    void (*shutdown)(struct conn *conn);
    void (*close)(struct conn *conn);
};

extern const struct transport transport_plain; /* plain.c */
extern const struct transport transport_tls; /* tls.c */

struct conn {
    struct watch watch;
    const struct transport *transport;
    const struct protocol *protocol;
    void *proto; /* the protocol's state */
    void *transport_state;
    struct loop *loop;
    struct output *out; /* queued output, NULL when none */
    const struct listener *listener;
    struct list node; /* in the loop's list of connections */
    struct timer timer;
    struct task flush_task;
    struct task end_task;
    uint64_t deadline_ms; /* 0: none */
    struct address peer;
    uint8_t finishing; /* enum conn_close_reason + 1 once conn_finish was called */
    bool flush_queued : 1;
    bool in_event : 1;
    bool in_flush : 1; /* the queue is being sent from; release functions may run */
    bool write_failed : 1; /* memory ran out: the next flush closes the connection */
    bool read_paused : 1;
    bool read_missed : 1; /* something arrived meanwhile, and will not be reported again by itself */
    bool eof_seen : 1;
    bool lingering : 1;
    bool want_drained : 1;
    bool input_held : 1; /* set by the transport: call receive again, no readiness will announce it */
    bool transport_waits : 1; /* it has bytes of its own, not of the queue, that the kernel did not take */
    bool closed : 1;
};

/* Takes over an accepted socket (closes it on failure). */
struct conn *conn_open(struct loop *loop, int fd, const struct listener *listener, const struct transport *transport,
                       const struct protocol *protocol, const struct sockaddr_storage *peer);

/* DESIGN: a tunnel is a byte stream inside another connection (a WebSocket in a stream of HTTP/2), with
 * the same face to its protocol as a connection: output queue, back-pressure, deadlines, orderly end. It has
 * no socket. Its transport sends into the stream, hands in what comes with conn_feed() until `read_paused`,
 * calls conn_flush() when there is room again, and is asked for more (receive, which gives EAGAIN) when
 * reading resumes. It is not counted as a connection. conn->protocol is the caller's to set before
 * anything else happens. NULL: no memory. */
struct conn *conn_open_tunnel(struct conn *through, const struct transport *transport, void *transport_state);
/* For its transport: bytes that came, valid during the call; the orderly end. */
void conn_feed(struct conn *conn, const uint8_t *data, size_t len);
void conn_feed_end(struct conn *conn);

/* All of these may be called only on the connection's loop thread. A write on a closed or
 * finishing connection is dropped and its release function runs. Writing never closes the
 * connection (so nobody's request goes in mid-sentence): when memory runs out, the next
 * flush does. conn_flush, conn_finish and conn_close may call on_close before they return.
 * A release function may write, and may close or finish the connection. */

/* Copies the bytes. */
void conn_write(struct conn *conn, const void *data, size_t len);
/* Room for `len` bytes at the end of the output to format into directly; the caller must
 * conn_commit() the number used before any other call. NULL when out of memory. */
char *conn_reserve(struct conn *conn, size_t len);
void conn_commit(struct conn *conn, size_t len);
/* As conn_write() of each, but behind no other output they are offered to the kernel where they lie, and only what
 * it does not take is copied. For long data: short ones leave together at the end of the event. */
void conn_write_now(struct conn *conn, const struct iovec *vectors, int count);
/* Outside of an event: what is written between these two leaves at once, with one system call. False: it leaves as
 * usual, and conn_uncork() is not called. It may close the connection. */
bool conn_cork(struct conn *conn);
void conn_uncork(struct conn *conn);
/* Keeps a pointer: release(arg) runs when the bytes are no longer needed, also on close. */
void conn_write_ref(struct conn *conn, const void *data, size_t len, void (*release)(void *), void *arg);
/* A part of a file, by sendfile where the transport can. The descriptor stays the
 * caller's until release(arg). A file that turns out shorter closes the connection. */
void conn_write_file(struct conn *conn, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg);
/* Sends what is queued now (it also happens by itself at the end of each event). */
void conn_flush(struct conn *conn);
/* Bytes queued and not yet taken by the kernel. */
size_t conn_pending(const struct conn *conn);
/* on_drained will be called once the queue is empty (at once deferred when it is). */
void conn_notify_drained(struct conn *conn);

/* Back-pressure: no on_data until resumed. Resuming delivers at the next iteration. */
void conn_pause_read(struct conn *conn);
void conn_resume_read(struct conn *conn);

/* One absolute deadline per connection; cheap to move (lazy timer). 0: none. */
void conn_deadline_set(struct conn *conn, uint64_t due_ms);

/* After the queue is sent: half-close, read and drop input for a bounded time, close. */
void conn_finish(struct conn *conn, enum conn_close_reason reason);
/* As conn_finish, between two exchanges: when nothing is on its way to the peer either, the socket is
 * closed at once. False, and nothing has happened, when input has arrived that on_data is yet to
 * get: a request that would be lost. */
bool conn_finish_idle(struct conn *conn, enum conn_close_reason reason);
/* As conn_close, but the peer sees a reset instead of an orderly end: for an answer whose end
 * is the end of the connection and that cannot be completed. */
void conn_reset(struct conn *conn);
/* Now, dropping queued output; on_close runs before it returns, the memory goes at the
 * end of the iteration. */
void conn_close(struct conn *conn, enum conn_close_reason reason);
static inline bool conn_is_closed(const struct conn *conn)
{
    return conn->closed;
}

/* For the transport: it does, or no longer does, wait for the socket to take bytes of its own. */
void conn_transport_waits(struct conn *conn, bool waits);

/* Calls on_shutdown of every connection of the loop; new ones see
 * conn_loop_is_shutting_down(). */
void conn_shutdown_all(struct loop *loop);
bool conn_loop_is_shutting_down(struct loop *loop);
/* Closes every connection now (the drain time is over). */
void conn_close_all(struct loop *loop);
/* The loop's thread will never run again: tells the peers of all its connections. From another thread. */
void conn_lose_all(struct loop *loop);
/* After the loop has ended: what is kept for reuse. */
void conn_loop_free(struct loop *loop);
/* Number of open connections of the loop, and of the worker. */
unsigned conn_count(const struct loop *loop);
unsigned conn_count_all(void);

#endif
