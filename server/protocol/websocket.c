#include "protocol/websocket.h"

#include "config/config.h"
#include "endpoint/loader.h"
#include "loop/config_hold.h"
#include "observe/metrics.h"
#include "protocol/rooms.h"
#include "protocol/websocket_private.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/uio.h>

enum {
    PONG_HIGH = 65536, /* unsent output above which a ping is not answered any more */
    /* From this length on copying a payload costs more than a system call of its own; within an event, where more
     * messages may follow from the same read, from twice of it. */
    SENT_NOW = 16384,
};

static _Atomic int open_everywhere;
static _Atomic uint64_t last_id;
static struct kiln_ws *ws_of(const struct conn *conn)
{
    return MAGIC_CAST(struct kiln_ws, conn->proto, WEBSOCKET_MAGIC);
}

/* ---- life -------------------------------------------------------------------------------------- */

struct kiln_ws *websocket_create(struct loop *loop)
{
    struct kiln_ws *ws = calloc(1, sizeof *ws);
    if (ws != NULL) {
        ws->magic = WEBSOCKET_MAGIC;
        ws->loop = loop;
        ws->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
        list_init(&ws->node);
    }
    return ws;
}

bool websocket_count_take(struct kiln_ws *ws, const struct config *config)
{
    int limit = (int)config->max_concurrent_upgraded_connections;
    int now = atomic_fetch_add(&open_everywhere, 1) + 1;
    if (limit > 0 && now > limit) {
        atomic_fetch_sub(&open_everywhere, 1);
        return false;
    }
    ws->counted = true;
    return true;
}

static void free_now(struct task *task)
{
    struct kiln_ws *ws = CONTAINER_OF(task, struct kiln_ws, end_task);
    free(ws->close_reason);
    free(ws->held);
    ws->magic = 0;
    free(ws);
}

/* At the end of the iteration: callers up the stack may still look at it. */
static void free_if_over(struct kiln_ws *ws)
{
    if (ws->released && (ws->ended || ws->conn == NULL) && !ws->resume_queued) {
        if (ws->counted) {
            ws->counted = false;
            atomic_fetch_sub(&open_everywhere, 1);
        }
        ws->end_task.run = free_now;
        loop_defer(ws->loop, &ws->end_task);
    }
}

void websocket_release(struct kiln_ws *ws)
{
    CHECK(!ws->released);
    ws->released = true;
    ws->owner = NULL;
    free_if_over(ws);
}

