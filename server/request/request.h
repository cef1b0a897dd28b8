/* DESIGN: one HTTP request and its response, whatever the protocol below. The struct lies
 * in the first block of its own arena; head, headers and everything an endpoint asks for
 * live in that arena until the last byte of the answer is sent and the log line written.
 * It is created by a protocol, walks the step table (steps.def), is answered by exactly
 * one answer (answer/answer.h), and goes back to the protocol by request_end().
 * Everything here runs on the loop's thread of the request. */
#ifndef KILN_REQUEST_REQUEST_H
#define KILN_REQUEST_REQUEST_H

#include "base/arena.h"
#include "base/list.h"
#include "base/str.h"
#include "connection/conn.h"

struct config;
struct config_hold;
struct request;
struct site;
struct site_node;
struct endpoint;
struct module;

enum { REQUEST_MAGIC = 0x52455155 };

enum method {
    METHOD_GET,
    METHOD_HEAD,
    METHOD_POST,
    METHOD_PUT,
    METHOD_DELETE,
    METHOD_OPTIONS,
    METHOD_PATCH,
    METHOD_CONNECT,
    METHOD_TRACE,
    METHOD_OTHER, /* request->method_text has it */
};

struct header {
    struct str name; /* as received; NUL-terminated */
    struct str value; /* trimmed; NUL-terminated */
};

/* Headers that the server itself looks at, found while parsing: an index into
 * request->headers plus one, 0 when absent, the first one when repeated. */
enum known_header {
    HEADER_HOST,
    HEADER_CONNECTION,
    HEADER_CONTENT_LENGTH,
    HEADER_CONTENT_TYPE,
    HEADER_TRANSFER_ENCODING,
    HEADER_EXPECT,
    HEADER_UPGRADE,
    HEADER_ACCEPT_ENCODING,
    HEADER_IF_MATCH,
    HEADER_IF_NONE_MATCH,
    HEADER_IF_MODIFIED_SINCE,
    HEADER_IF_UNMODIFIED_SINCE,
    HEADER_IF_RANGE,
    HEADER_RANGE,
    HEADER_COOKIE,
    HEADER_REFERER,
    HEADER_USER_AGENT,
    HEADER_AUTHORIZATION,
    HEADER_X_FORWARDED_FOR,
    HEADER_KNOWN_COUNT
};

/* Body bytes on their way in. `data` valid only during the call. While it is paused a sink is not called at
 * all, not even when the client leaves: on_gone tells that. So an endpoint on the pool shares nothing with
 * the loop but while it waits. */
struct body_sink {
    /* False: the bytes are refused; the request was answered or aborted. */
    bool (*on_bytes)(struct request *req, const uint8_t *data, size_t len);
    void (*on_end)(struct request *req); /* complete, trailers parsed */
    void (*on_error)(struct request *req, int status); /* 400, 408, 413, or 0: client gone */
};

struct ready_head;

/* What a protocol offers a request. All calls on the loop's thread. The response head is
 * taken from the request (status, headers); the protocol adds Date, framing and
 * connection headers. Output is copied or referenced as with conn_write*. */
struct request_ops {
    /* The head, with `length` body bytes to follow: exactly that many, or unknown when
     * RESPONSE_LENGTH_UNKNOWN (chunked, or until close for HTTP/1.0). */
    void (*send_head)(struct request *req, uint64_t length);
    void (*send_body)(struct request *req, const void *data, size_t len);
    void (*send_body_ref)(struct request *req, const void *data, size_t len, void (*release)(void *), void *arg);
    void (*send_body_file)(struct request *req, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg);
    /* The response is complete. The request may be freed before it returns. */
    void (*finish)(struct request *req);
    /* The response cannot be completed: reset the stream or close the connection so that
     * the client sees the cut. Ends the request like finish. */
    void (*abort)(struct request *req);
    /* Ready head, with what steps have put into the response's own headers, body and finish in one;
     * see response_send_ready(). */
    void (*send_ready)(struct request *req, const struct ready_head *head, const void *body, size_t len,
                       void (*release)(void *), void *arg);
    /* An interim response (100, 103). */
    void (*send_interim)(struct request *req, int status);
    /* Begin (or go on) delivering the body to req->body.sink; pause stops it. */
    void (*body_resume)(struct request *req);
    void (*body_pause)(struct request *req);
    /* Bytes of this request's output that the kernel has not taken. */
    size_t (*pending)(struct request *req);
    /* Calls req->on_drained once pending is 0. */
    void (*notify_drained)(struct request *req);
    void (*flush)(struct request *req);
    /* The site's error page; NULL: error_page_send() makes it here. */
    void (*send_error)(struct request *req, int status, const char *detail);
    /* The loop's thread will never run again, and its memory must not be touched: a last word to the
     * client, if one can be said. From another thread. NULL: none. */
    void (*lost)(struct request *req);
    /* The connection that another protocol would have: this one, or a tunnel through it. Before the head is
     * sent, and `upgrade` follows at once. NULL: it cannot be made. */
    struct conn *(*upgrade_conn)(struct request *req);
    /* After a head with status 101, or 200 for a tunnel: that connection becomes another protocol's. What
     * came behind it is that protocol's input. The request ends, or lasts as long as the tunnel. NULL: this
     * protocol has no upgrades. */
    bool (*upgrade)(struct request *req, const struct protocol *protocol, void *proto);
};

