#include "isolate/host.h"

#include "answer/answer.h"
#include "base/check.h"
#include "endpoint/context.h"
#include "endpoint/session_access.h"
#include "isolate/heads.h"
#include "isolate/isolate_private.h"
#include "isolate/wire.h"
#include "observe/log.h"
#include "route/site_index.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* One loop's end of the socket to the worker. */
struct link {
    struct wire wire;
    struct conn conns[2]; /* what a request knows of its connection: plain, encrypted */
    struct begun *begun;
    struct site_node node;
    struct far **slots; /* by the low half of the id */
    size_t slot_count;
    struct buffer fields;
};

/* A session call whose answer is awaited. */
struct asked {
    struct session_call *call;
    enum session_result result;
};

/* A request whose client is far away; request->stream. */
struct far {
    struct link *link; /* NULL once the request has ended */
    struct request *req;
    uint64_t id;
    uint64_t sent;
    uint64_t taken;
    bool drain_wanted;
    bool body_ended;
    int body_failed; /* -1: no */
    uint64_t room; /* body bytes that may still come */
    struct buffer body; /* what came and was not asked for yet */
    struct task task; /* deliver() */
    bool task_queued;
    struct asked *asked;
};

static const struct transport transports[2] = {{.name = "relayed"}, {.name = "relayed", .secure = true}};

static struct far *far_of(const struct request *req)
{
    return req->stream;
}

