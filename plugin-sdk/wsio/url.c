#include "wsio/url.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct cut {
    const char *at;
    size_t len;
};

static bool fail(char error[URL_ERROR_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(char error[URL_ERROR_MAX], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, URL_ERROR_MAX, format, args);
    va_end(args);
    return false;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decodes into a text with a NUL. False: it does not fit, a broken escape, or a NUL in it. */
static bool decode(struct cut from, char *to, size_t room)
{
    size_t n = 0;
    for (size_t i = 0; i < from.len; i++) {
        char c = from.at[i];
        if (c == '%') {
            int high = i + 2 < from.len ? hex_digit(from.at[i + 1]) : -1;
            int low = i + 2 < from.len ? hex_digit(from.at[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return false;
            }
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0' || n + 1 >= room) {
            return false;
        }
        to[n++] = c;
    }
    to[n] = '\0';
    return true;
}

/* user:password@ at the beginning of *rest is taken off. */
static bool take_user(struct cut *rest, char *user, char *password, bool *has_user, char error[URL_ERROR_MAX])
{
    const char *at = memrchr(rest->at, '@', rest->len);
    user[0] = '\0';
    password[0] = '\0';
    *has_user = at != NULL;
    if (at == NULL) {
        return true;
    }
    struct cut all = {rest->at, (size_t)(at - rest->at)};
    const char *colon = memchr(all.at, ':', all.len);
    struct cut name = {all.at, colon != NULL ? (size_t)(colon - all.at) : all.len};
    struct cut secret = {colon != NULL ? colon + 1 : "", colon != NULL ? all.len - name.len - 1 : 0};
    rest->at = at + 1;
    rest->len -= all.len + 1;
    if (!decode(name, user, URL_USER_MAX + 1) || !decode(secret, password, URL_USER_MAX + 1)) {
        return fail(error, "the user or the password is longer than %d bytes or holds a broken %%-escape",
                    URL_USER_MAX);
    }
    return strchr(user, ':') == NULL || fail(error, "a user name cannot hold a colon");
}

static bool is_host(struct cut host, bool v6)
{
    for (size_t i = 0; i < host.len; i++) {
        unsigned char c = (unsigned char)host.at[i];
        if (c <= 0x20 || c >= 0x7f || strchr("\"#%/<>?@[\\]^`{|}", c) != NULL || (c == ':' && !v6)) {
            return false;
        }
        if (v6 && hex_digit((char)c) < 0 && c != ':' && c != '.') {
            return false;
        }
    }
    return host.len > 0 && host.len <= URL_HOST_MAX;
}

static bool take_port(struct cut text, unsigned usual, unsigned *port, char error[URL_ERROR_MAX])
{
    *port = usual;
    if (text.len == 0) {
        return true;
    }
    if (text.at[0] != ':') {
        return fail(error, "what follows the host is no port: %.*s", (int)(text.len < 40 ? text.len : 40), text.at);
    }
    unsigned value = 0;
    for (size_t i = 1; i < text.len; i++) {
        if (text.at[i] < '0' || text.at[i] > '9' || value > 65535) {
            return fail(error, "the port is a number from 1 to 65535");
        }
        value = value * 10 + (unsigned)(text.at[i] - '0');
    }
    *port = text.len == 1 ? usual : value;
    return (*port >= 1 && *port <= 65535) || fail(error, "the port is a number from 1 to 65535");
}

static bool take_host(struct cut text, unsigned usual, char host[URL_HOST_MAX + 1], unsigned *port, bool *v6,
                      char error[URL_ERROR_MAX])
{
    *v6 = text.len > 0 && text.at[0] == '[';
    const char *end = memchr(text.at, *v6 ? ']' : ':', text.len);
    if (*v6 && end == NULL) {
        return fail(error, "the ']' after the IPv6 address is missing");
    }
    size_t skip = *v6 ? 1 : 0;
    struct cut name = {text.at + skip, (end != NULL ? (size_t)(end - text.at) : text.len) - skip};
    size_t used = name.len + 2 * skip;
    if (!is_host(name, *v6)) {
        return fail(error, name.len == 0 ? "the host is missing" : "the host holds what no host name may hold");
    }
    memcpy(host, name.at, name.len);
    host[name.len] = '\0';
    return take_port((struct cut){text.at + used, text.len - used}, usual, port, error);
}

/* The scheme, its "://" taken off; len 0: there is none. */
static struct cut take_scheme(const char **text)
{
    const char *colon = strstr(*text, "://");
    struct cut scheme = {*text, colon != NULL ? (size_t)(colon - *text) : 0};
    if (colon != NULL) {
        *text = colon + 3;
    }
    return scheme;
}

static bool cut_is(struct cut text, const char *word)
{
    return text.len == strlen(word) && strncasecmp(text.at, word, text.len) == 0;
}

static bool take_target(struct url *url, const char *rest, char error[URL_ERROR_MAX])
{
    size_t len = strcspn(rest, "#");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)rest[i];
        if (c <= 0x20 || c >= 0x7f) {
            return fail(error, "the path holds a blank or a character that must be %%-encoded");
        }
    }
    bool slash = rest[0] == '/';
    url->target = malloc(len + 2);
    if (url->target == NULL) {
        return fail(error, "no memory");
    }
    url->target[0] = '/';
    memcpy(url->target + !slash, rest, len);
    url->target[len + !slash] = '\0';
    return true;
}

static bool take_rest(struct url *url, const char *text, char error[URL_ERROR_MAX])
{
    struct cut authority = {text, strcspn(text, "/?#")};
    unsigned usual = url->tls ? 443 : 80;
    if (!take_user(&authority, url->user, url->password, &url->has_user, error) ||
        !take_host(authority, usual, url->host, &url->port, &url->numeric_v6, error)) {
        return false;
    }
    const char *open = url->numeric_v6 ? "[" : "";
    const char *close = url->numeric_v6 ? "]" : "";
    int n = snprintf(url->authority, sizeof url->authority, "%s%s%s", open, url->host, close);
    if (url->port != usual) {
        snprintf(url->authority + n, sizeof url->authority - (size_t)n, ":%u", url->port);
    }
    return take_target(url, authority.at + authority.len, error);
}

bool url_parse(struct url *url, const char *text, char error[URL_ERROR_MAX])
{
    *url = (struct url){0};
    if (strlen(text) > URL_MAX) {
        return fail(error, "the URL is longer than %d bytes", URL_MAX);
    }
    struct cut scheme = take_scheme(&text);
    url->tls = cut_is(scheme, "wss") || cut_is(scheme, "https");
    if (!url->tls && !cut_is(scheme, "ws") && !cut_is(scheme, "http")) {
        return fail(error, scheme.len == 0 ? "the URL begins with ws:// or wss://"
                                           : "the scheme of the URL is none of ws, wss, http and https");
    }
    if (!take_rest(url, text, error)) {
        url_free(url);
        return false;
    }
    return true;
}

void url_free(struct url *url)
{
    explicit_bzero(url->password, sizeof url->password);
    free(url->target);
    url->target = NULL;
}

bool proxy_url_parse(struct proxy_url *proxy, const char *text, char error[URL_ERROR_MAX])
{
    *proxy = (struct proxy_url){0};
    char why[URL_ERROR_MAX];
    struct cut scheme = take_scheme(&text);
    bool socks = cut_is(scheme, "socks5") || cut_is(scheme, "socks5h");
    if (!socks && scheme.len > 0 && !cut_is(scheme, "http")) {
        return fail(error, "the proxy's scheme is none of http, socks5 and socks5h");
    }
    proxy->kind = socks ? PROXY_SOCKS5 : PROXY_HTTP;
    struct cut rest = {text, strcspn(text, "/?#")};
    bool v6;
    if (!take_user(&rest, proxy->user, proxy->password, &proxy->has_user, why) ||
        !take_host(rest, socks ? 1080 : 8080, proxy->host, &proxy->port, &v6, why)) {
        return fail(error, "proxy: %.200s", why);
    }
    const char *after = rest.at + rest.len;
    return strcmp(after, "") == 0 || strcmp(after, "/") == 0 || fail(error, "proxy: a proxy's address has no path");
}
