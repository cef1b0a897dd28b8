#include "request/head.h"

#include "base/check.h"

/* ---- methods --------------------------------------------------------------------------- */

static const struct {
    const char *text;
    uint8_t len;
    uint8_t method;
} methods[] = {
    {"GET", 3, METHOD_GET},     {"HEAD", 4, METHOD_HEAD},       {"POST", 4, METHOD_POST},
    {"PUT", 3, METHOD_PUT},     {"DELETE", 6, METHOD_DELETE},   {"OPTIONS", 7, METHOD_OPTIONS},
    {"PATCH", 5, METHOD_PATCH}, {"CONNECT", 7, METHOD_CONNECT}, {"TRACE", 5, METHOD_TRACE},
};

uint8_t request_method_of(struct str text)
{
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        if (text.len == methods[i].len && memcmp(text.ptr, methods[i].text, text.len) == 0) {
            return methods[i].method;
        }
    }
    return METHOD_OTHER;
}

/* ---- names ------------------------------------------------------------------------------ */

static const struct {
    const char *text;
    uint8_t len;
    uint8_t known;
} known_names[] = {
    {"host", 4, HEADER_HOST},
    {"connection", 10, HEADER_CONNECTION},
    {"content-length", 14, HEADER_CONTENT_LENGTH},
    {"content-type", 12, HEADER_CONTENT_TYPE},
    {"transfer-encoding", 17, HEADER_TRANSFER_ENCODING},
    {"expect", 6, HEADER_EXPECT},
    {"upgrade", 7, HEADER_UPGRADE},
    {"accept-encoding", 15, HEADER_ACCEPT_ENCODING},
    {"if-match", 8, HEADER_IF_MATCH},
    {"if-none-match", 13, HEADER_IF_NONE_MATCH},
    {"if-modified-since", 17, HEADER_IF_MODIFIED_SINCE},
    {"if-unmodified-since", 19, HEADER_IF_UNMODIFIED_SINCE},
    {"if-range", 8, HEADER_IF_RANGE},
    {"range", 5, HEADER_RANGE},
    {"cookie", 6, HEADER_COOKIE},
    {"referer", 7, HEADER_REFERER},
    {"user-agent", 10, HEADER_USER_AGENT},
    {"authorization", 13, HEADER_AUTHORIZATION},
    {"x-forwarded-for", 15, HEADER_X_FORWARDED_FOR},
};

/* known_names by length, first and last letter: at most one name a slot. */
enum { SHORTEST_KNOWN = 4, LONGEST_KNOWN = 19, SLOTS = 128 };
static uint8_t slots[SLOTS];
static unsigned last_factor;

static inline unsigned slot_of(const char *name, size_t len, unsigned factor)
{
    unsigned first = (unsigned char)name[0] | 0x20U;
    unsigned last = (unsigned char)name[len - 1] | 0x20U;
    return ((unsigned)len + first * 8 + last * factor) % SLOTS;
}

static bool fill_slots(unsigned factor)
{
    memset(slots, 0, sizeof slots);
    for (size_t i = 0; i < ARRAY_LEN(known_names); i++) {
        uint8_t *slot = &slots[slot_of(known_names[i].text, known_names[i].len, factor)];
        if (*slot != 0) {
            return false;
        }
        *slot = (uint8_t)(i + 1);
    }
    return true;
}

/* A factor with which no two of the names meet. */
__attribute__((constructor)) static void index_known_names(void)
{
    for (last_factor = 1; !fill_slots(last_factor); last_factor++) {
        CHECK(last_factor < 1000);
    }
}

static inline uint64_t lower_8(const char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word | 0x2020202020202020U;
}

static inline uint32_t lower_4(const char *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word | 0x20202020U;
}

/* Both of `len` bytes, 4 at least. Of the bytes that a name may consist of, or-ing 0x20 makes a letter, a digit or
 * "-" of no other than the same in upper case: a check of the name has gone before, so that this is exact. */
