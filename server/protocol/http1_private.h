/* Shared by http1.c (input), http1_body.c (the body of a request) and http1_response.c (output). */
#ifndef KILN_PROTOCOL_HTTP1_PRIVATE_H
#define KILN_PROTOCOL_HTTP1_PRIVATE_H

#include "protocol/chunked.h"
#include "protocol/head_scan.h"
#include "protocol/http1.h"
#include "protocol/http1_head.h"
#include "request/body_rate.h"

enum { HTTP1_MAGIC = 0x48545431 };

enum http1_state {
    HTTP1_HEAD, /* between requests, or part of a head has come */
    HTTP1_REQUEST, /* a request runs; its body may still be coming */
    HTTP1_DISCARD, /* answered; what is left of its body is read and dropped */
    HTTP1_UPGRADED, /* 101 is sent: later in this iteration the connection is the next protocol's */
};

/* One connection. Small: it is what an idle connection costs beside struct conn. */
struct http1 {
    uint32_t magic;
    uint8_t state; /* enum http1_state */
    uint8_t framing; /* enum body_framing of the running request */
    bool keep_alive : 1;
    bool pipelined : 1; /* when the running request began, a part of the next one had come */
    bool body_flowing : 1; /* the sink wants bytes */
    bool in_trailers : 1;
    bool chunked_out : 1;
    bool in_consume : 1; /* input is being worked on up the stack */
    bool process_queued : 1;
    bool wait_drained : 1; /* no further request until the output has gone */
    bool eof : 1;
    bool head_timed : 1; /* the deadline of a head that came in part is set */
    bool begun : 1; /* something of HTTP/1 came: it cannot become HTTP/2 any more */
    bool dead : 1;
    struct conn *conn;
    struct request *req;
    char *in; /* input that could not be used yet: part of a head, or of later requests */
    uint32_t in_len;
    uint32_t in_cap;
    union {
        struct head_scan scan;
        struct {
            const struct protocol *protocol;
            void *proto;
        } next; /* HTTP1_UPGRADED */
    };
    struct chunked chunked;
    uint64_t body_left;
    struct body_rate rate;
    uint64_t out_left; /* of a body of known length */
    struct task process_task; /* goes on with the input, or frees this when dead */
};

extern const struct request_ops http1_request_ops; /* http1_response.c */

/* http1_body.c */
void http1_body_resume(struct request *req);
void http1_body_pause(struct request *req);
/* Bytes used; 0: the sink does not want any now. */
size_t http1_body_consume(struct http1 *h, const uint8_t *data, size_t len);
void http1_body_failed(struct http1 *h, int status);
/* Completes a body of known length whose last byte has come. */
void http1_body_end_length(struct http1 *h);
/* Sets the deadline at which the rate is looked at next. */
void http1_body_time(struct http1 *h);

/* http1.c */
/* Works on the kept input later in this iteration, unless that is happening up the stack. */
void http1_queue_input(struct http1 *h);
/* The response is complete: end the request and go on with the connection. */
void http1_request_done(struct http1 *h);
/* ops->upgrade. */
bool http1_upgrade(struct request *req, const struct protocol *protocol, void *proto);

#endif
