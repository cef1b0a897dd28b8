/* DESIGN: the conversation with a proxy, HTTP CONNECT (RFC 9110, Basic as of RFC 7617) or SOCKS5 (RFC 1928, user and
 * password as of RFC 1929), as a machine that does no I/O: bytes to send lie in `out`, bytes that came are
 * given in. Names are sent as names, so that the proxy looks them up. Every length is checked, an answer is
 * at most PROXY_ANSWER_MAX bytes, and what follows the proxy's answer is the tunnel's and left alone. */
#ifndef KILN_WSIO_PROXY_H
#define KILN_WSIO_PROXY_H

#include "wsio/url.h"
#include "ws/text.h"

#include <stdint.h>

enum { PROXY_ANSWER_MAX = 16384 };

enum proxy_result {
    PROXY_MORE, /* send `out`, then give what comes */
    PROXY_DONE, /* the tunnel stands */
    PROXY_FAILED, /* `error` tells */
};

struct proxy_dialogue;

/* One kind of proxy. */
struct proxy_ops {
    void (*begin)(struct proxy_dialogue *dialogue);
    /* Looks at `in`; what it has used of it is proxy->used. */
    enum proxy_result (*look)(struct proxy_dialogue *dialogue);
};

struct proxy_dialogue {
    const struct proxy_ops *ops;
    const struct proxy_url *proxy;
    const char *host; /* where to */
    unsigned port;
    bool host_is_v6;
    struct ws_buffer out; /* to be sent, then emptied by the caller (len = 0) */
    uint8_t in[PROXY_ANSWER_MAX];
    size_t in_len;
    size_t used;
    unsigned step;
    char error[URL_ERROR_MAX];
};

/* `proxy` and `host` outlive the dialogue. `out` holds the first bytes. */
void proxy_begin(struct proxy_dialogue *dialogue, const struct proxy_url *proxy, const char *host, unsigned port,
                 bool host_is_v6);
/* Bytes that came: *used of them are the proxy's, the rest is the tunnel's (only with PROXY_DONE). */
enum proxy_result proxy_receive(struct proxy_dialogue *dialogue, const void *data, size_t len, size_t *used);
void proxy_end(struct proxy_dialogue *dialogue);

/* "Basic dXNlcjpwYXNz" into `to`. */
void basic_credentials(const char *user, const char *password, struct ws_buffer *to);

#endif
