/* Text as pointer and length. A `struct str` never owns its bytes and need not end
 * with NUL; whoever made it says how long they live. ASCII rules only: HTTP names
 * and paths never depend on the locale. */
#ifndef KILN_BASE_STR_H
#define KILN_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct str {
    const char *ptr;
    size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
#define STR_NONE ((struct str){NULL, 0})
/* For printf("%.*s", STR_ARG(s)). */
#define STR_ARG(s) (int)(s).len, (s).ptr != NULL ? (s).ptr : ""

static inline struct str str_of(const char *z)
{
    return (struct str){z, z != NULL ? strlen(z) : 0};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static inline char ascii_lower(char c)
{
    return (c >= 'A' && c <= 'Z') ? (char)(c | 0x20) : c;
}

static inline bool ascii_is_alpha(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static inline bool ascii_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool str_eq_nocase(struct str a, struct str b);
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
bool str_ends_nocase(struct str s, struct str suffix);

/* Index of the first or last `c`, or SIZE_MAX. */
size_t str_find(struct str s, char c);
size_t str_find_last(struct str s, char c);

/* The part without leading and trailing space and tab (HTTP's OWS). */
struct str str_trim(struct str s);

/* Takes the next element of a list separated by `sep` from *rest (trimmed); false at
 * the end. Empty elements are returned as empty. */
bool str_split_next(struct str *rest, char sep, struct str *element);

/* True when the comma separated list holds `token` (case-insensitive). */
bool str_list_has(struct str list, struct str token);

static inline struct str str_from(struct str s, size_t start)
{
    if (start > s.len) {
        start = s.len;
    }
    /* Nothing is added to a null pointer, not even zero. */
    return (struct str){start > 0 ? s.ptr + start : s.ptr, s.len - start};
}

static inline struct str str_first(struct str s, size_t n)
{
    return (struct str){s.ptr, n < s.len ? n : s.len};
}

/* Whole-string decimal number, digits only; false when empty, not digits, or above max. */
bool str_to_u64(struct str s, uint64_t max, uint64_t *out);

/* Writes `value` in decimal to `out` (20 bytes are enough); returns the length. */
size_t str_put_u64(char *out, uint64_t value);

/* Value of a hexadecimal digit, -1 for any other byte. */
int hex_digit(char c);

/* Bytes of the UTF-8 sequence at `text`, of which `left` are there; 0 when it is malformed,
 * overlong, cut or a surrogate. */
size_t str_utf8_length(const char *text, size_t left);

/* 64-bit hash of the bytes, seeded per process against collision floods. */
uint64_t str_hash(struct str s);

#endif
