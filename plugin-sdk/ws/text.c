#include "ws/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

bool ws_text_eq_nocase(struct ws_text a, struct ws_text b)
{
    if (a.len != b.len) {
        return false;
    }
    for (size_t i = 0; i < a.len; i++) {
        if (lower(a.ptr[i]) != lower(b.ptr[i])) {
            return false;
        }
    }
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

struct ws_text ws_text_trim(struct ws_text text)
{
    while (text.len > 0 && is_blank(text.ptr[0])) {
        text.ptr++;
        text.len--;
    }
    while (text.len > 0 && is_blank(text.ptr[text.len - 1])) {
        text.len--;
    }
    return text;
}

bool ws_text_is_token(struct ws_text text)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        bool word = (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z');
        if (!word && (c == '\0' || strchr("!#$%&'*+-.^_`|~", c) == NULL)) {
            return false;
        }
    }
    return text.len > 0;
}

bool ws_text_is_value(struct ws_text text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return false;
        }
    }
    return true;
}

/* Length of what comes before the next separator outside of quotes. */
static size_t element_length(struct ws_text text, char separator)
{
    bool quoted = false;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (quoted && c == '\\') {
            i++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (c == separator && !quoted) {
            return i;
        }
    }
    return text.len;
}

bool ws_split_next(struct ws_text *rest, char separator, struct ws_text *element)
{
    if (rest->ptr == NULL) {
        return false;
    }
    size_t len = element_length(*rest, separator);
    *element = ws_text_trim((struct ws_text){rest->ptr, len});
    if (len == rest->len) {
        *rest = (struct ws_text){0};
    } else {
        rest->ptr += len + 1;
        rest->len -= len + 1;
    }
    return true;
}

bool ws_list_next(struct ws_text *rest, struct ws_text *element)
{
    while (ws_split_next(rest, ',', element)) {
        if (element->len > 0) {
            return true;
        }
    }
    return false;
}

/* ---- a text that grows -------------------------------------------------------------------------------- */

static bool make_room(struct ws_buffer *buffer, size_t more)
{
    if (buffer->failed || more > (size_t)1 << 40) {
        buffer->failed = true;
        return false;
    }
    if (buffer->len + more <= buffer->cap) {
        return true;
    }
    size_t cap = buffer->cap == 0 ? 512 : buffer->cap * 2;
    while (cap < buffer->len + more) {
        cap *= 2;
    }
    char *data = realloc(buffer->data, cap);
    if (data == NULL) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->cap = cap;
    return true;
}

void ws_buffer_add(struct ws_buffer *buffer, const void *data, size_t len)
{
    if (len > 0 && make_room(buffer, len)) {
        memcpy(buffer->data + buffer->len, data, len);
        buffer->len += len;
    }
}

void ws_buffer_text(struct ws_buffer *buffer, struct ws_text text)
{
    ws_buffer_add(buffer, text.ptr, text.len);
}

void ws_buffer_format(struct ws_buffer *buffer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0 || !make_room(buffer, (size_t)len + 1)) {
        buffer->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(buffer->data + buffer->len, (size_t)len + 1, format, args);
    va_end(args);
    buffer->len += (size_t)len;
}

void ws_buffer_free(struct ws_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct ws_buffer){0};
}
