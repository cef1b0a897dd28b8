#include "request/request.h"

#include "answer/answer.h"
#include "config/config.h"
#include "loop/config_hold.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "request/steps.h"

#include <stdlib.h>

/* ---- life ------------------------------------------------------------------------------- */

struct request *request_create(struct conn *conn, const struct request_ops *ops, void *stream)
{
    struct loop *loop = conn->loop;
    const struct config *config = config_hold_current(loop);
    struct arena arena;
    arena_init(&arena, (size_t)config->request_memory_limit);
    struct request *req = arena_alloc(&arena, sizeof *req);
    if (req == NULL) {
        return NULL;
    }
    memset(req, 0, sizeof *req);
    req->magic = REQUEST_MAGIC;
    req->arena = arena;
    req->late.limit = arena.limit;
    req->ops = ops;
    req->conn = conn;
    req->stream = stream;
    req->loop = loop;
    req->hold = config_hold_take(loop);
    req->config = req->hold->config;
    req->client = conn->peer;
    req->body.limit = (uint64_t)config->max_request_body_size;
    req->response.status = 200;
    req->response.default_headers = true;
    req->started_ms = loop_now_ms(loop);
    metric_add(METRIC_REQUESTS_ACTIVE, 1);
    return req;
}

static void free_request(struct request *req)
{
    struct config_hold *hold = req->hold;
    struct arena arena = req->arena;
    struct arena late = req->late;
    arena_reset(&arena); /* runs the clean-ups, which may still look at the request */
    if (late.blocks != NULL) {
        arena_reset(&late);
    }
    config_hold_drop(hold);
    metric_add(METRIC_REQUESTS_ACTIVE, -1); /* not before: a stopping worker waits for handlers to return */
}

void request_end(struct request *req)
{
    CHECK(req->magic == REQUEST_MAGIC && !req->ended);
    req->ended = true;
    req->state = REQUEST_DONE;
    metric_add(METRIC_REQUESTS, 1);
    if (req->gone) {
        metric_add(METRIC_REQUESTS_GONE, 1);
    } else {
        metric_add_status(req->response.status);
    }
    if (req->config->logging) {
        access_log_write(req);
    }
    req->conn = NULL;
    req->stream = NULL;
    if (req->refs == 0) {
        free_request(req);
    }
}

void request_hold(struct request *req)
{
    req->refs++;
}

void request_release(struct request *req)
{
    CHECK(req->refs > 0);
    req->refs--;
    if (req->refs == 0 && req->ended) {
        free_request(req);
    }
}

void request_gone(struct request *req)
{
    if (req->gone) {
        return;
    }
    req->gone = true;
    request_hold(req);
    if (req->body.flowing) {
        req->body.flowing = false;
        req->body.failed = true;
        req->body.sink->on_error(req, 0);
    }
    if (req->on_gone != NULL) {
        req->on_gone(req);
    }
    req->on_drained = NULL;
    request_release(req);
}

void request_peer_eof(struct request *req)
{
    req->peer_eof = true;
    if (req->on_peer_eof != NULL) {
        req->on_peer_eof(req);
    }
}

/* ---- steps ---------------------------------------------------------------------------------- */

typedef enum step_result (*step_function)(struct request *req);

static const step_function steps[] = {
#define STEP(function, decides) function,
#include "request/steps.def"
#undef STEP
};

static const char *const step_names[] = {
#define STEP(function, decides) #function,
#include "request/steps.def"
#undef STEP
};

const char *step_name(unsigned step)
{
    return step < ARRAY_LEN(step_names) ? step_names[step] : "done";
}

void request_steps_resume(struct request *req)
{
    while (req->step < ARRAY_LEN(steps)) {
        unsigned step = req->step++;
        enum step_result result = steps[step](req);
        if (result == STEP_TAKEN) {
            return; /* the request may be gone already: it is not touched any more */
        }
        if (result == STEP_WAIT) {
            req->step = (uint8_t)step;
            return;
        }
    }
    response_error(req, 500); /* the last step takes every request */
}

/* Raw path and query; the steps decode and look up. */
static void split_target(struct request *req)
{
    size_t mark = str_find(req->target, '?');
    if (mark == SIZE_MAX) {
        req->raw_path = req->target;
        req->query = STR_NONE;
        return;
    }
    req->raw_path = str_first(req->target, mark);
    req->query = str_from(req->target, mark + 1);
}

void request_start(struct request *req)
{
    req->response.no_body = req->method == METHOD_HEAD;
    split_target(req);
    request_steps_resume(req);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct str request_header(const struct request *req, struct str name)
{
    for (unsigned i = 0; i < req->header_count; i++) {
        if (str_eq_nocase(req->headers[i].name, name)) {
            return req->headers[i].value;
        }
    }
    return STR_NONE;
}
