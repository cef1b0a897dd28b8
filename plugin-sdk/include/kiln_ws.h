/* kiln_ws.h: WebSockets for programs of their own, by libkilnws, the library beside the Kiln server. Client and
 * server, blocking or not, over plain TCP and TLS, directly or through a proxy.
 *
 * A CLIENT
 *     #include <kiln_ws.h>
 *     kiln_ws *ws = kiln_ws_connect("wss://example.com/chat", NULL);
 *     kiln_ws_message m;
 *     kiln_ws_send_text(ws, "hello");
 *     while (kiln_ws_recv(ws, &m) > 0) {
 *         printf("%.*s\n", (int)m.length, m.data);
 *     }
 *     kiln_ws_free(ws);
 *
 * A SERVER
 *     static void serve(kiln_ws *ws, void *user)        every WebSocket, a thread each
 *     {
 *         kiln_ws_message m;
 *         while (kiln_ws_recv(ws, &m) > 0) {
 *             kiln_ws_send(ws, m.type, m.data, m.length);
 *         }
 *     }
 *     kiln_ws_serve(&(kiln_ws_listen_options){.port = 8080}, serve, NULL);
 *
 * Build with `cc program.c $(pkg-config --cflags --libs kilnws)`.
 *
 * ONE FAMILY WITH kiln.h. What an endpoint of the server calls kiln_ws_recv, kiln_ws_send, kiln_ws_close ... has the
 * same name, arguments, results and meaning here; that part stands first. An endpoint uses kiln.h alone, a
 * program uses kiln_ws.h alone: never link an endpoint with libkilnws.
 *
 * FOUR WAYS TO USE A SOCKET
 * 1. Blocking: kiln_ws_connect, kiln_ws_listen, kiln_ws_serve. Calls marked WAITS block the thread.
 * 2. In a loop of your own: kiln_ws_open, and kiln_ws_fd, kiln_ws_wanted, kiln_ws_timeout, kiln_ws_step. Nothing WAITS.
 * 3. In the ready epoll loop: kiln_ws_loop_*, with callbacks, for many connections on one thread.
 * 4. As a stream of bytes that reads and writes like a file: kiln_ws_stream_*, which can be stacked.
 *
 * THREADS. A blocking socket may be used by two threads at once, one that receives and one that sends (also pings
 * and closes); senders wait for each other. Both may ask for its state, codes, counts and error, and set its
 * deadline. Every other object belongs to one thread at a time; different objects are independent.
 * kiln_ws_loop_stop, kiln_ws_loop_post and kiln_ws_listener_close may be called from anywhere.
 *
 * MEMORY. What a function returns as a new object is freed by the function named there. Strings and bytes that
 * you pass are copied, or used up, before the call returns, unless the line says otherwise. What is returned
 * as `const char *` belongs to the object.
 *
 * RESULTS. As in kiln.h: KILN_OK (0) or a negative enum kiln_result. What went wrong stands as a sentence in
 * kiln_ws_error(), or in options->error when there is no object. The library prints nothing, installs
 * no signal handler and raises no SIGPIPE.
 *
 * UNITS. Sizes are bytes, times milliseconds; 0 in an options structure is the default named there.
 *
 * VERSIONS. Everything here is since 1.0 unless a line says otherwise. Zero an options structure as a whole
 * ({0} or designated initialisers): later versions take members from `reserved`. */
#ifndef KILN_WS_H
#define KILN_WS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== shared with kiln.h ============================================================================= */
#ifndef KILN_WS_SHARED
#define KILN_WS_SHARED

#define KILN_API __attribute__((visibility("default")))
#define KILN_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))

typedef struct kiln_ws kiln_ws; /* one WebSocket */

enum kiln_result {
    KILN_OK = 0,
    KILN_GONE = -1, /* the socket is closed */
    KILN_TIMEOUT = -2, /* the time given has passed; or nothing is there and the socket does not block */
    KILN_TOO_LARGE = -3, /* more than send_queue bytes wait already, or a line longer than the room for it */
    KILN_NO_MEMORY = -4, /* no memory, no descriptor, no thread */
    KILN_INVALID = -5, /* an argument that cannot be, text that is not UTF-8 */
    KILN_NOT_FOUND = -6, /* absent */
    KILN_LATE = -7, /* too late, or not the time for it */
    KILN_FAILED = -8 /* anything else; kiln_ws_error() tells */
};

