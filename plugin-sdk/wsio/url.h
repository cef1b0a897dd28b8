/* DESIGN: addresses as people write them: ws://user:password@host:8080/path?query#fragment, wss://, and those of
 * proxies. Pure functions over texts, strict: what would end in a head or on a wire as something else
 * than it looks like is refused here, with a sentence that says what is wrong. Passwords never stand in
 * such a sentence. */
#ifndef KILN_WSIO_URL_H
#define KILN_WSIO_URL_H

#include <stdbool.h>
#include <stddef.h>

enum {
    URL_HOST_MAX = 255, /* of a name; SOCKS5 can carry no more */
    URL_USER_MAX = 255, /* user and password each, decoded; likewise */
    URL_MAX = 16384,
    URL_ERROR_MAX = 256, /* sentences of this room, also those of the other files here */
};

struct url {
    bool tls;
    bool numeric_v6; /* host is an IPv6 address, which stands in brackets */
    unsigned port;
    char host[URL_HOST_MAX + 1]; /* without brackets */
    char authority[URL_HOST_MAX + 16]; /* for Host: the port only where it is not the usual one */
    char user[URL_USER_MAX + 1];
    char password[URL_USER_MAX + 1];
    bool has_user;
    char *target; /* "/path?query", malloc'ed */
};

enum proxy_kind { PROXY_HTTP, PROXY_SOCKS5 };

struct proxy_url {
    enum proxy_kind kind;
    unsigned port;
    char host[URL_HOST_MAX + 1];
    char user[URL_USER_MAX + 1];
    char password[URL_USER_MAX + 1];
    bool has_user;
};

/* ws://, wss://, and http:// and https:// for the same. False: `error` has a sentence. */
bool url_parse(struct url *url, const char *text, char error[URL_ERROR_MAX]);
void url_free(struct url *url);
/* http://, socks5:// and socks5h://. Without a scheme: http. */
bool proxy_url_parse(struct proxy_url *proxy, const char *text, char error[URL_ERROR_MAX]);

#endif
