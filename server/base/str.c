#include "base/str.h"

#include <sys/random.h>
#include <time.h>

/* Eight bytes in lower case: 0x20 is added where a byte lies in 'A'..'Z'. Bytes from 0x80 up stay. */
static inline uint64_t lower_word(uint64_t word)
{
    const uint64_t each = 0x0101010101010101;
    uint64_t low = word & (each * 0x7f);
    uint64_t from_a = low + each * (0x80 - 'A');
    uint64_t past_z = low + each * (0x80 - 'Z' - 1);
    return word + (((from_a ^ past_z) & ~word & (each * 0x80)) >> 2);
}

static inline uint64_t load(const char *at, size_t len)
{
    uint64_t word = 0;
    memcpy(&word, at, len);
    return word;
}

bool str_eq_nocase(struct str a, struct str b)
{
    if (a.len != b.len) {
        return false;
    }
    size_t len = a.len;
    if (len >= 8) {
        for (size_t i = 0; i + 8 < len; i += 8) {
            if (lower_word(load(a.ptr + i, 8)) != lower_word(load(b.ptr + i, 8))) {
                return false;
            }
        }
        return lower_word(load(a.ptr + len - 8, 8)) == lower_word(load(b.ptr + len - 8, 8));
    }
    if (len >= 4) {
        uint64_t first = load(a.ptr, 4) | load(a.ptr + len - 4, 4) << 32;
        uint64_t second = load(b.ptr, 4) | load(b.ptr + len - 4, 4) << 32;
        return lower_word(first) == lower_word(second);
    }
    for (size_t i = 0; i < len; i++) {
        if (ascii_lower(a.ptr[i]) != ascii_lower(b.ptr[i])) {
            return false;
        }
    }
    return true;
}

bool str_starts(struct str s, struct str prefix)
{
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.ptr, prefix.ptr, prefix.len) == 0);
}

bool str_ends(struct str s, struct str suffix)
{
    return s.len >= suffix.len &&
           (suffix.len == 0 || memcmp(s.ptr + (s.len - suffix.len), suffix.ptr, suffix.len) == 0);
}

bool str_ends_nocase(struct str s, struct str suffix)
{
    return s.len >= suffix.len && str_eq_nocase(str_from(s, s.len - suffix.len), suffix);
}

size_t str_find(struct str s, char c)
{
    if (s.len == 0) {
        return SIZE_MAX;
    }
    const char *p = memchr(s.ptr, c, s.len);
    return p != NULL ? (size_t)(p - s.ptr) : SIZE_MAX;
}

size_t str_find_last(struct str s, char c)
{
    for (size_t i = s.len; i > 0; i--) {
        if (s.ptr[i - 1] == c) {
            return i - 1;
        }
    }
    return SIZE_MAX;
}

struct str str_trim(struct str s)
{
    while (s.len > 0 && (s.ptr[0] == ' ' || s.ptr[0] == '\t')) {
        s.ptr++;
        s.len--;
    }
    while (s.len > 0 && (s.ptr[s.len - 1] == ' ' || s.ptr[s.len - 1] == '\t')) {
        s.len--;
    }
    return s;
}

bool str_split_next(struct str *rest, char sep, struct str *element)
{
    if (rest->ptr == NULL) {
        return false;
    }
    size_t at = str_find(*rest, sep);
    if (at == SIZE_MAX) {
        *element = str_trim(*rest);
        *rest = STR_NONE;
        return true;
    }
    *element = str_trim(str_first(*rest, at));
    *rest = str_from(*rest, at + 1);
    return true;
}

bool str_list_has(struct str list, struct str token)
{
    struct str element;
    while (str_split_next(&list, ',', &element)) {
        if (str_eq_nocase(element, token)) {
            return true;
        }
    }
    return false;
}

bool str_to_u64(struct str s, uint64_t max, uint64_t *out)
{
    if (s.len == 0) {
        return false;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (!ascii_is_digit(s.ptr[i])) {
            return false;
        }
        uint64_t digit = (uint64_t)(s.ptr[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    if (value > max) {
        return false;
    }
    *out = value;
    return true;
}

size_t str_put_u64(char *out, uint64_t value)
{
    char reversed[20];
    size_t n = 0;
    do {
        reversed[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    for (size_t i = 0; i < n; i++) {
        out[i] = reversed[n - 1 - i];
    }
    return n;
}

int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    char low = ascii_lower(c);
    return (low >= 'a' && low <= 'f') ? low - 'a' + 10 : -1;
}

static uint64_t hash_seed;

__attribute__((constructor)) static void seed_hash(void)
{
    if (getrandom(&hash_seed, sizeof hash_seed, GRND_NONBLOCK) != (ssize_t)sizeof hash_seed) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        hash_seed = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15ULL ^ (uint64_t)now.tv_sec;
    }
}

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t str_hash(struct str s)
{
    const uint64_t k1 = 0xa0761d6478bd642fULL;
    const uint64_t k2 = 0xe7037ed1a0b428dbULL;
    uint64_t h = hash_seed ^ mix(s.len ^ k1, k2);
    const char *p = s.ptr;
    size_t left = s.len;
    while (left >= 16) {
        uint64_t a;
        uint64_t b;
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 8);
        h = mix(a ^ k1 ^ h, b ^ k2);
        p += 16;
        left -= 16;
    }
    uint64_t a = 0;
    uint64_t b = 0;
    if (left >= 8) {
        memcpy(&a, p, 8);
        memcpy(&b, p + left - 8, 8);
    } else if (left > 0) {
        memcpy(&a, p, left);
    }
    return mix(mix(a ^ k1 ^ h, b ^ k2), k1 ^ s.len);
}

size_t str_utf8_length(const char *text, size_t left)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        return 1;
    }
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || left < n) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f)) {
        return 0;
    }
    return n;
}