void websocket_open(struct kiln_ws *ws, struct conn *conn, const struct ws_deflate *agreed, bool own_messages)
{
    ws_init(&ws->core, WS_SERVER, websocket_settings(ws->loop, own_messages));
    ws_use_deflate(&ws->core, websocket_pool(ws->loop), agreed);
    ws->conn = conn;
    ws->message_s = websocket_now_s(ws);
    websocket_watch(ws);
    if (ws_shared_bits(&ws->core) == 15) {
        rooms_deflate_count(1);
    }
    metric_add(METRIC_WEBSOCKETS, 1);
    metric_add(METRIC_WEBSOCKETS_OPEN, 1);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void tell_closed(struct kiln_ws *ws, unsigned code)
{
    if (ws->told) {
        return;
    }
    ws->told = true;
    ws->close_code = (uint16_t)code;
    rooms_leave_all(ws);
    if (ws->owner != NULL) {
        ws->owner->on_closed(ws);
    }
}

static void set_end_deadline(struct kiln_ws *ws)
{
    const struct config *config = config_hold_current(ws->loop);
    conn_deadline_set(ws->conn, loop_now_ms(ws->loop) + (uint64_t)(config->linger_timeout * 1000) + 1);
}

/* Our last byte is queued: goes out, then the connection ends. */
static void finish(struct kiln_ws *ws)
{
    list_remove(&ws->node);
    if (ws->conn != NULL) {
        ws->unsent = conn_pending(ws->conn);
        set_end_deadline(ws);
        conn_resume_read(ws->conn);
        conn_finish(ws->conn, CONN_CLOSE_LOCAL);
    }
}

void websocket_put(struct kiln_ws *ws, const struct ws_frame *frame)
{
    if (frame->payload_len >= (ws->conn->in_event ? 2u * SENT_NOW : SENT_NOW)) {
        const struct iovec vectors[] = {{(void *)(uintptr_t)frame->head, frame->head_len},
                                        {(void *)(uintptr_t)frame->payload, frame->payload_len}};
        conn_write_now(ws->conn, vectors, 2);
        return;
    }
    char *to = conn_reserve(ws->conn, ws_frame_size(frame));
    if (to != NULL) {
        ws_frame_copy(frame, (uint8_t *)to);
        conn_commit(ws->conn, ws_frame_size(frame));
    }
}

void websocket_end(struct kiln_ws *ws)
{
    struct ws_frame frame;
    uint8_t space[WS_CONTROL_MAX];
    if (ws->conn == NULL || ws->told) {
        return;
    }
    const char *reason = ws->failed && ws->close_reason != NULL ? ws->close_reason : "";
    if (ws->end_code != WS_CLOSE_ABNORMAL &&
        ws_close_make(&ws->core, &frame, space, ws->end_code, reason, strlen(reason)) == WS_OK) {
        websocket_put(ws, &frame);
    }
    tell_closed(ws, ws->end_code);
    finish(ws);
}

/* The peer's last word. */
static void begin_end(struct kiln_ws *ws, unsigned code, const void *reason, size_t len)
{
    if (ws->end_code != 0) {
        return;
    }
    ws->end_code = (uint16_t)code;
    ws->close_reason = len > 0 ? malloc(len + 1) : NULL;
    if (ws->close_reason != NULL) {
        memcpy(ws->close_reason, reason, len);
        ws->close_reason[len] = '\0';
    }
    list_remove(&ws->node);
    bool now = ws->owner == NULL || ws->core.closing || ws->owner->on_ending(ws);
    if (now) {
        websocket_end(ws);
    } else {
        set_end_deadline(ws);
    }
}

enum ws_result websocket_close(struct kiln_ws *ws, unsigned code, const char *reason, size_t len)
{
    struct ws_frame frame;
    uint8_t space[WS_CONTROL_MAX];
    if (ws->conn == NULL || ws->close_code != 0) {
        return WS_ERROR_CLOSED;
    }
    if (ws->end_code != 0) {
        websocket_end(ws);
        return WS_OK;
    }
    enum ws_result result = ws_close_make(&ws->core, &frame, space, code, reason, len);
    if (result != WS_OK) {
        return result;
    }
    websocket_put(ws, &frame);
    list_remove(&ws->node); /* from here on one absolute time holds */
    set_end_deadline(ws);
    if (ws->peer_ended) {
        begin_end(ws, WS_CLOSE_ABNORMAL, NULL, 0);
    } else if (ws->held == NULL) {
        conn_resume_read(ws->conn);
    } else {
        websocket_resume(ws);
    }
    return WS_OK;
}

void websocket_abort(struct kiln_ws *ws)
{
    if (ws->conn != NULL) {
        conn_close(ws->conn, CONN_CLOSE_TIMEOUT);
    }
}

static void on_close(struct conn *conn, enum conn_close_reason reason)
{
    (void)reason;
    struct kiln_ws *ws = ws_of(conn);
    ws->conn = NULL;
    ws->ended = true;
    list_remove(&ws->node);
    metric_add(METRIC_WEBSOCKETS_OPEN, -1);
    if (ws_shared_bits(&ws->core) == 15) {
        rooms_deflate_count(-1);
    }
    ws_free(&ws->core);
    tell_closed(ws, ws->end_code != 0 ? ws->end_code : WS_CLOSE_ABNORMAL);
    free_if_over(ws);
}

/* ---- receiving -------------------------------------------------------------------------------------- */

uint8_t *websocket_keep(struct kiln_ws *ws, const struct ws_item *item)
{
    uint8_t *kept = ws_take_message(&ws->core, item);
    if (kept == NULL) {
        kept = malloc(item->len + 1);
        if (kept != NULL && item->len > 0) {
            memcpy(kept, item->data, item->len);
        }
    }
    if (kept != NULL) {
        kept[item->len] = '\0';
    }
    return kept;
}

static void on_ping(struct kiln_ws *ws, const struct ws_item *item)
{
    struct ws_frame frame;
    if (conn_pending(ws->conn) < PONG_HIGH &&
        ws_frame_make(&ws->core, &frame, WS_PONG, item->data, item->len) == WS_OK) {
        websocket_put(ws, &frame);
    }
    websocket_end_if_idle(ws);
}

/* False: the owner wants no more for now. */
static bool take_event(struct kiln_ws *ws, enum ws_event event, const struct ws_item *item)
{
    switch (event) {
    case WS_EVENT_NONE: break;
    case WS_EVENT_PONG: websocket_end_if_idle(ws); break;
    case WS_EVENT_DATA:
        ws->message_s = websocket_now_s(ws);
        metric_add(METRIC_WEBSOCKET_MESSAGES_RECEIVED, 1);
        return ws->owner == NULL || ws->core.closing || ws->owner->on_message(ws, item);
    case WS_EVENT_PING: on_ping(ws, item); break;
    case WS_EVENT_CLOSE: begin_end(ws, item->code, item->data, item->len); break;
    case WS_EVENT_FAILED:
        metric_add(METRIC_WEBSOCKET_FAILURES, 1);
        ws->failed = true;
        begin_end(ws, item->code, item->data, item->len);
        break;
    }
    return true;
}

/* False: the owner wants no more for now, and what is left in the input waits. */
static bool process(struct kiln_ws *ws, struct ws_input *input)
{
    struct ws_item item;
    enum ws_event event = WS_EVENT_NONE;
    bool more = true;
    bool over = false;
    do {
        event = ws_receive(&ws->core, input, &item);
        more = take_event(ws, event, &item);
        over = event == WS_EVENT_NONE || (event == WS_EVENT_DATA && input->len == 0);
    } while (more && !over && !ws->ended);
    if (!ws->ended) {
        ws_trim(&ws->core);
        if (event == WS_EVENT_NONE) {
            websocket_end_if_idle(ws); /* a part of a message is none */
        }
    }
    return more || ws->ended;
}

/* Behind what is held already. */
static void hold(struct kiln_ws *ws, const uint8_t *data, size_t len)
{
    conn_pause_read(ws->conn);
    if (len == 0) {
        return;
    }
    uint8_t *held = realloc(ws->held, ws->held_len + len);
    if (held == NULL) {
        websocket_abort(ws);
        return;
    }
    memcpy(held + ws->held_len, data, len);
    ws->held = held;
    ws->held_len += (uint32_t)len;
}

static void drop_held(struct kiln_ws *ws)
{
    free(ws->held);
    ws->held = NULL;
    ws->held_at = 0;
    ws->held_len = 0;
}

static void on_data(struct conn *conn, const uint8_t *data, size_t len)
{
    struct kiln_ws *ws = ws_of(conn);
    ws->pinged = false;
    if (ws->active_s != websocket_now_s(ws) && !list_is_empty(&ws->node)) {
        list_remove(&ws->node);
        websocket_watch(ws);
    }
    if (ws->held != NULL || ws->parked) {
        hold(ws, data, len);
        return;
    }
    /* The loop's own buffer: frames are unmasked where they lie. */
    struct ws_input input = {(uint8_t *)(uintptr_t)data, len};
    if (!process(ws, &input)) {
        hold(ws, input.data, input.len);
    }
}

/* The bytes of a long message arrive where it is gathered. */
static uint8_t *on_room(struct conn *conn, size_t *cap)
{
    struct kiln_ws *ws = ws_of(conn);
    return ws->held == NULL && !ws->parked ? ws_receive_room(&ws->core, cap) : NULL;
}

static void resume_now(struct task *task)
{
    struct kiln_ws *ws = CONTAINER_OF(task, struct kiln_ws, end_task);
    ws->resume_queued = false;
    if (ws->ended) {
        free_if_over(ws);
        return;
    }
    if (ws->parked) {
        return;
    }
    if (ws->held != NULL) {
        struct ws_input input = {ws->held + ws->held_at, ws->held_len - ws->held_at};
        bool more = process(ws, &input);
        if (ws->ended) {
            return;
        }
        ws->held_at = ws->held_len - (uint32_t)input.len;
        if (ws->held_at == ws->held_len) {
            drop_held(ws);
        }
        if (!more) {
            return;
        }
    }
    if (ws->peer_ended) {
        begin_end(ws, WS_CLOSE_ABNORMAL, NULL, 0);
    } else {
        conn_resume_read(ws->conn);
    }
}

void websocket_park(struct kiln_ws *ws)
{
    ws->parked = true;
}

void websocket_unpark(struct kiln_ws *ws)
{
    ws->parked = false;
    websocket_resume(ws);
}

void websocket_resume(struct kiln_ws *ws)
{
    if (!ws->resume_queued && !ws->ended && ws->conn != NULL &&
        (ws->held != NULL || ws->conn->read_paused || ws->peer_ended)) {
        ws->resume_queued = true;
        ws->end_task.run = resume_now;
        loop_defer(ws->loop, &ws->end_task);
    }
}

static void on_eof(struct conn *conn)
{
    struct kiln_ws *ws = ws_of(conn);
    ws->peer_ended = true;
    if (ws->held != NULL || ws->parked) {
        return; /* what came before the end is read first: resume_now() */
    }
    begin_end(ws, WS_CLOSE_ABNORMAL, NULL, 0);
}

/* ---- sending ------------------------------------------------------------------------------------------ */

static void put_message(struct kiln_ws *ws, const struct ws_frame *frame)
{
    ws->message_s = websocket_now_s(ws);
    metric_add(METRIC_WEBSOCKET_MESSAGES_SENT, 1);
    websocket_put(ws, frame);
}

enum ws_result websocket_send(struct kiln_ws *ws, enum ws_opcode opcode, const void *data, size_t len)
{
    struct ws_frame frame;
    if (!websocket_is_open(ws)) {
        return WS_ERROR_CLOSED;
    }
    enum ws_result result = ws_frame_make(&ws->core, &frame, opcode, data, len);
    if (result == WS_OK) {
        put_message(ws, &frame);
    }
    return result;
}

enum ws_result websocket_send_fragment(struct kiln_ws *ws, enum ws_opcode opcode, const void *data, size_t len,
                                       bool final)
{
    struct ws_frame frame;
    if (!websocket_is_open(ws)) {
        return WS_ERROR_CLOSED;
    }
    enum ws_result result = ws_fragment_make(&ws->core, &frame, opcode, data, len, final);
    if (result == WS_OK) {
        put_message(ws, &frame);
        if (final && ws->late != NULL) {
            rooms_send_late(ws);
        }
    }
    return result;
}

void websocket_notify_drained(struct kiln_ws *ws)
{
    if (ws->conn != NULL) {
        conn_notify_drained(ws->conn);
    }
}

static void on_drained(struct conn *conn)
{
    struct kiln_ws *ws = ws_of(conn);
    if (ws->owner != NULL) {
        ws->owner->on_drained(ws);
    }
}

/* ---- time ----------------------------------------------------------------------------------------------- */

/* One side has closed, and the other did not follow in time. */
static void on_deadline(struct conn *conn)
{
    struct kiln_ws *ws = ws_of(conn);
    if (ws->told) {
        /* Our last bytes wait for it to read: as long as it does. */
        size_t unsent = conn_pending(conn);
        if (unsent >= ws->unsent) {
            conn_close(conn, CONN_CLOSE_TIMEOUT);
            return;
        }
        ws->unsent = unsent;
        set_end_deadline(ws);
    } else if (ws->end_code != 0) {
        websocket_end(ws);
    } else if (ws->core.closing) {
        begin_end(ws, WS_CLOSE_ABNORMAL, NULL, 0);
    }
}

static void on_shutdown(struct conn *conn)
{
    websocket_drain_if_due(ws_of(conn));
}

static bool on_open(struct conn *conn)
{
    (void)conn;
    return false; /* a connection becomes one, it does not begin as one */
}

const struct protocol protocol_websocket = {
    .name = "websocket",
    .on_open = on_open,
    .on_data = on_data,
    .room = on_room,
    .on_eof = on_eof,
    .on_drained = on_drained,
    .on_deadline = on_deadline,
    .on_shutdown = on_shutdown,
    .on_close = on_close,
};
