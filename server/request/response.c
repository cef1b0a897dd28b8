/* Answering, whatever the protocol: the response's headers, and the three ways to send
 * (whole, streamed, ready). Calls on a request whose client is gone do nothing. */
#include "answer/answer.h"
#include "base/check.h"
#include "request/request.h"
#include "request/token.h"

/* ---- headers ------------------------------------------------------------------------------ */

static bool append(struct arena *arena, struct response_header **items, uint16_t *count, uint16_t *cap, struct str name,
                   struct str value)
{
    if (*count == *cap) {
        unsigned more = *cap == 0 ? 8 : (unsigned)*cap * 2;
        struct response_header *larger = more <= 1024 ? arena_alloc(arena, more * sizeof *larger) : NULL;
        if (larger == NULL) {
            return false;
        }
        if (*count > 0) {
            memcpy(larger, *items, *count * sizeof *larger);
        }
        *items = larger;
        *cap = (uint16_t)more;
    }
    (*items)[(*count)++] = (struct response_header){name, value};
    return true;
}

bool response_header_add(struct request *req, struct str name, struct str value)
{
    if (!token_is_valid(name) || !field_value_is_valid(value)) {
        return false;
    }
    if (str_eq_nocase(name, STR("content-type"))) {
        req->response.content_type = value;
        return true;
    }
    return append(&req->arena, &req->response.headers, &req->response.header_count, &req->response.header_cap, name,
                  value);
}

bool response_trailer_add(struct request *req, struct str name, struct str value)
{
    static const struct str heads_own[] = {
        {"Content-Type", 12},
        {"Content-Encoding", 16},
        {"Content-Range", 13},
        {"Content-Location", 16},
        {"Cache-Control", 13},
        {"Expires", 7},
        {"Vary", 4},
        {"Set-Cookie", 10},
        {"Location", 8},
        {"Retry-After", 11},
        {"Age", 3},
        {"WWW-Authenticate", 16},
        {"Host", 4},
        {"TE", 2},
        {"Authorization", 13},
        {"Proxy-Connection", 16},
    };
    if (!token_is_valid(name) || !field_value_is_valid(value) || response_header_is_servers_own(name)) {
        return false;
    }
    for (size_t i = 0; i < ARRAY_LEN(heads_own); i++) {
        if (str_eq_nocase(name, heads_own[i])) {
            return false;
        }
    }
    if (req->http_major == 1 && req->http_minor == 0) {
        return true; /* it has none */
    }
    return append(&req->arena, &req->response.trailers, &req->response.trailer_count, &req->response.trailer_cap, name,
                  value);
}

/* "Trailer: names", of those that are known by now. Without memory for it the answer does without. */
static void announce_trailers(struct request *req)
{
    size_t room = 0;
    for (unsigned i = 0; i < req->response.trailer_count; i++) {
        room += req->response.trailers[i].name.len + 2;
    }
    char *names = arena_alloc(&req->arena, room);
    if (names == NULL) {
        return;
    }
    char *at = names;
    for (unsigned i = 0; i < req->response.trailer_count; i++) {
        struct str name = req->response.trailers[i].name;
        memcpy(at, name.ptr, name.len);
        memcpy(at + name.len, ", ", 2);
        at += name.len + 2;
    }
    response_header_add(req, STR("Trailer"), (struct str){names, room - 2});
}

void response_header_remove(struct request *req, struct str name)
{
    if (str_eq_nocase(name, STR("content-type"))) {
        req->response.content_type = STR_NONE;
        return;
    }
    unsigned kept = 0;
    for (unsigned i = 0; i < req->response.header_count; i++) {
        if (!str_eq_nocase(req->response.headers[i].name, name)) {
            req->response.headers[kept++] = req->response.headers[i];
        }
    }
    req->response.header_count = (uint16_t)kept;
}

bool response_header_set(struct request *req, struct str name, struct str value)
{
    if (!token_is_valid(name) || !field_value_is_valid(value)) {
        return false;
    }
    response_header_remove(req, name);
    return response_header_add(req, name, value);
}

struct str response_header_get(const struct request *req, struct str name)
{
    if (str_eq_nocase(name, STR("content-type"))) {
        return req->response.content_type;
    }
    for (unsigned i = 0; i < req->response.header_count; i++) {
        if (str_eq_nocase(req->response.headers[i].name, name)) {
            return req->response.headers[i].value;
        }
    }
    return STR_NONE;
}

bool response_header_is_servers_own(struct str name)
{
    static const struct str names[] = {
        {"Content-Length", 14},
        {"Transfer-Encoding", 17},
        {"Connection", 10},
        {"Keep-Alive", 10},
        {"Date", 4},
        {"Upgrade", 7},
        {"Trailer", 7},
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (str_eq_nocase(name, names[i])) {
            return true;
        }
    }
    return false;
}

