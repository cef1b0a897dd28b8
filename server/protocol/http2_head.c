/* A request's head, header by header, into the request's arena. http2_fields.c checks what RFC 9113 8
 * says of pseudo headers, names, values, connection headers and Content-Length; here follow the checks
 * that HTTP/1.1 requests get too, with the same answers, and the crumbs of Cookie become one. */
#include "config/config.h"
#include "protocol/http2_private.h"
#include "request/head.h"

/* What is in HPACK's static table is there for ever, with its NUL. */
static bool copy_text(struct arena *arena, struct str text, bool is_static, struct str *out)
{
    *out = text;
    if (is_static) {
        return true;
    }
    char *copy = arena_alloc(arena, text.len + 1);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    out->ptr = copy;
    return true;
}

static struct arena *arena_of(const struct http2_stream *s)
{
    return s->trailers ? &s->req->late : &s->req->arena;
}

static bool make_room(struct http2_stream *s, uint16_t count)
{
    struct http2_head *head = &s->head;
    uint32_t cap = head->cap == 0 ? 16 : (uint32_t)head->cap * 2;
    struct header *items = arena_alloc(arena_of(s), cap * sizeof *items);
    if (items == NULL) {
        return false;
    }
    if (count > 0) {
        memcpy(items, head->items, count * sizeof *items);
    }
    head->items = items;
    head->cap = (uint16_t)cap;
    return true;
}

static bool add_pseudo(struct http2_stream *s, const struct http2_field *field)
{
    struct request *req = s->req;
    struct str name = field->name;
    struct str text;
    if (!copy_text(&req->arena, field->value, field->static_value, &text)) {
        return false;
    }
    switch (name.ptr[1]) {
    case 'm': req->method_text = text; break;
    case 'p':
        if (name.len == sizeof ":protocol" - 1) {
            s->head.protocol = text;
        } else {
            req->target = text;
        }
        break;
    case 'a': s->head.authority = text; break;
    default: break;
    }
    return true;
}

static bool add_field(struct http2_stream *s, const struct http2_field *field, unsigned known)
{
    struct request *req = s->req;
    uint16_t *count = s->trailers ? &req->trailer_count : &req->header_count;
    if (*count >= req->config->max_header_count) {
        s->head.status = 431;
        return true;
    }
    if (*count == s->head.cap && !make_room(s, *count)) {
        return false;
    }
    struct header *header = &s->head.items[*count];
    if (!copy_text(arena_of(s), field->name, field->static_name, &header->name) ||
        !copy_text(arena_of(s), field->value, field->static_value, &header->value)) {
        return false;
    }
    ++*count;
    if (s->trailers) {
        req->trailers = s->head.items;
        return true;
    }
    if (known < HEADER_KNOWN_COUNT) {
        s->head.cookies += known == HEADER_COOKIE;
        if (req->known[known] == 0) {
            req->known[known] = *count;
        }
    }
    return true;
}

bool http2_head_add(struct http2_stream *s, nghttp2_rcbuf *name, nghttp2_rcbuf *value)
{
    nghttp2_vec name_bytes = nghttp2_rcbuf_get_buf(name);
    nghttp2_vec value_bytes = nghttp2_rcbuf_get_buf(value);
    const struct http2_field field = {
        .name = {(const char *)name_bytes.base, name_bytes.len},
        .value = {(const char *)value_bytes.base, value_bytes.len},
        .static_name = nghttp2_rcbuf_is_static(name) != 0,
        .static_value = nghttp2_rcbuf_is_static(value) != 0,
    };
    unsigned known;
    if (!http2_field_check(s, &field, &known)) {
        http2_malformed(s);
        return false;
    }
    uint64_t size = s->head.size + (uint64_t)name_bytes.len + value_bytes.len + 32;
    if (size > (uint64_t)s->req->config->max_header_size) {
        /* What follows is decoded, for the sake of the table, and dropped; a method that came is kept
         * for the log. */
        s->head.status = 431;
        return true;
    }
    s->head.size = (uint32_t)size;
    return field.name.ptr[0] == ':' ? add_pseudo(s, &field) : add_field(s, &field, known);
}

/* ---- the whole head ---------------------------------------------------------------------- */

/* "a=1" and "b=2" in two lines are "a=1; b=2" (RFC 9113 8.2.3). */
static bool join_cookies(struct request *req)
{
    size_t room = 0;
    for (unsigned i = 0; i < req->header_count; i++) {
        room += str_eq(req->headers[i].name, STR("cookie")) ? req->headers[i].value.len + 2 : 0;
    }
    char *all = arena_alloc(&req->arena, room + 1);
    if (all == NULL) {
        return false;
    }
    unsigned first = req->known[HEADER_COOKIE] - 1u;
    unsigned kept = first + 1;
    size_t len = 0;
    for (unsigned i = first; i < req->header_count; i++) {
        struct header header = req->headers[i];
        if (!str_eq(header.name, STR("cookie"))) {
            req->headers[kept++] = header;
            continue;
        }
        if (len > 0) {
            memcpy(all + len, "; ", 2);
            len += 2;
        }
        memcpy(all + len, header.value.ptr, header.value.len);
        len += header.value.len;
    }
    all[len] = '\0';
    req->headers[first].value = (struct str){all, len};
    req->header_count = (uint16_t)kept;
    return true;
}

