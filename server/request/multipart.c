#include "request/multipart.h"

enum state {
    PREAMBLE,
    AFTER_DELIMITER, /* blanks, then CRLF or the second '-' of "--" */
    AFTER_DELIMITER_CR,
    AFTER_DASH,
    HEAD,
    CONTENT,
    PART_ENDED, /* tell it, then AFTER_DELIMITER */
    COMPLETE,
    FAILED,
};

static bool is_boundary_char(char c)
{
    bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || ascii_is_digit(c);
    return alnum || (c != '\0' && strchr("'()+_,-./:=? ", c) != NULL);
}

bool multipart_boundary(struct str content_type, struct str *boundary, char storage[MULTIPART_BOUNDARY_MAX])
{
    size_t end = str_find(content_type, ';');
    if (end == SIZE_MAX || !str_eq_nocase(str_trim(str_first(content_type, end)), STR("multipart/form-data"))) {
        return false;
    }
    struct buffer value = BUFFER_EMPTY;
    bool ok = header_parameter(content_type, STR("boundary"), &value) == 1 && value.len > 0 &&
              value.len <= MULTIPART_BOUNDARY_MAX && value.data[value.len - 1] != ' ';
    for (size_t i = 0; ok && i < value.len; i++) {
        ok = is_boundary_char(value.data[i]);
    }
    if (ok) {
        memcpy(storage, value.data, value.len);
        *boundary = (struct str){storage, value.len};
    }
    buffer_free(&value);
    return ok;
}

void multipart_init(struct multipart *mp, struct str boundary)
{
    memset(mp, 0, sizeof *mp);
    memcpy(mp->delimiter, "\r\n--", 4);
    memcpy(mp->delimiter + 4, boundary.ptr, boundary.len);
    mp->delimiter_len = 4 + boundary.len;
    /* The first delimiter may stand at the very beginning, without its line break. */
    mp->matched = 2;
    mp->held_from = 2;
    mp->state = PREAMBLE;
}

bool multipart_is_complete(const struct multipart *mp)
{
    return mp->state == COMPLETE;
}

void multipart_free(struct multipart *mp)
{
    buffer_free(&mp->head);
    buffer_free(&mp->decoded);
}

static enum multipart_event fail(struct multipart *mp, enum multipart_event event)
{
    mp->state = FAILED;
    return event;
}

/* Scans for the delimiter. True when it was found: *content is what came before it, and *input begins
 * behind it. False: the input is used up, or held bytes must be handed on first (*content set). */
static bool scan(struct multipart *mp, struct str *input, struct str *content)
{
    const char *start = input->ptr;
    const char *end = start + input->len;
    const char *p = start;
    const char *content_end = start; /* before the candidate that is being matched */
    *content = STR_NONE;
    while (p < end) {
        if (mp->matched == 0) {
            const char *cr = memchr(p, '\r', (size_t)(end - p));
            content_end = p = cr != NULL ? cr : end;
            if (cr == NULL) {
                break;
            }
        }
        if (*p == mp->delimiter[mp->matched]) {
            p++;
            if (++mp->matched == mp->delimiter_len) {
                *content = (struct str){start, (size_t)(content_end - start)};
                *input = (struct str){p, (size_t)(end - p)};
                return true;
            }
            continue;
        }
        size_t in_this_input = (size_t)(p - content_end);
        if (mp->matched > in_this_input) {
            /* The candidate began in an earlier input: those bytes come from the delimiter. */
            size_t held = mp->matched - in_this_input;
            size_t from = mp->held_from;
            mp->matched = 0;
            mp->held_from = 0;
            if (held > from) {
                *content = (struct str){mp->delimiter + from, held - from};
                *input = (struct str){content_end, (size_t)(end - content_end)};
                return false;
            }
        }
        mp->matched = 0;
        mp->held_from = 0;
        content_end = p;
    }
    size_t taken = mp->matched == 0 ? (size_t)(end - start) : (size_t)(content_end - start);
    *content = (struct str){start, taken};
    *input = (struct str){end, 0};
    return false;
}

