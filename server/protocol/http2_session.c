/* nghttp2 as the server uses it: its options, the settings, and the callbacks, which find the stream
 * and pass on. None of them calls the session's send or receive, nor closes the connection. */
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http2_private.h"

static struct http2 *h_of(void *user_data)
{
    return MAGIC_CAST(struct http2, user_data, HTTP2_MAGIC);
}

static struct http2_stream *stream_of(nghttp2_session *session, int32_t id)
{
    struct http2_stream *s = nghttp2_session_get_stream_user_data(session, id);
    CHECK(s == NULL || s->magic == HTTP2_STREAM_MAGIC);
    return s;
}

/* http2.c says so and ends the connection. While nghttp2 sends it must not be interrupted. */
static int stop(struct http2 *h, uint32_t error)
{
    h->stop_error = error;
    return h->receiving ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* ---- frames coming in ------------------------------------------------------------------- */

/* Endpoints of streams that were reset still run: they count as long as they do. */
static bool has_room(const struct http2 *h)
{
    return h->stream_count < h->most_streams && h->load->running < 2 * h->most_streams;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct http2 *h = h_of(user_data);
    struct http2_stream *s;
    int32_t id = frame->hd.stream_id;
    if (frame->hd.type != NGHTTP2_HEADERS) {
        return 0;
    }
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        s = has_room(h) ? http2_stream_create(h, id) : NULL;
        if (s == NULL) {
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_REFUSED_STREAM);
            return 0;
        }
        nghttp2_session_set_stream_user_data(session, id, s);
    } else {
        s = stream_of(session, id);
        if (s == NULL) {
            return 0;
        }
        s->trailers = true;
        s->head = (struct http2_head){0};
    }
    h->gathering = s;
    h->gathering_since_ms = loop_now_ms(h->conn->loop);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, nghttp2_rcbuf *name, nghttp2_rcbuf *value,
                     uint8_t flags, void *user_data)
{
    struct http2 *h = h_of(user_data);
    (void)session;
    (void)frame;
    (void)flags;
    if (h->gathering != NULL && !http2_head_add(h->gathering, name, value)) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return 0;
}

static void headers_received(struct http2 *h, const nghttp2_frame *frame)
{
    struct http2_stream *s = h->gathering;
    bool end_stream = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    h->gathering = NULL;
    if (s == NULL) {
        return;
    }
    http2_earn_frames(h, 8);
    if (!s->trailers) {
        http2_head_complete(s, end_stream);
    } else if (end_stream && http2_fields_end(s)) {
        http2_body_ended(s);
    } else {
        http2_malformed(s);
    }
}

/* The client's SETTINGS: what was held back until then may go. */
static void client_greets(struct http2 *h)
{
    if (!h->greeted) {
        h->greeted = true;
        LIST_EACH(node, &h->streams) {
            http2_wake(LIST_ENTRY(node, struct http2_stream, node));
        }
    }
}

/* Not every frame comes to its end in on_frame_recv: of DATA for a stream that was reset nobody is told, though nghttp2 may
 * open the connection's window for it. */
static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *user_data)
{
    (void)hd;
    h_of(user_data)->queued_before = nghttp2_session_get_outbound_queue_size(session);
    return 0;
}

/* A change of SETTINGS_INITIAL_WINDOW_SIZE that makes a window too large is an error of the connection
 * (RFC 9113 6.9.2); nghttp2 only resets the streams concerned, which is seen by what it queues beside
 * its acknowledgement. */
static int settings_received(struct http2 *h, const nghttp2_frame *frame)
{
    size_t queued = nghttp2_session_get_outbound_queue_size(h->session);
    bool window = false;
    for (size_t i = 0; i < frame->settings.niv; i++) {
        window = window || frame->settings.iv[i].settings_id == NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE;
    }
    client_greets(h);
    return h->receiving && window && queued > h->queued_before + 1 ? stop(h, NGHTTP2_FLOW_CONTROL_ERROR) : 0;
}

