/* DESIGN: what RFC 9113 (8.2, 8.3) asks of a request's fields, and RFC 9110 of their bytes: which names and values there may
 * be, which pseudo headers, how often and where. nghttp2 would see to it (and is told not to), at a tenth of
 * what a small request costs, for it looks at every byte of every field. Here names and values that HPACK's
 * static table has are known to be in order.
 *
 * A request that breaks a rule is malformed: its stream is reset. What only Kiln does not take, such as a host that is
 * none or a path with "#", is answered like an HTTP/1.1 request that has it (http2_head.c). */
#include "protocol/http2_private.h"
#include "request/head.h"
#include "request/token.h"

enum {
    SEEN_METHOD = 1,
    SEEN_SCHEME = 2,
    SEEN_PATH = 4,
    SEEN_AUTHORITY = 8,
    SEEN_PROTOCOL = 16,
    SEEN_HOST = 32,
    SEEN_FIELD = 64
};

/* ---- bytes ------------------------------------------------------------------------------------ */

enum { IN_NAME = 1, IN_TOKEN = 2, IN_AUTHORITY = 4, IN_SCHEME = 8, IN_PATH = 16 };
static uint8_t bytes[256];

__attribute__((constructor)) static void index_bytes(void)
{
    for (const char *c = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"; *c != '\0'; c++) {
        bytes[(unsigned char)*c] |= IN_NAME | IN_TOKEN;
    }
    for (const char *c = "!$%&'()*+,-.:;=@[]_~0123456789abcdefghijklmnopqrstuvwxyz"; *c != '\0'; c++) {
        bytes[(unsigned char)*c] |= IN_AUTHORITY;
    }
    for (const char *c = "+-.0123456789abcdefghijklmnopqrstuvwxyz"; *c != '\0'; c++) {
        bytes[(unsigned char)*c] |= IN_SCHEME;
    }
    for (int c = 'A'; c <= 'Z'; c++) {
        bytes[c] |= IN_TOKEN | IN_AUTHORITY | IN_SCHEME;
    }
    for (int c = 0x21; c < 0x7f; c++) {
        bytes[c] |= c != '#' ? IN_PATH : 0;
    }
}

