#include "protocol/http1_head.h"

#include "config/config.h"
#include "protocol/header_lines.h"
#include "request/head.h"

#include <llhttp.h>

/* What llhttp took for the target, to be compared with what this file takes for it. */
struct judged {
    struct str url;
    bool twice;
};

static int on_url(llhttp_t *parser, const char *at, size_t len)
{
    struct judged *judged = parser->data;
    judged->twice = judged->url.ptr != NULL;
    judged->url = (struct str){at, len};
    return 0;
}

static int on_headers_complete(llhttp_t *parser)
{
    (void)parser;
    return 2; /* no body for llhttp: framing is decided here, chunked.c decodes */
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_headers_complete = on_headers_complete,
};

/* Copied instead of llhttp_init(): a plain struct, ready once. */
static llhttp_t fresh_parser;

__attribute__((constructor)) static void prepare_parser(void)
{
    llhttp_init(&fresh_parser, HTTP_REQUEST, &settings);
}

/* ---- request line ---------------------------------------------------------------------- */

/* Method, target and version of exactly "METHOD SP target SP HTTP/1.x". 0 or a status. */
static int parse_request_line(struct request *req, char *line, size_t len)
{
    struct str text = {line, len};
    size_t first = str_find(text, ' ');
    if (first == SIZE_MAX || first == 0 || len < first + 11) {
        return 400;
    }
    char *version = line + len - 8;
    char *target = line + first + 1;
    size_t target_len = (size_t)(version - target) - 1;
    if (version[-1] != ' ' || memcmp(version, "HTTP/", 5) != 0 || version[6] != '.' || !ascii_is_digit(version[5]) ||
        !ascii_is_digit(version[7])) {
        return 400;
    }
    if (version[5] != '1') {
        return version[5] == '0' ? 400 : 505;
    }
    if (version[7] > '1') {
        return 505;
    }
    for (size_t i = 0; i < target_len; i++) {
        unsigned char c = (unsigned char)target[i];
        if (c <= 0x20 || c >= 0x7f || c == '#') {
            return 400;
        }
    }
    req->method_text = (struct str){line, first};
    req->method = request_method_of(req->method_text);
    req->target = (struct str){target, target_len};
    req->http_major = 1;
    req->http_minor = (uint8_t)(version[7] - '0');
    return 0;
}

/* ---- headers ------------------------------------------------------------------------------- */

/* Names and values of `lines` lines at `bytes`. 0 or a status. */
static int store_headers(struct arena *arena, char *bytes, unsigned lines, struct header **out, uint16_t *count)
{
    struct header *items = arena_alloc(arena, lines * sizeof *items + 1);
    if (items == NULL) {
        return 500;
    }
    if (!header_lines_split(bytes, items, lines)) {
        return 400;
    }
    *out = items;
    *count = (uint16_t)lines;
    return 0;
}

static void note_connection(struct http1_head *head, struct str value)
{
    struct str rest = value;
    struct str token;
    while (str_split_next(&rest, ',', &token)) {
        if (str_eq_nocase(token, STR("close"))) {
            head->keep_alive = false;
            return;
        }
        if (str_eq_nocase(token, STR("upgrade"))) {
            head->upgrade = true;
        }
    }
}

static bool wants_keep_alive(const struct request *req)
{
    for (unsigned i = 0; i < req->header_count; i++) {
        if (request_known_of(req->headers[i].name) == HEADER_CONNECTION &&
            str_list_has(req->headers[i].value, STR("keep-alive"))) {
            return true;
        }
    }
    return false;
}

/* Fills known[]; 400 when one that must be single is not. */
static int note_known_headers(struct request *req, struct http1_head *head)
{
    head->keep_alive = true; /* until a "close" stands in one of the Connection headers */
    for (unsigned i = 0; i < req->header_count; i++) {
        unsigned known = request_known_of(req->headers[i].name);
        if (known == HEADER_KNOWN_COUNT) {
            continue;
        }
        if (known == HEADER_CONNECTION) {
            note_connection(head, req->headers[i].value);
        }
        if (req->known[known] != 0) {
            if (known == HEADER_HOST || known == HEADER_CONTENT_LENGTH || known == HEADER_TRANSFER_ENCODING) {
                return 400;
            }
            continue;
        }
        req->known[known] = (uint16_t)(i + 1);
    }
    if (req->http_minor == 0) {
        head->keep_alive = head->keep_alive && wants_keep_alive(req);
    }
    return 0;
}

/* ---- host and target --------------------------------------------------------------------------- */

/* "http://host/path": the host of the target counts, not the Host header's. */
static int parse_absolute_target(struct request *req)
{
    struct str rest = str_from(req->target, 7);
    if (str_eq_nocase(str_first(req->target, 8), STR("https://"))) {
        rest = str_from(req->target, 8);
    } else if (!str_eq_nocase(str_first(req->target, 7), STR("http://"))) {
        return 400;
    }
    size_t end = 0;
    while (end < rest.len && rest.ptr[end] != '/' && rest.ptr[end] != '?') {
        end++;
    }
    struct str host = str_first(rest, end);
    if (host.len == 0 || !request_host_set(req, host)) {
        return 400;
    }
    struct str path = str_from(rest, end);
    if (path.len == 0 || path.ptr[0] == '?') {
        char *with_slash = arena_printf(&req->arena, "/%.*s", STR_ARG(path));
        if (with_slash == NULL) {
            return 500;
        }
        path = str_of(with_slash);
    }
    req->target = path;
    return 0;
}

