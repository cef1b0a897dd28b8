/* A second opinion on HTTP/1.1 input, for tests: a parser written from RFC 9112 alone, over the whole
 * input at once, without a line in common with the server's. Where the RFC leaves a server
 * the choice (targets beyond the grammar of paths, methods that are not widely known), it says
 * "either" instead of deciding. */
#ifndef KILN_TESTS_SUPPORT_STRICT_HTTP1_H
#define KILN_TESTS_SUPPORT_STRICT_HTTP1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

enum strict_result {
    STRICT_OK,
    STRICT_INCOMPLETE, /* good so far, but the input ends */
    STRICT_BAD,
    STRICT_EITHER, /* may be taken or refused */
};

struct strict_request {
    char method[16];
    const char *target;
    size_t target_len;
    bool minor_zero;
    bool keep_alive;
    bool chunked;
    bool has_length;
    bool expects;
    bool odd_trailers; /* framing fields in the trailers: may be refused */
    uint64_t length; /* Content-Length */
    uint64_t body; /* bytes of content that are there */
    uint32_t hash; /* of them */
    bool any_data; /* of a chunked body: a chunk that is not the last has begun */
};

struct strict_input {
    const uint8_t *at;
    size_t left;
};

static inline uint32_t strict_hash(uint32_t hash, const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ data[i]) * 16777619u;
    }
    return hash;
}
enum { STRICT_HASH_START = 2166136261u & 0x7fffffff };

static inline bool strict_is_token(const uint8_t *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t c = text[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alnum && (c == 0 || strchr("!#$%&'*+-.^_`|~", c) == NULL)) {
            return false;
        }
    }
    return len > 0;
}

/* One line up to its CRLF, which is taken too. */
static inline enum strict_result strict_line(struct strict_input *in, const uint8_t **line, size_t *len)
{
    for (size_t i = 0; i < in->left; i++) {
        uint8_t c = in->at[i];
        if (c == '\r') {
            if (i + 1 == in->left) {
                return STRICT_INCOMPLETE;
            }
            if (in->at[i + 1] != '\n') {
                return STRICT_BAD;
            }
            *line = in->at;
            *len = i;
            in->at += i + 2;
            in->left -= i + 2;
            return STRICT_OK;
        }
        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return STRICT_BAD;
        }
    }
    return STRICT_INCOMPLETE;
}

static inline bool strict_is(const uint8_t *text, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp((const char *)text, word, len) == 0;
}

static inline void strict_trim(const uint8_t **text, size_t *len)
{
    while (*len > 0 && (**text == ' ' || **text == '\t')) {
        (*text)++;
        (*len)--;
    }
    while (*len > 0 && ((*text)[*len - 1] == ' ' || (*text)[*len - 1] == '\t')) {
        (*len)--;
    }
}

static inline enum strict_result strict_start_line(struct strict_request *r, const uint8_t *line, size_t len)
{
    size_t sp = 0;
    while (sp < len && line[sp] != ' ') {
        sp++;
    }
    if (!strict_is_token(line, sp) || len < sp + 11) {
        return STRICT_BAD;
    }
    const uint8_t *version = line + len - 8;
    if (memcmp(version, "HTTP/1.", 7) != 0 || (version[7] != '0' && version[7] != '1') || version[-1] != ' ') {
        return STRICT_BAD;
    }
    r->minor_zero = version[7] == '0';
    r->target = (const char *)line + sp + 1;
    r->target_len = len - sp - 10;
    enum strict_result result = STRICT_OK;
    for (size_t i = 0; i < r->target_len; i++) {
        uint8_t c = (uint8_t)r->target[i];
        if (c <= 0x20 || c >= 0x7f || c == '#') {
            return STRICT_BAD;
        }
        if (strchr("\"<>\\^`{|}", c) != NULL) {
            result = STRICT_EITHER;
        }
    }
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"};
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        is_known = is_known || (strlen(known[i]) == sp && memcmp(line, known[i], sp) == 0);
    }
    if (is_known) {
        memcpy(r->method, line, sp);
    }
    if (r->target[0] == '*') {
        return r->target_len == 1 && is_known && strcmp(r->method, "OPTIONS") == 0 ? STRICT_OK : STRICT_EITHER;
    }
    return !is_known || r->target[0] != '/' ? STRICT_EITHER : result;
}