enum kiln_events { KILN_READ = 1, KILN_WRITE = 2, KILN_HANGUP = 4 /* only reported */ };

enum kiln_ws_type { KILN_WS_TEXT = 1, KILN_WS_BINARY = 2 };

typedef struct kiln_ws_message {
    int type; /* enum kiln_ws_type */
    int reserved;
    const char *data; /* a NUL follows; valid until the next receiving call or kiln_ws_step or, in callbacks, until
                         the callback returns; whatever is sent meanwhile */
    size_t length;
} kiln_ws_message;

/* What kiln_ws_options.deflate says. */
enum kiln_ws_deflate {
    KILN_WS_DEFLATE = 1, /* offer permessage-deflate */
    KILN_WS_DEFLATE_FORGET = 2 /* offer it without history from message to message: less memory, larger messages */
};

/* How to connect. Every member may be 0. */
typedef struct kiln_ws_options {
    const char *const *protocols; /* subprotocols offered, the liked ones first; ends with NULL */
    const char *const *headers; /* further headers, each "Name: value"; ends with NULL */
    const char *origin; /* Origin header */
    const char *proxy; /* "http://user:password@host:port" (CONNECT), "socks5://..." or "socks5h://..." (both send
                          the name and not an address); NULL: none; "" is one too */
    const char *ca_file; /* PEM file or directory of the authorities that are trusted, instead of the system's */
    const char *cert_file; /* client certificate and its chain, PEM */
    const char *key_file; /* its key; NULL: in cert_file */
    const char *server_name; /* the name that the certificate must have, and that is asked for; NULL: the URL's host */
    int insecure; /* 1: any certificate is accepted. Whoever sits between reads and writes everything. */
    int deflate; /* enum kiln_ws_deflate; 0: none */
    int deflate_bits; /* 8 to 15: window of both sides; 0: 15 */
    int deflate_min; /* shorter messages are sent as they are; 0: 64 */
    int64_t max_message; /* largest message received; 0: 64 MiB; negative: no limit. Larger: closed with 1009 */
    int64_t send_queue; /* bytes that may wait where a send does not; 0: 16 MiB */
    int connect_timeout; /* name, TCP, proxy, TLS and handshake together; 0: 30000; negative: none */
    int close_timeout; /* for the peer's part of the closing; 0: 5000 */
    int ping_interval; /* silence after which a ping goes out; 0: none. Without an answer in as long again
                          the connection ends with 1006, unless the peer takes what waits for it. In the ready
                          loop to the second */
    int reconnect; /* after the connection breaks (not after an orderly close with 1000, nor a refusal with 4xx): how
                      often in a row it is tried to connect again, the first time included; 0: not at all; negative:
                      for ever. It is done within the calls that receive, and kiln_ws_step and the ready loop */
    int reconnect_min; /* first pause; it doubles, with a random part; 0: 500 */
    int reconnect_max; /* longest pause; 0: 30000 */
    void (*connected)(kiln_ws *ws, void *user); /* after each handshake, the first included: subscribe here again.
                                                   It may send, not receive. May be NULL */
    void *user; /* for `connected` */
    char *error; /* why it failed, as a sentence with a NUL, when the call returns NULL */
    size_t error_size; /* room at `error` */
    void *reserved[8]; /* NULL */
} kiln_ws_options;

/* Connects and WAITS until the handshake is done. `options` may be NULL. NULL: see options->error. Free with
 * kiln_ws_free. */
KILN_API kiln_ws *kiln_ws_connect(const char *url, const kiln_ws_options *options);

/* A server's side. 1 when the client offers this subprotocol. */
KILN_API int kiln_ws_offers(kiln_ws *ws, const char *protocol);
/* A server's side: answers the handshake; `protocol` (may be NULL) must have been offered: KILN_INVALID. The first
 * call that sends or receives does the same without a subprotocol. KILN_LATE when it is answered. */
KILN_API int kiln_ws_accept(kiln_ws *ws, const char *protocol);
/* A server's side: answers with an HTTP error instead (400 to 599); `detail` (may be NULL) is its text. */
KILN_API int kiln_ws_refuse(kiln_ws *ws, int status, const char *detail);