static int parse_host_and_target(struct request *req)
{
    const struct header *host = request_known(req, HEADER_HOST);
    if (host == NULL && req->http_minor >= 1) {
        return 400;
    }
    if (host != NULL && !request_host_set(req, host->value)) {
        return 400;
    }
    if (host == NULL) {
        req->host = STR("");
    }
    if (req->target.ptr[0] == '/') {
        return 0;
    }
    if (req->target.ptr[0] == '*' && req->target.len == 1) {
        return req->method == METHOD_OPTIONS ? 0 : 400;
    }
    if (req->method == METHOD_CONNECT) {
        return 405;
    }
    return parse_absolute_target(req);
}

/* ---- framing -------------------------------------------------------------------------------------- */

static int parse_framing(struct request *req, struct http1_head *head)
{
    const struct header *encoding = request_known(req, HEADER_TRANSFER_ENCODING);
    const struct header *length = request_known(req, HEADER_CONTENT_LENGTH);
    head->framing = BODY_NONE;
    req->body.length = 0;
    if (encoding != NULL) {
        /* With a Content-Length beside it or from HTTP/1.0 it is an attack or a fault. */
        if (length != NULL || req->http_minor == 0) {
            return 400;
        }
        if (!str_eq_nocase(encoding->value, STR("chunked"))) {
            return str_ends_nocase(encoding->value, STR("chunked")) ? 501 : 400;
        }
        head->framing = BODY_CHUNKED;
        req->body.length = RESPONSE_LENGTH_UNKNOWN;
        req->body.present = true;
    } else if (length != NULL) {
        if (!str_to_u64(length->value, UINT64_MAX, &req->body.length)) {
            return 400;
        }
        if (req->body.length > INT64_MAX) {
            return 413;
        }
        head->framing = req->body.length > 0 ? BODY_LENGTH : BODY_NONE;
        req->body.present = req->body.length > 0;
    }
    const struct header *expect = request_known(req, HEADER_EXPECT);
    if (expect != NULL && req->http_minor >= 1) {
        if (!str_eq_nocase(expect->value, STR("100-continue"))) {
            return 417;
        }
        req->body.expects_100 = req->body.present;
    }
    return 0;
}

/* ---- both together ------------------------------------------------------------------------------------ */

static llhttp_errno_t judge_once(llhttp_t *parser, const char *bytes, size_t len, struct judged *judged)
{
    *judged = (struct judged){.url = STR_NONE};
    *parser = fresh_parser;
    parser->data = judged;
    return llhttp_execute(parser, bytes, len);
}

/* Tabs at the ends of lines become spaces, which mean the same (OWS). */
static void blank_trailing_tabs(char *bytes, size_t len)
{
    for (size_t i = len; i > 0; i--) {
        if (bytes[i - 1] != '\r') {
            continue;
        }
        for (size_t k = i - 1; k > 0 && (bytes[k - 1] == '\t' || bytes[k - 1] == ' '); k--) {
            bytes[k - 1] = ' ';
        }
    }
}

/* 0 when llhttp finds a head with this target and nothing else in these bytes, or a status. */
static int judge(char *bytes, size_t len, struct str target)
{
    llhttp_t parser;
    struct judged judged;
    llhttp_errno_t error = judge_once(&parser, bytes, len, &judged);
    if (error == HPE_INVALID_CONTENT_LENGTH) {
        /* It knows no tab behind a Content-Length. */
        blank_trailing_tabs(bytes, len);
        error = judge_once(&parser, bytes, len, &judged);
    }
    if (error == HPE_INVALID_METHOD) {
        return 501;
    }
    /* It must have stopped exactly behind the empty line. */
    if (error != HPE_PAUSED_UPGRADE || llhttp_get_error_pos(&parser) != bytes + len) {
        return 400;
    }
    return judged.twice || !str_eq(judged.url, target) ? 400 : 0;
}

int http1_head_parse(struct request *req, char *bytes, size_t len, unsigned lines, struct http1_head *head)
{
    char *line_end = memchr(bytes, '\r', len);
    int status = parse_request_line(req, bytes, (size_t)(line_end - bytes));
    if (status != 0) {
        return status;
    }
    unsigned headers = lines - 2; /* without the request line and the empty one */
    if (headers > (unsigned)req->config->max_header_count) {
        return 431;
    }
    status = judge(bytes, len, req->target);
    if (status == 0) {
        status = store_headers(&req->arena, line_end + 2, headers, &req->headers, &req->header_count);
    }
    if (status != 0) {
        return status;
    }
    bytes[req->method_text.len] = '\0';
    ((char *)(uintptr_t)req->target.ptr)[req->target.len] = '\0';
    status = note_known_headers(req, head);
    if (status == 0) {
        status = parse_host_and_target(req);
    }
    return status != 0 ? status : parse_framing(req, head);
}

int http1_trailers_parse(struct request *req, const char *bytes, size_t len, unsigned lines)
{
    /* The same parser and checks as for a head: a request line is put before it. */
    static const char line[] = "GET / HTTP/1.1\r\n";
    const size_t line_len = sizeof line - 1;
    char *head = arena_alloc(&req->arena, line_len + len + HEADER_LINES_SLACK);
    if (head == NULL || lines - 1 > (unsigned)req->config->max_header_count) {
        return 400;
    }
    memcpy(head, line, line_len);
    memcpy(head + line_len, bytes, len);
    memset(head + line_len + len, 0, HEADER_LINES_SLACK);
    if (judge(head, line_len + len, STR("/")) != 0 ||
        store_headers(&req->arena, head + line_len, lines - 1, &req->trailers, &req->trailer_count) != 0) {
        return 400;
    }
    return 0;
}
