#include "route/path.h"

#include "base/check.h"

struct path_scan path_scan(struct str raw)
{
    struct path_scan scan = {.clean = raw.len > 0 && raw.ptr[0] == '/'};
    const char *end = raw.ptr + raw.len;
    for (const char *p = raw.ptr; p < end; p++) {
        /* '%', '.' and '/' are the only bytes below '0' that matter. */
        if (LIKELY(*p >= '0')) {
            continue;
        }
        if (*p == '/') {
            scan.slashes++;
            if (p + 1 < end && (p[1] == '/' || p[1] == '.')) {
                scan.clean = false;
            }
        } else if (*p == '%') {
            scan.clean = false;
        }
    }
    return scan;
}

/* The end of `out` after taking its last component away, or -1 above the root. */
static ptrdiff_t without_last(const char *out, size_t len)
{
    /* "/a/b/" -> "/a/" */
    if (len <= 1) {
        return -1;
    }
    len--;
    while (out[len - 1] != '/') {
        len--;
    }
    return (ptrdiff_t)len;
}

/* One component has ended at `len`, begun at `start`: resolves "." and "..". False above
 * the root. */
static bool end_component(const char *out, size_t start, size_t *len)
{
    size_t size = *len - start;
    if (size == 0 || out[start] != '.') {
        return true;
    }
    if (size == 1) {
        *len = start;
        return true;
    }
    if (size == 2 && out[start + 1] == '.') {
        ptrdiff_t shorter = without_last(out, start);
        *len = shorter < 0 ? 0 : (size_t)shorter;
        return shorter >= 0;
    }
    return true;
}

static bool is_dotted(struct str path)
{
    static const char well_known[] = "/.well-known";
    size_t known = sizeof well_known - 1;
    for (size_t i = 0; i + 1 < path.len; i++) {
        if (path.ptr[i] != '/' || path.ptr[i + 1] != '.') {
            continue;
        }
        bool allowed = i == 0 && str_starts(path, (struct str){well_known, known}) &&
                       (path.len == known || path.ptr[known] == '/');
        if (!allowed) {
            return true;
        }
    }
    return false;
}

struct path_result path_normalise(struct str raw, char *out)
{
    struct path_result bad = {.ok = false};
    if (raw.len == 0 || raw.ptr[0] != '/') {
        return bad;
    }
    size_t len = 1;
    size_t start = 1; /* of the component being written */
    out[0] = '/';
    for (size_t i = 1; i < raw.len; i++) {
        char c = raw.ptr[i];
        if (c == '%') {
            int high = i + 2 < raw.len ? hex_digit(raw.ptr[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(raw.ptr[i + 2]) : -1;
            if (low < 0 || (high == 0 && low == 0)) {
                return bad;
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (c == '\0') {
            return bad;
        }
        if (c != '/') {
            out[len++] = c;
            continue;
        }
        if (!end_component(out, start, &len)) {
            return bad;
        }
        if (out[len - 1] != '/') {
            out[len++] = '/';
        }
        start = len;
    }
    if (!end_component(out, start, &len)) {
        return bad;
    }
    out[len] = '\0';
    struct path_result result = {.ok = true, .path = {out, len}};
    for (size_t i = 0; i < len; i++) {
        result.slashes += out[i] == '/';
    }
    result.dotted = is_dotted(result.path);
    return result;
}

size_t path_encode(char *out, struct str path)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t len = 0;
    for (size_t i = 0; i < path.len; i++) {
        unsigned char c = (unsigned char)path.ptr[i];
        bool plain = (c >= '0' && c <= '9') || (ascii_lower((char)c) >= 'a' && ascii_lower((char)c) <= 'z') ||
                     (c != '\0' && strchr("/-._~!$&'()*+,;=:@", c) != NULL);
        if (plain) {
            out[len++] = (char)c;
        } else {
            out[len++] = '%';
            out[len++] = digits[c >> 4];
            out[len++] = digits[c & 15];
        }
    }
    return len;
}