static void data_ended(struct http2_stream *s)
{
    if (s == NULL || s->malformed) {
        return;
    }
    if (http2_fields_end(s)) {
        http2_body_ended(s);
    } else {
        http2_malformed(s);
    }
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct http2 *h = h_of(user_data);
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS: headers_received(h, frame); break;
    case NGHTTP2_DATA:
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
            data_ended(stream_of(session, frame->hd.stream_id));
        }
        break;
    case NGHTTP2_SETTINGS: return settings_received(h, frame);
    case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) {
            http2_drain_last(h);
        }
        break;
    case NGHTTP2_PRIORITY_UPDATE: {
        const nghttp2_ext_priority_update *update = frame->ext.payload;
        if (update->stream_id > nghttp2_session_get_last_proc_stream_id(session)) {
            http2_priority_updated(h, update->stream_id);
        }
        return update->stream_id == 0 ? stop(h, NGHTTP2_PROTOCOL_ERROR) : 0; /* RFC 9218 7.1 */
    }
    default: break;
    }
    return 0;
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int error, void *user_data)
{
    struct http2 *h = h_of(user_data);
    (void)session;
    (void)frame;
    /* A request past the limit that nghttp2 refuses by itself, before the client has seen the limit: there never is a
     * stream whose end would count it. */
    return error != NGHTTP2_ERR_REFUSED_STREAM || http2_count_reset(h) ? 0 : stop(h, NGHTTP2_ENHANCE_YOUR_CALM);
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t len,
                         void *user_data)
{
    struct http2_stream *s = stream_of(session, id);
    (void)flags;
    (void)user_data;
    /* The connection's window never waits for a stream. */
    nghttp2_session_consume_connection(session, len);
    if (s == NULL || s->malformed) {
        nghttp2_session_consume_stream(session, id, len);
    } else if (http2_fields_data(s, len)) {
        http2_body_received(s, data, len);
    } else {
        http2_malformed(s);
    }
    return 0;
}

/* ---- the end of streams ---------------------------------------------------------------------- */

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *user_data)
{
    struct http2 *h = h_of(user_data);
    struct http2_stream *s = stream_of(session, id);
    bool ours = s != NULL && s->aborted;
    if (s != NULL) {
        /* The user data stays: nghttp2 lets go of its stream right after this. */
        if (error == NGHTTP2_NO_ERROR && s->no_data && !s->finished) {
            s->closed = true; /* an answer without a body, whose author has not ended it yet */
        } else {
            http2_stream_end(s, !s->finished || s->cut || s->queued > 0);
        }
    }
    return error == NGHTTP2_NO_ERROR || ours || http2_count_reset(h) ? 0 : stop(h, NGHTTP2_ENHANCE_YOUR_CALM);
}

/* An answer whose headers nghttp2 cannot send, because they are too large. */
static int on_frame_not_send(nghttp2_session *session, const nghttp2_frame *frame, int error, void *user_data)
{
    (void)error;
    (void)user_data;
    if (frame->hd.type == NGHTTP2_HEADERS && stream_of(session, frame->hd.stream_id) != NULL) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_INTERNAL_ERROR);
    }
    return 0;
}

/* ---- the session ------------------------------------------------------------------------------- */

static nghttp2_session_callbacks *callbacks;

__attribute__((constructor)) static void make_callbacks(void)
{
    CHECK(nghttp2_session_callbacks_new(&callbacks) == 0);
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback2(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, on_invalid_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_frame_not_send);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, http2_send_data);
}

nghttp2_session *http2_session_create(struct http2 *h)
{
    const struct config *config = config_hold_current(h->conn->loop);
    nghttp2_option *option;
    nghttp2_session *session = NULL;
    if (nghttp2_option_new(&option) != 0) {
        return NULL;
    }
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_no_http_messaging(option, 1); /* http2_fields.c sees to it */
    nghttp2_option_set_builtin_recv_extension_type(option, NGHTTP2_PRIORITY_UPDATE);
    nghttp2_option_set_max_continuations(option, (size_t)config->http2_max_continuations + 1);
    nghttp2_option_set_max_deflate_dynamic_table_size(option, (size_t)config->http2_header_table_size);
    if (nghttp2_session_server_new3(&session, callbacks, h, option, http2_memory_enter()) != 0) {
        http2_memory_leave();
        session = NULL;
    }
    nghttp2_option_del(option);
    return session;
}

void http2_session_delete(nghttp2_session *session)
{
    if (session != NULL) {
        nghttp2_session_del(session);
        http2_memory_leave();
    }
}

/* nghttp2 ends the connection past the number of streams that it knows of, where one stream too many
 * is to be refused: it is told twice the number that the client is told (http2_settings_sent). */
bool http2_session_greet(struct http2 *h)
{
    const struct config *config = config_hold_current(h->conn->loop);
    h->most_streams = (uint32_t)config->http2_max_streams;
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 2 * h->most_streams},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)config->max_header_size},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
        {NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1},
        {NGHTTP2_SETTINGS_HEADER_TABLE_SIZE, (uint32_t)config->http2_header_table_size},
    };
    return nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings, ARRAY_LEN(settings)) == 0 &&
           nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0,
                                                 (int32_t)config->http2_connection_window) == 0;
}

void http2_settings_sent(struct http2 *h, uint8_t *frame, size_t len)
{
    enum { HEAD = 9, ENTRY = 6 };
    uint32_t most = h->most_streams;
    for (size_t at = HEAD; at + ENTRY <= len; at += ENTRY) {
        if (frame[at] == 0 && frame[at + 1] == NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS) {
            for (unsigned i = 0; i < 4; i++) {
                frame[at + 2 + i] = (uint8_t)(most >> (24 - 8 * i));
            }
        }
    }
}
