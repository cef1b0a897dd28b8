#include "protocol/http2.h"

#include "config/config.h"
#include "loop/config_hold.h"
#include "observe/log.h"
#include "protocol/http2_private.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>

enum {
    DRAIN_NOTICE_MS = 1000, /* between the two GOAWAYs, when the client does not answer the PING */
    TICK_MS = 500,
    QUEUE_HIGH = 256, /* frames that wait in nghttp2 while the output is high: the client is not read */
    NOTSENT_LOW = 131072, /* what the kernel holds unsent cannot be overtaken any more */
};

static struct http2 *h_of(const struct conn *conn)
{
    return MAGIC_CAST(struct http2, conn->proto, HTTP2_MAGIC);
}

static uint64_t now_of(const struct http2 *h)
{
    return loop_now_ms(h->conn->loop);
}

/* ---- time --------------------------------------------------------------------------------- */

/* Without streams: KeepAliveTimeout, and for the client's first words RequestHeadersTimeout. */
static void wait_for_stream(struct http2 *h)
{
    const struct config *config = config_hold_current(h->conn->loop);
    double seconds = h->greeted ? config->keep_alive_timeout : config->request_headers_timeout;
    h->had_streams = false;
    h->idle_until_ms = now_of(h) + (uint64_t)(seconds * 1000);
    if (!h->ticking) {
        conn_deadline_set(h->conn, h->idle_until_ms);
    }
}

void http2_tick(struct http2 *h)
{
    if (!h->ticking && !h->dead) {
        const struct config *config = config_hold_current(h->conn->loop);
        uint64_t grace = (uint64_t)(config->grace_period * 500);
        uint64_t tick = grace < 50 ? 50 : grace < TICK_MS ? grace : TICK_MS;
        h->ticking = true;
        conn_deadline_set(h->conn, now_of(h) + tick);
    }
}

static bool header_block_is_late(const struct http2 *h)
{
    double seconds = config_hold_current(h->conn->loop)->request_headers_timeout;
    return h->gathering != NULL && (double)(now_of(h) - h->gathering_since_ms) >= seconds * 1000;
}

/* Looks at every stream's times. True: some have to be looked at again. */
static bool check_streams(struct http2 *h)
{
    uint64_t now = now_of(h);
    bool again = false;
    h->in_session = true; /* nobody sends meanwhile, which would end other streams than the one looked at */
    LIST_EACH(node, &h->streams) {
        struct http2_stream *s = LIST_ENTRY(node, struct http2_stream, node);
        again = http2_stream_check_time(s, now) || again;
    }
    h->in_session = false;
    http2_work_later(h);
    return again;
}

/* ---- the end of a connection ------------------------------------------------------------------ */

static void say_goodbye(struct http2 *h, uint32_t error)
{
    nghttp2_session_terminate_session(h->session, error);
    http2_work_later(h);
}

/* First GOAWAY: no more streams, please; those that are on their way are still served. */
static void begin_drain(struct http2 *h)
{
    if (h->drain == HTTP2_OPEN) {
        h->drain = HTTP2_NOTICE;
        h->notice_ms = now_of(h);
        nghttp2_submit_shutdown_notice(h->session);
        http2_tick(h);
        http2_work_later(h);
    }
}

/* A PING behind the first GOAWAY tells when the client has seen it; nghttp2 would let it overtake. */
static void ping_behind_notice(struct http2 *h)
{
    if (h->drain == HTTP2_NOTICE && !h->pinged && nghttp2_session_get_outbound_queue_size(h->session) == 0) {
        h->pinged = true;
        nghttp2_submit_ping(h->session, NGHTTP2_FLAG_NONE, (const uint8_t *)"draining");
        http2_work_later(h);
    }
}

void http2_drain_last(struct http2 *h)
{
    if (h->drain == HTTP2_NOTICE) {
        h->drain = HTTP2_LAST;
        nghttp2_submit_goaway(h->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(h->session),
                              NGHTTP2_NO_ERROR, NULL, 0);
        http2_work_later(h);
    }
}

static void end_streams(struct http2 *h)
{
    while (!list_is_empty(&h->streams)) {
        struct http2_stream *s = LIST_ENTRY(h->streams.next, struct http2_stream, node);
        http2_stream_end(s, !s->finished || s->cut || s->queued > 0);
    }
}

/* What is in the output still leaves; then the connection ends, and with it the streams now. */
static void end_connection(struct http2 *h)
{
    struct conn *conn = h->conn;
    h->over = true;
    end_streams(h);
    conn_finish(conn, CONN_CLOSE_LOCAL);
}

