/* The output side of a stream. Bytes of an answer wait in the stream as a list of segments, copied,
 * referenced or of a file, until nghttp2 asks for a DATA frame; each frame is written into the
 * connection's output queue as its header and a part of one segment. */
#include "base/check.h"
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http2_private.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    FRAME_HEAD = 9,
    COPY_MAX = 2048, /* a part of a segment up to this size is copied rather than referred to */
    SMALL_MARGIN = 32, /* what an arena may add to a piece */
    SEGMENT_MIN = 4096, /* room of a copied segment */
    SEGMENT_MAX = 16384,
    HEADERS_ON_STACK = 48,
    READY_HEADERS = 64, /* most headers of a ready head */
};

static struct http2_stream *stream_of(const struct request *req)
{
    return MAGIC_CAST(struct http2_stream, req->stream, HTTP2_STREAM_MAGIC);
}

/* ---- segments ---------------------------------------------------------------------------- */

static void queue_grew(struct http2_stream *s, uint64_t len)
{
    if (s->queued == 0) {
        s->blocked_since_ms = loop_now_ms(s->h->conn->loop);
        s->sent_since = 0;
    }
    s->queued += len;
    s->h->queued += len;
}

void http2_wake(struct http2_stream *s)
{
    if (s->idle) {
        s->idle = false;
        nghttp2_session_resume_data(s->h->session, s->id);
    }
    http2_work_later(s->h);
}

static void link_segment(struct http2_stream *s, struct http2_segment *segment)
{
    if (s->first == NULL) {
        s->first = segment;
    } else {
        CHECK(s->last != NULL);
        s->last->next = segment;
    }
    s->last = segment;
}

/* An empty segment at the end, with `room` bytes behind it for a copy. NULL: out of memory. */
static struct http2_segment *add_segment(struct http2_stream *s, size_t room)
{
    struct http2_segment *segment = &s->own;
    if (s->own_used || room > 0) {
        segment = malloc(sizeof *segment + room);
        if (segment == NULL) {
            return NULL;
        }
    } else {
        s->own_used = true;
    }
    *segment = (struct http2_segment){.fd = -1, .room = (uint32_t)room};
    segment->data = room > 0 ? (char *)(segment + 1) : NULL;
    link_segment(s, segment);
    return segment;
}

static void free_segment(struct http2_stream *s, struct http2_segment *segment)
{
    if (segment == &s->own) {
        s->own_used = false;
    } else {
        free(segment);
    }
}

/* The segment's end: what it refers to is let go once the output queue has sent the parts of it. */
static void end_segment(struct http2_stream *s)
{
    struct http2_segment *segment = s->first;
    struct conn *conn = s->h->conn;
    s->first = segment->next;
    if (segment->lent && !s->h->dead) {
        bool copied = segment->release == NULL && segment != &s->own;
        if (copied) {
            conn_write_ref(conn, "", 0, free, segment);
            return;
        }
        if (segment->release != NULL) {
            conn_write_ref(conn, "", 0, segment->release, segment->arg);
        }
    } else if (segment->release != NULL) {
        segment->release(segment->arg);
    }
    free_segment(s, segment);
}

void http2_response_drop(struct http2_stream *s)
{
    s->h->queued -= s->queued;
    s->queued = 0;
    s->blocked_since_ms = 0;
    while (s->first != NULL) {
        end_segment(s);
    }
}

/* ---- DATA frames ------------------------------------------------------------------------------ */

/* The end of the data; of the stream, unless trailers follow. */
static void end_data(struct http2_stream *s, uint32_t *flags)
{
    const struct request *req = s->req;
    unsigned count = req->response.trailer_count;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (LIKELY(count == 0)) {
        return;
    }
    nghttp2_nv *fields = malloc(count * sizeof *fields);
    for (unsigned i = 0; fields != NULL && i < count; i++) {
        struct str name = req->response.trailers[i].name;
        struct str value = req->response.trailers[i].value;
        fields[i] = (nghttp2_nv){(uint8_t *)(uintptr_t)name.ptr, (uint8_t *)(uintptr_t)value.ptr, name.len, value.len,
                                 NGHTTP2_NV_FLAG_NONE};
    }
    if (fields != NULL && nghttp2_submit_trailer(s->h->session, s->id, fields, count) == 0) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    }
    free(fields);
}

