/* The server's side of the handshake: TLS, the request's head, and its answer. */
#include "wsio/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool wslink_greet(struct link *link, int fd, const struct wslink_manners *manners)
{
    link->manners = manners;
    carrier_init(&link->transport, fd);
    describe_peer(fd, link->peer, sizeof link->peer);
    link->head_is_request = true;
    link->end_by_us = clock_us() + (uint64_t)manners->timeout_ms * 1000;
    link->state = WSLINK_GREETING;
    if (manners->context != NULL && !carrier_use_tls(&link->transport, manners->context, NULL, false)) {
        return false;
    }
    link->transport.wants = KILN_READ;
    link->head = malloc(DIAL_HEAD_MAX);
    return link->head != NULL;
}

/* ---- answers ----------------------------------------------------------------------------------------------- */

static const char *reason_of(int status)
{
    switch (status) {
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 426: return "Upgrade Required";
    case 503: return "Service Unavailable";
    default: return status < 500 ? "Refused" : "Error";
    }
}

static void refuse(struct link *link, int status, const char *detail)
{
    struct ws_buffer out = {0};
    if (ws_server_refuse(&out, status, reason_of(status), detail != NULL ? detail : "", NULL, 0)) {
        wslink_queue(link, out.data, out.len);
    }
    ws_buffer_free(&out);
    link->close_code = WS_CLOSE_ABNORMAL;
    link->status = status;
    link->end_by_us = 0;
    wslink_end(link);
    wslink_step(link);
}

struct ws_headers wslink_headers(const struct link *link, struct ws_head *space)
{
    if (link->head == NULL ||
        ws_head_parse(space, link->head, link->head_size, link->head_is_request) != WS_HEAD_WHOLE) {
        *space = (struct ws_head){0};
    }
    return ws_head_headers(space);
}

int wslink_refuse(struct link *link, int status, const char *detail)
{
    if (link->state != WSLINK_ASKED) {
        return link->state == WSLINK_GREETING || link->state == WSLINK_OPEN ? KILN_LATE : KILN_GONE;
    }
    if (status < 400 || status > 599) {
        return KILN_INVALID;
    }
    snprintf(link->error, sizeof link->error, "refused with %d", status);
    refuse(link, status, detail);
    return KILN_OK;
}

int wslink_accept(struct link *link, const char *protocol)
{
    if (link->state != WSLINK_ASKED) {
        return link->state == WSLINK_GREETING || link->state == WSLINK_OPEN ? KILN_LATE : KILN_GONE;
    }
    struct ws_head head;
    struct ws_headers headers = wslink_headers(link, &head);
    if (protocol != NULL && !ws_protocol_is_offered(headers, ws_text(protocol))) {
        return KILN_INVALID;
    }
    struct ws_text key;
    struct ws_deflate agreed = {0};
    char extension[WS_EXTENSION_MAX] = "";
    ws_server_check(headers, &key);
    ws_deflate_accept(headers, &link->manners->deflate, &agreed, extension);
    struct ws_buffer out = {0};
    bool ok = ws_server_accept(&out, key, protocol, extension, NULL, 0) && wslink_queue(link, out.data, out.len);
    ws_buffer_free(&out);
    link->protocol = ok && protocol != NULL ? strdup(protocol) : NULL;
    if (!ok) {
        wslink_broken(link, "no memory");
        return KILN_NO_MEMORY;
    }
    link->status = 101;
    link->end_by_us = 0;
    wslink_begin(link, WS_SERVER, &agreed, link->head + link->head_size, link->greeted);
    wslink_step(link);
    return link->state == WSLINK_OPEN ? KILN_OK : KILN_GONE;
}

/* ---- the request ------------------------------------------------------------------------------------------- */

static void show_page(struct link *link)
{
    struct ws_buffer out = {0};
    ws_buffer_format(&out,
                     "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n%s",
                     strlen(link->manners->page), link->manners->page);
    bool ok = !out.failed && wslink_queue(link, out.data, out.len);
    ws_buffer_free(&out);
    link->close_code = WS_CLOSE_ABNORMAL;
    link->status = 200;
    snprintf(link->error, sizeof link->error, ok ? "a page was asked for" : "no memory");
    link->end_by_us = 0;
    wslink_end(link);
    wslink_step(link);
}

/* 0, or the status that refuses it. */
static int judge(struct link *link, const struct ws_head *head)
{
    const struct wslink_manners *manners = link->manners;
    struct ws_headers headers = ws_head_headers(head);
    struct ws_text key;
    if (!ws_text_eq(head->method, WS_TEXT_OF("GET")) || head->minor != 1) {
        return 400;
    }
    if (!ws_server_is_upgrade(headers)) {
        return 426;
    }
    int status = ws_server_check(headers, &key);
    if (status != 0 || !ws_protocols_are_valid(headers)) {
        return status != 0 ? status : 400;
    }
    struct ws_text origin = ws_header_find(headers, WS_TEXT_OF("origin"), NULL);
    struct ws_text host = ws_header_find(headers, WS_TEXT_OF("host"), NULL);
    bool allowed =
        ws_origin_is_allowed(origin, host, manners->context != NULL, manners->origins, manners->origin_count);
    return allowed ? 0 : 403;
}

static void took_head(struct link *link, const struct ws_head *head, size_t len)
{
    link->head_size = head->size;
    link->greeted = len - head->size;
    int status = judge(link, head);
    if (status == 0) {
        link->state = WSLINK_ASKED;
        return;
    }
    if (status == 426 && link->manners->page != NULL && !ws_server_is_upgrade(ws_head_headers(head))) {
        show_page(link);
        return;
    }
    snprintf(link->error, sizeof link->error, "the request was refused with %d", status);
    refuse(link, status,
           status == 426   ? "This is a WebSocket: ws:// or wss:// is spoken here.\n"
           : status == 403 ? "WebSockets of pages from other hosts are not accepted.\n"
                           : "This is no WebSocket handshake.\n");
}

void wslink_greet_step(struct link *link)
{
    int secured = carrier_handshake(&link->transport);
    if (secured != 0) {
        if (secured == CARRIER_BROKEN || clock_us() >= link->end_by_us) {
            wslink_broken(link,
                          secured == CARRIER_BROKEN ? carrier_error(&link->transport) : "no TLS handshake in time");
        }
        return;
    }
    size_t len = link->greeted;
    while (link->state == WSLINK_GREETING) {
        ssize_t n = len < DIAL_HEAD_MAX ? carrier_read(&link->transport, link->head + len, DIAL_HEAD_MAX - len) : 0;
        if (n <= 0) {
            if (len == DIAL_HEAD_MAX) {
                refuse(link, 400, "The head of the request is too long.\n");
            } else if (n != CARRIER_AGAIN || clock_us() >= link->end_by_us) {
                wslink_broken(link, n == 0 ? "the client closed without a request" : "no request in time");
            }
            break;
        }
        len += (size_t)n;
        struct ws_head head;
        switch (ws_head_parse(&head, link->head, len, true)) {
        case WS_HEAD_WHOLE: took_head(link, &head, len); return;
        case WS_HEAD_BAD: refuse(link, 400, "This is not HTTP.\n"); return;
        case WS_HEAD_MORE: break;
        }
    }
    link->greeted = len;
}
