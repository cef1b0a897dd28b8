#include "config/source.h"

#include <stdlib.h>

enum { MAX_DEPTH = 32, MAX_NUMBER = 40 };

struct scanner {
    struct source *source;
    size_t at;
    size_t value_end; /* just past the last value: where a missing comma belongs */
    unsigned depth;
    struct config_errors *errors;
};

static void add_line(struct buffer *out, const char *file, unsigned line, const char *format, va_list args)
{
    if (file != NULL) {
        buffer_append_z(out, file);
        if (line > 0) {
            buffer_printf(out, ":%u", line);
        }
        buffer_append_z(out, ": ");
    }
    buffer_vprintf(out, format, args);
    buffer_append_char(out, '\n');
}

void errors_add(struct config_errors *errors, const char *file, unsigned line, const char *format, ...)
{
    if (errors->count >= CONFIG_ERRORS_TOLD) {
        return;
    }
    va_list args;
    va_start(args, format);
    add_line(&errors->text, file, line, format, args);
    va_end(args);
    errors->count++;
}

void errors_warn(struct config_errors *errors, const char *file, unsigned line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_line(&errors->warnings, file, line, format, args);
    va_end(args);
}

static unsigned line_at(const struct source *source, size_t offset)
{
    unsigned line = 1;
    for (size_t i = 0; i < offset && i < source->len; i++) {
        line += source->text[i] == '\n';
    }
    return line;
}

/* ---- comments ------------------------------------------------------------------------------ */

static void blank(char *text, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (text[i] != '\n') {
            text[i] = ' ';
        }
    }
}

static size_t comment_end(const struct source *source, size_t start)
{
    const char *text = source->text;
    size_t i = start + 2;
    if (text[start + 1] == '/') {
        while (i < source->len && text[i] != '\n') {
            i++;
        }
        return i;
    }
    for (; i + 1 < source->len; i++) {
        if (text[i] == '*' && text[i + 1] == '/') {
            return i + 2;
        }
    }
    return SIZE_MAX;
}

/* The end of a string for this pass: a line end stops it too, so that one missing quote
 * does not swallow the comments of the whole file. */
static size_t skip_string(const struct source *source, size_t start)
{
    size_t i = start + 1;
    while (i < source->len && source->text[i] != '"' && source->text[i] != '\n') {
        i += source->text[i] == '\\' && i + 1 < source->len && source->text[i + 1] != '\n' ? 2 : 1;
    }
    return i + 1;
}

static bool strip_comments(struct source *source, struct config_errors *errors)
{
    char *text = source->text;
    if (source->len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        blank(text, 0, 3);
    }
    for (size_t i = 0; i < source->len;) {
        if (text[i] == '"') {
            i = skip_string(source, i);
            continue;
        }
        if (text[i] != '/' || (text[i + 1] != '/' && text[i + 1] != '*')) {
            i++;
            continue;
        }
        size_t end = comment_end(source, i);
        if (end == SIZE_MAX) {
            errors_add(errors, source->file, line_at(source, i), "this comment has no end; expected \"*/\"");
            return false;
        }
        blank(text, i, end);
        i = end;
    }
    return true;
}

/* ---- grammar ------------------------------------------------------------------------------- */

static void skip_space(struct scanner *s)
{
    const char *text = s->source->text;
    while (text[s->at] == ' ' || text[s->at] == '\t' || text[s->at] == '\n' || text[s->at] == '\r') {
        s->at++;
    }
}

