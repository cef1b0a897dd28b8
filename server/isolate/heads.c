#include "isolate/heads.h"

#include "request/token.h"

#include <string.h>

enum { HEADERS_MAX = 1024, SECURE = 1, PRESENT = 2, NO_BODY = 4, EXPECTS_100 = 8, COMPLETE = 16, PEER_EOF = 32 };

/* ---- requests ------------------------------------------------------------------------------- */

static unsigned flags_of(const struct request *req, bool secure)
{
    return (secure ? SECURE : 0u) | (req->body.present ? PRESENT : 0u) | (req->response.no_body ? NO_BODY : 0u) |
           (req->body.expects_100 ? EXPECTS_100 : 0u) | (req->body.complete ? COMPLETE : 0u) |
           (req->peer_eof ? PEER_EOF : 0u);
}

void request_head_put(struct buffer *out, const struct request *req, uint64_t number, bool secure)
{
    frame_put_u64(out, number);
    frame_put_u16(out, (uint16_t)flags_of(req, secure));
    frame_put_u16(out, req->client.family);
    frame_put_u16(out, req->client.port);
    buffer_append(out, req->client.ip, sizeof req->client.ip);
    frame_put_u16(out, req->method);
    frame_put_u16(out, (uint16_t)(req->http_major << 8 | req->http_minor));
    frame_put_u64(out, req->body.length);
    const struct str texts[] = {req->method_text,
                                req->target,
                                req->host,
                                req->raw_path,
                                req->path,
                                req->query,
                                req->hostname,
                                req->path_info,
                                req->script_name,
                                req->client_subject,
                                req->client_fingerprint};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        frame_put_str(out, texts[i]);
    }
    buffer_append(out, req->known, sizeof req->known);
    frame_put_u16(out, req->header_count);
    for (unsigned i = 0; i < req->header_count; i++) {
        frame_put_str(out, req->headers[i].name);
        frame_put_str(out, req->headers[i].value);
    }
}

static void get_raw(struct frame_reader *in, void *to, size_t len)
{
    if (in->bad || in->left < len) {
        in->bad = true;
        memset(to, 0, len);
        return;
    }
    memcpy(to, in->at, len);
    in->at += len;
    in->left -= len;
}

static unsigned get_peeked(struct frame_reader *in, struct request_head *head)
{
    head->number = frame_get_u64(in);
    unsigned flags = frame_get_u16(in);
    head->secure = (flags & SECURE) != 0;
    head->client.family = (uint8_t)frame_get_u16(in);
    head->client.port = frame_get_u16(in);
    get_raw(in, head->client.ip, sizeof head->client.ip);
    return flags;
}

bool request_head_peek(const uint8_t *payload, size_t len, struct request_head *head)
{
    struct frame_reader in = {.at = payload, .left = len};
    get_peeked(&in, head);
    return !in.bad;
}

static bool get_headers(struct request *req, struct frame_reader *in)
{
    get_raw(in, req->known, sizeof req->known);
    req->header_count = frame_get_u16(in);
    req->headers = arena_alloc(&req->arena, (req->header_count + 1u) * sizeof *req->headers);
    if (req->headers == NULL) {
        return false;
    }
    for (unsigned i = 0; i < req->header_count; i++) {
        req->headers[i].name = frame_get_str(in);
        req->headers[i].value = frame_get_str(in);
    }
    for (unsigned i = 0; i < HEADER_KNOWN_COUNT; i++) {
        in->bad = in->bad || req->known[i] > req->header_count;
    }
    return frame_done(in);
}

bool request_head_get(struct request *req, const uint8_t *payload, size_t len)
{
    uint8_t *copy = arena_alloc(&req->arena, len);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, payload, len);
    struct frame_reader in = {.at = copy, .left = len};
    struct request_head head;
    unsigned flags = get_peeked(&in, &head);
    req->client = head.client;
    req->method = (uint8_t)frame_get_u16(&in);
    unsigned version = frame_get_u16(&in);
    req->http_major = (uint8_t)(version >> 8);
    req->http_minor = (uint8_t)version;
    req->body.length = frame_get_u64(&in);
    req->body.limit = 0; /* the worker's business */
    req->body.present = (flags & PRESENT) != 0;
    req->body.expects_100 = (flags & EXPECTS_100) != 0;
    req->body.complete = (flags & COMPLETE) != 0;
    req->peer_eof = (flags & PEER_EOF) != 0;
    req->response.no_body = (flags & NO_BODY) != 0;
    struct str *const texts[] = {&req->method_text,
                                 &req->target,
                                 &req->host,
                                 &req->raw_path,
                                 &req->path,
                                 &req->query,
                                 &req->hostname,
                                 &req->path_info,
                                 &req->script_name,
                                 &req->client_subject,
                                 &req->client_fingerprint};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        *texts[i] = frame_get_str(&in);
    }
    return get_headers(req, &in);
}

/* ---- answers ---------------------------------------------------------------------------------- */

void answer_head_put(struct buffer *out, const struct answer_parts *parts)
{
    frame_put_u16(out, parts->status);
    frame_put_u64(out, parts->length);
    frame_put_str(out, parts->detail);
    frame_put_str(out, parts->content_type);
    frame_put_u16(out, parts->header_count);
    for (unsigned i = 0; i < parts->header_count; i++) {
        frame_put_str(out, parts->headers[i].name);
        frame_put_str(out, parts->headers[i].value);
    }
}

static bool put_header(struct request *req, struct str name, struct str value, bool *memory)
{
    bool forbidden = name.ptr != NULL && response_header_is_servers_own(name) && !str_eq_nocase(name, STR("Trailer"));
    if (name.ptr == NULL || value.ptr == NULL || forbidden || !token_is_valid(name)) {
        return false;
    }
    name = arena_str(&req->arena, name);
    value = arena_str(&req->arena, value);
    if (name.ptr == NULL || value.ptr == NULL) {
        *memory = true;
        return false;
    }
    return response_header_add(req, name, value);
}

bool answer_head_get(struct request *req, const uint8_t *payload, size_t len, struct answer_head *head, bool *memory)
{
    struct frame_reader in = {.at = payload, .left = len};
    *memory = false;
    head->status = frame_get_u16(&in);
    head->length = frame_get_u64(&in);
    head->detail = frame_get_str(&in);
    struct str type = frame_get_str(&in);
    unsigned count = frame_get_u16(&in);
    if (in.bad || head->status < 200 || head->status > 599 || count > HEADERS_MAX) {
        return false;
    }
    req->response.header_count = 0;
    req->response.content_type = STR_NONE;
    if (type.ptr != NULL && !put_header(req, STR("Content-Type"), type, memory)) {
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        struct str name = frame_get_str(&in);
        struct str value = frame_get_str(&in);
        if (in.bad || !put_header(req, name, value, memory)) {
            return false;
        }
    }
    return frame_done(&in);
}
