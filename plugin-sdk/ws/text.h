/* Texts as they stand in a head: a pointer and a length; and a growing one to write into. */
#ifndef KILN_WS_TEXT_H
#define KILN_WS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct ws_text {
    const char *ptr; /* NULL: absent */
    size_t len;
};

#define WS_TEXT_OF(literal) \
    (struct ws_text) \
    { \
        (literal), sizeof(literal) - 1 \
    }

static inline struct ws_text ws_text(const char *text)
{
    return (struct ws_text){text, text != NULL ? strlen(text) : 0};
}
static inline bool ws_text_eq(struct ws_text a, struct ws_text b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}
/* ASCII letters are alike in either case. */
bool ws_text_eq_nocase(struct ws_text a, struct ws_text b);
/* Without spaces and tabs at both ends. */
struct ws_text ws_text_trim(struct ws_text text);
/* A token of RFC 9110: what names of headers, protocols and extensions are. */
bool ws_text_is_token(struct ws_text text);
/* May it stand as the value of a header? No control characters but the tab. */
bool ws_text_is_value(struct ws_text text);
/* The next element of a comma-separated list, trimmed; quoted strings may hold commas. False at
 * the end. Empty elements are passed over. */
bool ws_list_next(struct ws_text *rest, struct ws_text *element);
/* The same for any separator: parameters are split at ';'. */
bool ws_split_next(struct ws_text *rest, char separator, struct ws_text *element);

/* Grows as it is written; once memory runs out it is `failed` and stays so. */
struct ws_buffer {
    char *data;
    size_t len;
    size_t cap;
    bool failed;
};

void ws_buffer_add(struct ws_buffer *buffer, const void *data, size_t len);
void ws_buffer_text(struct ws_buffer *buffer, struct ws_text text);
void ws_buffer_format(struct ws_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ws_buffer_free(struct ws_buffer *buffer);

#endif