static ssize_t read_data(nghttp2_session *session, int32_t id, uint8_t *buf, size_t length, uint32_t *flags,
                         nghttp2_data_source *source, void *user_data)
{
    struct http2_stream *s = MAGIC_CAST(struct http2_stream, source->ptr, HTTP2_STREAM_MAGIC);
    (void)session;
    (void)id;
    (void)buf;
    (void)user_data;
    if (UNLIKELY(s->h->upgraded && !s->h->greeted && s->sent_since >= HTTP2_UPGRADED_FIRST)) {
        s->idle = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    if (s->queued == 0) {
        if (!s->finished) {
            s->idle = true;
            return NGHTTP2_ERR_DEFERRED;
        }
        end_data(s, flags);
        return 0;
    }
    size_t n = s->first->len < length ? (size_t)s->first->len : length;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (s->finished && n == s->queued) {
        end_data(s, flags);
    }
    return (ssize_t)n;
}

/* False: the file does not have what was promised. */
static bool write_file_part(struct conn *conn, const struct http2_segment *segment, const uint8_t *head, size_t len)
{
    char *to = conn_reserve(conn, FRAME_HEAD + len);
    if (to == NULL) {
        return true; /* out of memory, or the connection ends: it will be closed */
    }
    memcpy(to, head, FRAME_HEAD);
    size_t got = 0;
    while (got < len) {
        ssize_t n = pread(segment->fd, to + FRAME_HEAD + got, len - got, segment->offset + (off_t)got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false; /* nothing was committed */
        }
        got += (size_t)n;
    }
    conn_commit(conn, FRAME_HEAD + len);
    return true;
}

static void write_memory_part(struct conn *conn, struct http2_segment *segment, const uint8_t *head, size_t len)
{
    if (len <= COPY_MAX) {
        char *to = conn_reserve(conn, FRAME_HEAD + len);
        if (to != NULL) {
            memcpy(to, head, FRAME_HEAD);
            memcpy(to + FRAME_HEAD, segment->data, len);
            conn_commit(conn, FRAME_HEAD + len);
        }
        return;
    }
    conn_write(conn, head, FRAME_HEAD);
    if (len == segment->len && segment->release != NULL) {
        void (*release)(void *) = segment->release;
        segment->release = NULL;
        conn_write_ref(conn, segment->data, len, release, segment->arg);
        return;
    }
    conn_write_ref(conn, segment->data, len, NULL, NULL);
    segment->lent = true;
}

int http2_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *framehd, size_t length,
                    nghttp2_data_source *source, void *user_data)
{
    struct http2_stream *s = MAGIC_CAST(struct http2_stream, source->ptr, HTTP2_STREAM_MAGIC);
    struct http2 *h = s->h;
    struct http2_segment *segment = s->first;
    (void)session;
    (void)frame;
    (void)user_data;
    CHECK(segment != NULL && length <= segment->len);
    if (segment->fd >= 0) {
        if (!write_file_part(h->conn, segment, framehd, length)) {
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
        segment->offset += (off_t)length;
    } else {
        write_memory_part(h->conn, segment, framehd, length);
        segment->data += length;
    }
    segment->len -= length;
    s->queued -= length;
    s->sent_since += length;
    h->queued -= length;
    if (segment->len == 0) {
        end_segment(s);
    }
    if (s->queued == 0) {
        s->blocked_since_ms = 0;
        if (s->want_drained || (s->finished && !s->remote_done)) {
            http2_attend(s);
        }
    }
    http2_earn_frames(h, 2);
    return conn_pending(h->conn) >= HTTP2_OUTPUT_HIGH ? NGHTTP2_ERR_PAUSE : 0;
}

/* ---- heads ----------------------------------------------------------------------------------------- */

static nghttp2_nv pair(struct str name, struct str value, uint8_t flags)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name.ptr, (uint8_t *)(uintptr_t)value.ptr, name.len, value.len, flags};
}

