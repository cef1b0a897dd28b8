#include "ws/handshake.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

/* ---- what the client sent ------------------------------------------------------------------------------ */

bool ws_server_is_upgrade(struct ws_headers headers)
{
    return ws_header_has_token(headers, WS_TEXT_OF("upgrade"), WS_TEXT_OF("websocket"));
}

static bool is_base64(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '+' || c == '/';
}

/* 16 bytes in base64: 22 characters and two signs of padding. */
static bool key_is_valid(struct ws_text key)
{
    if (key.len != WS_KEY_LENGTH || key.ptr[22] != '=' || key.ptr[23] != '=') {
        return false;
    }
    for (size_t i = 0; i < 22; i++) {
        if (!is_base64(key.ptr[i])) {
            return false;
        }
    }
    return true;
}

static int check_version(struct ws_headers headers)
{
    size_t count;
    struct ws_text version = ws_header_find(headers, WS_TEXT_OF("sec-websocket-version"), &count);
    if (count != 1) {
        return 400;
    }
    return ws_text_eq(version, WS_TEXT_OF("13")) ? 0 : 426;
}

int ws_server_check_http2(struct ws_headers headers)
{
    int status = check_version(headers);
    return status != 0 ? status : ws_protocols_are_valid(headers) ? 0 : 400;
}

int ws_server_check(struct ws_headers headers, struct ws_text *key)
{
    if (!ws_server_is_upgrade(headers) ||
        !ws_header_has_token(headers, WS_TEXT_OF("connection"), WS_TEXT_OF("upgrade"))) {
        return 400;
    }
    int status = check_version(headers);
    if (status != 0) {
        return status;
    }
    size_t count;
    *key = ws_header_find(headers, WS_TEXT_OF("sec-websocket-key"), &count);
    return count == 1 && key_is_valid(*key) && ws_protocols_are_valid(headers) ? 0 : 400;
}

void ws_accept_key(struct ws_text key, char out[WS_ACCEPT_LENGTH + 1])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    unsigned char text[WS_KEY_LENGTH + sizeof guid - 1] = {0};
    unsigned char digest[SHA_DIGEST_LENGTH];
    memcpy(text, key.ptr, key.len < WS_KEY_LENGTH ? key.len : WS_KEY_LENGTH);
    memcpy(text + WS_KEY_LENGTH, guid, sizeof guid - 1);
    SHA1(text, sizeof text, digest);
    EVP_EncodeBlock((unsigned char *)out, digest, SHA_DIGEST_LENGTH);
}

/* ---- subprotocols ---------------------------------------------------------------------------------------- */

/* Walks over every name offered, in one header or several. */
struct protocol_walk {
    struct ws_headers headers;
    size_t next;
    struct ws_text rest;
};

static bool next_protocol(struct protocol_walk *walk, struct ws_text *name)
{
    while (!ws_list_next(&walk->rest, name)) {
        struct ws_header header;
        do {
            if (!walk->headers.at(walk->headers.from, walk->next++, &header)) {
                return false;
            }
        } while (!ws_text_eq_nocase(header.name, WS_TEXT_OF("sec-websocket-protocol")));
        walk->rest = header.value;
    }
    return true;
}

bool ws_protocol_is_offered(struct ws_headers headers, struct ws_text name)
{
    struct protocol_walk walk = {.headers = headers};
    struct ws_text offered;
    while (next_protocol(&walk, &offered)) {
        if (ws_text_eq(offered, name)) {
            return true;
        }
    }
    return false;
}

const char *ws_protocol_choose(struct ws_headers headers, const char *const *supported, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ws_protocol_is_offered(headers, ws_text(supported[i]))) {
            return supported[i];
        }
    }
    return NULL;
}

bool ws_protocols_are_valid(struct ws_headers headers)
{
    enum { MANY = 100 };
    struct protocol_walk walk = {.headers = headers};
    struct ws_text seen[MANY];
    size_t count = 0;
    struct ws_text name;
    while (next_protocol(&walk, &name)) {
        if (count == MANY || !ws_text_is_token(name)) {
            return false;
        }
        for (size_t i = 0; i < count; i++) {
            if (ws_text_eq(seen[i], name)) {
                return false;
            }
        }
        seen[count++] = name;
    }
    return true;
}

/* ---- origin ------------------------------------------------------------------------------------------------- */

static bool cut_prefix(struct ws_text *text, struct ws_text prefix)
{
    if (text->len < prefix.len || !ws_text_eq_nocase((struct ws_text){text->ptr, prefix.len}, prefix)) {
        return false;
    }
    text->ptr += prefix.len;
    text->len -= prefix.len;
    return true;
}

