#include "wsio/proxy.h"

#include "ws/handshake.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

void basic_credentials(const char *user, const char *password, struct ws_buffer *to)
{
    char plain[2 * URL_USER_MAX + 2];
    unsigned char coded[(sizeof plain + 2) / 3 * 4 + 1];
    int len = snprintf(plain, sizeof plain, "%s:%s", user, password);
    int n = EVP_EncodeBlock(coded, (const unsigned char *)plain, len);
    ws_buffer_text(to, WS_TEXT_OF("Basic "));
    ws_buffer_add(to, coded, (size_t)n);
    explicit_bzero(plain, sizeof plain);
    explicit_bzero(coded, sizeof coded);
}

static enum proxy_result fail(struct proxy_dialogue *d, const char *text)
{
    snprintf(d->error, sizeof d->error, "%s", text);
    return PROXY_FAILED;
}

/* ---- HTTP CONNECT --------------------------------------------------------------------------------- */

static void http_begin(struct proxy_dialogue *d)
{
    const char *open = d->host_is_v6 ? "[" : "";
    const char *close = d->host_is_v6 ? "]" : "";
    ws_buffer_format(&d->out, "CONNECT %s%s%s:%u HTTP/1.1\r\nHost: %s%s%s:%u\r\n", open, d->host, close, d->port, open,
                     d->host, close, d->port);
    if (d->proxy->has_user) {
        ws_buffer_text(&d->out, WS_TEXT_OF("Proxy-Authorization: "));
        basic_credentials(d->proxy->user, d->proxy->password, &d->out);
        ws_buffer_text(&d->out, WS_TEXT_OF("\r\n"));
    }
    ws_buffer_text(&d->out, WS_TEXT_OF("\r\n"));
}

static enum proxy_result http_look(struct proxy_dialogue *d)
{
    struct ws_head head;
    for (;;) {
        switch (ws_head_parse(&head, (const char *)d->in, d->in_len, false)) {
        case WS_HEAD_MORE: return PROXY_MORE;
        case WS_HEAD_BAD: return fail(d, "the proxy's answer is not HTTP");
        case WS_HEAD_WHOLE: break;
        }
        if (head.status >= 200) {
            break;
        }
        /* 100 to 199 are not the answer yet. */
        memmove(d->in, d->in + head.size, d->in_len - head.size);
        d->in_len -= head.size;
    }
    d->used = head.size;
    if (head.status < 300) {
        return PROXY_DONE; /* a successful CONNECT has no body, whatever its head says */
    }
    if (head.status == 407) {
        return fail(d, d->proxy->has_user
                           ? "the proxy does not accept this user and password (407)"
                           : "the proxy asks for a user and a password (407): http://user:password@host");
    }
    snprintf(d->error, sizeof d->error, "the proxy refuses the connection: %d %.*s", head.status,
             (int)(head.reason.len < 100 ? head.reason.len : 100), head.reason.len > 0 ? head.reason.ptr : "");
    return PROXY_FAILED;
}

static const struct proxy_ops http_ops = {http_begin, http_look};

/* ---- SOCKS5 ---------------------------------------------------------------------------------------- */

enum socks_step { SOCKS_METHOD, SOCKS_USER, SOCKS_REPLY };
enum { SOCKS_NONE = 0, SOCKS_PASSWORD = 2, SOCKS_REFUSED = 0xff };
enum { ADDRESS_V4 = 1, ADDRESS_NAME = 3, ADDRESS_V6 = 4 };

static void add_byte(struct proxy_dialogue *d, unsigned byte)
{
    uint8_t b = (uint8_t)byte;
    ws_buffer_add(&d->out, &b, 1);
}

static void add_text(struct proxy_dialogue *d, const char *text)
{
    add_byte(d, (unsigned)strlen(text));
    ws_buffer_text(&d->out, ws_text(text));
}

static void socks_begin(struct proxy_dialogue *d)
{
    static const uint8_t without[] = {5, 1, SOCKS_NONE};
    static const uint8_t with[] = {5, 2, SOCKS_NONE, SOCKS_PASSWORD};
    if (d->proxy->has_user) {
        ws_buffer_add(&d->out, with, sizeof with);
    } else {
        ws_buffer_add(&d->out, without, sizeof without);
    }
}

static void socks_ask(struct proxy_dialogue *d)
{
    uint8_t address[16];
    static const uint8_t head[] = {5, 1, 0};
    ws_buffer_add(&d->out, head, sizeof head);
    if (inet_pton(AF_INET, d->host, address) == 1) {
        add_byte(d, ADDRESS_V4);
        ws_buffer_add(&d->out, address, 4);
    } else if (inet_pton(AF_INET6, d->host, address) == 1) {
        add_byte(d, ADDRESS_V6);
        ws_buffer_add(&d->out, address, 16);
    } else {
        add_byte(d, ADDRESS_NAME);
        add_text(d, d->host);
    }
    add_byte(d, d->port >> 8);
    add_byte(d, d->port & 0xff);
    d->step = SOCKS_REPLY;
}

