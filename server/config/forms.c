/* What texts of an option have to look like, and their regular spelling. */
#include "config/admin_address.h"
#include "config/options.h"

#include <arpa/inet.h>
#include <stdlib.h>

static struct str lower_copy(struct arena *arena, struct str s)
{
    char *copy = arena_strndup(arena, s.ptr, s.len);
    for (size_t i = 0; copy != NULL && i < s.len; i++) {
        copy[i] = ascii_lower(copy[i]);
    }
    return (struct str){copy, copy != NULL ? s.len : 0};
}

static bool is_token(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        bool alphanumeric = ascii_is_digit((char)c) || (ascii_lower((char)c) >= 'a' && ascii_lower((char)c) <= 'z');
        if (!alphanumeric && (c == '\0' || strchr("!#$%&'*+-.^_`|~", c) == NULL)) {
            return false;
        }
    }
    return s.len > 0;
}

const char *form_address(struct arena *arena, struct str *key, struct str *value)
{
    (void)key;
    struct str bare = *value;
    if (str_starts(bare, STR("[")) && str_ends(bare, STR("]"))) {
        bare = (struct str){bare.ptr + 1, bare.len - 2};
    }
    if (str_eq(bare, STR("*"))) {
        bare.len = 0;
    }
    struct in6_addr address;
    char *text = arena_strndup(arena, bare.ptr, bare.len);
    if (text == NULL) {
        return "less text";
    }
    if (bare.len > 0 && inet_pton(AF_INET, text, &address) != 1 && inet_pton(AF_INET6, text, &address) != 1) {
        return "an IPv4 or IPv6 address, as \"127.0.0.1\" or \"::1\", or \"\" for all";
    }
    *value = (struct str){text, bare.len};
    return NULL;
}

const char *form_admin_listen(struct arena *arena, struct str *key, struct str *value)
{
    (void)key;
    struct admin_address address;
    if (value->len == 0) {
        return NULL;
    }
    if (!admin_address_parse(*value, &address)) {
        return "an address and port, as \"127.0.0.1:9180\" or \"[::1]:9180\", or a socket as "
               "\"unix:/run/kiln/admin.sock\", or \"\" for none";
    }
    *value = arena_str(arena, str_of(address.text));
    return value->ptr != NULL ? NULL : "less text";
}

const char *form_file_mode(struct arena *arena, struct str *key, struct str *value)
{
    (void)arena;
    (void)key;
    bool good = value->len >= 3 && value->len <= 4;
    for (size_t i = 0; good && i < value->len; i++) {
        good = value->ptr[i] >= '0' && value->ptr[i] <= '7';
    }
    good = good && (value->len == 3 || value->ptr[0] == '0');
    return good ? NULL : "permissions in octal, as \"0600\" or \"0660\"";
}

const char *form_token(struct arena *arena, struct str *key, struct str *value)
{
    (void)arena;
    (void)key;
    return is_token(*value) ? NULL : "a name of letters, digits, '-' and '_'";
}

const char *form_alphabet(struct arena *arena, struct str *key, struct str *value)
{
    (void)arena;
    (void)key;
    const char *wanted = "16 or more different characters that a cookie may hold (letters, digits, '-', '_', '.')";
    bool seen[256] = {false};
    for (size_t i = 0; i < value->len; i++) {
        unsigned char c = (unsigned char)value->ptr[i];
        if (c <= ' ' || c >= 0x7F || strchr("\",;\\", c) != NULL || seen[c]) {
            return wanted;
        }
        seen[c] = true;
    }
    return value->len >= 16 ? NULL : wanted;
}

const char *form_index_names(struct arena *arena, struct str *key, struct str *value)
{
    (void)key;
    if (value->len == 0 || str_find(*value, '/') != SIZE_MAX || value->ptr[0] == '.') {
        return "the name of a file, as \"index.html\"";
    }
    /* The names that the earlier server had for a compiled and a source endpoint. */
    if (str_ends(*value, STR("._csdll"))) {
        *value = str_of(arena_printf(arena, "%.*s.so", (int)value->len - 7, value->ptr));
    } else if (str_ends(*value, STR("._cs"))) {
        *value = str_of(arena_printf(arena, "%.*s._c", (int)value->len - 4, value->ptr));
    }
    return NULL;
}

