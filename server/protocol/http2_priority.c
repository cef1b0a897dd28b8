/* The field "priority" (RFC 9218, 5): a dictionary of structured fields (RFC 8941), of which "u" and "i" count. One that
 * cannot be read counts as none, all of it. */
#include "protocol/http2_private.h"

struct reader {
    const char *at;
    const char *end;
};

enum kind { KIND_NONE, KIND_NUMBER, KIND_FLAG, KIND_OTHER };

struct item {
    enum kind kind;
    uint64_t number; /* or of a flag 0 or 1; a negative or a fraction is KIND_OTHER */
};

static bool is_next(const struct reader *r, char c)
{
    return r->at < r->end && *r->at == c;
}

static bool take(struct reader *r, char c)
{
    bool is = is_next(r, c);
    r->at += is;
    return is;
}

static void skip_spaces(struct reader *r)
{
    while (take(r, ' ')) {
    }
}

static void skip_blanks(struct reader *r)
{
    while (is_next(r, ' ') || is_next(r, '\t')) {
        r->at++;
    }
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool take_key(struct reader *r, struct str *key)
{
    const char *from = r->at;
    if (r->at == r->end || !(is_lower(*r->at) || *r->at == '*')) {
        return false;
    }
    while (r->at < r->end && (is_lower(*r->at) || ascii_is_digit(*r->at) || strchr("_-.*", *r->at) != NULL)) {
        r->at++;
    }
    *key = (struct str){from, (size_t)(r->at - from)};
    return true;
}

static size_t take_digits(struct reader *r, uint64_t *number)
{
    const char *from = r->at;
    while (r->at < r->end && ascii_is_digit(*r->at) && r->at - from < 16) {
        *number = *number * 10 + (uint64_t)(*r->at++ - '0');
    }
    return (size_t)(r->at - from);
}

/* At most 15 digits; with a fraction 12, and 3 of it. */
static bool take_number(struct reader *r, struct item *item)
{
    uint64_t fraction = 0;
    bool negative = take(r, '-');
    size_t digits = take_digits(r, &item->number);
    if (digits == 0 || digits > 15) {
        return false;
    }
    item->kind = negative && item->number > 0 ? KIND_OTHER : KIND_NUMBER;
    if (!take(r, '.')) {
        return true;
    }
    item->kind = KIND_OTHER;
    size_t places = take_digits(r, &fraction);
    return digits <= 12 && places >= 1 && places <= 3;
}

static bool take_string(struct reader *r)
{
    while (r->at < r->end) {
        char c = *r->at++;
        if (c == '"') {
            return true;
        }
        if (c == '\\' && !take(r, '"') && !take(r, '\\')) {
            return false;
        }
        if (c < 0x20 || c > 0x7e) {
            return false;
        }
    }
    return false;
}

static bool take_binary(struct reader *r)
{
    while (r->at < r->end && *r->at != ':') {
        char c = *r->at++;
        if (!ascii_is_alpha(c) && !ascii_is_digit(c) && c != '+' && c != '/' && c != '=') {
            return false;
        }
    }
    return take(r, ':');
}

static bool take_token(struct reader *r)
{
    while (r->at < r->end &&
           (ascii_is_alpha(*r->at) || ascii_is_digit(*r->at) || strchr("!#$%&'*+-.^_`|~:/", *r->at) != NULL)) {
        r->at++;
    }
    return true;
}

static bool take_item(struct reader *r, struct item *item)
{
    *item = (struct item){.kind = KIND_OTHER};
    if (r->at == r->end) {
        return false;
    }
    char c = *r->at;
    if (c == '-' || ascii_is_digit(c)) {
        return take_number(r, item);
    }
    if (ascii_is_alpha(c) || c == '*') {
        return take_token(r);
    }
    r->at++;
    switch (c) {
    case '"': return take_string(r);
    case ':': return take_binary(r);
    case '?':
        item->kind = KIND_FLAG;
        item->number = is_next(r, '1');
        return take(r, '0') || take(r, '1');
    default: return false;
    }
}

static bool take_parameters(struct reader *r)
{
    while (take(r, ';')) {
        struct str key;
        struct item item;
        skip_spaces(r);
        if (!take_key(r, &key) || (take(r, '=') && !take_item(r, &item))) {
            return false;
        }
    }
    return true;
}

/* Behind its bracket. */
static bool take_list(struct reader *r)
{
    for (;;) {
        struct item item;
        skip_spaces(r);
        if (take(r, ')')) {
            return true;
        }
        if (!take_item(r, &item) || !take_parameters(r) || !(is_next(r, ' ') || is_next(r, ')'))) {
            return false;
        }
    }
}

static bool take_member(struct reader *r, nghttp2_extpri *priority)
{
    struct str key;
    struct item item = {KIND_FLAG, 1};
    if (!take_key(r, &key)) {
        return false;
    }
    if (take(r, '=')) {
        bool list = take(r, '(');
        item.kind = KIND_OTHER;
        if (list ? !take_list(r) : !take_item(r, &item)) {
            return false;
        }
    }
    if (!take_parameters(r)) {
        return false;
    }
    if (str_eq(key, STR("u"))) {
        priority->urgency = (uint32_t)item.number;
        return item.kind == KIND_NUMBER && item.number <= NGHTTP2_EXTPRI_URGENCY_LOW;
    }
    if (str_eq(key, STR("i"))) {
        priority->inc = (int)item.number;
        return item.kind == KIND_FLAG;
    }
    return true;
}

bool http2_priority_read(struct str text, nghttp2_extpri *priority)
{
    struct reader r = {text.ptr, text.ptr + text.len};
    nghttp2_extpri read = *priority;
    skip_spaces(&r);
    while (r.at < r.end) {
        if (!take_member(&r, &read)) {
            return false;
        }
        skip_blanks(&r);
        if (r.at == r.end) {
            break;
        }
        if (!take(&r, ',')) {
            return false;
        }
        skip_blanks(&r);
        if (r.at == r.end) {
            return false; /* a comma behind the last */
        }
    }
    *priority = read;
    return true;
}

void http2_priority_take(struct http2_stream *s, struct str value)
{
    nghttp2_extpri priority = {NGHTTP2_EXTPRI_DEFAULT_URGENCY, 0};
    if (s->has_priority) {
        priority = (nghttp2_extpri){s->urgency, s->incremental};
    }
    if (!s->bad_priority && http2_priority_read(value, &priority)) {
        s->has_priority = true;
        s->urgency = (uint8_t)(priority.urgency & 7);
        s->incremental = priority.inc != 0;
    } else {
        s->bad_priority = true;
    }
}

void http2_priority_updated(struct http2 *h, int32_t id)
{
    for (size_t i = ARRAY_LEN(h->updated) - 1; i > 0; i--) {
        h->updated[i] = h->updated[i - 1];
    }
    h->updated[0] = id;
}

/* A PRIORITY_UPDATE that came before its stream was opened holds as if it had come just behind (RFC 9218, 7.1): nghttp2
 * keeps it, and the field does not take its place. */
static bool is_updated(const struct http2_stream *s)
{
    for (size_t i = 0; i < ARRAY_LEN(s->h->updated); i++) {
        if (s->h->updated[i] == s->id) {
            return true;
        }
    }
    return false;
}

void http2_priority_set(const struct http2_stream *s)
{
    if (s->has_priority && !s->bad_priority && !is_updated(s)) {
        nghttp2_extpri priority = {s->urgency, s->incremental};
        nghttp2_session_change_extpri_stream_priority(s->h->session, s->id, &priority, 0);
    }
}