static enum proxy_result socks_method(struct proxy_dialogue *d)
{
    if (d->in[0] != 5) {
        return fail(d, "the proxy does not speak SOCKS5");
    }
    switch (d->in[1]) {
    case SOCKS_NONE: socks_ask(d); return PROXY_MORE;
    case SOCKS_PASSWORD:
        if (!d->proxy->has_user) {
            break;
        }
        add_byte(d, 1);
        add_text(d, d->proxy->user);
        add_text(d, d->proxy->password);
        d->step = SOCKS_USER;
        return PROXY_MORE;
    case SOCKS_REFUSED:
        return fail(d, d->proxy->has_user ? "the proxy accepts neither user and password nor nothing"
                                          : "the proxy asks for a user and a password: socks5://user:password@host");
    default: break;
    }
    return fail(d, "the proxy chose a method that was not offered");
}

static enum proxy_result socks_user(struct proxy_dialogue *d)
{
    if (d->in[1] != 0) {
        return fail(d, "the proxy does not accept this user and password");
    }
    socks_ask(d);
    return PROXY_MORE;
}

static const char *reply_text(unsigned code)
{
    static const char *const texts[] = {"",
                                        "its server has failed",
                                        "its rules do not allow it",
                                        "the network cannot be reached",
                                        "the host cannot be reached",
                                        "the connection was refused",
                                        "the time to live is over",
                                        "it does not know the command",
                                        "it does not know this kind of address"};
    return code < sizeof texts / sizeof texts[0] ? texts[code] : "for an unknown reason";
}

/* Bytes of a whole reply by its first five. */
static size_t reply_size(const struct proxy_dialogue *d)
{
    switch (d->in[3]) {
    case ADDRESS_V4: return 10;
    case ADDRESS_V6: return 22;
    case ADDRESS_NAME: return 7 + (size_t)d->in[4];
    default: return 0;
    }
}

static enum proxy_result socks_reply(struct proxy_dialogue *d)
{
    if (d->in[0] != 5 || d->in[2] != 0) {
        return fail(d, "the proxy's reply is not SOCKS5");
    }
    if (d->in[1] != 0) {
        snprintf(d->error, sizeof d->error, "the proxy cannot connect: %s", reply_text(d->in[1]));
        return PROXY_FAILED;
    }
    return reply_size(d) == 0 ? fail(d, "the proxy's reply is not SOCKS5") : PROXY_DONE;
}

/* Bytes that the next look needs. */
static size_t socks_need(const struct proxy_dialogue *d)
{
    if (d->step != SOCKS_REPLY) {
        return 2;
    }
    /* A refusal is known, and may end, before its address. */
    if (d->in_len >= 4 && (d->in[1] != 0 || reply_size(d) == 0)) {
        return 4;
    }
    return d->in_len < 5 ? 5 : reply_size(d);
}

static enum proxy_result socks_look(struct proxy_dialogue *d)
{
    static enum proxy_result (*const steps[])(struct proxy_dialogue *) = {socks_method, socks_user, socks_reply};
    for (;;) {
        size_t need = socks_need(d);
        if (d->in_len < need) {
            return PROXY_MORE;
        }
        enum proxy_result result = steps[d->step](d);
        if (result != PROXY_MORE) {
            d->used = need;
            return result;
        }
        memmove(d->in, d->in + need, d->in_len - need);
        d->in_len -= need;
    }
}

static const struct proxy_ops socks_ops = {socks_begin, socks_look};

/* ---- both ---------------------------------------------------------------------------------------------- */

void proxy_begin(struct proxy_dialogue *d, const struct proxy_url *proxy, const char *host, unsigned port,
                 bool host_is_v6)
{
    static const struct proxy_ops *const kinds[] = {[PROXY_HTTP] = &http_ops, [PROXY_SOCKS5] = &socks_ops};
    d->ops = kinds[proxy->kind];
    d->proxy = proxy;
    d->host = host;
    d->port = port;
    d->host_is_v6 = host_is_v6;
    d->out = (struct ws_buffer){0};
    d->in_len = 0;
    d->used = 0;
    d->step = 0;
    d->error[0] = '\0';
    d->ops->begin(d);
}

enum proxy_result proxy_receive(struct proxy_dialogue *d, const void *data, size_t len, size_t *used)
{
    /* Both kinds move what they have used out of `in`; what is over at the end is the tail of `data`. */
    size_t room = sizeof d->in - d->in_len;
    size_t take = len < room ? len : room;
    memcpy(d->in + d->in_len, data, take);
    d->in_len += take;
    enum proxy_result result = d->ops->look(d);
    size_t over = result == PROXY_DONE ? d->in_len - d->used : 0;
    *used = take - (over < take ? over : take);
    if (result == PROXY_MORE && d->in_len == sizeof d->in) {
        return fail(d, "the proxy's answer is too long");
    }
    return d->out.failed ? fail(d, "no memory") : result;
}

void proxy_end(struct proxy_dialogue *d)
{
    if (d->out.data != NULL) {
        explicit_bzero(d->out.data, d->out.cap);
    }
    ws_buffer_free(&d->out);
}
