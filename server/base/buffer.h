/* A growable byte buffer on malloc, for bytes whose size is not known ahead. A failed
 * growth sets `failed` and drops the bytes; callers check once at the end. */
#ifndef KILN_BASE_BUFFER_H
#define KILN_BASE_BUFFER_H

#include "base/str.h"

#include <stdarg.h>

struct buffer {
    char *data; /* NULL while empty; owned by the buffer */
    size_t len;
    size_t cap;
    bool failed;
};

#define BUFFER_EMPTY ((struct buffer){0})

/* Room for `extra` more bytes; returns where they go, or NULL. The caller adds to len. */
char *buffer_reserve(struct buffer *b, size_t extra);
bool buffer_append(struct buffer *b, const void *data, size_t len);
bool buffer_append_str(struct buffer *b, struct str s);
bool buffer_append_z(struct buffer *b, const char *z);
bool buffer_append_char(struct buffer *b, char c);
bool buffer_append_u64(struct buffer *b, uint64_t value);
bool buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool buffer_vprintf(struct buffer *b, const char *format, va_list args);
/* Text with & < > " ' made safe for HTML. */
bool buffer_append_html(struct buffer *b, struct str s);
/* A JSON string, quotes included; invalid UTF-8 becomes U+FFFD. */
bool buffer_append_json(struct buffer *b, struct str s);
/* Drops the first n bytes. */
void buffer_consume(struct buffer *b, size_t n);
void buffer_free(struct buffer *b);

static inline struct str buffer_str(const struct buffer *b)
{
    return (struct str){b->data, b->len};
}

#endif