/* No empty text, either. */
static bool consists_of(struct str text, uint8_t allowed)
{
    for (size_t i = 0; i < text.len; i++) {
        if ((bytes[(unsigned char)text.ptr[i]] & allowed) == 0) {
            return false;
        }
    }
    return text.len > 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_value(struct str value)
{
    return value.len == 0 ||
           (!is_blank(value.ptr[0]) && !is_blank(value.ptr[value.len - 1]) && field_value_is_valid(value));
}

bool http2_field_is_target(struct str value)
{
    return memchr(value.ptr, ' ', value.len) == NULL && memchr(value.ptr, '\t', value.len) == NULL &&
           field_value_is_valid(value);
}

bool http2_field_is_path(struct str value)
{
    return consists_of(value, IN_PATH);
}

bool http2_field_is_authority(struct str value)
{
    return consists_of(value, IN_AUTHORITY);
}

/* ---- one field ---------------------------------------------------------------------------------- */

/* Each once at most. */
static bool see(struct http2_stream *s, uint8_t what)
{
    bool first = (s->seen & what) == 0;
    s->seen |= what;
    return first;
}

/* HPACK's static table has http and https. */
static bool take_scheme(struct http2_stream *s, struct str value, bool known)
{
    s->head.http = known || str_eq_nocase(value, STR("http")) || str_eq_nocase(value, STR("https"));
    return s->head.http || (ascii_is_alpha(value.ptr[0]) && consists_of(value, IN_SCHEME));
}

static bool check_pseudo(struct http2_stream *s, struct str name, struct str value, bool known)
{
    if (s->trailers || (s->seen & SEEN_FIELD) != 0 || value.len == 0) {
        return false;
    }
    switch (name.len) {
    /* Its bytes and those of :authority are looked at when the head is complete, by those who read them. */
    case 5: return str_eq(name, STR(":path")) && see(s, SEEN_PATH);
    case 7:
        if (name.ptr[1] == 'm') {
            return str_eq(name, STR(":method")) && see(s, SEEN_METHOD) && (known || consists_of(value, IN_TOKEN));
        }
        return str_eq(name, STR(":scheme")) && see(s, SEEN_SCHEME) && take_scheme(s, value, known);
    case 9: return str_eq(name, STR(":protocol")) && see(s, SEEN_PROTOCOL) && is_value(value);
    case 10: return str_eq(name, STR(":authority")) && see(s, SEEN_AUTHORITY);
    default: return false;
    }
}

static bool take_length(struct http2_stream *s, struct str value)
{
    return s->announced == RESPONSE_LENGTH_UNKNOWN && str_to_u64(value, INT64_MAX, &s->announced);
}

/* Fields that belong to an HTTP/1 connection (8.2.2), and those of which there may be one. */
static bool check_special(struct http2_stream *s, struct str name, struct str value, unsigned known)
{
    switch (known) {
    case HEADER_CONNECTION:
    case HEADER_TRANSFER_ENCODING:
    case HEADER_UPGRADE: return false;
    case HEADER_HOST: return see(s, SEEN_HOST) && consists_of(value, IN_AUTHORITY);
    case HEADER_CONTENT_LENGTH: return take_length(s, value);
    case HEADER_KNOWN_COUNT: break;
    default: return true;
    }
    switch (name.len) {
    case 2: return !str_eq(name, STR("te")) || str_eq_nocase(value, STR("trailers"));
    case 8:
        if (!s->trailers && str_eq(name, STR("priority"))) {
            http2_priority_take(s, value);
        }
        return true;
    case 10: return !str_eq(name, STR("keep-alive"));
    case 16: return !str_eq(name, STR("proxy-connection"));
    default: return true;
    }
}

bool http2_field_check(struct http2_stream *s, const struct http2_field *field, unsigned *known)
{
    if (!field->static_name &&
        !consists_of(field->name.len > 0 && field->name.ptr[0] == ':' ? str_from(field->name, 1) : field->name,
                     IN_NAME)) {
        return false;
    }
    *known = HEADER_KNOWN_COUNT;
    if (field->name.ptr[0] == ':') {
        return check_pseudo(s, field->name, field->value, field->static_value);
    }
    s->seen |= SEEN_FIELD;
    *known = request_known_of(field->name);
    return (field->static_value || is_value(field->value)) && check_special(s, field->name, field->value, *known);
}

/* ---- the head as a whole --------------------------------------------------------------------------- */

/* "*" for OPTIONS alone, and else an absolute path: of http and https (8.3.1). */
static bool is_path(const struct http2_stream *s)
{
    struct str target = s->req->target;
    return !s->head.http || target.ptr == NULL || target.ptr[0] == '/' ||
           (s->req->method == METHOD_OPTIONS && str_eq(target, STR("*")));
}

bool http2_fields_are_whole(struct http2_stream *s, bool end_stream)
{
    enum { ALL = SEEN_METHOD | SEEN_SCHEME | SEEN_PATH };
    bool connect = s->req->method == METHOD_CONNECT;
    bool tunnel = (s->seen & SEEN_PROTOCOL) != 0;
    if (connect && !tunnel) {
        s->announced = RESPONSE_LENGTH_UNKNOWN;
        return (s->seen & (SEEN_SCHEME | SEEN_PATH)) == 0 && (s->seen & SEEN_AUTHORITY) != 0;
    }
    bool named = (s->seen & (tunnel ? SEEN_AUTHORITY : SEEN_AUTHORITY | SEEN_HOST)) != 0;
    return (s->seen & ALL) == ALL && named && tunnel == connect && is_path(s) && (!end_stream || http2_fields_end(s));
}

/* ---- the body: as long as was said (8.1.1) ---------------------------------------------------------- */

bool http2_fields_data(struct http2_stream *s, size_t len)
{
    s->came += len;
    return s->came <= s->announced;
}

bool http2_fields_end(const struct http2_stream *s)
{
    return s->announced == RESPONSE_LENGTH_UNKNOWN || s->came == s->announced;
}