enum { STAYS = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE };

/* What belongs to an HTTP/1 connection and makes an HTTP/2 answer malformed (RFC 9113 8.2.2). */
static bool is_of_connection(struct str name)
{
    switch (name.len) {
    case 7: return str_eq_nocase(name, STR("upgrade"));
    case 10: return str_eq_nocase(name, STR("connection")) || str_eq_nocase(name, STR("keep-alive"));
    case 16: return str_eq_nocase(name, STR("proxy-connection"));
    case 17: return str_eq_nocase(name, STR("transfer-encoding"));
    default: return false;
    }
}

static const char status_texts[][4] = {"200", "204", "206", "301", "302", "303", "304", "307",
                                       "308", "400", "401", "403", "404", "405", "500", "503"};

static struct str status_text(struct http2_stream *s, int status)
{
    for (size_t i = 0; i < ARRAY_LEN(status_texts); i++) {
        const char *text = status_texts[i];
        if ((text[0] - '0') * 100 + (text[1] - '0') * 10 + (text[2] - '0') == status) {
            return (struct str){text, 3};
        }
    }
    char *digits = s->status_text;
    digits[0] = (char)('0' + status / 100 % 10);
    digits[1] = (char)('0' + status / 10 % 10);
    digits[2] = (char)('0' + status % 10);
    return (struct str){digits, 3};
}

/* A header to send. nghttp2 copies the name in lower case; the value stays until it is sent. */
static nghttp2_nv field(struct str name, struct str value)
{
    bool secret = name.len == 10 && str_eq_nocase(name, STR("set-cookie"));
    return pair(name, value, NGHTTP2_NV_FLAG_NO_COPY_VALUE | (secret ? NGHTTP2_NV_FLAG_NO_INDEX : 0));
}

struct nv_list {
    nghttp2_nv *items;
    size_t count;
};

static void start_list(struct http2_stream *s, struct nv_list *list, int status)
{
    list->items[0] = pair(STR(":status"), status_text(s, status), STAYS);
    list->items[1] = pair(STR("date"), (struct str){loop_http_date(s->req->loop), 29}, STAYS);
    list->count = 2;
}

static void add_length(struct http2_stream *s, struct nv_list *list, int status, uint64_t length)
{
    if (length == RESPONSE_LENGTH_UNKNOWN || status == 204 || status == 304 || status < 200) {
        return;
    }
    size_t len = str_put_u64(s->length_text, length);
    list->items[list->count++] = pair(STR("content-length"), (struct str){s->length_text, len}, STAYS);
}

static bool response_has(const struct request *req, struct str name)
{
    for (unsigned i = 0; i < req->response.header_count; i++) {
        if (str_eq_nocase(req->response.headers[i].name, name)) {
            return true;
        }
    }
    return req->response.content_type.ptr != NULL && str_eq_nocase(name, STR("content-type"));
}

static void add_fields(struct nv_list *list, const struct request *req)
{
    const struct config *config = req->config;
    for (size_t i = 0; req->response.default_headers && i < config->default_headers.count; i++) {
        const struct config_header *header = &config->default_headers.items[i];
        if (!response_has(req, header->lower) && !is_of_connection(header->lower)) {
            nghttp2_nv *item = &list->items[list->count++];
            *item = field(header->lower, header->value);
            item->flags |= NGHTTP2_NV_FLAG_NO_COPY_NAME; /* as the value, it lies in the config */
        }
    }
    if (req->response.content_type.ptr != NULL) {
        list->items[list->count++] = pair(STR("content-type"), req->response.content_type, STAYS);
    }
    for (unsigned i = 0; i < req->response.header_count; i++) {
        if (!is_of_connection(req->response.headers[i].name)) {
            list->items[list->count++] = field(req->response.headers[i].name, req->response.headers[i].value);
        }
    }
}