/* The places of known headers, again, after some have moved. */
static void find_known(struct request *req)
{
    memset(req->known, 0, sizeof req->known);
    for (unsigned i = 0; i < req->header_count; i++) {
        unsigned known = request_known_of(req->headers[i].name);
        if (known < HEADER_KNOWN_COUNT && req->known[known] == 0) {
            req->known[known] = (uint16_t)(i + 1);
        }
    }
}

/* :authority counts; Host may repeat it, and may not say otherwise (RFC 9113 8.3.1). */
static int check_host(struct http2_stream *s)
{
    struct request *req = s->req;
    struct str host = request_known_value(req, HEADER_HOST);
    if (host.ptr != NULL && !request_host_set(req, host)) {
        return 400;
    }
    if (s->head.authority.ptr == NULL) {
        return 0;
    }
    struct str from_header = req->host;
    if (s->head.authority.len == 0 || !request_host_set(req, s->head.authority)) {
        return 400;
    }
    return host.ptr == NULL || str_eq(from_header, req->host) ? 0 : 400;
}

static int check_target(struct http2_stream *s)
{
    struct request *req = s->req;
    if (req->target.len > (size_t)req->config->max_uri_length) {
        return 414;
    }
    if (!http2_field_is_path(req->target)) {
        return 400;
    }
    if (req->method == METHOD_CONNECT) {
        return 0; /* has no path; step_limits says 405 */
    }
    bool path = req->target.ptr[0] == '/' || (str_eq(req->target, STR("*")) && req->method == METHOD_OPTIONS);
    return s->head.http && path ? 0 : 400;
}

static int check_body(struct http2_stream *s, bool end_stream)
{
    struct request *req = s->req;
    req->body.present = !end_stream;
    req->body.complete = end_stream;
    req->body.length = end_stream ? 0 : s->announced;
    struct str expect = request_known_value(req, HEADER_EXPECT);
    if (expect.ptr != NULL) {
        if (!str_eq_nocase(expect, STR("100-continue"))) {
            return 417;
        }
        req->body.expects_100 = req->body.present;
    }
    return 0;
}

/* An extended CONNECT (RFC 8441). For a WebSocket it takes the way of the GET that it stands for. */
static bool begin_tunnel(struct http2_stream *s, bool end_stream)
{
    struct request *req = s->req;
    if (!str_eq(s->head.protocol, STR("websocket")) || end_stream ||
        request_known(req, HEADER_CONTENT_LENGTH) != NULL) {
        return false;
    }
    req->method = METHOD_GET;
    req->tunnel = true;
    return true;
}

static int check_head(struct http2_stream *s, bool end_stream)
{
    struct request *req = s->req;
    if (s->head.status != 0) {
        return s->head.status;
    }
    if (s->head.cookies > 1) {
        if (!join_cookies(req)) {
            return 431;
        }
        find_known(req);
    }
    if (s->head.protocol.ptr != NULL && !begin_tunnel(s, end_stream)) {
        return str_eq(s->head.protocol, STR("websocket")) ? 400 : 501;
    }
    if (req->method == METHOD_CONNECT) {
        req->target = s->head.authority;
    }
    int status = check_host(s);
    if (status == 0) {
        status = check_target(s);
    }
    return status != 0 ? status : check_body(s, end_stream);
}

void http2_head_blank(struct http2_stream *s)
{
    struct request *req = s->req;
    if (req->method_text.ptr == NULL) {
        req->method_text = STR("-");
    }
    if (req->target.ptr == NULL) {
        req->target = STR("-");
    }
}

static void refuse(struct http2_stream *s, int status)
{
    struct request *req = s->req;
    http2_head_blank(s);
    req->response.no_body = req->method == METHOD_HEAD;
    req->raw_path = STR("/");
    req->path = STR("/");
    req->host = STR("");
    req->hostname = STR("");
    req->body.present = false;
    req->body.complete = true;
    request_refuse(req, status);
}

void http2_head_complete(struct http2_stream *s, bool end_stream)
{
    struct request *req = s->req;
    req->headers = s->head.items;
    req->host = STR("");
    req->method = request_method_of(req->method_text);
    bool whole = http2_fields_are_whole(s, end_stream);
    int status = whole ? check_head(s, end_stream) : 0;
    /* No host or no path, but does it consist of bytes that they may have? */
    bool strange = status == 400 && ((s->head.authority.ptr != NULL && !http2_field_is_authority(s->head.authority)) ||
                                     (req->target.ptr != NULL && !http2_field_is_target(req->target)));
    if (!whole || strange) {
        http2_malformed(s);
        return;
    }
    http2_priority_set(s);
    s->started = true;
    s->remote_done = end_stream;
    if (status != 0) {
        refuse(s, status);
        return;
    }
    request_start(req);
}