/* WAITS for a whole message. 1 with *message set; 0 when the socket is closed, see kiln_ws_close_code. */
KILN_API int kiln_ws_recv(kiln_ws *ws, kiln_ws_message *message);
/* The same, KILN_TIMEOUT when none has come in that time; 0 ms looks without waiting. */
KILN_API int kiln_ws_recv_timeout(kiln_ws *ws, kiln_ws_message *message, unsigned milliseconds);
/* The messages' contents as one stream of bytes: WAITS for at least one and copies up to `size`. Returns
 * how many, 0 when the socket is closed, or a negative kiln_result. */
KILN_API ssize_t kiln_ws_read(kiln_ws *ws, void *buffer, size_t size);
/* From now on every wait of this socket ends with KILN_TIMEOUT once this time has passed; negative: none. Another
 * thread's wait that has begun ends within a second after it. */
KILN_API int kiln_ws_deadline(kiln_ws *ws, int64_t milliseconds);

/* One message; `type` is an enum kiln_ws_type. WAITS until the kernel has taken it: where both sides only send and nobody
 * reads, both wait, so read on another thread, or set a deadline; after KILN_TIMEOUT the message still goes out, while
 * somebody receives. A socket that does not block never waits: KILN_TOO_LARGE, and nothing is sent, when
 * options->send_queue bytes wait already. KILN_OK; KILN_GONE when it is closed, or broke before all was taken;
 * KILN_INVALID for text that is not UTF-8; KILN_LATE while it connects. */
KILN_API int kiln_ws_send(kiln_ws *ws, int type, const void *data, size_t length);
/* The same with a text that ends with a NUL. */
KILN_API int kiln_ws_send_text(kiln_ws *ws, const char *text);
/* The same with a text that is made as printf(3) does. */
KILN_API int kiln_ws_printf(kiln_ws *ws, const char *format, ...) KILN_PRINTF(2, 3);
/* A message in parts, each sent at once as a fragment; `final` ends it. Meanwhile kiln_ws_send gives
 * KILN_LATE. Text may be cut anywhere. */
KILN_API int kiln_ws_send_part(kiln_ws *ws, int type, const void *data, size_t length, int final);
/* Bytes of a stream, as a binary message: the other end of kiln_ws_read. */
KILN_API int kiln_ws_write(kiln_ws *ws, const void *data, size_t length);
/* A ping of up to 125 bytes. kiln_ws_pongs counts the answers. */
KILN_API int kiln_ws_ping(kiln_ws *ws, const void *data, size_t length);
/* Bytes that wait for the peer in this process. */
KILN_API size_t kiln_ws_pending(const kiln_ws *ws);

/* Closes with a code (1000 to 1003, 1007 to 1014, 3000 to 4999) and a reason of up to 123 bytes (may be
 * NULL). What was sent before still arrives; nothing is received any more. */
KILN_API int kiln_ws_close(kiln_ws *ws, int code, const char *reason);
/* 0 while it is open; the code that the peer sent; 1005: it sent none; 1006: the connection broke. When this
 * side found a fault of the peer, the code that it sent for it: 1002, 1007, 1009. */
KILN_API int kiln_ws_close_code(const kiln_ws *ws);
/* The peer's reason, "" when it gave none. Valid as long as the socket. */
KILN_API const char *kiln_ws_close_reason(const kiln_ws *ws);

/* For loops: each member may be NULL. Not copied: make it static. */
typedef struct kiln_ws_handler {
    void (*open)(kiln_ws *ws, void *user); /* the handshake is done; again after each new connection */
    void (*message)(kiln_ws *ws, const kiln_ws_message *message, void *user);
    void (*drain)(kiln_ws *ws, void *user); /* all was sent, after a send that gave KILN_TOO_LARGE */
    void (*close)(kiln_ws *ws, int code, const char *reason, void *user); /* the last, always; free user here */
    void *reserved[4]; /* NULL */
} kiln_ws_handler;

#endif /* KILN_WS_SHARED */

/* "1.0.0": of the library that is loaded. Static. */
KILN_API const char *kiln_ws_version(void);

/* ==== one socket ======================================================================================= */

/* Ends it and frees it; NULL is nothing. A blocking socket that is still open is closed with 1000, and the call
 * WAITS until what was sent has arrived and the peer has closed, close_timeout at most. One that does
 * not block is cut off when it is not closed yet. No other thread may be in a call for it, nor come to one later: close
 * it, which ends a wait of another thread, join that thread, then free. */