/* ---- sending ---------------------------------------------------------------------------------- */

void response_begin(struct request *req, uint64_t length)
{
    CHECK(!req->response.head_sent);
    int status = req->response.status;
    req->response.head_sent = true;
    req->response.length = length;
    req->response.no_body = req->response.no_body || status == 204 || status == 205 || status == 304;
    req->state = REQUEST_SENDING;
    if (length != RESPONSE_LENGTH_UNKNOWN || req->response.no_body) {
        req->response.trailer_count = 0;
    } else if (req->response.trailer_count > 0) {
        announce_trailers(req);
    }
    if (!req->gone) {
        req->ops->send_head(req, status == 205 ? 0 : length); /* RFC 9110 15.3.6: it says that it is empty */
    }
}

/* Accounts for body bytes; false when they are not to be sent. */
static bool count_body(struct request *req, uint64_t len)
{
    if (req->gone || req->ended) {
        return false;
    }
    CHECK(req->response.length == RESPONSE_LENGTH_UNKNOWN || len <= req->response.length - req->response.sent);
    req->response.sent += len;
    return true;
}

void response_write(struct request *req, const void *data, size_t len)
{
    if (count_body(req, len)) {
        req->ops->send_body(req, data, len);
    }
}

void response_write_ref(struct request *req, const void *data, size_t len, void (*release)(void *), void *arg)
{
    if (count_body(req, len)) {
        req->ops->send_body_ref(req, data, len, release, arg);
    } else if (release != NULL) {
        release(arg);
    }
}

void response_write_file(struct request *req, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg)
{
    if (count_body(req, len)) {
        req->ops->send_body_file(req, fd, offset, len, release, arg);
    } else if (release != NULL) {
        release(arg);
    }
}

void response_end(struct request *req)
{
    if (req->gone) {
        return;
    }
    bool whole = req->response.length == RESPONSE_LENGTH_UNKNOWN || req->response.no_body ||
                 req->response.sent == req->response.length;
    if (whole) {
        req->ops->finish(req);
    } else {
        req->ops->abort(req);
    }
}

void response_send(struct request *req, const void *body, size_t len)
{
    /* Only a body of unknown length, in chunks, can have trailers. */
    response_begin(req, req->response.trailer_count > 0 ? RESPONSE_LENGTH_UNKNOWN : len);
    response_write(req, body, len);
    response_end(req);
}

void response_send_ref(struct request *req, const void *body, size_t len, void (*release)(void *), void *arg)
{
    response_begin(req, len);
    response_write_ref(req, body, len, release, arg);
    response_end(req);
}

void response_send_ready(struct request *req, const struct ready_head *head, const void *body, size_t len,
                         void (*release)(void *), void *arg)
{
    if (req->gone) {
        if (release != NULL) {
            release(arg);
        }
        return;
    }
    req->response.status = head->status;
    req->response.head_sent = true;
    req->response.length = len;
    req->response.sent = req->response.no_body ? 0 : len;
    req->ops->send_ready(req, head, body, len, release, arg);
}

/* ---- errors -------------------------------------------------------------------------------------- */

/* What described the body that the error page now replaces. Set-Cookie, Allow, Retry-After and
 * their like stay: they belong to the error. */
static void drop_content_headers(struct request *req)
{
    static const struct str names[] = {
        {"Content-Encoding", 16}, {"Content-Disposition", 19}, {"Content-Language", 16}, {"ETag", 4},
        {"Last-Modified", 13},    {"Cache-Control", 13},       {"Expires", 7},
    };
    req->response.content_type = STR_NONE;
    req->response.trailer_count = 0;
    for (size_t i = 0; i < ARRAY_LEN(names) && req->response.header_count > 0; i++) {
        response_header_remove(req, names[i]);
    }
}

void response_error_text(struct request *req, int status, const char *detail)
{
    if (req->gone) {
        return;
    }
    if (req->response.head_sent) {
        req->ops->abort(req);
        return;
    }
    drop_content_headers(req);
    req->response.status = (uint16_t)status;
    if (req->ops->send_error != NULL) {
        req->ops->send_error(req, status, detail);
    } else {
        error_page_send(req, status, detail);
    }
}

void response_error(struct request *req, int status)
{
    response_error_text(req, status, NULL);
}

void request_refuse(struct request *req, int status)
{
    req->node = NULL;
    req->response.close_after = true;
    response_error(req, status);
}

/* ---- reason phrases --------------------------------------------------------------------------------- */

const char *status_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
#define REASON(code, text) {code, text},
#include "request/reasons.def"
#undef REASON
    };
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        if (reasons[i].status == status) {
            return reasons[i].reason;
        }
    }
    return "Unknown";
}
