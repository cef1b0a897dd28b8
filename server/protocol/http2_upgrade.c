/* From HTTP/1.1 to HTTP/2 by Upgrade: h2c (RFC 7540 3.2), which RFC 9113 no longer has but clients
 * without prior knowledge still send. Granted to requests without a body on connections without
 * TLS; whatever is not quite right stays HTTP/1.1, as the client must expect anyway. */
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http2_private.h"

enum { SETTINGS_MAX = 256 };

static const struct str settings_name = {"HTTP2-Settings", 14};

bool http2_is_upgrade(const struct request *req)
{
    unsigned settings = 0;
    bool listed = false;
    if (req->conn->transport->secure || req->body.present || !req->config->enable_http2 ||
        !str_list_has(request_known_value(req, HEADER_UPGRADE), STR("h2c"))) {
        return false;
    }
    for (unsigned i = 0; i < req->header_count; i++) {
        settings += str_eq_nocase(req->headers[i].name, settings_name);
        listed = listed || (str_eq_nocase(req->headers[i].name, STR("Connection")) &&
                            str_list_has(req->headers[i].value, settings_name));
    }
    return settings == 1 && listed;
}

static int base64url_digit(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (ascii_is_digit(c)) {
        return c - '0' + 52;
    }
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* Without padding. False: it is none, or too long. */
static bool base64url_decode(struct str text, uint8_t out[SETTINGS_MAX], size_t *len)
{
    uint32_t bits = 0;
    unsigned count = 0;
    *len = 0;
    if (text.len > SETTINGS_MAX) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        int digit = base64url_digit(text.ptr[i]);
        if (digit < 0) {
            return false;
        }
        bits = bits << 6 | (uint32_t)digit;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[(*len)++] = (uint8_t)(bits >> count);
        }
    }
    return true;
}

bool http2_upgrade(struct request *req)
{
    static const char answer[] = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    struct conn *conn = req->conn;
    uint8_t settings[SETTINGS_MAX];
    size_t len;
    if (!base64url_decode(request_header(req, settings_name), settings, &len)) {
        return false;
    }
    struct http2 *h = http2_create(conn);
    if (h == NULL) {
        return false;
    }
    if (nghttp2_session_upgrade2(h->session, settings, len, req->method == METHOD_HEAD, NULL) != 0) {
        http2_destroy(h);
        return false;
    }
    struct http2_stream *s = http2_stream_adopt(h, 1, req);
    if (s == NULL) {
        http2_destroy(h);
        return false;
    }
    nghttp2_session_set_stream_user_data(h->session, 1, s);
    s->started = true;
    s->remote_done = true;
    h->upgraded = true;
    h->frames_seen.top = 1;
    h->frames_seen.used[0] = 2; /* the client has opened and ended stream 1 */
    h->frames_seen.ended[0] = 2;
    h->greeted = false; /* the header's settings are not its preface */
    req->http_major = 2;
    req->http_minor = 0;
    conn_write(conn, answer, sizeof answer - 1);
    conn->proto = h;
    conn->protocol = &protocol_http2;
    conn_resume_read(conn);
    http2_work_later(h);
    return true;
}