static void submit(struct http2_stream *s, const struct nv_list *list)
{
    nghttp2_data_provider provider = {.source.ptr = s, .read_callback = read_data};
    s->head_out = true;
    if (nghttp2_submit_response(s->h->session, s->id, list->items, list->count, s->no_data ? NULL : &provider) != 0) {
        http2_reset(s, NGHTTP2_INTERNAL_ERROR);
    }
    http2_work_later(s->h);
}

static void send_head(struct request *req, uint64_t length)
{
    struct http2_stream *s = stream_of(req);
    nghttp2_nv on_stack[HEADERS_ON_STACK];
    size_t most = 4 + req->config->default_headers.count + req->response.header_count;
    struct nv_list list = {on_stack, 0};
    if (most > HEADERS_ON_STACK) {
        list.items = malloc(most * sizeof *list.items);
        if (list.items == NULL) {
            http2_reset(s, NGHTTP2_INTERNAL_ERROR);
            return;
        }
    }
    start_list(s, &list, req->response.status);
    add_fields(&list, req);
    add_length(s, &list, req->response.status, length);
    s->no_data = req->response.no_body || length == 0;
    submit(s, &list);
    if (list.items != on_stack) {
        free(list.items);
    }
}

static void send_interim(struct request *req, int status)
{
    struct http2_stream *s = stream_of(req);
    nghttp2_nv nv = pair(STR(":status"), status_text(s, status), NGHTTP2_NV_FLAG_NONE);
    if (!s->head_out && !s->h->dead) {
        nghttp2_submit_headers(s->h->session, NGHTTP2_FLAG_NONE, s->id, NULL, &nv, 1, NULL);
        http2_work_later(s->h);
    }
}

/* ---- bodies ------------------------------------------------------------------------------------------- */

static bool takes_body(const struct http2_stream *s, uint64_t len)
{
    return len > 0 && !s->no_data && !s->aborted && !s->h->dead;
}

/* A small piece, which most often is the whole body, lies in what is left of the arena's block. It is copied into the
 * output before the request ends, never referred to. */
static bool add_small(struct http2_stream *s, const char *data, size_t len)
{
    struct arena *arena = &s->req->arena;
    bool fits = len + SMALL_MARGIN <= (size_t)(arena->end - arena->next);
    char *copy = fits && len <= COPY_MAX && !s->own_used ? arena_alloc(arena, len) : NULL;
    if (copy == NULL) {
        return false;
    }
    struct http2_segment *segment = add_segment(s, 0);
    memcpy(copy, data, len);
    segment->data = copy;
    segment->len = len;
    queue_grew(s, len);
    return true;
}

static void add_copy(struct http2_stream *s, const char *data, size_t len)
{
    struct http2_segment *last = s->first != NULL ? s->last : NULL;
    if (last == NULL && add_small(s, data, len)) {
        return;
    }
    size_t n = last != NULL && last->room > 0 ? (len < last->room ? len : last->room) : 0;
    if (n > 0) {
        memcpy((char *)(uintptr_t)last->data + last->len, data, n);
        last->room -= (uint32_t)n;
        last->len += n;
        queue_grew(s, n);
    }
    while (n < len) {
        size_t part = len - n < SEGMENT_MAX ? len - n : SEGMENT_MAX;
        size_t room = part < SEGMENT_MIN && last != NULL ? SEGMENT_MIN : part;
        struct http2_segment *segment = add_segment(s, room);
        if (segment == NULL) {
            http2_reset(s, NGHTTP2_INTERNAL_ERROR);
            return;
        }
        memcpy((char *)(uintptr_t)segment->data, data + n, part);
        segment->len = part;
        segment->room -= (uint32_t)part;
        queue_grew(s, part);
        n += part;
    }
}

static void send_body(struct request *req, const void *data, size_t len)
{
    struct http2_stream *s = stream_of(req);
    if (takes_body(s, len)) {
        add_copy(s, data, len);
        http2_wake(s);
    }
}

