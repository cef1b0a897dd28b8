#include "request/cookie.h"

#include "request/token.h"

bool cookie_next(struct str *rest, struct str *name, struct str *value)
{
    struct str element;
    while (str_split_next(rest, ';', &element)) {
        size_t equals = str_find(element, '=');
        if (equals == SIZE_MAX || equals == 0) {
            continue;
        }
        *name = str_trim(str_first(element, equals));
        *value = str_trim(str_from(element, equals + 1));
        if (name->len == 0) {
            continue;
        }
        if (value->len >= 2 && value->ptr[0] == '"' && value->ptr[value->len - 1] == '"') {
            *value = (struct str){value->ptr + 1, value->len - 2};
        }
        return true;
    }
    return false;
}

static bool is_cookie_value(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c <= ' ' || c >= 0x7f || c == '"' || c == ',' || c == ';' || c == '\\') {
            return false;
        }
    }
    return true;
}

static bool is_path(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c < ' ' || c == 0x7f || c == ';') {
            return false;
        }
    }
    return s.len > 0 && s.ptr[0] == '/';
}

static bool is_domain(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || ascii_is_digit(c);
        if (!alnum && c != '.' && c != '-') {
            return false;
        }
    }
    return s.len > 0;
}

static enum cookie_result check(const struct set_cookie *cookie)
{
    if (!token_is_valid(cookie->name)) {
        return COOKIE_BAD_NAME;
    }
    if (!is_cookie_value(cookie->value)) {
        return COOKIE_BAD_VALUE;
    }
    if (cookie->path.ptr != NULL && !is_path(cookie->path)) {
        return COOKIE_BAD_PATH;
    }
    if (cookie->domain.ptr != NULL && !is_domain(cookie->domain)) {
        return COOKIE_BAD_DOMAIN;
    }
    if (cookie->same_site == COOKIE_NONE && !cookie->secure) {
        return COOKIE_NOT_SECURE;
    }
    /* Browsers compare the prefixes without case. */
    bool host_prefix = str_eq_nocase(str_first(cookie->name, 7), STR("__Host-"));
    bool secure_prefix = str_eq_nocase(str_first(cookie->name, 9), STR("__Secure-"));
    if ((host_prefix || secure_prefix) && !cookie->secure) {
        return COOKIE_BAD_NAME;
    }
    if (host_prefix && (cookie->domain.ptr != NULL || (cookie->path.ptr != NULL && cookie->path.len != 1))) {
        return COOKIE_BAD_NAME;
    }
    return COOKIE_OK;
}

enum cookie_result set_cookie_format(struct buffer *out, const struct set_cookie *cookie)
{
    static const char *const same_site[] = {"Lax", "Strict", "None"};
    enum cookie_result result = check(cookie);
    if (result != COOKIE_OK) {
        return result;
    }
    struct str path = cookie->path.ptr != NULL ? cookie->path : STR("/");
    buffer_append_str(out, cookie->name);
    buffer_append_char(out, '=');
    buffer_append_str(out, cookie->value);
    buffer_append_z(out, "; Path=");
    buffer_append_str(out, path);
    if (cookie->domain.ptr != NULL) {
        buffer_append_z(out, "; Domain=");
        buffer_append_str(out, cookie->domain);
    }
    if (cookie->max_age > 0) {
        buffer_append_z(out, "; Max-Age=");
        buffer_append_u64(out, (uint64_t)cookie->max_age);
    } else if (cookie->max_age < 0) {
        buffer_append_z(out, "; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:00 GMT");
    }
    if (cookie->secure) {
        buffer_append_z(out, "; Secure");
    }
    if (cookie->http_only) {
        buffer_append_z(out, "; HttpOnly");
    }
    buffer_append_z(out, "; SameSite=");
    buffer_append_z(out, same_site[cookie->same_site]);
    return out->failed ? COOKIE_NO_MEMORY : COOKIE_OK;
}