KILN_API void kiln_ws_free(kiln_ws *ws);
/* Why it is closed or could not be connected, as a sentence; "" when all is well. Valid until the next call. */
KILN_API const char *kiln_ws_error(const kiln_ws *ws);
/* The subprotocol that was agreed on, NULL for none. */
KILN_API const char *kiln_ws_protocol(const kiln_ws *ws);
/* 1 when messages may be compressed. */
KILN_API int kiln_ws_is_compressed(const kiln_ws *ws);
/* Header of the handshake that the peer sent, by name in any case; NULL: absent. */
KILN_API const char *kiln_ws_header(const kiln_ws *ws, const char *name);
/* HTTP status of the server's answer to the handshake; 0: none came. */
KILN_API int kiln_ws_status(const kiln_ws *ws);
/* A server's side: "/chat?x=1", as it was asked for. A client's: of the URL. */
KILN_API const char *kiln_ws_target(const kiln_ws *ws);
/* Of the peer (of the proxy, when there is one): "192.0.2.1:443" or "[2001:db8::1]:443". */
KILN_API const char *kiln_ws_peer(const kiln_ws *ws);
/* "TLSv1.3 TLS_AES_256_GCM_SHA384"; NULL without TLS. */
KILN_API const char *kiln_ws_tls(const kiln_ws *ws);
/* How many pongs have come; *microseconds (may be NULL): from the last ping of kiln_ws_ping to its pong. */
KILN_API uint64_t kiln_ws_pongs(const kiln_ws *ws, int64_t *microseconds);
/* How often it has connected: above 1 after a reconnection. */
KILN_API unsigned kiln_ws_connections(const kiln_ws *ws);
/* When the parts of connecting were done, in microseconds from its start; 0: not done, or not needed. */
typedef struct kiln_ws_times {
    int64_t name; /* the address is known */
    int64_t tcp;
    int64_t proxy;
    int64_t tls;
    int64_t handshake;
    int64_t reserved[3];
} kiln_ws_times;
/* A client's, of the last connection. */
KILN_API void kiln_ws_timing(const kiln_ws *ws, kiln_ws_times *times);
/* A pointer of yours, which the library hands to callbacks and does not touch otherwise; NULL at first. */
KILN_API void kiln_ws_set_user(kiln_ws *ws, void *user);
/* The pointer that was set. */
KILN_API void *kiln_ws_user(const kiln_ws *ws);

/* ---- in a loop of your own
 *
 *     ws = kiln_ws_open(url, options);
 *     for (;;) {
 *         poll kiln_ws_fd(ws) for kiln_ws_wanted(ws), at most kiln_ws_timeout(ws)
 *         if (kiln_ws_step(ws) == KILN_WS_CLOSED) break;
 *         while (kiln_ws_recv(ws, &m) > 0) ...
 *     }
 */

enum kiln_ws_state {
    KILN_WS_CONNECTING = 1, /* also between two connections, with options->reconnect */
    KILN_WS_OPEN,
    KILN_WS_CLOSING, /* a close frame was sent or received */
    KILN_WS_CLOSED /* free it */
};

/* Begins to connect and returns at once, with a socket that does not block: kiln_ws_recv gives KILN_TIMEOUT where it
 * would wait. Names are looked up on a thread of the library. NULL: arguments that cannot be, or no
 * memory; see options->error. Free with kiln_ws_free. */
KILN_API kiln_ws *kiln_ws_open(const char *url, const kiln_ws_options *options);
/* The descriptor to wait for; -1: none, only time. Ask again after each step: it changes while connecting. */
KILN_API int kiln_ws_fd(const kiln_ws *ws);
/* enum kiln_events to wait for. */
KILN_API int kiln_ws_wanted(const kiln_ws *ws);
/* Time after which kiln_ws_step is to be called whatever the descriptor says; negative: none. */
KILN_API int kiln_ws_timeout(const kiln_ws *ws);
/* Does what can be done without waiting: connects (only this does), sends what waits, keeps the times. Receive
 * afterwards until nothing is there, which also answers pings. Returns the enum kiln_ws_state. */