static void start_matching(struct multipart *mp, size_t matched)
{
    mp->matched = matched;
    mp->held_from = matched;
}

/* Gathers header lines up to the empty one. */
static enum multipart_event take_head(struct multipart *mp, struct str *input)
{
    while (input->len > 0) {
        size_t newline = str_find(*input, '\n');
        struct str piece = newline == SIZE_MAX ? *input : str_first(*input, newline + 1);
        *input = str_from(*input, piece.len);
        if (mp->head.len + piece.len > MULTIPART_HEAD_MAX) {
            return fail(mp, MULTIPART_TOO_LARGE);
        }
        if (!buffer_append_str(&mp->head, piece)) {
            return fail(mp, MULTIPART_NO_MEMORY);
        }
        struct str head = buffer_str(&mp->head);
        if (newline == SIZE_MAX || !(str_eq(head, STR("\r\n")) || str_ends(head, STR("\r\n\r\n")))) {
            continue;
        }
        enum multipart_event event = multipart_parse_head(mp);
        if (event != MULTIPART_PART) {
            return fail(mp, event);
        }
        /* The empty line may be the delimiter's own line break, when the content is missing. */
        start_matching(mp, 2);
        mp->state = CONTENT;
        return MULTIPART_PART;
    }
    return MULTIPART_MORE;
}

/* One byte behind a delimiter. */
static bool take_delimiter_tail(struct multipart *mp, char c)
{
    switch (mp->state) {
    case AFTER_DELIMITER:
        if (c == '-' && mp->matched == 0) {
            mp->state = AFTER_DASH;
            return true;
        }
        mp->matched = 1; /* blanks were seen: no "--" any more */
        if (c == '\r') {
            mp->state = AFTER_DELIMITER_CR;
            return true;
        }
        return c == ' ' || c == '\t';
    case AFTER_DELIMITER_CR:
        mp->state = HEAD;
        mp->head.len = 0;
        return c == '\n';
    default: mp->state = COMPLETE; return c == '-';
    }
}

static enum multipart_event take_tail(struct multipart *mp, struct str *input)
{
    while (input->len > 0 && mp->state != HEAD) {
        char c = input->ptr[0];
        *input = str_from(*input, 1);
        if (!take_delimiter_tail(mp, c)) {
            return fail(mp, MULTIPART_MALFORMED);
        }
        if (mp->state == COMPLETE) {
            return MULTIPART_END;
        }
    }
    return MULTIPART_MORE;
}

static enum multipart_event take_content(struct multipart *mp, struct str *input, struct str *out)
{
    bool found = scan(mp, input, out);
    if (found) {
        mp->state = mp->state == CONTENT ? PART_ENDED : AFTER_DELIMITER;
        mp->matched = 0;
    }
    return out->len > 0 ? MULTIPART_BYTES : MULTIPART_MORE;
}

enum multipart_event multipart_next(struct multipart *mp, struct str *input, struct str *out)
{
    *out = STR_NONE;
    for (;;) {
        enum multipart_event event = MULTIPART_MORE;
        uint8_t before = mp->state;
        switch ((enum state)mp->state) {
        case PREAMBLE:
            (void)take_content(mp, input, out);
            *out = STR_NONE;
            break;
        case CONTENT: event = take_content(mp, input, out); break;
        case PART_ENDED: mp->state = AFTER_DELIMITER; return MULTIPART_PART_END;
        case AFTER_DELIMITER:
        case AFTER_DELIMITER_CR:
        case AFTER_DASH: event = take_tail(mp, input); break;
        case HEAD: event = take_head(mp, input); break;
        case COMPLETE: *input = str_from(*input, input->len); return MULTIPART_MORE;
        case FAILED: return MULTIPART_MALFORMED;
        }
        if (event != MULTIPART_MORE) {
            return event;
        }
        if (input->len == 0 && mp->state == before) {
            return MULTIPART_MORE;
        }
    }
}
