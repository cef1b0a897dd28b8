/* Answers for tests of HTTP/1.1 without sites and endpoints: the program is linked with
 * --wrap=request_start, and the request's target says what happens to it. */
#ifndef KILN_TESTS_SUPPORT_HTTP1_ANSWERS_H
#define KILN_TESTS_SUPPORT_HTTP1_ANSWERS_H

#include "protocol/http1.h"
#include "request/request.h"
#include "tests/support/fake_conn.h"

/* The request of /hold and /pause until it is answered or gone. */
static struct request *held;
static unsigned held_gone;
static unsigned held_peer_eof;
static unsigned body_ends;
static int body_error;
static unsigned begun;
static struct buffer body_seen;

/* "METHOD target received trailers" */
static inline void answer_echo(struct request *req)
{
    struct buffer text = BUFFER_EMPTY;
    buffer_printf(&text, "%.*s %.*s %llu %u\n", STR_ARG(req->method_text), STR_ARG(req->target),
                  (unsigned long long)req->body.received, (unsigned)req->trailer_count);
    req->response.content_type = STR("text/plain");
    response_send(req, text.data, text.len);
    buffer_free(&text);
}

static inline bool keep_bytes(struct request *req, const uint8_t *data, size_t len)
{
    (void)req;
    return buffer_append(&body_seen, data, len);
}

static inline void echo_end(struct request *req)
{
    body_ends++;
    answer_echo(req);
}

static inline void echo_error(struct request *req, int status)
{
    body_error = status;
    if (status != 0) {
        response_error(req, status);
    }
}

static const struct body_sink echo_sink = {keep_bytes, echo_end, echo_error};

/* Answers as soon as something of the body comes. */
static inline bool first_bytes(struct request *req, const uint8_t *data, size_t len)
{
    (void)data;
    (void)len;
    answer_echo(req);
    return true;
}

static const struct body_sink first_sink = {first_bytes, echo_end, echo_error};

/* Pauses at all that comes; the test resumes. */
static inline bool pause_bytes(struct request *req, const uint8_t *data, size_t len)
{
    req->ops->body_pause(req);
    return keep_bytes(req, data, len);
}

static inline void pause_end(struct request *req)
{
    held = NULL;
    echo_end(req);
}

static inline void pause_error(struct request *req, int status)
{
    held = NULL;
    echo_error(req, status);
}

static const struct body_sink pause_sink = {pause_bytes, pause_end, pause_error};

static inline void hold_gone(struct request *req)
{
    held_gone++;
    if (held == req) {
        held = NULL;
    }
}

static inline void hold_peer_eof(struct request *req)
{
    (void)req;
    held_peer_eof++;
}

static inline void answer_streamed(struct request *req)
{
    response_begin(req, RESPONSE_LENGTH_UNKNOWN);
    response_write(req, "hello ", 6);
    response_write_ref(req, "world", 5, NULL, NULL);
    response_write(req, "", 0);
    response_end(req);
}

static inline void read_body(struct request *req, const struct body_sink *sink)
{
    req->body.sink = sink;
    req->ops->body_resume(req);
}

static char large[100000];

static inline void answer_by_target(struct request *req)
{
    struct str target = req->target;
    if (str_eq(target, STR("/early"))) {
        answer_echo(req);
    } else if (str_eq(target, STR("/first")) && req->body.present) {
        read_body(req, &first_sink);
    } else if (str_eq(target, STR("/pause")) && req->body.present) {
        held = req;
        req->on_gone = hold_gone;
        read_body(req, &pause_sink);
    } else if (str_eq(target, STR("/hold"))) {
        held = req;
        req->on_gone = hold_gone;
        req->on_peer_eof = hold_peer_eof;
    } else if (str_eq(target, STR("/stream"))) {
        answer_streamed(req);
    } else if (str_eq(target, STR("/205"))) {
        req->response.status = 205;
        response_send(req, "not sent", 8);
    } else if (str_eq(target, STR("/204"))) {
        req->response.status = 204;
        response_send(req, "", 0);
    } else if (str_eq(target, STR("/304"))) {
        req->response.status = 304;
        response_send(req, "not sent", 8);
    } else if (str_eq(target, STR("/large"))) {
        response_send_ref(req, large, sizeof large, NULL, NULL);
    } else if (str_eq(target, STR("/error"))) {
        response_error(req, 404);
    } else if (str_eq(target, STR("/cut"))) {
        response_begin(req, 10);
        response_write(req, "12345", 5);
        response_end(req);
    } else if (req->body.present) {
        read_body(req, &echo_sink);
    } else {
        answer_echo(req);
    }
}

void __wrap_request_start(struct request *req);
void __wrap_request_start(struct request *req)
{
    begun++;
    req->response.no_body = req->method == METHOD_HEAD;
    answer_by_target(req);
}

static inline void answers_reset(void)
{
    held = NULL;
    held_gone = 0;
    held_peer_eof = 0;
    body_ends = 0;
    body_error = -1;
    begun = 0;
    buffer_free(&body_seen);
}

#endif