#define RESPONSE_LENGTH_UNKNOWN UINT64_MAX

/* A response header to send; name and value live in the arena or are static. */
struct response_header {
    struct str name;
    struct str value;
};

/* A response head made once for many requests (the file cache's). `block` and `headers`
 * say the same: a protocol takes the form it needs and adds status line, Date, Connection.
 * Immutable; valid until the release function of its body runs. */
struct ready_head {
    uint16_t status;
    uint16_t header_count;
    struct str block; /* HTTP/1: "Name: value\r\n" lines, Content-Length too, no empty line at the end */
    const struct response_header *headers; /* the same lines without Content-Length */
};

enum request_state {
    REQUEST_STEPS, /* walking the step table */
    REQUEST_ANSWERING, /* an answer has it */
    REQUEST_SENDING, /* head is out, body follows */
    REQUEST_DONE,
};

struct request {
    uint32_t magic;
    uint8_t method; /* enum method */
    uint8_t http_minor; /* 0 or 1 for HTTP/1.x */
    uint8_t http_major;
    uint8_t state; /* enum request_state; request_state_set() alone changes it */
    struct arena arena;
    struct arena late; /* for what comes, trailers, while an endpoint on another thread may use `arena` */
    const struct request_ops *ops;
    struct conn *conn; /* NULL once the client is gone */
    void *stream; /* the protocol's own part */
    struct loop *loop;
    struct config_hold *hold;
    const struct config *config; /* the snapshot this request started with */

    /* As received. All in the arena, NUL-terminated. */
    struct str method_text;
    struct str target; /* request-target */
    struct str host; /* Host or :authority, lower case, with port */
    struct header *headers;
    uint32_t host_name_len; /* of the host without its port */
    uint16_t header_count;
    uint16_t known[HEADER_KNOWN_COUNT];
    struct header *trailers;
    uint16_t trailer_count;

    /* Made from the target by the steps. */
    struct str raw_path; /* still percent-encoded, no query */
    struct str path; /* decoded, begins with '/', no dot segments, no NUL */
    struct str query; /* without '?'; ptr NULL when there is none */
    struct str hostname; /* host after DomainAlias, without port */
    struct str path_info; /* what follows the endpoint's own URL, "" if nothing */
    struct str script_name; /* the endpoint's own URL */
    struct site *site; /* NULL: no such host; lives as long as the worker */
    const struct site_node *node; /* what the path leads to; epoch-protected: valid until the step walk ends */
    uint8_t step; /* row of steps.def being run */
    struct address client; /* peer, or as told by a trusted proxy */
    struct str client_subject; /* of the client's verified certificate; ptr NULL: it showed none */
    struct str client_fingerprint; /* likewise: SHA-256 in hexadecimal */

    /* Body. */
    struct {
        uint64_t length; /* Content-Length, or RESPONSE_LENGTH_UNKNOWN when chunked */
        uint64_t received;
        uint64_t limit; /* MaxRequestBodySize, 0: none */
        const struct body_sink *sink;
        void *sink_arg;
        bool present; /* there is a body (length > 0 or chunked) */
        bool complete; /* all of it was delivered */
        bool expects_100; /* send 100 before reading */
        bool failed;
        bool flowing; /* between body_resume and pause, end or failure: the sink is called */
    } body;

    /* Response. */
    struct {
        uint16_t status;
        bool head_sent : 1;
        bool no_body : 1; /* HEAD, 204, 205, 304: framing without bytes */
        bool close_after : 1; /* Connection: close */
        bool default_headers : 1; /* add DefaultHeaders */
        uint64_t length;
        uint64_t sent; /* body bytes handed to the protocol, for the log */
        struct response_header *headers;
        uint16_t header_count;
        uint16_t header_cap;
        uint16_t trailer_count;
        uint16_t trailer_cap;
        struct response_header *trailers; /* for who sends a body of unknown length; others have none */
        struct str content_type; /* ptr NULL: none */
    } response;