static inline enum strict_result strict_host(const uint8_t *v, size_t len)
{
    size_t i = 0;
    if (len > 0 && v[0] == '[') {
        return STRICT_EITHER;
    }
    while (i < len && v[i] != ':') {
        uint8_t c = v[i++];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alnum && strchr(".-_", c) == NULL) {
            return c < 0x80 && strchr("!$&'()*+,;=~%", c) != NULL ? STRICT_EITHER : STRICT_BAD;
        }
    }
    if (i == 0 && len > 0) {
        return STRICT_EITHER;
    }
    uint64_t port = 0;
    for (i++; i < len; i++) {
        if (v[i] < '0' || v[i] > '9') {
            return STRICT_BAD;
        }
        port = port * 10 + (uint64_t)(v[i] - '0');
        if (port > 65535) {
            return STRICT_EITHER;
        }
    }
    return STRICT_OK;
}

/* False: no number, or one that nobody can take. */
static inline bool strict_number(const uint8_t *v, size_t len, uint64_t *out)
{
    uint64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (v[i] < '0' || v[i] > '9' || n > ((uint64_t)INT64_MAX - (uint64_t)(v[i] - '0')) / 10) {
            return false;
        }
        n = n * 10 + (uint64_t)(v[i] - '0');
    }
    *out = n;
    return len > 0;
}

struct strict_seen {
    unsigned hosts;
    unsigned lengths;
    unsigned encodings;
    unsigned expects;
    bool close;
    bool keep;
    bool bad;
    bool either;
};

static inline void strict_connection(struct strict_seen *seen, const uint8_t *v, size_t len)
{
    while (len > 0) {
        const uint8_t *comma = memchr(v, ',', len);
        const uint8_t *token = v;
        size_t n = comma != NULL ? (size_t)(comma - v) : len;
        v += comma != NULL ? n + 1 : n;
        len -= comma != NULL ? n + 1 : n;
        strict_trim(&token, &n);
        seen->close = seen->close || strict_is(token, n, "close");
        seen->keep = seen->keep || strict_is(token, n, "keep-alive");
    }
}

static inline void strict_header(struct strict_request *r, struct strict_seen *seen, const uint8_t *line, size_t len)
{
    const uint8_t *colon = memchr(line, ':', len);
    if (colon == NULL || !strict_is_token(line, (size_t)(colon - line))) {
        seen->bad = true;
        return;
    }
    size_t name = (size_t)(colon - line);
    const uint8_t *v = colon + 1;
    size_t n = len - name - 1;
    strict_trim(&v, &n);
    if (strict_is(line, name, "host")) {
        enum strict_result host = strict_host(v, n);
        seen->hosts++;
        seen->bad = seen->bad || host == STRICT_BAD;
        seen->either = seen->either || host == STRICT_EITHER;
    } else if (strict_is(line, name, "content-length")) {
        seen->lengths++;
        seen->bad = seen->bad || !strict_number(v, n, &r->length);
        r->has_length = true;
    } else if (strict_is(line, name, "transfer-encoding")) {
        seen->encodings++;
        seen->bad = seen->bad || !strict_is(v, n, "chunked");
        r->chunked = true;
    } else if (strict_is(line, name, "connection")) {
        strict_connection(seen, v, n);
    } else if (strict_is(line, name, "expect")) {
        if (seen->expects++ == 0 && !strict_is(v, n, "100-continue")) {
            seen->bad = seen->bad || !r->minor_zero;
        }
    }
}

/* From the first byte of a head to behind its empty line. */
static inline enum strict_result strict_head(struct strict_input *in, struct strict_request *r)
{
    const uint8_t *line;
    size_t len;
    *r = (struct strict_request){0};
    while (in->left >= 2 && in->at[0] == '\r' && in->at[1] == '\n') {
        in->at += 2;
        in->left -= 2;
    }
    /* A byte that may not be there is refused before anything else is looked at. */
    struct strict_input probe = *in;
    enum strict_result result;
    unsigned lines = 0;
    do {
        result = strict_line(&probe, &line, &len);
        lines++;
    } while (result == STRICT_OK && len > 0);
    if (result != STRICT_OK) {
        return result;
    }
    if (lines > 202) {
        return STRICT_BAD;
    }
    strict_line(in, &line, &len);
    enum strict_result start = strict_start_line(r, line, len);
    struct strict_seen seen = {0};
    while (strict_line(in, &line, &len) == STRICT_OK && len > 0) {
        strict_header(r, &seen, line, len);
    }
    bool bad = seen.bad || start == STRICT_BAD || seen.hosts > 1 || (seen.hosts == 0 && !r->minor_zero) ||
               seen.lengths > 1 || seen.encodings > 1 || (r->chunked && (r->has_length || r->minor_zero));
    r->keep_alive = !seen.close && (!r->minor_zero || seen.keep);
    r->expects = seen.expects > 0 && !r->minor_zero && (r->chunked || r->length > 0);
    return bad ? STRICT_BAD : start == STRICT_EITHER || seen.either ? STRICT_EITHER : STRICT_OK;
}