KILN_API int kiln_ws_step(kiln_ws *ws);
/* The enum kiln_ws_state, without doing anything. */
KILN_API int kiln_ws_state(const kiln_ws *ws);
/* Whether calls marked WAITS do. On: from kiln_ws_connect and kiln_ws_listener_accept. */
KILN_API void kiln_ws_set_blocking(kiln_ws *ws, int on);

/* ---- of a descriptor that you have: server to server, inherited sockets, socketpair(2) */

enum kiln_ws_role { KILN_WS_ROLE_SERVER = 0, KILN_WS_ROLE_CLIENT = 1 };
/* A connected stream socket becomes a WebSocket without any handshake: both programs have agreed already. The
 * descriptor is the library's from here, also when the call fails. Free with kiln_ws_free. */
KILN_API kiln_ws *kiln_ws_adopt(int fd, int role, const kiln_ws_options *options);
/* Two that are connected with each other, in one program or to be shared by fork: ends[0] in the role of the
 * server. KILN_OK or KILN_NO_MEMORY. */
KILN_API int kiln_ws_pair(kiln_ws *ends[2], const kiln_ws_options *options);

/* ---- reading and writing halves: one thread has each, and nothing else to do with the other */

typedef struct kiln_ws_reader kiln_ws_reader;
typedef struct kiln_ws_writer kiln_ws_writer;
/* The socket belongs to its halves from here: do not use `ws` any more. It is closed as by kiln_ws_free
 * when the second half is freed. KILN_OK or KILN_NO_MEMORY (then `ws` is as it was). */
KILN_API int kiln_ws_split(kiln_ws *ws, kiln_ws_reader **reader, kiln_ws_writer **writer);
KILN_API int kiln_ws_reader_recv(kiln_ws_reader *reader, kiln_ws_message *message); /* as kiln_ws_recv */
KILN_API ssize_t kiln_ws_reader_read(kiln_ws_reader *reader, void *buffer, size_t size); /* as kiln_ws_read */
KILN_API int kiln_ws_reader_close_code(const kiln_ws_reader *reader); /* as kiln_ws_close_code */
KILN_API void kiln_ws_reader_free(kiln_ws_reader *reader); /* while the writer lives nothing is read, not even pings */
KILN_API int kiln_ws_writer_send(kiln_ws_writer *writer, int type, const void *data,
                                 size_t length); /* as kiln_ws_send */
KILN_API int kiln_ws_writer_write(kiln_ws_writer *writer, const void *data, size_t length); /* as kiln_ws_write */
KILN_API int kiln_ws_writer_close(kiln_ws_writer *writer, int code, const char *reason); /* as kiln_ws_close */
KILN_API void kiln_ws_writer_free(kiln_ws_writer *writer); /* closes with 1000 when it is still open */

/* ==== streams: bytes, like a file ======================================================================== */

typedef struct kiln_ws_stream kiln_ws_stream;

/* One layer. `self` is the layer's own; below lies whatever it keeps there. Results as of the kiln_ws_stream_
 * functions of the same name. */
typedef struct kiln_ws_layer {
    ssize_t (*read)(void *self, void *buffer, size_t size); /* at least one byte; 0: the end */
    int (*write)(void *self, const void *data, size_t length); /* all of it */
    int (*flush)(void *self); /* what it holds back goes out; NULL: it holds nothing back */
    int (*close)(void *self); /* nothing is written any more; reading goes on to the end */
    void (*free)(void *self); /* frees what lies below as well */
    void *reserved[4]; /* NULL */
} kiln_ws_layer;

/* A stream on a blocking socket, which belongs to it from here. Written bytes are gathered and go out as binary
 * messages when 64 KB are there, at kiln_ws_stream_flush, and before a read that has to wait and finds nobody else
 * writing; read bytes are those of all messages in a row. One thread may read while another writes. NULL:
 * no memory. Free with kiln_ws_stream_free. */
KILN_API kiln_ws_stream *kiln_ws_stream_open(kiln_ws *ws);
/* A stream on a layer of yours (encryption, compression, counting), which usually keeps another stream as what
 * lies below: so streams are stacked. `layer` is not copied: make it static. NULL: no memory (then
 * layer->free has been called). */
