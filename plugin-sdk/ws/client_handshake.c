#include "ws/handshake.h"
#include "ws/mask.h"

#include <openssl/evp.h>

static bool is_target(struct ws_text target)
{
    for (size_t i = 0; i < target.len; i++) {
        unsigned char c = (unsigned char)target.ptr[i];
        if (c <= 0x20 || c >= 0x7f || c == '#') {
            return false;
        }
    }
    return target.len > 0 && target.ptr[0] == '/';
}

static bool is_host(struct ws_text host)
{
    for (size_t i = 0; i < host.len; i++) {
        unsigned char c = (unsigned char)host.ptr[i];
        if (c <= 0x20 || c >= 0x7f || strchr("/?#@\\", c) != NULL) {
            return false;
        }
    }
    return host.len > 0;
}

/* What the handshake itself says may not be said twice. */
static bool is_ours(struct ws_text name)
{
    static const char *const names[] = {"host",
                                        "upgrade",
                                        "connection",
                                        "content-length",
                                        "transfer-encoding",
                                        "sec-websocket-key",
                                        "sec-websocket-version",
                                        "sec-websocket-protocol",
                                        "sec-websocket-extensions"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (ws_text_eq_nocase(name, ws_text(names[i]))) {
            return true;
        }
    }
    return false;
}

static bool add_protocols(struct ws_buffer *out, const struct ws_client_request *request)
{
    for (size_t i = 0; i < request->protocol_count; i++) {
        if (!ws_text_is_token(ws_text(request->protocols[i]))) {
            return false;
        }
        ws_buffer_format(out, "%s%s", i == 0 ? "Sec-WebSocket-Protocol: " : ", ", request->protocols[i]);
    }
    if (request->protocol_count > 0) {
        ws_buffer_text(out, WS_TEXT_OF("\r\n"));
    }
    return true;
}

static bool add_headers(struct ws_buffer *out, const struct ws_client_request *request)
{
    for (size_t i = 0; i < request->more_count; i++) {
        const struct ws_header *header = &request->more[i];
        if (!ws_text_is_token(header->name) || is_ours(header->name) || !ws_text_is_value(header->value)) {
            return false;
        }
        ws_buffer_text(out, header->name);
        ws_buffer_text(out, WS_TEXT_OF(": "));
        ws_buffer_text(out, header->value);
        ws_buffer_text(out, WS_TEXT_OF("\r\n"));
    }
    return true;
}

bool ws_client_write(struct ws_buffer *out, const struct ws_client_request *request, char key[WS_KEY_LENGTH + 1])
{
    if (!is_host(request->host) || !is_target(request->target) ||
        (request->origin != NULL && !ws_text_is_value(ws_text(request->origin)))) {
        return false;
    }
    unsigned char nonce[16];
    ws_random(nonce, sizeof nonce);
    EVP_EncodeBlock((unsigned char *)key, nonce, sizeof nonce);
    ws_buffer_text(out, WS_TEXT_OF("GET "));
    ws_buffer_text(out, request->target);
    ws_buffer_text(out, WS_TEXT_OF(" HTTP/1.1\r\nHost: "));
    ws_buffer_text(out, request->host);
    ws_buffer_format(out,
                     "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: %s\r\n"
                     "Sec-WebSocket-Version: 13\r\n",
                     key);
    if (request->origin != NULL) {
        ws_buffer_format(out, "Origin: %s\r\n", request->origin);
    }
    if (request->deflate.on) {
        char offer[WS_EXTENSION_MAX];
        ws_deflate_describe_offer(&request->deflate, offer);
        ws_buffer_format(out, "Sec-WebSocket-Extensions: %s\r\n", offer);
    }
    if (!add_protocols(out, request) || !add_headers(out, request)) {
        return false;
    }
    ws_buffer_text(out, WS_TEXT_OF("\r\n"));
    return !out->failed;
}

/* ---- the answer ------------------------------------------------------------------------------------------ */

static bool key_fits(struct ws_headers headers, const char *key)
{
    char expected[WS_ACCEPT_LENGTH + 1];
    size_t count;
    struct ws_text accept = ws_header_find(headers, WS_TEXT_OF("sec-websocket-accept"), &count);
    ws_accept_key(ws_text(key), expected);
    return count == 1 && ws_text_eq(accept, ws_text(expected));
}

static bool protocol_fits(struct ws_headers headers, const struct ws_client_request *request, struct ws_text *protocol)
{
    size_t count;
    *protocol = ws_header_find(headers, WS_TEXT_OF("sec-websocket-protocol"), &count);
    if (count == 0) {
        return true;
    }
    for (size_t i = 0; i < request->protocol_count; i++) {
        if (count == 1 && ws_text_eq(*protocol, ws_text(request->protocols[i]))) {
            return true;
        }
    }
    return false;
}

enum ws_answer ws_client_check(const struct ws_head *head, const struct ws_client_request *request, const char *key,
                               struct ws_text *protocol, struct ws_deflate *agreed)
{
    struct ws_headers headers = ws_head_headers(head);
    *protocol = (struct ws_text){0};
    *agreed = (struct ws_deflate){0};
    if (head->status != 101) {
        return WS_ANSWER_REFUSED;
    }
    size_t count;
    struct ws_text upgrade = ws_header_find(headers, WS_TEXT_OF("upgrade"), &count);
    if (head->minor != 1 || count != 1 || !ws_text_eq_nocase(upgrade, WS_TEXT_OF("websocket")) ||
        !ws_header_has_token(headers, WS_TEXT_OF("connection"), WS_TEXT_OF("upgrade"))) {
        return WS_ANSWER_BAD_UPGRADE;
    }
    if (!key_fits(headers, key)) {
        return WS_ANSWER_BAD_KEY;
    }
    if (!protocol_fits(headers, request, protocol)) {
        return WS_ANSWER_BAD_PROTOCOL;
    }
    return ws_deflate_agree(headers, &request->deflate, agreed) ? WS_ANSWER_ACCEPTED : WS_ANSWER_BAD_EXTENSION;
}

const char *ws_answer_text(enum ws_answer answer)
{
    switch (answer) {
    case WS_ANSWER_ACCEPTED: return "accepted";
    case WS_ANSWER_REFUSED: return "the server refused the upgrade";
    case WS_ANSWER_BAD_UPGRADE: return "the server's answer does not upgrade to WebSocket";
    case WS_ANSWER_BAD_KEY: return "the server's Sec-WebSocket-Accept is wrong";
    case WS_ANSWER_BAD_PROTOCOL: return "the server chose a subprotocol that was not offered";
    case WS_ANSWER_BAD_EXTENSION: return "the server chose an extension that was not offered";
    }
    return "unknown answer";
}