static inline enum strict_result strict_trailers(struct strict_input *in, struct strict_request *r)
{
    const uint8_t *line;
    size_t len;
    unsigned count = 0;
    bool bad = false;
    for (;;) {
        enum strict_result result = strict_line(in, &line, &len);
        if (result != STRICT_OK) {
            return result;
        }
        if (len == 0) {
            return bad || count > 200 ? STRICT_BAD : r->odd_trailers ? STRICT_EITHER : STRICT_OK;
        }
        const uint8_t *colon = memchr(line, ':', len);
        bad = bad || colon == NULL || !strict_is_token(line, (size_t)(colon - line));
        size_t name = colon != NULL ? (size_t)(colon - line) : 0;
        r->odd_trailers = r->odd_trailers || strict_is(line, name, "content-length") ||
                          strict_is(line, name, "transfer-encoding") || strict_is(line, name, "connection") ||
                          strict_is(line, name, "upgrade");
        count++;
    }
}

/* Size line of a chunk, byte by byte: a byte that cannot stand there is bad wherever the input ends. */
static inline enum strict_result strict_chunk_size(struct strict_input *in, uint64_t *size)
{
    unsigned digits = 0;
    size_t i = 0;
    *size = 0;
    for (; i < in->left; i++) {
        uint8_t c = in->at[i];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) {
            break;
        }
        if (++digits > 16 || *size >> 59 != 0) {
            return STRICT_BAD;
        }
        *size = *size * 16 + (uint64_t)d;
    }
    if (i == in->left) {
        return STRICT_INCOMPLETE;
    }
    if (digits == 0) {
        return STRICT_BAD;
    }
    bool blank = false;
    while (i < in->left && (in->at[i] == ' ' || in->at[i] == '\t')) {
        blank = true;
        i++;
    }
    size_t ext = 0;
    while (i < in->left && in->at[i] != '\r') {
        uint8_t c = in->at[i];
        if ((ext == 0 && c != ';') || (c < 0x20 && c != '\t') || c == 0x7f || ++ext > 1024) {
            return STRICT_BAD;
        }
        i++;
    }
    if (i == in->left) {
        return STRICT_INCOMPLETE;
    }
    if (blank && ext == 0) {
        return STRICT_BAD;
    }
    if (i + 1 == in->left) {
        return STRICT_INCOMPLETE;
    }
    if (in->at[i + 1] != '\n') {
        return STRICT_BAD;
    }
    in->at += i + 2;
    in->left -= i + 2;
    return STRICT_OK;
}

static inline void strict_take(struct strict_input *in, struct strict_request *r, uint64_t want)
{
    size_t n = in->left < want ? in->left : (size_t)want;
    r->hash = strict_hash(r->hash, in->at, n);
    r->body += n;
    in->at += n;
    in->left -= n;
}

static inline enum strict_result strict_body(struct strict_input *in, struct strict_request *r)
{
    r->body = 0;
    r->hash = STRICT_HASH_START;
    if (!r->chunked) {
        strict_take(in, r, r->length);
        return r->body == r->length ? STRICT_OK : STRICT_INCOMPLETE;
    }
    for (;;) {
        uint64_t size;
        enum strict_result result = strict_chunk_size(in, &size);
        if (result != STRICT_OK) {
            return result;
        }
        if (size == 0) {
            return strict_trailers(in, r);
        }
        uint64_t before = r->body;
        strict_take(in, r, size);
        r->any_data = r->any_data || r->body > 0;
        if (r->body - before < size) {
            return STRICT_INCOMPLETE;
        }
        for (const char *end = "\r\n"; *end != '\0'; end++) {
            if (in->left == 0) {
                return STRICT_INCOMPLETE;
            }
            if (*in->at != (uint8_t)*end) {
                return STRICT_BAD;
            }
            in->at++;
            in->left--;
        }
    }
}

#endif
