/* DESIGN: values are kept as the text that was given, not as printed again by a parser,
 * so that large numbers keep their digits. cJSON says whether the text has the structure of
 * JSON; it is lenient inside tokens (leading zeros, control characters, any bytes as text),
 * where other parsers are not, so a scan over strings and numbers stands before it. */
#include "sessions/json_text.h"

#include <cjson/cJSON.h>

/* From the opening quote to behind the closing one; 0 when the string is bad. Escapes are
 * cJSON's part. */
static size_t string_length(struct str s)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    size_t i = 1;
    while (i < s.len && p[i] != '"') {
        if (p[i] < 0x20) {
            return 0;
        }
        if (p[i] == '\\') {
            if (i + 1 >= s.len || p[i + 1] < 0x20 || p[i + 1] >= 0x80) {
                return 0;
            }
            i += 2;
            continue;
        }
        size_t n = str_utf8_length(s.ptr + i, s.len - i);
        if (n == 0) {
            return 0;
        }
        i += n;
    }
    return i < s.len ? i + 1 : 0;
}

static size_t digits(struct str s, size_t from)
{
    size_t i = from;
    while (i < s.len && ascii_is_digit(s.ptr[i])) {
        i++;
    }
    return i - from;
}

/* -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?; 0 when it is anything else. */
static size_t number_length(struct str s)
{
    size_t i = s.ptr[0] == '-' ? 1 : 0;
    size_t n = digits(s, i);
    if (n == 0 || (n > 1 && s.ptr[i] == '0')) {
        return 0;
    }
    i += n;
    if (i < s.len && s.ptr[i] == '.') {
        n = digits(s, i + 1);
        if (n == 0) {
            return 0;
        }
        i += 1 + n;
    }
    if (i < s.len && (s.ptr[i] == 'e' || s.ptr[i] == 'E')) {
        i++;
        if (i < s.len && (s.ptr[i] == '+' || s.ptr[i] == '-')) {
            i++;
        }
        n = digits(s, i);
        if (n == 0) {
            return 0;
        }
        i += n;
    }
    return i;
}

static bool tokens_are_strict(struct str json)
{
    size_t i = 0;
    while (i < json.len) {
        char c = json.ptr[i];
        struct str rest = str_from(json, i);
        size_t n = 1;
        if (c == '"') {
            n = string_length(rest);
        } else if (c == '-' || ascii_is_digit(c)) {
            n = number_length(rest);
        } else if ((unsigned char)c < 0x20 ? (c != '\n' && c != '\r' && c != '\t') : (unsigned char)c >= 0x7F) {
            return false;
        }
        if (n == 0) {
            return false;
        }
        i += n;
    }
    return true;
}

bool json_text_is_valid(struct str json)
{
    int64_t ignored;
    if (json_text_integer(json, &ignored)) {
        return true;
    }
    if (json.len == 0 || !tokens_are_strict(json)) {
        return false;
    }
    const char *end = NULL;
    cJSON *tree = cJSON_ParseWithLengthOpts(json.ptr, json.len, &end, false);
    if (tree == NULL) {
        return false;
    }
    cJSON_Delete(tree);
    for (; end < json.ptr + json.len; end++) {
        if (strchr(" \t\r\n", *end) == NULL || *end == '\0') {
            return false;
        }
    }
    return true;
}

bool json_text_integer(struct str json, int64_t *out)
{
    bool negative = json.len > 0 && json.ptr[0] == '-';
    struct str text = str_from(json, negative ? 1 : 0);
    uint64_t most = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    uint64_t value;
    if (text.len == 0 || (text.len > 1 && text.ptr[0] == '0') || !str_to_u64(text, most, &value)) {
        return false;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

size_t json_text_print_integer(int64_t value, char *out)
{
    size_t sign = value < 0 ? 1 : 0;
    out[0] = '-';
    return sign + str_put_u64(out + sign, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}