/* "expected ..., found ..." at the present place; always false. */
static bool expected(struct scanner *s, const char *what)
{
    const struct source *source = s->source;
    unsigned line = line_at(source, s->at);
    if (s->at >= source->len) {
        errors_add(s->errors, source->file, line, "expected %s, found the end of the file", what);
        return false;
    }
    size_t end = s->at;
    while (end < source->len && end - s->at < 30 && (unsigned char)source->text[end] > ' ' &&
           strchr(",{}[]", source->text[end]) == NULL) {
        end++;
    }
    struct str found = {source->text + s->at, end > s->at ? end - s->at : 1};
    struct buffer quoted = BUFFER_EMPTY;
    buffer_append_json(&quoted, found);
    /* Without the quotes that buffer_append_json() puts around it. */
    struct str shown = quoted.len >= 2 ? (struct str){quoted.data + 1, quoted.len - 2} : STR("?");
    errors_add(s->errors, source->file, line, "expected %s, found %.*s", what, STR_ARG(shown));
    buffer_free(&quoted);
    return false;
}

static bool note_place(struct scanner *s, size_t offset)
{
    struct source *source = s->source;
    if (source->count == source->cap) {
        size_t cap = source->cap == 0 ? 256 : source->cap * 2;
        size_t *bigger = realloc(source->offsets, cap * sizeof *bigger);
        if (bigger == NULL) {
            errors_add(s->errors, source->file, 0, "out of memory");
            return false;
        }
        source->offsets = bigger;
        source->cap = cap;
    }
    source->offsets[source->count++] = offset;
    return true;
}

/* Length of the UTF-8 sequence at p (NUL-terminated text), 0 when it is not valid. */
static size_t utf8_length(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        return (p[1] & 0xC0) == 0x80 ? 2 : 0;
    }
    if ((p[0] & 0xF0) == 0xE0) {
        unsigned least = p[0] == 0xE0 ? 0xA0 : 0x80;
        unsigned most = p[0] == 0xED ? 0x9F : 0xBF;
        return p[1] >= least && p[1] <= most && (p[2] & 0xC0) == 0x80 ? 3 : 0;
    }
    if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        unsigned least = p[0] == 0xF0 ? 0x90 : 0x80;
        unsigned most = p[0] == 0xF4 ? 0x8F : 0xBF;
        return p[1] >= least && p[1] <= most && (p[2] & 0xC0) == 0x80 && (p[3] & 0xC0) == 0x80 ? 4 : 0;
    }
    return 0;
}

bool text_is_utf8(struct str text)
{
    /* utf8_length() looks at most three bytes ahead, and stops at the first wrong one. */
    char window[5] = {0};
    for (size_t i = 0; i < text.len;) {
        size_t left = text.len - i < 4 ? text.len - i : 4;
        memcpy(window, text.ptr + i, left);
        window[left] = '\0';
        size_t length = utf8_length(window);
        if (length == 0) {
            return false;
        }
        i += length;
    }
    return true;
}

/* Value of four hexadecimal digits, -1 when they are not. */
static int four_hex(const char *p)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) {
            return -1;
        }
        value = value * 16 + digit;
    }
    return value;
}

/* At a backslash in a string. */
static bool scan_escape(struct scanner *s)
{
    const char *p = s->source->text + s->at;
    if (p[1] != 'u') {
        if (p[1] == '\0' || strchr("\"\\/bfnrt", p[1]) == NULL) {
            return expected(s, "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u (write \\\\ for a backslash)");
        }
        s->at += 2;
        return true;
    }
    int code = four_hex(p + 2);
    if (code <= 0 || (code >= 0xDC00 && code <= 0xDFFF)) {
        return expected(s, "\\u with the four hexadecimal digits of a character that is not NUL");
    }
    s->at += 6;
    if (code < 0xD800 || code > 0xDBFF) {
        return true;
    }
    int low = p[6] == '\\' && p[7] == 'u' ? four_hex(p + 8) : -1;
    if (low < 0xDC00 || low > 0xDFFF) {
        return expected(s, "the second half of a \\u surrogate pair");
    }
    s->at += 6;
    return true;
}