const char *form_extensions(struct arena *arena, struct str *key, struct str *value)
{
    (void)key;
    struct str bare = str_starts(*value, STR(".")) ? str_from(*value, 1) : *value;
    if (bare.len == 0 || str_find(bare, '/') != SIZE_MAX) {
        return "an extension, as \"zip\"";
    }
    *value = lower_copy(arena, bare);
    return NULL;
}

const char *form_media_types(struct arena *arena, struct str *key, struct str *value)
{
    (void)key;
    size_t slash = str_find(*value, '/');
    if (slash == SIZE_MAX || !is_token(str_first(*value, slash)) || !is_token(str_from(*value, slash + 1))) {
        return "a media type, as \"text/*\" or \"application/json\"";
    }
    *value = lower_copy(arena, *value);
    return NULL;
}

static bool is_host(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.ptr[i] <= ' ' || s.ptr[i] == '/' || s.ptr[i] == '\\') {
            return false;
        }
    }
    return s.len > 0 && s.ptr[0] != '.';
}

const char *form_host_part(struct arena *arena, struct str *key, struct str *value)
{
    (void)key;
    for (size_t i = 0; i < value->len; i++) {
        if ((unsigned char)value->ptr[i] <= ' ' || value->ptr[i] == '/') {
            return "part of a host name, as \".\"";
        }
    }
    *value = lower_copy(arena, *value);
    return NULL;
}

const char *form_hsts(struct arena *arena, struct str *key, struct str *value)
{
    (void)arena;
    (void)key;
    struct str seconds = str_starts(*value, STR("max-age=")) ? str_from(*value, 8) : STR_NONE;
    bool ok = value->len == 0 || (seconds.len > 0 && ascii_is_digit(seconds.ptr[0]));
    for (size_t i = 0; ok && i < value->len; i++) {
        ok = value->ptr[i] >= ' ' && value->ptr[i] <= '~';
    }
    return ok ? NULL : "\"max-age=SECONDS\", with \"; includeSubDomains\" or \"; preload\" behind it if wanted";
}

const char *form_hosts(struct arena *arena, struct str *key, struct str *value)
{
    if (!is_host(*key) || !is_host(*value)) {
        return "host names on both sides, as \"www.example.com\": \"example.com\"";
    }
    *key = lower_copy(arena, *key);
    *value = lower_copy(arena, *value);
    return NULL;
}

const char *form_url_aliases(struct arena *arena, struct str *key, struct str *value)
{
    size_t slash = str_find(*key, '/');
    if (slash == SIZE_MAX || !is_host(str_first(*key, slash)) || !str_starts(*value, STR("/"))) {
        return "a host and path, and the path that answers, as \"example.com/old\": \"/new\"";
    }
    char *copy = arena_strndup(arena, key->ptr, key->len);
    for (size_t i = 0; copy != NULL && i < slash; i++) {
        copy[i] = ascii_lower(copy[i]);
    }
    *key = (struct str){copy, copy != NULL ? key->len : 0};
    return NULL;
}

const char *form_timeouts(struct arena *arena, struct str *key, struct str *value)
{
    (void)arena;
    char *end = NULL;
    double seconds = strtod(value->ptr, &end);
    bool good = value->len > 0 && *end == '\0' && seconds >= 0 && seconds <= 1e9;
    return good && key->len > 0 ? NULL : "a URL path or file pattern, and seconds, as \"/report\": 120";
}

const char *form_forwards(struct arena *arena, struct str *key, struct str *value)
{
    const char *wrong = form_extensions(arena, NULL, key);
    bool scheme =
        str_starts(*value, STR("http://")) || str_starts(*value, STR("https://")) || str_starts(*value, STR("fcgi://"));
    return wrong == NULL && scheme ? NULL
                                   : "an extension and an upstream that begins with http://, https:// or fcgi://";
}

const char *form_header(struct str name, struct str value)
{
    /* What the server itself decides for each answer. */
    static const char *const own[] = {"Connection", "Content-Length",    "Date",   "Keep-Alive",
                                      "Trailer",    "Transfer-Encoding", "Upgrade"};
    if (!is_token(name)) {
        return "a header name of letters, digits and '-'";
    }
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (str_eq_nocase(name, str_of(own[i]))) {
            return "another header; the server makes this one itself";
        }
    }
    for (size_t i = 0; i < value.len; i++) {
        unsigned char c = (unsigned char)value.ptr[i];
        if ((c < ' ' && c != '\t') || c == 0x7F) {
            return "a header value without line ends and control characters";
        }
    }
    return NULL;
}