/* True: nothing more will come of this connection. */
static bool is_over(const struct http2 *h)
{
    if (nghttp2_session_want_write(h->session) != 0) {
        return false;
    }
    bool waits = h->stream_count > 0 || h->queued > 0;
    return nghttp2_session_want_read(h->session) == 0 || (!waits && (h->eof || h->drain == HTTP2_LAST));
}

/* ---- output --------------------------------------------------------------------------------------- */

static void write_frame(struct http2 *h, const uint8_t *data, size_t len)
{
    char *to = conn_reserve(h->conn, len);
    if (to == NULL) {
        return;
    }
    memcpy(to, data, len);
    if (UNLIKELY(!h->told)) {
        h->told = true;
        http2_settings_sent(h, (uint8_t *)to, len);
    }
    conn_commit(h->conn, len);
}

/* Takes frames from nghttp2 until it has none or the output is high. */
static void take_output(struct http2 *h)
{
    struct conn *conn = h->conn;
    h->in_session = true;
    while (conn_pending(conn) < HTTP2_OUTPUT_HIGH) {
        const uint8_t *data;
        ssize_t len = nghttp2_session_mem_send(h->session, &data);
        if (len < 0) {
            conn->write_failed = true;
        }
        if (len <= 0) {
            break;
        }
        write_frame(h, data, (size_t)len);
    }
    h->in_session = false;
    if (UNLIKELY(h->stop_error != 0)) {
        say_goodbye(h, h->stop_error);
        h->stop_error = 0;
    }
    if (conn_pending(conn) >= HTTP2_OUTPUT_HIGH && !h->wait_drained) {
        h->wait_drained = true;
        conn_notify_drained(conn);
    }
}

static void look_at_streams(struct http2 *h)
{
    while (!h->dead && !list_is_empty(&h->attention)) {
        struct http2_stream *s = LIST_ENTRY(h->attention.next, struct http2_stream, attention);
        list_remove(&s->attention);
        http2_stream_attend(s);
    }
}

/* After all output was taken that could be: what the connection waits for now. */
static void settle(struct http2 *h)
{
    if (is_over(h)) {
        end_connection(h);
    } else if (h->queued > 0) {
        http2_tick(h);
    } else if (h->stream_count == 0 && h->had_streams) {
        wait_for_stream(h);
    }
}

void http2_work(struct http2 *h)
{
    if (h->dead || h->over || h->in_session) {
        return;
    }
    if (h->working) {
        take_output(h); /* a flush by somebody that was called from here */
        return;
    }
    h->working = true;
    do {
        h->work_wanted = false;
        take_output(h);
        ping_behind_notice(h);
        look_at_streams(h);
    } while (h->work_wanted && !h->dead);
    h->working = false;
    if (!h->dead) {
        settle(h);
    }
}

void http2_work_later(struct http2 *h)
{
    h->work_wanted = true;
    if (!h->working && !h->in_session && !h->task_queued && !h->dead) {
        h->task_queued = true;
        loop_defer(h->conn->loop, &h->task);
    }
}

void http2_attend(struct http2_stream *s)
{
    if (list_is_empty(&s->attention)) {
        list_append(&s->h->attention, &s->attention);
    }
    http2_work_later(s->h);
}

/* ---- life ------------------------------------------------------------------------------------------ */

void http2_destroy(struct http2 *h)
{
    http2_session_delete(h->session);
    h->load->closed = true;
    if (h->load->running == 0) {
        free(h->load);
    }
    h->magic = 0;
    free(h);
}

static void run_task(struct task *task)
{
    struct http2 *h = CONTAINER_OF(task, struct http2, task);
    h->task_queued = false;
    if (h->dead) {
        http2_destroy(h);
    } else {
        http2_work(h);
    }
}

struct http2 *http2_create(struct conn *conn)
{
    struct http2 *h = calloc(1, sizeof *h);
    struct http2_load *load = calloc(1, sizeof *load);
    if (h == NULL || load == NULL) {
        free(h);
        free(load);
        return NULL;
    }
    h->magic = HTTP2_MAGIC;
    h->conn = conn;
    h->load = load;
    h->task.run = run_task;
    list_init(&h->streams);
    list_init(&h->attention);
    http2_limits_start(h);
    http2_frames_start(&h->frames_seen);
    h->session = http2_session_create(h);
    if (h->session == NULL || !http2_session_greet(h)) {
        http2_session_delete(h->session);
        free(load);
        free(h);
        return NULL;
    }
    return h;
}

static bool on_open(struct conn *conn)
{
    struct http2 *h = http2_create(conn);
    if (h == NULL) {
        return false;
    }
    conn->proto = h;
    int low = NOTSENT_LOW;
    setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low);
    wait_for_stream(h);
    if (conn_loop_is_shutting_down(conn->loop)) {
        begin_drain(h);
    }
    return true;
}

/* ---- events ------------------------------------------------------------------------------------------ */