static bool scan_string(struct scanner *s)
{
    const struct source *source = s->source;
    size_t start = s->at++;
    for (;;) {
        unsigned char c = (unsigned char)source->text[s->at];
        if (c == '"') {
            s->at++;
            return true;
        }
        if (s->at >= source->len || c == '\n' || c == '\r') {
            errors_add(s->errors, source->file, line_at(source, start), "this string has no closing \"");
            return false;
        }
        if (c < ' ') {
            return expected(s, "no control character in a string");
        }
        if (c == '\\') {
            if (!scan_escape(s)) {
                return false;
            }
            continue;
        }
        size_t length = utf8_length(source->text + s->at);
        if (length == 0) {
            errors_add(s->errors, source->file, line_at(source, s->at), "this text is not UTF-8 (byte 0x%02X)", c);
            return false;
        }
        s->at += length;
    }
}

static size_t digits(const char *p)
{
    size_t n = 0;
    while (ascii_is_digit(p[n])) {
        n++;
    }
    return n;
}

static bool scan_number(struct scanner *s)
{
    const char *p = s->source->text + s->at;
    size_t n = p[0] == '-' ? 1 : 0;
    size_t whole = digits(p + n);
    if (whole == 0 || (whole > 1 && p[n] == '0')) {
        return expected(s, "a number, as 8, -1, 0.5 or 1e6");
    }
    n += whole;
    if (p[n] == '.') {
        size_t fraction = digits(p + n + 1);
        if (fraction == 0) {
            return expected(s, "a digit after the decimal point");
        }
        n += fraction + 1;
    }
    if (p[n] == 'e' || p[n] == 'E') {
        size_t sign = p[n + 1] == '+' || p[n + 1] == '-' ? 1 : 0;
        size_t exponent = digits(p + n + 1 + sign);
        if (exponent == 0) {
            return expected(s, "a digit in the exponent");
        }
        n += exponent + 1 + sign;
    }
    if (n > MAX_NUMBER) {
        return expected(s, "a number of at most 40 characters");
    }
    s->at += n;
    return true;
}

static bool scan_word(struct scanner *s, const char *word)
{
    size_t len = strlen(word);
    const char *p = s->source->text + s->at;
    char after = strncmp(p, word, len) == 0 ? p[len] : 'x';
    if ((after >= 'a' && after <= 'z') || (after >= 'A' && after <= 'Z') || ascii_is_digit(after) || after == '_') {
        return expected(s, "a value (true, false, null, a number, or a text in double quotes)");
    }
    s->at += len;
    return true;
}

static bool scan_value(struct scanner *s);

/* At the key of a member: key, colon, value. */
static bool scan_member(struct scanner *s)
{
    if (s->source->text[s->at] != '"') {
        return expected(s, "a key in double quotes");
    }
    if (!note_place(s, s->at) || !scan_string(s)) {
        return false;
    }
    skip_space(s);
    if (s->source->text[s->at] != ':') {
        return expected(s, "':' after the key");
    }
    s->at++;
    skip_space(s);
    return scan_value(s);
}

static bool scan_element(struct scanner *s)
{
    return note_place(s, s->at) && scan_value(s);
}

/* Between the items: a comma, or `close`. *done is set at the end. */
static bool scan_separator(struct scanner *s, char close, bool *done)
{
    struct source *source = s->source;
    skip_space(s);
    if (source->text[s->at] == close) {
        *done = true;
        return true;
    }
    if (source->text[s->at] != ',') {
        if (source->text[s->at] == '"' || source->text[s->at] == '{' || source->text[s->at] == '[') {
            errors_add(s->errors, source->file, line_at(source, s->value_end), "a comma is missing after this value");
            return false;
        }
        return expected(s, close == '}' ? "',' or '}'" : "',' or ']'");
    }
    size_t comma = s->at++;
    skip_space(s);
    if (source->text[s->at] == close) {
        errors_warn(s->errors, source->file, line_at(source, comma), "the comma before '%c' is one too many; ignored",
                    close);
        source->text[comma] = ' ';
        *done = true;
    }
    return true;
}