static void send_fields(struct far *far, enum frame_kind kind)
{
    struct link *link = far->link;
    if (!wire_send_fields(&link->wire, kind, far->id, &link->fields)) {
        log_error("%.*s: its answer's head is larger than %d bytes", STR_ARG(far->req->script_name), FRAME_MAX);
        wire_send(&link->wire, FRAME_ABORT, far->id, NULL, 0);
        buffer_free(&link->fields);
    }
    link->fields.len = 0;
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void far_end(struct far *far)
{
    struct request *req = far->req;
    far->link->slots[(uint32_t)far->id] = NULL;
    far->link = NULL;
    if (far->asked != NULL) {
        far->asked->result = SESSION_FAILED;
        far->asked = NULL;
        context_wake(context_check(req->answer_state));
    }
    request_end(req);
}

/* ---- the answer: request_ops ---------------------------------------------------------------------- */

static void send_head(struct request *req, uint64_t length)
{
    struct far *far = far_of(req);
    answer_head_put(&far->link->fields, &(struct answer_parts){.status = req->response.status,
                                                               .content_type = req->response.content_type,
                                                               .headers = req->response.headers,
                                                               .header_count = req->response.header_count,
                                                               .length = length,
                                                               .detail = STR_NONE});
    send_fields(far, FRAME_HEAD);
}

static void send_bytes(struct far *far, const uint8_t *data, size_t len)
{
    while (len > 0) {
        size_t n = len < FRAME_DATA_MAX ? len : FRAME_DATA_MAX;
        wire_send(&far->link->wire, FRAME_DATA, far->id, data, n);
        far->sent += n;
        data += n;
        len -= n;
    }
}

static void send_body(struct request *req, const void *data, size_t len)
{
    if (!req->response.no_body) {
        send_bytes(far_of(req), data, len);
    }
}

static void send_body_ref(struct request *req, const void *data, size_t len, void (*release)(void *), void *arg)
{
    send_body(req, data, len);
    if (release != NULL) {
        release(arg);
    }
}

static void send_body_file(struct request *req, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg)
{
    struct far *far = far_of(req);
    int copy = len > 0 && !req->response.no_body ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (copy >= 0) {
        struct buffer *fields = &far->link->fields;
        frame_put_u64(fields, (uint64_t)offset);
        frame_put_u64(fields, len);
        wire_send_file(&far->link->wire, far->id, fields, copy);
        fields->len = 0;
    }
    if (release != NULL) {
        release(arg);
    }
}

static void finish(struct request *req)
{
    struct far *far = far_of(req);
    if (req->response.trailer_count == 0) {
        wire_send(&far->link->wire, FRAME_END, far->id, NULL, 0);
    } else {
        struct buffer *fields = &far->link->fields;
        frame_put_u16(fields, req->response.trailer_count);
        for (unsigned i = 0; i < req->response.trailer_count; i++) {
            frame_put_str(fields, req->response.trailers[i].name);
            frame_put_str(fields, req->response.trailers[i].value);
        }
        send_fields(far, FRAME_END);
    }
    far_end(far);
}

static void abort_answer(struct request *req)
{
    struct far *far = far_of(req);
    wire_send(&far->link->wire, FRAME_ABORT, far->id, NULL, 0);
    far_end(far);
}

/* Nothing of the request is looked at: a pool thread may be at work with it. */
static void send_ready(struct request *req, const struct ready_head *head, const void *body, size_t len,
                       void (*release)(void *), void *arg)
{
    struct far *far = far_of(req);
    answer_head_put(&far->link->fields,
                    &(struct answer_parts){.status = head->status,
                                           .content_type = STR("text/plain; charset=utf-8"),
                                           .headers = head->headers,
                                           .header_count = head->headers != NULL ? head->header_count : 0,
                                           .length = len,
                                           .detail = STR_NONE});
    send_fields(far, FRAME_HEAD);
    if (!req->response.no_body) {
        send_bytes(far, body, len);
    }
    if (release != NULL) {
        release(arg);
    }
    finish(req);
}

static void send_interim(struct request *req, int status)
{
    (void)req;
    (void)status; /* the worker sends 100 when the body is asked for */
}

static void send_error(struct request *req, int status, const char *detail)
{
    struct far *far = far_of(req);
    answer_head_put(&far->link->fields, &(struct answer_parts){.status = (uint16_t)status,
                                                               .content_type = req->response.content_type,
                                                               .headers = req->response.headers,
                                                               .header_count = req->response.header_count,
                                                               .detail = detail != NULL ? str_of(detail) : STR_NONE});
    send_fields(far, FRAME_ERROR);
    far_end(far);
}

static size_t pending(struct request *req)
{
    const struct far *far = far_of(req);
    return (size_t)(far->sent - far->taken);
}

static void flush(struct request *req)
{
    wire_flush(&far_of(req)->link->wire);
}

/* ---- the body: what came is kept until it is asked for ------------------------------------------------ */

static void ask_for_more(struct far *far)
{
    uint64_t have = far->room + far->body.len;
    if (far->body_ended || have > FRAME_ROOM_BODY / 2) {
        return;
    }
    uint64_t more = FRAME_ROOM_BODY - have;
    far->room += more;
    wire_send(&far->link->wire, FRAME_ROOM, far->id, &more, sizeof more);
}

/* The sink may pause at any of its calls. */
static void deliver(struct far *far)
{
    struct request *req = far->req;
    while (req->body.flowing && far->body.len > 0) {
        struct buffer bytes = far->body;
        far->body = BUFFER_EMPTY;
        req->body.received += bytes.len;
        req->body.sink->on_bytes(req, (const uint8_t *)bytes.data, bytes.len);
        buffer_free(&bytes);
    }
    if (!req->body.flowing || far->link == NULL) {
        return;
    }
    if (far->body_failed >= 0) {
        req->body.flowing = false;
        req->body.failed = true;
        req->body.sink->on_error(req, far->body_failed);
    } else if (far->body_ended) {
        req->body.flowing = false;
        req->body.complete = true;
        req->body.sink->on_end(req);
    } else {
        ask_for_more(far);
    }
}

static void run_task(struct task *task)
{
    struct far *far = CONTAINER_OF(task, struct far, task);
    struct request *req = far->req;
    far->task_queued = false;
    if (far->link != NULL) {
        deliver(far);
    }
    if (far->link != NULL && far->drain_wanted && pending(req) <= FRAME_WINDOW_STEP) {
        far->drain_wanted = false;
        if (req->on_drained != NULL) {
            req->on_drained(req);
        }
    }
    request_release(req);
}

static void queue_task(struct far *far)
{
    if (!far->task_queued) {
        far->task_queued = true;
        request_hold(far->req);
        loop_defer(far->req->loop, &far->task);
    }
}

static void body_resume(struct request *req)
{
    struct far *far = far_of(req);
    if (far == NULL || req->body.complete || req->body.failed || req->body.flowing) {
        return;
    }
    req->body.flowing = true;
    queue_task(far);
}

static void body_pause(struct request *req)
{
    req->body.flowing = false;
}

static void notify_drained(struct request *req)
{
    struct far *far = far_of(req);
    far->drain_wanted = true;
    if (pending(req) <= FRAME_WINDOW_STEP) {
        queue_task(far);
    }
}

static const struct request_ops relayed_ops = {
    .send_head = send_head,
    .send_body = send_body,
    .send_body_ref = send_body_ref,
    .send_body_file = send_body_file,
    .finish = finish,
    .abort = abort_answer,
    .send_ready = send_ready,
    .send_interim = send_interim,
    .body_resume = body_resume,
    .body_pause = body_pause,
    .pending = pending,
    .notify_drained = notify_drained,
    .flush = flush,
    .send_error = send_error,
};

/* ---- sessions --------------------------------------------------------------------------------------------- */

static void ask_session(struct kiln_context *ctx, void *arg)
{
    struct asked *asked = arg;
    struct request *req = ctx->req;
    struct far *far = far_of(req);
    if (far == NULL || far->link == NULL || req->gone) {
        asked->result = SESSION_FAILED;
        context_wake(ctx);
        return;
    }
    struct buffer *fields = &far->link->fields;
    frame_put_u32(fields, asked->call->op);
    frame_put_u64(fields, (uint64_t)asked->call->number);
    frame_put_str(fields, asked->call->key);
    frame_put_str(fields, asked->call->value);
    if (wire_send_fields(&far->link->wire, FRAME_SESSION, far->id, fields)) {
        far->asked = asked;
    } else {
        asked->result = SESSION_TOO_LARGE;
        context_wake(ctx);
    }
    fields->len = 0;
    fields->failed = false;
}

static enum session_result call_relayed(struct kiln_context *ctx, struct session_call *call)
{
    struct asked asked = {.call = call};
    context_wait(ctx, ask_session, NULL, &asked);
    return asked.result;
}

static void head_relayed(struct kiln_context *ctx)
{
    (void)ctx; /* the worker adds the cookie */
}

static const struct session_access access_relayed = {.call = call_relayed, .head = head_relayed};

static void session_done(struct far *far, struct frame_reader *in)
{
    struct asked *asked = far->asked;
    if (asked == NULL) {
        return;
    }
    asked->result = (enum session_result)frame_get_u32(in);
    asked->call->number = (int64_t)frame_get_u64(in);
    buffer_append_str(&asked->call->text, frame_get_bytes(in));
    far->asked = NULL;
    context_wake(context_check(far->req->answer_state));
}

/* ---- frames --------------------------------------------------------------------------------------------------- */

static void free_body(void *arg)
{
    struct far *far = arg;
    buffer_free(&far->body);
}

static bool put_slot(struct link *link, struct far *far)
{
    uint32_t i = (uint32_t)far->id;
    if (i >= link->slot_count) {
        size_t count = link->slot_count == 0 ? 64 : link->slot_count;
        while (count <= i) {
            count *= 2;
        }
        struct far **slots = realloc(link->slots, count * sizeof(struct far *));
        if (slots == NULL) {
            return false;
        }
        memset(slots + link->slot_count, 0, (count - link->slot_count) * sizeof(struct far *));
        link->slots = slots;
        link->slot_count = count;
    }
    link->slots[i] = far;
    return true;
}

/* NULL: no memory. */
static struct far *make_far(struct link *link, const struct frame *frame, const uint8_t *payload)
{
    struct request_head head;
    if (!request_head_peek(payload, frame->length, &head)) {
        return NULL;
    }
    struct request *req = request_create(&link->conns[head.secure], &relayed_ops, NULL);
    if (req == NULL) {
        return NULL;
    }
    struct far *far = arena_zalloc(&req->arena, sizeof *far);
    if (far == NULL) {
        request_end(req);
        return NULL;
    }
    *far = (struct far){.link = link, .req = req, .id = frame->id, .body_failed = -1};
    far->task.run = run_task;
    req->stream = far;
    bool ok = request_head_get(req, payload, frame->length) && arena_defer(&req->arena, free_body, far) &&
              put_slot(link, far);
    if (!ok) {
        request_end(req);
        return NULL;
    }
    atomic_store_explicit(&link->begun->number, head.number, memory_order_release);
    return far;
}

static void take_request(struct link *link, const struct frame *frame, const uint8_t *payload)
{
    /* After a crash nothing new is begun here: another process does it. */
    struct far *far = crash_has_happened() ? NULL : make_far(link, frame, payload);
    if (far == NULL) {
        wire_send(&link->wire, FRAME_BACK, frame->id, NULL, 0);
        return;
    }
    struct request *req = far->req;
    req->node = &link->node;
    req->answer = &answer_endpoint;
    req->state = REQUEST_ANSWERING;
    answer_endpoint.start(req);
}

static void take_body(struct far *far, const uint8_t *data, size_t len)
{
    struct request *req = far->req;
    far->room -= len < far->room ? len : far->room;
    if (req->body.flowing && far->body.len == 0) {
        req->body.received += len;
        req->body.sink->on_bytes(req, data, len);
        if (far->link != NULL) {
            deliver(far);
        }
        return;
    }
    if (!buffer_append(&far->body, data, len)) {
        far->body_failed = 503;
        deliver(far);
    }
}

static void take_body_end(struct far *far, const uint8_t *payload, size_t len)
{
    struct request *req = far->req;
    if (far->body_ended) {
        return; /* its end has been told: the endpoint may be looking at what came with it */
    }
    uint8_t *copy = arena_alloc(&req->late, len);
    struct frame_reader in = {.at = copy, .left = len};
    if (copy != NULL) {
        memcpy(copy, payload, len);
        unsigned count = frame_get_u16(&in);
        req->trailers = arena_alloc(&req->late, (count + 1) * sizeof *req->trailers);
        for (unsigned i = 0; req->trailers != NULL && i < count; i++) {
            req->trailers[i] = (struct header){frame_get_str(&in), frame_get_str(&in)};
            req->trailer_count = (uint16_t)(i + 1);
        }
    }
    far->body_ended = true;
    deliver(far);
}

static void take_gone(struct far *far)
{
    struct request *req = far->req;
    request_hold(req);
    request_gone(req);
    if (far->link != NULL) {
        far_end(far);
    }
    request_release(req);
}

static void take_frame(struct far *far, const struct frame *frame, const uint8_t *payload)
{
    struct frame_reader in = {.at = payload, .left = frame->length};
    switch (frame->kind) {
    case FRAME_BODY: take_body(far, payload, frame->length); break;
    case FRAME_BODY_END: take_body_end(far, payload, frame->length); break;
    case FRAME_BODY_FAILED:
        far->body_failed = (int)(frame_get_u32(&in) & 0x3ff);
        deliver(far);
        break;
    case FRAME_TAKEN:
        far->taken += frame_get_u64(&in);
        if (far->drain_wanted && pending(far->req) <= FRAME_WINDOW_STEP) {
            queue_task(far);
        }
        break;
    case FRAME_LEAVING: request_peer_eof(far->req); break;
    case FRAME_GONE: take_gone(far); break;
    case FRAME_SESSION_DONE: session_done(far, &in); break;
    default: break;
    }
}

static bool on_frame(struct wire *wire, const struct frame *frame, const uint8_t *payload)
{
    struct link *link = CONTAINER_OF(wire, struct link, wire);
    if (frame->kind == FRAME_REQUEST) {
        take_request(link, frame, payload);
        return true;
    }
    uint32_t i = (uint32_t)frame->id;
    struct far *far = i < link->slot_count ? link->slots[i] : NULL;
    if (far != NULL && far->id == frame->id) {
        take_frame(far, frame, payload);
    }
    return true;
}

/* The worker is gone, or wants us gone: the first thread is told, too. */
static void on_end(struct wire *wire, const char *why)
{
    (void)wire;
    (void)why;
}

static const struct wire_calls wire_calls = {.on_frame = on_frame, .on_end = on_end};

void links_prepare(void)
{
    session_access = &access_relayed;
}

bool link_open(struct loop *loop, int fd, struct begun *begun, struct endpoint *endpoint)
{
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL) {
        close(fd);
        return false;
    }
    link->begun = begun;
    link->node.kind = NODE_ENDPOINT;
    link->node.endpoint = endpoint;
    link->node.answer = &answer_endpoint;
    for (size_t i = 0; i < 2; i++) {
        link->conns[i].loop = loop;
        link->conns[i].transport = &transports[i];
    }
    if (!wire_open(&link->wire, loop, fd, &wire_calls)) {
        free(link);
        return false;
    }
    return true;
}