KILN_API kiln_ws_stream *kiln_ws_stream_wrap(const kiln_ws_layer *layer, void *self);
/* WAITS for at least one byte and returns how many came, up to `size`; 0 at the end; a negative kiln_result. */
KILN_API ssize_t kiln_ws_stream_read(kiln_ws_stream *stream, void *buffer, size_t size);
/* Exactly `size` bytes: KILN_OK; KILN_GONE when the end came first. */
KILN_API int kiln_ws_stream_read_all(kiln_ws_stream *stream, void *buffer, size_t size);
/* A line of at most size - 1 bytes with its '\n' (the last may lack it) and a NUL: its length; 0 at the end;
 * KILN_TOO_LARGE for a longer one, of which nothing is used up. `size` is at most 32768. */
KILN_API ssize_t kiln_ws_stream_read_line(kiln_ws_stream *stream, char *buffer, size_t size);
/* All of it, or an error. Gathered: see above. */
KILN_API int kiln_ws_stream_write(kiln_ws_stream *stream, const void *data, size_t length);
/* The same with a text that is made as printf(3) does. */
KILN_API int kiln_ws_stream_printf(kiln_ws_stream *stream, const char *format, ...) KILN_PRINTF(2, 3);
/* WAITS until all that was written is out, through all layers. KILN_OK, or why writing has failed, for good. */
KILN_API int kiln_ws_stream_flush(kiln_ws_stream *stream);
/* Flushes, and tells the peer that nothing more comes: it reads the end, as we do when it has closed too. On a
 * WebSocket that is its close with 1000, after which the rest of what the peer sent is lost. */
KILN_API int kiln_ws_stream_close(kiln_ws_stream *stream);
/* Flushes, closes and frees all layers. */
KILN_API void kiln_ws_stream_free(kiln_ws_stream *stream);
/* The same as a FILE, for fprintf, fgets and fread; fclose frees the stream. NULL: no memory. */
KILN_API FILE *kiln_ws_stream_file(kiln_ws_stream *stream);

/* ==== servers ================================================================================================ */

typedef struct kiln_ws_listener kiln_ws_listener;

typedef struct kiln_ws_listen_options {
    const char *address; /* "127.0.0.1", "::", a host name; NULL: all of IPv4 and IPv6 */
    int port; /* 0: any that is free, see kiln_ws_listener_port */
    int backlog; /* 0: 511 */
    const char *cert_file; /* PEM: makes it wss */
    const char *key_file; /* NULL: in cert_file */
    const char *client_ca_file; /* PEM: clients must have a certificate of these */
    const char *const *protocols; /* subprotocols, the liked ones first, chosen by themselves; ends with NULL */
    const char *const *origins; /* pages of other hosts that may connect: "*", "https://example.com", with a star for
                                   what comes before ".example.com"; ends with NULL. NULL: only the same host */
    const char *page; /* HTML that answers a GET that is no WebSocket; NULL: 426 */
    int connections; /* most at a time for kiln_ws_serve and loops; 0: 1000. More wait in the kernel */
    int handshake_timeout; /* TLS and request head; 0: 10000 */
    int reuse_port; /* 1: others of this user that say so too may listen at the same port; the kernel spreads
                       connections over them */
    void (*handshake)(kiln_ws *ws, void *user); /* a request is here: kiln_ws_target, kiln_ws_header and kiln_ws_offers
                                                   tell, kiln_ws_accept or kiln_ws_refuse answers; when it answers
                                                   nothing, the request is accepted. May be NULL */
    kiln_ws_options ws; /* of each socket: deflate, max_message, send_queue, close_timeout, ping_interval; error */
    void *reserved[8]; /* NULL */
} kiln_ws_listen_options;

/* Binds and listens. NULL: see options->ws.error. Free with kiln_ws_listener_free. */
KILN_API kiln_ws_listener *kiln_ws_listen(const kiln_ws_listen_options *options);
/* The port it listens at: the one that was found, for port 0. */
KILN_API int kiln_ws_listener_port(const kiln_ws_listener *listener);
/* For a loop of your own: readable when a connection waits. */
KILN_API int kiln_ws_listener_fd(const kiln_ws_listener *listener);
/* WAITS for a connection, for so long at most (negative: for ever), and returns it before its handshake, which
 * runs on the thread that uses it first: kiln_ws_handshake, or any call that sends or receives. NULL: the time
 * has passed, kiln_ws_listener_close was called, or no descriptor is free. Free with kiln_ws_free. */