static bool scan_container(struct scanner *s, char close)
{
    if (++s->depth > MAX_DEPTH) {
        return expected(s, "at most 32 levels of { and [");
    }
    s->at++;
    skip_space(s);
    bool done = s->source->text[s->at] == close;
    while (!done) {
        if (!(close == '}' ? scan_member(s) : scan_element(s)) || !scan_separator(s, close, &done)) {
            return false;
        }
    }
    s->at++;
    s->depth--;
    return true;
}

static bool scan_value(struct scanner *s)
{
    bool ok;
    switch (s->source->text[s->at]) {
    case '{': ok = scan_container(s, '}'); break;
    case '[': ok = scan_container(s, ']'); break;
    case '"': ok = scan_string(s); break;
    case 't': ok = scan_word(s, "true"); break;
    case 'f': ok = scan_word(s, "false"); break;
    case 'n': ok = scan_word(s, "null"); break;
    case '\'': return expected(s, "double quotes around a text");
    default:
        if (s->source->text[s->at] != '-' && !ascii_is_digit(s->source->text[s->at])) {
            return expected(s, "a value (true, false, null, a number, or a text in double quotes)");
        }
        ok = scan_number(s);
    }
    s->value_end = s->at;
    return ok;
}

static bool scan_file(struct scanner *s)
{
    skip_space(s);
    if (s->source->text[s->at] != '{') {
        return expected(s, "'{' at the start of the file");
    }
    if (!note_place(s, s->at) || !scan_value(s)) {
        return false;
    }
    skip_space(s);
    return s->at >= s->source->len || expected(s, "nothing after the last '}'");
}

/* ---- the tree ------------------------------------------------------------------------------ */

/* Goes through the tree in document order; stops at `wanted`. False: not below `item`. */
static bool count_to(const cJSON *item, const cJSON *wanted, size_t *index)
{
    for (; item != NULL; item = item->next) {
        if (item == wanted) {
            return true;
        }
        ++*index;
        if (count_to(item->child, wanted, index)) {
            return true;
        }
    }
    return false;
}

unsigned source_line(const struct source *source, const cJSON *item)
{
    size_t index = 0;
    if (!count_to(source->root, item, &index) || index >= source->count) {
        return 0;
    }
    return line_at(source, source->offsets[index]);
}

static void check_duplicates(const struct source *source, const cJSON *object, struct config_errors *errors)
{
    struct map seen = {0};
    for (cJSON *item = object->child; item != NULL; item = item->next) {
        void *first = NULL;
        if (item->string != NULL) {
            map_put(&seen, str_of(item->string), item, &first);
        }
        if (first != NULL && errors->count < 100) {
            errors_add(errors, source->file, source_line(source, item), "\"%s\": stands here again, first in line %u",
                       item->string, source_line(source, first));
        }
        if (item->child != NULL) {
            check_duplicates(source, item, errors);
        }
    }
    map_free(&seen);
}

bool source_open(struct source *source, struct str text, const char *file, struct config_errors *errors)
{
    *source = (struct source){.file = file, .text = malloc(text.len + 1), .len = text.len};
    if (source->text == NULL) {
        errors_add(errors, file, 0, "out of memory");
        return false;
    }
    if (text.len > 0) {
        memcpy(source->text, text.ptr, text.len);
    }
    source->text[text.len] = '\0';
    struct scanner scanner = {.source = source, .errors = errors};
    if (!strip_comments(source, errors) || !scan_file(&scanner)) {
        source_close(source);
        return false;
    }
    source->root = cJSON_ParseWithLength(source->text, source->len + 1);
    if (source->root == NULL) {
        errors_add(errors, file, 0, "cannot be read as JSON, or memory ran out");
        source_close(source);
        return false;
    }
    check_duplicates(source, source->root, errors);
    return true;
}

void source_close(struct source *source)
{
    cJSON_Delete(source->root);
    free(source->offsets);
    free(source->text);
    *source = (struct source){0};
}
