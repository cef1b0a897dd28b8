/* Cookies of RFC 6265: reading the Cookie header, and writing Set-Cookie with every part
 * checked, so that no value can add attributes or lines. Pure functions. */
#ifndef KILN_REQUEST_COOKIE_H
#define KILN_REQUEST_COOKIE_H

#include "base/buffer.h"

/* Takes the next cookie from the value of a Cookie header (*rest); double quotes around the
 * value are dropped. Elements without a name are skipped. False at the end. */
bool cookie_next(struct str *rest, struct str *name, struct str *value);

enum cookie_same_site { COOKIE_LAX, COOKIE_STRICT, COOKIE_NONE };

struct set_cookie {
    struct str name;
    struct str value;
    struct str path; /* ptr NULL: "/" */
    struct str domain; /* ptr NULL: none */
    int64_t max_age; /* 0: none (ends with the browser); negative: deletes the cookie */
    enum cookie_same_site same_site;
    bool secure;
    bool http_only;
};

enum cookie_result {
    COOKIE_OK,
    COOKIE_BAD_NAME, /* not a token, or a prefix (__Host-, __Secure-) whose rules are not met */
    COOKIE_BAD_VALUE,
    COOKIE_BAD_PATH,
    COOKIE_BAD_DOMAIN,
    COOKIE_NOT_SECURE, /* SameSite=None without Secure: browsers would drop it */
    COOKIE_NO_MEMORY,
};

/* Appends the value of a Set-Cookie header; nothing on an error but COOKIE_NO_MEMORY. */
enum cookie_result set_cookie_format(struct buffer *out, const struct set_cookie *cookie);

#endif