static void send_body_part(struct request *req, const struct http2_segment *part)
{
    struct http2_stream *s = stream_of(req);
    struct http2_segment *segment = takes_body(s, part->len) ? add_segment(s, 0) : NULL;
    if (segment == NULL) {
        if (takes_body(s, part->len)) {
            http2_reset(s, NGHTTP2_INTERNAL_ERROR);
        }
        if (part->release != NULL) {
            part->release(part->arg);
        }
        return;
    }
    *segment = *part;
    queue_grew(s, part->len);
    http2_wake(s);
}

static void send_body_ref(struct request *req, const void *data, size_t len, void (*release)(void *), void *arg)
{
    send_body_part(req, &(struct http2_segment){.data = data, .len = len, .fd = -1, .release = release, .arg = arg});
}

static void send_body_file(struct request *req, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg)
{
    send_body_part(req,
                   &(struct http2_segment){.len = len, .offset = offset, .fd = fd, .release = release, .arg = arg});
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static void finish(struct request *req)
{
    struct http2_stream *s = stream_of(req);
    s->finished = true;
    s->flowing = false;
    req->body.flowing = false;
    http2_body_drop(s);
    if (s->closed) {
        http2_stream_end(s, false);
        return;
    }
    http2_wake(s);
    if (!s->remote_done) {
        http2_attend(s); /* the client need not send the rest */
    }
}

void http2_reset(struct http2_stream *s, uint32_t error)
{
    if (s->aborted || s->closed || s->h->dead) {
        return;
    }
    s->aborted = true;
    s->cut = true;
    s->flowing = false;
    s->req->body.flowing = false;
    http2_response_drop(s);
    nghttp2_submit_rst_stream(s->h->session, NGHTTP2_FLAG_NONE, s->id, error);
    http2_work_later(s->h);
}

void http2_malformed(struct http2_stream *s)
{
    struct http2 *h = s->h;
    s->malformed = true;
    s->flowing = false;
    nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_PROTOCOL_ERROR);
    http2_work_later(h);
}

static void abort_response(struct request *req)
{
    struct http2_stream *s = stream_of(req);
    s->finished = true;
    if (s->closed) {
        http2_stream_end(s, false);
        return;
    }
    http2_reset(s, NGHTTP2_INTERNAL_ERROR);
}

static void send_ready(struct request *req, const struct ready_head *head, const void *body, size_t len,
                       void (*release)(void *), void *arg)
{
    struct http2_stream *s = stream_of(req);
    nghttp2_nv items[4 + READY_HEADERS];
    struct nv_list list = {items, 0};
    start_list(s, &list, head->status);
    for (unsigned i = 0; i < head->header_count && i < READY_HEADERS; i++) {
        if (!is_of_connection(head->headers[i].name)) {
            items[list.count++] = field(head->headers[i].name, head->headers[i].value);
        }
    }
    add_length(s, &list, head->status, len);
    s->no_data = req->response.no_body || len == 0;
    submit(s, &list);
    send_body_ref(req, body, len, release, arg);
    finish(req);
}

/* ---- flow ----------------------------------------------------------------------------------------------- */

static size_t pending(struct request *req)
{
    return (size_t)stream_of(req)->queued;
}

static void notify_drained(struct request *req)
{
    struct http2_stream *s = stream_of(req);
    s->want_drained = true;
    if (s->queued == 0) {
        http2_attend(s);
    }
}

static void flush(struct request *req)
{
    struct http2_stream *s = stream_of(req);
    struct http2 *h = s->h;
    if (!h->in_session && !h->dead) {
        struct conn *conn = h->conn;
        http2_work(h);
        conn_flush(conn);
    }
}

const struct request_ops http2_request_ops = {
    .send_head = send_head,
    .send_body = send_body,
    .send_body_ref = send_body_ref,
    .send_body_file = send_body_file,
    .finish = finish,
    .abort = abort_response,
    .send_ready = send_ready,
    .send_interim = send_interim,
    .body_resume = http2_body_resume,
    .body_pause = http2_body_pause,
    .pending = pending,
    .notify_drained = notify_drained,
    .flush = flush,
    .upgrade_conn = http2_upgrade_conn,
    .upgrade = http2_upgrade_stream,
};