static inline bool is_name(const char *name, const char *lower, size_t len)
{
    if (len < 8) {
        return lower_4(name) == lower_4(lower) && lower_4(name + len - 4) == lower_4(lower + len - 4);
    }
    for (size_t i = 0; i + 8 < len; i += 8) {
        if (lower_8(name + i) != lower_8(lower + i)) {
            return false;
        }
    }
    return lower_8(name + len - 8) == lower_8(lower + len - 8);
}

unsigned request_known_of(struct str name)
{
    if (name.len < SHORTEST_KNOWN || name.len > LONGEST_KNOWN) {
        return HEADER_KNOWN_COUNT;
    }
    unsigned slot = slots[slot_of(name.ptr, name.len, last_factor)];
    if (slot == 0) {
        return HEADER_KNOWN_COUNT;
    }
    bool same = known_names[slot - 1].len == name.len && is_name(name.ptr, known_names[slot - 1].text, name.len);
    return same ? known_names[slot - 1].known : HEADER_KNOWN_COUNT;
}

/* ---- host ------------------------------------------------------------------------------- */

/* Bytes of a host name: 1 as they are, 3 upper case letters, 0 not allowed. */
static uint8_t host_bytes[256];

__attribute__((constructor)) static void index_host_bytes(void)
{
    for (const char *c = "abcdefghijklmnopqrstuvwxyz0123456789.-_"; *c != '\0'; c++) {
        host_bytes[(unsigned char)*c] = 1;
    }
    for (int c = 'A'; c <= 'Z'; c++) {
        host_bytes[c] = 3;
    }
}

/* ":" and a number that fits, or nothing behind the colon. */
static bool is_port(struct str port)
{
    unsigned number = 0;
    for (size_t i = 1; i < port.len; i++) {
        unsigned digit = (unsigned)(unsigned char)port.ptr[i] - '0';
        number = number * 10 + digit;
        if (digit > 9 || number > 65535) {
            return false;
        }
    }
    return true;
}

/* "[v6]" up to its bracket; 0 when it is none. */
static size_t scan_bracketed(struct str host)
{
    size_t i = 1;
    while (i < host.len && (hex_digit(host.ptr[i]) >= 0 || host.ptr[i] == ':' || host.ptr[i] == '.')) {
        i++;
    }
    return i >= 3 && i < host.len && host.ptr[i] == ']' ? i + 1 : 0;
}

/* Most requests are for the host that the one before was for: this thread's last one that was in order as it came. */
static _Thread_local struct {
    uint8_t len;
    uint8_t name_len;
    char text[62];
} last_host;

static void remember_host(struct str host, size_t name_len)
{
    if (host.len <= sizeof last_host.text) {
        memcpy(last_host.text, host.ptr, host.len);
        last_host.len = (uint8_t)host.len;
        last_host.name_len = (uint8_t)name_len;
    }
}

bool request_host_set(struct request *req, struct str host)
{
    if (host.len > 0 && host.len == last_host.len && memcmp(host.ptr, last_host.text, host.len) == 0) {
        req->host = host;
        req->host_name_len = last_host.name_len;
        return true;
    }
    size_t i = 0;
    unsigned seen = 0;
    if (host.len > 0 && host.ptr[0] == '[') {
        i = scan_bracketed(host);
        seen = 2; /* hexadecimal digits come in both cases */
    } else {
        unsigned byte;
        while (i < host.len && (byte = host_bytes[(unsigned char)host.ptr[i]]) != 0) {
            seen |= byte;
            i++;
        }
    }
    if ((i == 0 && host.len > 0) || (i < host.len && (host.ptr[i] != ':' || !is_port(str_from(host, i))))) {
        return false;
    }
    req->host = host;
    req->host_name_len = (uint32_t)i;
    if ((seen & 2) == 0) {
        remember_host(host, i);
        return true;
    }
    char *lower = arena_strndup(&req->arena, host.ptr, host.len);
    if (lower == NULL) {
        return false;
    }
    for (size_t k = 0; k < host.len; k++) {
        lower[k] = ascii_lower(lower[k]);
    }
    req->host.ptr = lower;
    return true;
}