    /* The answer's own state. */
    const struct answer *answer;
    void *answer_state;
    void (*on_drained)(struct request *req);
    /* The client went away or the protocol reset the stream: stop work, then request_end.
     * NULL: the request is freed by the protocol at once. */
    void (*on_gone)(struct request *req);
    /* The client sent its FIN behind the whole request: it may have left, or may still
     * read. NULL: nobody cares. */
    void (*on_peer_eof)(struct request *req);
    struct list node_in_loop;
    uint64_t started_ms;
    uint32_t refs; /* holders beside the protocol: a coroutine, a pool job; see request_hold */
    bool gone : 1;
    bool peer_eof : 1;
    bool tunnel : 1; /* asks for a WebSocket by an extended CONNECT (RFC 8441); method is METHOD_GET */
    bool ended : 1; /* request_end was called; the memory waits for its last holder */
    bool offloaded : 1; /* its endpoint runs on a pool thread now */
};

/* ---- life ---------------------------------------------------------------------------------- */
/* By a protocol: takes an arena and a config hold. NULL when out of memory. */
struct request *request_create(struct conn *conn, const struct request_ops *ops, void *stream);
/* Head is complete (method, target, host, headers set): walks the steps. */
void request_start(struct request *req);
/* By the protocol when the response is out or the client is gone: log, clean up, free
 * (later when somebody holds it). */
void request_end(struct request *req);
/* The client is gone: by the protocol, before request_end. */
void request_gone(struct request *req);
/* By the protocol: see on_peer_eof. */
void request_peer_eof(struct request *req);
/* By the protocol, instead of request_start, or when the body failed and nobody reads it:
 * answers with the built-in error page and closes. No site is known. */
void request_refuse(struct request *req, int status);
/* Keeps the memory until request_release; loop thread only. */
void request_hold(struct request *req);
void request_release(struct request *req);

/* ---- reading --------------------------------------------------------------------------------- */
static inline const struct header *request_known(const struct request *req, enum known_header which)
{
    return req->known[which] != 0 ? &req->headers[req->known[which] - 1] : NULL;
}
/* Value or STR_NONE; first occurrence, name case-insensitive. */
struct str request_header(const struct request *req, struct str name);
static inline struct str request_known_value(const struct request *req, enum known_header which)
{
    return req->known[which] != 0 ? req->headers[req->known[which] - 1].value : STR_NONE;
}

/* ---- answering -------------------------------------------------------------------------------- */
/* Appends; STR values must live as long as the arena. False when out of memory or the name
 * or value holds bytes that may not stand in a header (CR, LF, NUL). */
bool response_header_add(struct request *req, struct str name, struct str value);
/* A field that follows the body, until response_end(). False as for headers, and for names that may not come so late
 * (RFC 9110 6.5.1): what frames, routes, describes or guards the answer must be known before it. For HTTP/1.0, which has none, it is dropped. */
bool response_trailer_add(struct request *req, struct str name, struct str value);
/* Replaces every header of that name. */
bool response_header_set(struct request *req, struct str name, struct str value);
void response_header_remove(struct request *req, struct str name);
struct str response_header_get(const struct request *req, struct str name);

/* Framing, Date and connection: what no answer may set. */
bool response_header_is_servers_own(struct str name);

/* Head and a body held elsewhere, in one go; release(arg) may be NULL for static bytes. */
void response_send_ref(struct request *req, const void *body, size_t len, void (*release)(void *), void *arg);
/* Copies a small body. */
void response_send(struct request *req, const void *body, size_t len);
/* Streaming: begin, write..., end. */
void response_begin(struct request *req, uint64_t length);
void response_write(struct request *req, const void *data, size_t len);
/* The same for bytes that stay where they are, and for a part of a file (its descriptor
 * stays open until release). Both count into response.sent. */
void response_write_ref(struct request *req, const void *data, size_t len, void (*release)(void *), void *arg);
void response_write_file(struct request *req, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg);
void response_end(struct request *req);
/* A whole answer whose head is ready: status line, Date, head->block and the body, by one
 * write. `len` is the length of the body, as in the block, also when no_body (HEAD, 304)
 * means that none of it is sent. The head has all its headers in it (DefaultHeaders too),
 * so the request must not have any of its own: response.header_count is 0. */
void response_send_ready(struct request *req, const struct ready_head *head, const void *body, size_t len,
                         void (*release)(void *), void *arg);
/* Head was not sent yet: the site's or the built-in error page of this status. Afterwards,
 * or when the head is out: ops->abort. */
void response_error(struct request *req, int status);
/* The same with a line that may be shown to the client. */
void response_error_text(struct request *req, int status, const char *detail);

const char *status_reason(int status); /* "Not Found"; "Unknown" for codes without a name */

#endif
