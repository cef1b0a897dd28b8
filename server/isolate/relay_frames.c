/* What a host says about a request, checked before it is believed (relay.c). */
#include "base/check.h"
#include "endpoint/session_access.h"
#include "isolate/heads.h"
#include "isolate/isolate_private.h"
#include "isolate/relay.h"
#include "loop/coroutine.h"
#include "supervisor/worker.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HANDED_BACK_MOST = 8 };

/* ---- the request's body ------------------------------------------------------------------------- */

static struct relay *relay_of_body(struct request *req)
{
    return context_check(req->body.sink_arg)->away;
}

static bool on_body_bytes(struct request *req, const uint8_t *data, size_t len)
{
    struct relay *relay = relay_of_body(req);
    while (len > 0) {
        size_t n = len < FRAME_DATA_MAX ? len : FRAME_DATA_MAX;
        wire_send(&relay->channel->wire, FRAME_BODY, relay->id, data, n);
        relay->room -= n < relay->room ? n : relay->room;
        data += n;
        len -= n;
    }
    if (relay->room == 0) {
        req->ops->body_pause(req);
    }
    return true;
}

static void send_body_end(struct relay *relay)
{
    struct request *req = relay->req;
    if (relay->body_end_sent) {
        return; /* the host asked for more before it had the end */
    }
    relay->body_end_sent = true;
    struct buffer fields = BUFFER_EMPTY;
    frame_put_u16(&fields, req->trailer_count);
    for (unsigned i = 0; i < req->trailer_count; i++) {
        frame_put_str(&fields, req->trailers[i].name);
        frame_put_str(&fields, req->trailers[i].value);
    }
    wire_send_fields(&relay->channel->wire, FRAME_BODY_END, relay->id, &fields);
    buffer_free(&fields);
}

static void on_body_end(struct request *req)
{
    send_body_end(relay_of_body(req));
}

static void send_body_failed(struct relay *relay, int status)
{
    uint32_t value = (uint32_t)status;
    wire_send(&relay->channel->wire, FRAME_BODY_FAILED, relay->id, &value, sizeof value);
}

static void on_body_error(struct request *req, int status)
{
    send_body_failed(relay_of_body(req), status);
}

static const struct body_sink body_sink = {.on_bytes = on_body_bytes, .on_end = on_body_end, .on_error = on_body_error};

/* The host wants more. */
static bool take_room(struct relay *relay, uint64_t more)
{
    struct request *req = relay->req;
    if (more > FRAME_ROOM_MAX || relay->room > FRAME_ROOM_MAX - more) {
        return false;
    }
    relay->room += more;
    if (req->body.complete) {
        send_body_end(relay);
    } else if (req->body.failed) {
        send_body_failed(relay, 0);
    } else if (!req->body.flowing) {
        req->body.sink_arg = relay->ctx;
        req->body.sink = &body_sink;
        req->ops->body_resume(req);
    }
    return true;
}

/* ---- the answer ----------------------------------------------------------------------------------- */

static void report_taken(struct relay *relay)
{
    uint64_t taken = relay->untaken;
    relay->untaken = 0;
    wire_send(&relay->channel->wire, FRAME_TAKEN, relay->id, &taken, sizeof taken);
}

static void on_drained(struct request *req)
{
    struct relay *relay = context_check(req->answer_state)->away;
    relay->draining = false;
    if (relay->channel != NULL && relay->untaken > 0) {
        report_taken(relay);
    }
}

/* Bytes that count against the window go to the client; false when they may not. */
static bool count_data(struct relay *relay, uint64_t len)
{
    struct request *req = relay->req;
    bool fits = req->response.length == RESPONSE_LENGTH_UNKNOWN || len <= req->response.length - req->response.sent;
    return relay->state == RELAY_ANSWERING && fits;
}

static bool take_data(struct relay *relay, const uint8_t *data, size_t len)
{
    struct request *req = relay->req;
    if (!count_data(relay, len) || len > FRAME_DATA_MAX || relay->untaken + len > FRAME_WINDOW) {
        return false;
    }
    relay->untaken += len;
    response_write(req, data, len);
    if (relay->state != RELAY_ANSWERING || relay->untaken < FRAME_WINDOW_STEP) {
        return true;
    }
    if (req->ops->pending(req) <= FRAME_WINDOW_STEP) {
        report_taken(relay);
    } else if (!relay->draining) {
        relay->draining = true;
        req->on_drained = on_drained;
        req->ops->notify_drained(req);
    }
    return true;
}

