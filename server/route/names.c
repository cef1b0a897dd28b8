#include "route/names.h"

#include "endpoint/loader.h"
#include "route/settings.h"

const struct str name_endpoint_suffixes[NAME_ENDPOINT_SUFFIXES] = {
    {".so", 3},
    {"._c", 3},
};

/* Suffixes of things that run somewhere; ForwardExt adds to them. "._" stands for the whole
 * family ._c, ._cs, ._csdll, ._wasm. */
static const struct str source_suffixes[] = {
    {"._", 2}, {".so", 3}, {".php", 4}, {".phtml", 6}, {".phar", 5}, {".njs", 4}, {".bun", 4},
};

static const struct str companion_extensions[] = {
    {"c", 1},   {"h", 1},   {"cc", 2},  {"cpp", 3}, {"cxx", 3}, {"hh", 2}, {"hpp", 3},
    {"hxx", 3}, {"inc", 3}, {"inl", 3}, {"rs", 2},  {"zig", 3}, {"o", 1},
};

static const struct str copy_suffixes[] = {
    {"~", 1}, {".bak", 4}, {".orig", 5}, {".old", 4}, {".save", 5}, {".swp", 4}, {".rej", 4}, {".tmp", 4}, {"#", 1},
};

static bool is_letter(char c)
{
    c = ascii_lower(c);
    return c >= 'a' && c <= 'z';
}

static bool has_at(struct str name, size_t i, struct str part)
{
    return name.len - i >= part.len && str_eq_nocase(str_first(str_from(name, i), part.len), part);
}

/* The name holds the suffix, not as the beginning of a longer word: "a.so", "a.so.1", "a.so~",
 * but not "a.song". */
static bool holds_suffix(struct str name, struct str suffix)
{
    for (size_t i = 0; i + suffix.len <= name.len; i++) {
        if (name.ptr[i] != '.' || !has_at(name, i, suffix)) {
            continue;
        }
        size_t after = i + suffix.len;
        if (after == name.len || suffix.ptr[suffix.len - 1] == '_' || !is_letter(name.ptr[after])) {
            return true;
        }
    }
    return false;
}

static struct str extension_of(struct str name)
{
    size_t dot = str_find_last(name, '.');
    return dot != SIZE_MAX ? str_from(name, dot + 1) : STR("");
}

size_t name_endpoint_stem(struct str name)
{
    for (size_t i = 0; i < NAME_ENDPOINT_SUFFIXES; i++) {
        if (str_ends(name, name_endpoint_suffixes[i])) {
            return name.len - name_endpoint_suffixes[i].len;
        }
    }
    return 0;
}

static bool is_source(const struct index_settings *settings, struct str name)
{
    for (size_t i = 0; i < sizeof source_suffixes / sizeof source_suffixes[0]; i++) {
        if (holds_suffix(name, source_suffixes[i])) {
            return true;
        }
    }
    size_t cursor = 0;
    struct str extension;
    void *value;
    while (map_next(&settings->forwarded, &cursor, &extension, &value)) {
        char suffix[32] = ".";
        if (extension.len > 0 && extension.len < sizeof suffix - 1) {
            memcpy(suffix + 1, extension.ptr, extension.len);
            if (holds_suffix(name, (struct str){suffix, extension.len + 1})) {
                return true;
            }
        }
    }
    return false;
}

/* "util.h" and "util.h.bak": the extension, or "". */
static struct str companion_extension(struct str name)
{
    for (size_t i = 0; i < sizeof copy_suffixes / sizeof copy_suffixes[0]; i++) {
        if (str_ends_nocase(name, copy_suffixes[i])) {
            name.len -= copy_suffixes[i].len;
            break;
        }
    }
    struct str extension = extension_of(name);
    for (size_t i = 0; i < sizeof companion_extensions / sizeof companion_extensions[0]; i++) {
        if (str_eq_nocase(extension, companion_extensions[i])) {
            return companion_extensions[i];
        }
    }
    return STR("");
}

enum name_class name_classify(const struct index_settings *settings, struct str name)
{
    if (str_find(name, '.') == SIZE_MAX) {
        return NAME_PLAIN;
    }
    size_t stem = name_endpoint_stem(name);
    if (stem > 0 && settings->layout != SITE_STATIC_ONLY && endpoint_name_matches(name)) {
        bool runs = str_ends(name, STR("._c")) ? settings->run_c : settings->run_so;
        return runs ? NAME_ENDPOINT : NAME_SOURCE;
    }
    if (is_source(settings, name)) {
        return NAME_SOURCE;
    }
    struct str companion = companion_extension(name);
    return companion.len > 0 && map_get(&settings->shown, companion) == NULL ? NAME_COMPANION : NAME_PLAIN;
}
