#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>

char *buffer_reserve(struct buffer *b, size_t extra)
{
    if (b->failed) {
        return NULL;
    }
    if (b->data != NULL && extra <= b->cap - b->len) {
        return b->data + b->len;
    }
    if (extra > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) {
        b->failed = true;
        return NULL;
    }
    size_t need = b->len + extra;
    size_t cap = b->cap < 256 ? 256 : b->cap * 2;
    if (cap < need) {
        cap = need;
    }
    char *data = realloc(b->data, cap);
    if (data == NULL) {
        b->failed = true;
        return NULL;
    }
    b->data = data;
    b->cap = cap;
    return b->data + b->len;
}

bool buffer_append(struct buffer *b, const void *data, size_t len)
{
    if (len == 0) {
        return !b->failed;
    }
    char *to = buffer_reserve(b, len);
    if (to == NULL) {
        return false;
    }
    memcpy(to, data, len);
    b->len += len;
    return true;
}

bool buffer_append_str(struct buffer *b, struct str s)
{
    return buffer_append(b, s.ptr, s.len);
}

bool buffer_append_z(struct buffer *b, const char *z)
{
    return buffer_append(b, z, strlen(z));
}

bool buffer_append_char(struct buffer *b, char c)
{
    return buffer_append(b, &c, 1);
}

bool buffer_append_u64(struct buffer *b, uint64_t value)
{
    char digits[20];
    return buffer_append(b, digits, str_put_u64(digits, value));
}

bool buffer_vprintf(struct buffer *b, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    size_t room = b->cap - b->len;
    int length = vsnprintf(b->data != NULL ? b->data + b->len : NULL, room, format, args);
    bool ok = length >= 0 && !b->failed;
    if (ok && (size_t)length >= room) {
        char *to = buffer_reserve(b, (size_t)length + 1);
        ok = to != NULL;
        if (ok) {
            vsnprintf(to, (size_t)length + 1, format, again);
        }
    }
    va_end(again);
    if (!ok) {
        b->failed = true;
        return false;
    }
    b->len += (size_t)length;
    return true;
}

bool buffer_printf(struct buffer *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool ok = buffer_vprintf(b, format, args);
    va_end(args);
    return ok;
}

bool buffer_append_html(struct buffer *b, struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        switch (s.ptr[i]) {
        case '&': buffer_append_z(b, "&amp;"); break;
        case '<': buffer_append_z(b, "&lt;"); break;
        case '>': buffer_append_z(b, "&gt;"); break;
        case '"': buffer_append_z(b, "&quot;"); break;
        case '\'': buffer_append_z(b, "&#39;"); break;
        default: buffer_append_char(b, s.ptr[i]); break;
        }
    }
    return !b->failed;
}

static void append_json_byte(struct buffer *b, unsigned char c)
{
    switch (c) {
    case '"': buffer_append_z(b, "\\\""); return;
    case '\\': buffer_append_z(b, "\\\\"); return;
    case '\n': buffer_append_z(b, "\\n"); return;
    case '\r': buffer_append_z(b, "\\r"); return;
    case '\t': buffer_append_z(b, "\\t"); return;
    default: break;
    }
    if (c < 0x20 || c == 0x7f) {
        buffer_printf(b, "\\u%04x", (unsigned)c);
    } else {
        buffer_append_char(b, (char)c);
    }
}

bool buffer_append_json(struct buffer *b, struct str s)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    buffer_append_char(b, '"');
    for (size_t i = 0; i < s.len;) {
        size_t n = str_utf8_length(s.ptr + i, s.len - i);
        if (n == 0) {
            buffer_append_z(b, "\xef\xbf\xbd");
            i++;
        } else if (n == 1) {
            append_json_byte(b, p[i]);
            i++;
        } else {
            buffer_append(b, p + i, n);
            i += n;
        }
    }
    return buffer_append_char(b, '"');
}

void buffer_consume(struct buffer *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = BUFFER_EMPTY;
}