/* "example.com:443" without the port that its scheme has anyway. */
static struct ws_text without_default_port(struct ws_text authority, bool secure)
{
    struct ws_text port = secure ? WS_TEXT_OF(":443") : WS_TEXT_OF(":80");
    if (authority.len > port.len && memcmp(authority.ptr + authority.len - port.len, port.ptr, port.len) == 0) {
        authority.len -= port.len;
    }
    return authority;
}

static bool is_same_origin(struct ws_text origin, struct ws_text host, bool secure)
{
    bool origin_secure = cut_prefix(&origin, WS_TEXT_OF("https://"));
    if (!origin_secure && !cut_prefix(&origin, WS_TEXT_OF("http://"))) {
        return false;
    }
    if (secure && !origin_secure) {
        return false; /* a page that anybody on the way may have changed */
    }
    return host.len > 0 &&
           ws_text_eq_nocase(without_default_port(origin, origin_secure), without_default_port(host, origin_secure));
}

/* A star before ".example.com" is for every name below it, not for example.com itself. */
static bool matches(struct ws_text origin, struct ws_text pattern)
{
    if (ws_text_eq(pattern, WS_TEXT_OF("*"))) {
        return true;
    }
    const char *star = memchr(pattern.ptr, '*', pattern.len);
    if (star == NULL) {
        return ws_text_eq_nocase(origin, pattern);
    }
    struct ws_text before = {pattern.ptr, (size_t)(star - pattern.ptr)};
    struct ws_text after = {star + 1, pattern.len - before.len - 1};
    if (!cut_prefix(&origin, before) || origin.len <= after.len) {
        return false;
    }
    struct ws_text end = {origin.ptr + origin.len - after.len, after.len};
    struct ws_text middle = {origin.ptr, origin.len - after.len};
    return ws_text_eq_nocase(end, after) && memchr(middle.ptr, '/', middle.len) == NULL &&
           memchr(middle.ptr, ':', middle.len) == NULL && memchr(middle.ptr, '@', middle.len) == NULL;
}

bool ws_origin_is_allowed(struct ws_text origin, struct ws_text host, bool secure, const char *const *allowed,
                          size_t count)
{
    if (origin.ptr == NULL || is_same_origin(origin, host, secure)) {
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        if (matches(origin, ws_text(allowed[i]))) {
            return true;
        }
    }
    return false;
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

static bool add_headers(struct ws_buffer *out, const struct ws_header *more, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!ws_text_is_token(more[i].name) || !ws_text_is_value(more[i].value)) {
            return false;
        }
        ws_buffer_text(out, more[i].name);
        ws_buffer_text(out, WS_TEXT_OF(": "));
        ws_buffer_text(out, more[i].value);
        ws_buffer_text(out, WS_TEXT_OF("\r\n"));
    }
    return true;
}

bool ws_server_accept(struct ws_buffer *out, struct ws_text key, const char *protocol, const char *extension,
                      const struct ws_header *more, size_t more_count)
{
    char accept[WS_ACCEPT_LENGTH + 1];
    if (protocol != NULL && !ws_text_is_token(ws_text(protocol))) {
        return false;
    }
    ws_accept_key(key, accept);
    ws_buffer_format(out,
                     "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Accept: %s\r\n",
                     accept);
    if (protocol != NULL) {
        ws_buffer_format(out, "Sec-WebSocket-Protocol: %s\r\n", protocol);
    }
    if (extension != NULL && extension[0] != '\0') {
        ws_buffer_format(out, "Sec-WebSocket-Extensions: %s\r\n", extension);
    }
    if (!add_headers(out, more, more_count)) {
        return false;
    }
    ws_buffer_text(out, WS_TEXT_OF("\r\n"));
    return !out->failed;
}

bool ws_server_refuse(struct ws_buffer *out, int status, const char *reason, const char *body,
                      const struct ws_header *more, size_t more_count)
{
    if (!ws_text_is_value(ws_text(reason))) {
        return false;
    }
    ws_buffer_format(out,
                     "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n",
                     status, reason, strlen(body));
    if (status == 426) {
        ws_buffer_text(out, WS_TEXT_OF("Sec-WebSocket-Version: 13\r\nUpgrade: websocket\r\n"));
    }
    if (!add_headers(out, more, more_count)) {
        return false;
    }
    ws_buffer_format(out, "\r\n%s", body);
    return !out->failed;
}