KILN_API kiln_ws *kiln_ws_listener_accept(kiln_ws_listener *listener, int milliseconds);
/* WAITS for TLS and the request's head: then kiln_ws_target, kiln_ws_header and kiln_ws_offers tell, and
 * kiln_ws_accept or kiln_ws_refuse answers. KILN_OK, or KILN_GONE for what is no handshake: it was answered
 * as HTTP has it. */
KILN_API int kiln_ws_handshake(kiln_ws *ws);
/* Ends kiln_ws_listener_accept and kiln_ws_serve; from any thread, also from a signal handler. */
KILN_API void kiln_ws_listener_close(kiln_ws_listener *listener);
/* Listens no more; NULL is nothing. Sockets that it accepted live on. Not while kiln_ws_listener_accept or
 * kiln_ws_listener_serve runs, nor before a loop that has it is freed. */
KILN_API void kiln_ws_listener_free(kiln_ws_listener *listener);

/* Calls fn(ws, user) for every WebSocket, a thread each; when it returns, the socket is closed and freed as by
 * kiln_ws_free. So a kiln_ws_free inside fn, or the end of a stream on it, only closes. Returns, after
 * kiln_ws_listener_close, when all threads have ended. KILN_OK. */
KILN_API int kiln_ws_listener_serve(kiln_ws_listener *listener, void (*fn)(kiln_ws *ws, void *user), void *user);
/* The three calls in one: listen, serve for ever, free. Returns only KILN_FAILED, see options->ws.error. */
KILN_API int kiln_ws_serve(const kiln_ws_listen_options *options, void (*fn)(kiln_ws *ws, void *user), void *user);

/* ==== the ready loop: many connections on one thread, epoll ============================================== */

typedef struct kiln_ws_loop kiln_ws_loop;

/* NULL: no memory or descriptor. Free with kiln_ws_loop_free. */
KILN_API kiln_ws_loop *kiln_ws_loop_create(void);
/* Every connection of `listener` is served here, with handler's functions; the listener must live as long as the
 * loop. `user` is the first value of kiln_ws_user of each, and what callbacks get: kiln_ws_set_user changes
 * it. Several loops on several threads may share one listener, or each has its own of the same port, with reuse_port.
 * KILN_OK, KILN_NO_MEMORY. */
KILN_API int kiln_ws_loop_listen(kiln_ws_loop *loop, kiln_ws_listener *listener, const kiln_ws_handler *handler,
                                 void *user);
/* Connects; handler->open tells when it is done, handler->close (1006) when it is not. The socket is freed by the
 * loop after `close`. NULL: as kiln_ws_open. */
KILN_API kiln_ws *kiln_ws_loop_connect(kiln_ws_loop *loop, const char *url, const kiln_ws_options *options,
                                       const kiln_ws_handler *handler, void *user);
/* Takes a socket that exists, however it was made, and frees it after `close`; its `open` is called when it is open
 * already, too. KILN_OK, KILN_NO_MEMORY, KILN_INVALID when it is in a loop, KILN_LATE in kiln_ws_loop_free: then
 * it is still yours. */
KILN_API int kiln_ws_loop_add(kiln_ws_loop *loop, kiln_ws *ws, const kiln_ws_handler *handler, void *user);
/* Runs until kiln_ws_loop_stop. */
KILN_API int kiln_ws_loop_run(kiln_ws_loop *loop);
/* Waits so long at most (negative: for ever) and handles what came, and what was due: returns how many descriptors had
 * something, also 0, or a negative kiln_result. Not inside a callback. */
KILN_API int kiln_ws_loop_run_once(kiln_ws_loop *loop, int milliseconds);
/* From any thread or signal handler. */
KILN_API void kiln_ws_loop_stop(kiln_ws_loop *loop);
/* fn(arg) runs on the loop's thread soon: how other threads reach its sockets. KILN_OK, KILN_NO_MEMORY. */
KILN_API int kiln_ws_loop_post(kiln_ws_loop *loop, void (*fn)(void *arg), void *arg);
/* How many sockets it has. */
KILN_API size_t kiln_ws_loop_count(const kiln_ws_loop *loop);
/* Cuts what is still open (handler->close with 1006) and frees everything; nothing can be added meanwhile. What was
 * posted and has not run never runs. Not inside a callback. */
KILN_API void kiln_ws_loop_free(kiln_ws_loop *loop);

#ifdef __cplusplus
}
#endif

#endif