/* What follows once all input of the event was given to nghttp2. */
static void after_input(struct http2 *h)
{
    http2_work(h);
    if (!h->dead && h->wait_drained && nghttp2_session_get_outbound_queue_size(h->session) > QUEUE_HIGH) {
        conn_pause_read(h->conn);
    }
}

/* What the client is told when nghttp2 cannot go on. */
static uint32_t error_of(ssize_t result)
{
    switch (result) {
    case NGHTTP2_ERR_FLOODED: return NGHTTP2_ENHANCE_YOUR_CALM;
    case NGHTTP2_ERR_BAD_CLIENT_MAGIC: return NGHTTP2_PROTOCOL_ERROR;
    default: return NGHTTP2_INTERNAL_ERROR;
    }
}

static void on_data(struct conn *conn, const uint8_t *data, size_t len)
{
    struct http2 *h = h_of(conn);
    bool greeted = h->greeted;
    if (h->over) {
        return;
    }
    uint32_t error;
    size_t good = http2_frames_check(h, data, len, &error);
    h->in_session = true;
    h->receiving = true;
    h->queued_before = nghttp2_session_get_outbound_queue_size(h->session);
    ssize_t used = nghttp2_session_mem_recv(h->session, data, good);
    h->receiving = false;
    h->in_session = false;
    if (used < 0) {
        error = h->stop_error != 0 ? h->stop_error : error_of(used);
        h->stop_error = 0;
    }
    if (error != NGHTTP2_NO_ERROR) {
        nghttp2_session_terminate_session(h->session, error);
    }
    after_input(h);
    if (h->dead || h->over) {
        return;
    }
    if (error != NGHTTP2_NO_ERROR) {
        end_connection(h);
    } else if (h->gathering != NULL) {
        http2_tick(h);
    } else if (!greeted && h->greeted && h->stream_count == 0) {
        wait_for_stream(h);
    }
}

static void on_eof(struct conn *conn)
{
    struct http2 *h = h_of(conn);
    h->eof = true;
    h->in_session = true; /* as in check_streams */
    LIST_EACH(node, &h->streams) {
        struct http2_stream *s = LIST_ENTRY(node, struct http2_stream, node);
        if (!s->remote_done) {
            http2_reset(s, NGHTTP2_CANCEL);
        } else if (!s->req->peer_eof) {
            request_peer_eof(s->req);
        }
    }
    h->in_session = false;
    http2_work(h);
}

static void on_drained(struct conn *conn)
{
    struct http2 *h = h_of(conn);
    h->wait_drained = false;
    conn_resume_read(conn);
    http2_work(h);
}

static void on_deadline(struct conn *conn)
{
    struct http2 *h = h_of(conn);
    h->ticking = false;
    if (h->over) {
        return;
    }
    if (header_block_is_late(h)) {
        say_goodbye(h, NGHTTP2_ENHANCE_YOUR_CALM);
        return;
    }
    if (h->drain == HTTP2_NOTICE && now_of(h) - h->notice_ms >= DRAIN_NOTICE_MS) {
        http2_drain_last(h);
    }
    if (check_streams(h) || h->gathering != NULL || h->drain == HTTP2_NOTICE) {
        http2_tick(h);
    } else if (h->stream_count > 0) {
        return;
    } else if (now_of(h) < h->idle_until_ms) {
        conn_deadline_set(conn, h->idle_until_ms);
    } else if (!h->greeted) {
        end_connection(h);
    } else {
        say_goodbye(h, NGHTTP2_NO_ERROR);
    }
}

static void on_shutdown(struct conn *conn)
{
    begin_drain(h_of(conn));
}

static void on_close(struct conn *conn, enum conn_close_reason reason)
{
    (void)reason;
    if (conn->proto == NULL) {
        return; /* it never was one */
    }
    struct http2 *h = h_of(conn);
    h->dead = true;
    end_streams(h);
    if (!h->task_queued) {
        h->task_queued = true;
        loop_defer(conn->loop, &h->task);
    }
}

const struct protocol protocol_http2 = {
    .name = "h2",
    .on_open = on_open,
    .on_data = on_data,
    .on_eof = on_eof,
    .on_drained = on_drained,
    .on_deadline = on_deadline,
    .on_shutdown = on_shutdown,
    .on_close = on_close,
};

/* ---- from HTTP/1.1 ------------------------------------------------------------------------------------- */

void http2_take_over(struct conn *conn, const uint8_t *data, size_t len)
{
    conn->proto = NULL;
    conn->protocol = &protocol_http2;
    conn_resume_read(conn);
    if (on_open(conn)) {
        on_data(conn, data, len);
    } else {
        conn_close(conn, CONN_CLOSE_ERROR);
    }
}