static void close_file(void *arg)
{
    int *fd = arg;
    close(*fd);
    free(fd);
}

/* Only what sendfile reads from a disk, so that nobody waits for a pipe. */
static bool is_good_file(int fd, uint64_t offset, uint64_t len)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    return fd >= 0 && flags >= 0 && (flags & O_ACCMODE) != O_WRONLY && (flags & O_PATH) == 0 && fstat(fd, &st) == 0 &&
           S_ISREG(st.st_mode) && offset <= (uint64_t)st.st_size && len <= (uint64_t)st.st_size - offset;
}

static bool take_file(struct relay *relay, int fd, const uint8_t *payload, size_t size)
{
    struct frame_reader in = {.at = payload, .left = size};
    uint64_t offset = frame_get_u64(&in);
    uint64_t len = frame_get_u64(&in);
    int *held = malloc(sizeof *held);
    bool fits = ++relay->files <= FRAME_FILES && len > 0 && count_data(relay, len);
    if (!frame_done(&in) || !fits || !is_good_file(fd, offset, len) || held == NULL) {
        free(held);
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    *held = fd;
    response_write_file(relay->req, fd, (off_t)offset, len, close_file, held);
    return true;
}

/* HEAD or ERROR. */
static bool take_head(struct relay *relay, bool error, const uint8_t *payload, size_t len)
{
    struct request *req = relay->req;
    struct answer_head head;
    bool no_memory = false;
    if (relay->state != RELAY_SENT || relay->session_job != NULL) {
        return false;
    }
    if (!answer_head_get(req, payload, len, &head, &no_memory)) {
        if (no_memory) {
            wire_send(&relay->channel->wire, FRAME_GONE, relay->id, NULL, 0);
            relay_fail(relay, 503, NULL);
        }
        return no_memory;
    }
    if (error && head.status < 400) {
        return false;
    }
    relay->state = RELAY_ANSWERING;
    if (relay->session_made) {
        session_head(&relay->session, req);
    }
    if (error) {
        struct str detail = head.detail.ptr != NULL ? arena_str(&req->arena, head.detail) : STR_NONE;
        relay_quiet(relay);
        response_error_text(req, head.status, detail.ptr);
        relay_end(relay);
        return true;
    }
    req->response.status = head.status;
    response_begin(req, head.length);
    return true;
}

/* ---- sessions --------------------------------------------------------------------------------------- */

/* A call may wait, so it runs in a coroutine; the request may end meanwhile, and is held. */
struct session_job {
    struct relay *relay;
    struct session_call call;
};

static void run_session(void *arg)
{
    struct session_job *job = arg;
    struct relay *relay = job->relay;
    struct request *req = relay->req;
    relay->session.head_sent = req->response.head_sent;
    enum session_result result = session_call_run(&relay->session, &job->call);
    relay->session_job = NULL;
    if (relay->channel != NULL && relay->state != RELAY_ENDED) {
        struct buffer fields = BUFFER_EMPTY;
        frame_put_u32(&fields, (uint32_t)result);
        frame_put_u64(&fields, (uint64_t)job->call.number);
        frame_put_str(&fields, buffer_str(&job->call.text));
        if (!wire_send_fields(&relay->channel->wire, FRAME_SESSION_DONE, relay->id, &fields)) {
            fields.len = 0;
            fields.failed = false;
            frame_put_u32(&fields, SESSION_TOO_LARGE);
            frame_put_u64(&fields, 0);
            frame_put_str(&fields, STR_NONE);
            wire_send_fields(&relay->channel->wire, FRAME_SESSION_DONE, relay->id, &fields);
        }
        buffer_free(&fields);
    }
    buffer_free(&job->call.text);
    request_release(req);
}

static bool take_session(struct relay *relay, const uint8_t *payload, size_t len)
{
    struct request *req = relay->req;
    struct frame_reader in = {.at = payload, .left = len};
    uint32_t op = frame_get_u32(&in);
    uint64_t number = frame_get_u64(&in);
    struct str key = frame_get_bytes(&in);
    struct str value = frame_get_bytes(&in);
    if (!frame_done(&in) || op >= SESSION_OP_COUNT || relay->session_job != NULL) {
        return false;
    }
    struct session_job *job = arena_zalloc(&req->arena, sizeof *job);
    if (job != NULL && !relay->session_made) {
        relay->session_made = session_of_request(&relay->session, worker_sessions(), req, relay->ctx->secure);
    }
    enum session_result refused = job == NULL ? SESSION_FULL : !relay->session_made ? SESSION_FAILED : SESSION_OK;
    if (refused == SESSION_OK) {
        *job = (struct session_job){.relay = relay};
        job->call = (struct session_call){.op = (enum session_op)op, .number = (int64_t)number};
        job->call.key = key.ptr != NULL ? arena_str(&req->arena, key) : STR_NONE;
        job->call.value = value.ptr != NULL ? arena_str(&req->arena, value) : STR_NONE;
        relay->session_job = job;
        request_hold(req);
        if (coroutine_start(req->loop, run_session, job)) {
            return true;
        }
        relay->session_job = NULL;
        request_release(req);
        refused = SESSION_FULL;
    }
    struct buffer fields = BUFFER_EMPTY;
    frame_put_u32(&fields, refused);
    frame_put_u64(&fields, 0);
    frame_put_str(&fields, STR_NONE);
    wire_send_fields(&relay->channel->wire, FRAME_SESSION_DONE, relay->id, &fields);
    buffer_free(&fields);
    return true;
}

/* ---- frames -------------------------------------------------------------------------------------------- */

/* Those that there is no memory for are lost, the answer is not. */
static bool take_trailers(struct request *req, const uint8_t *payload, size_t len)
{
    struct frame_reader in = {.at = payload, .left = len};
    unsigned count = frame_get_u16(&in);
    for (unsigned i = 0; i < count; i++) {
        struct str name = frame_get_str(&in);
        struct str value = frame_get_str(&in);
        if (in.bad || name.ptr == NULL || value.ptr == NULL) {
            return false;
        }
        name = arena_str(&req->arena, name);
        value = arena_str(&req->arena, value);
        if (name.ptr != NULL && value.ptr != NULL && !response_trailer_add(req, name, value)) {
            return false;
        }
    }
    return frame_done(&in);
}

static bool take_end(struct relay *relay, const uint8_t *payload, size_t len)
{
    if (relay->state != RELAY_ANSWERING || (len > 0 && !take_trailers(relay->req, payload, len))) {
        return false;
    }
    relay_quiet(relay);
    response_end(relay->req);
    relay_end(relay);
    return true;
}

static bool take_abort(struct relay *relay)
{
    relay_quiet(relay);
    relay_cut(relay->req);
    relay_end(relay);
    return true;
}

/* To another host; not for ever. */
static bool take_back(struct relay *relay)
{
    if (relay->state != RELAY_SENT || relay->room > 0 || relay->session_made ||
        ++relay->handed_back > HANDED_BACK_MOST) {
        return false;
    }
    atomic_store(&relay->channel->host->left, true);
    relay_detach(relay);
    relay_wait(relay);
    return true;
}

bool relay_take_frame(struct relay *relay, int fd, const struct frame *frame, const uint8_t *payload)
{
    size_t len = frame->length;
    uint64_t more = 0;
    switch (frame->kind) {
    case FRAME_HEAD: return take_head(relay, false, payload, len);
    case FRAME_ERROR: return take_head(relay, true, payload, len);
    case FRAME_DATA: return take_data(relay, payload, len);
    case FRAME_FILE: return take_file(relay, fd, payload, len);
    case FRAME_END: return take_end(relay, payload, len);
    case FRAME_ABORT: return len == 0 && take_abort(relay);
    case FRAME_BACK: return len == 0 && take_back(relay);
    case FRAME_ROOM:
        memcpy(&more, payload, len == sizeof more ? sizeof more : 0);
        return len == sizeof more && take_room(relay, more);
    case FRAME_SESSION: return take_session(relay, payload, len);
    default: return false;
    }
}
