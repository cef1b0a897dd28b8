#include "answer/mime.h"

#include "base/check.h"

struct mime_entry {
    struct str extension;
    struct str type;
};

static const struct mime_entry table[] = {
#define MIME(extension, type) {{(extension), sizeof(extension) - 1}, {(type), sizeof(type) - 1}},
#include "answer/mime.def"
#undef MIME
};

struct str path_extension(struct str path)
{
    size_t slash = str_find_last(path, '/');
    struct str name = slash == SIZE_MAX ? path : str_from(path, slash + 1);
    size_t dot = str_find_last(name, '.');
    if (dot == SIZE_MAX || dot == 0) {
        return STR("");
    }
    return str_from(name, dot + 1);
}

bool extension_lower(struct str extension, char out[16], struct str *lower)
{
    if (extension.len > 16) {
        return false;
    }
    for (size_t i = 0; i < extension.len; i++) {
        out[i] = ascii_lower(extension.ptr[i]);
    }
    *lower = (struct str){out, extension.len};
    return true;
}

static int compare(struct str a, struct str b)
{
    size_t common = a.len < b.len ? a.len : b.len;
    int order = common > 0 ? memcmp(a.ptr, b.ptr, common) : 0;
    if (order != 0) {
        return order;
    }
    return a.len < b.len ? -1 : a.len > b.len;
}

struct str mime_lookup(struct str extension)
{
    size_t low = 0;
    size_t high = ARRAY_LEN(table);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare(extension, table[middle].extension);
        if (order == 0) {
            return table[middle].type;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return STR_NONE;
}

size_t mime_row(size_t index, struct str *extension, struct str *type)
{
    if (index < ARRAY_LEN(table)) {
        *extension = table[index].extension;
        *type = table[index].type;
    }
    return ARRAY_LEN(table);
}

bool media_type_in(struct str type, const struct str *patterns, size_t count)
{
    size_t end = str_find(type, ';');
    struct str bare = str_trim(end == SIZE_MAX ? type : str_first(type, end));
    for (size_t i = 0; i < count; i++) {
        struct str pattern = patterns[i];
        if (str_eq_nocase(pattern, bare) || str_eq(pattern, STR("*/*"))) {
            return true;
        }
        if (pattern.len > 2 && str_ends(pattern, STR("/*")) && bare.len >= pattern.len - 1 &&
            str_eq_nocase(str_first(pattern, pattern.len - 1), str_first(bare, pattern.len - 1))) {
            return true;
        }
    }
    return false;
}

static bool is_safe_in_quotes(char c)
{
    return c >= 0x20 && c < 0x7f && strchr("\"\\%/:*?<>|", c) == NULL;
}

/* attr-char of RFC 8187. */
static bool is_attr_char(char c)
{
    return ascii_is_digit(c) || (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') ||
           (c != '\0' && strchr("!#$&+-.^_`|~", c) != NULL);
}

void content_disposition_append(struct buffer *out, struct str filename)
{
    static const char digits[] = "0123456789ABCDEF";
    bool exact = true;
    buffer_append_z(out, "attachment; filename=\"");
    for (size_t i = 0; i < filename.len; i++) {
        char c = filename.ptr[i];
        bool safe = is_safe_in_quotes(c);
        /* One '_' for each character, not for each byte of UTF-8. */
        if (safe || ((unsigned char)c & 0xc0) != 0x80) {
            buffer_append_char(out, safe ? c : '_');
        }
        exact = exact && safe;
    }
    buffer_append_char(out, '"');
    if (exact) {
        return;
    }
    buffer_append_z(out, "; filename*=UTF-8''");
    for (size_t i = 0; i < filename.len; i++) {
        unsigned char c = (unsigned char)filename.ptr[i];
        if (is_attr_char((char)c)) {
            buffer_append_char(out, (char)c);
        } else {
            buffer_append_char(out, '%');
            buffer_append_char(out, digits[c >> 4]);
            buffer_append_char(out, digits[c & 15]);
        }
    }
}
