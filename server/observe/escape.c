#include "observe/escape.h"

static const char hex[] = "0123456789abcdef";

/* Length of the valid UTF-8 sequence at the start of the text, 0 when it is none. C1
 * controls count as invalid: terminals obey them. */
static size_t utf8_length(struct str text)
{
    const uint8_t *p = (const uint8_t *)text.ptr;
    uint8_t first = p[0];
    size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0 || length > text.len) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (first == 0xe0 && p[1] < 0xa0) || (first == 0xf0 && p[1] < 0x90);
    bool surrogate = first == 0xed && p[1] >= 0xa0;
    bool too_high = first == 0xf4 && p[1] >= 0x90;
    bool control = first == 0xc2 && p[1] < 0xa0;
    return overlong || surrogate || too_high || control ? 0 : length;
}

static size_t put_hex(char *out, uint8_t byte)
{
    out[0] = '\\';
    out[1] = 'x';
    out[2] = hex[byte >> 4];
    out[3] = hex[byte & 15];
    return 4;
}

size_t escape_text(char *out, size_t room, struct str *text)
{
    size_t used = 0;
    size_t i = 0;
    while (i < text->len && room - used >= 4) {
        uint8_t byte = (uint8_t)text->ptr[i];
        size_t length = utf8_length(str_from(*text, i));
        if (byte == '\n') {
            out[used++] = '\\';
            out[used++] = 'n';
            i++;
        } else if (length == 0 || (byte < 0x20 && byte != '\t') || byte == 0x7f) {
            used += put_hex(out + used, byte);
            i++;
        } else {
            memcpy(out + used, text->ptr + i, length);
            used += length;
            i += length;
        }
    }
    *text = str_from(*text, i);
    return used;
}

size_t escape_quoted(char *out, size_t room, struct str *text)
{
    size_t used = 0;
    size_t i = 0;
    for (; i < text->len && room - used >= 4; i++) {
        uint8_t byte = (uint8_t)text->ptr[i];
        if (byte < 0x20 || byte >= 0x7f) {
            used += put_hex(out + used, byte);
            continue;
        }
        if (byte == '"' || byte == '\\') {
            out[used++] = '\\';
        }
        out[used++] = (char)byte;
    }
    *text = str_from(*text, i);
    return used;
}

size_t escape_json(char *out, size_t room, struct str *text)
{
    size_t used = 0;
    size_t i = 0;
    while (i < text->len && room - used >= 6) {
        uint8_t byte = (uint8_t)text->ptr[i];
        size_t length = utf8_length(str_from(*text, i));
        if (length == 0) {
            memcpy(out + used, "\xef\xbf\xbd", 3);
            used += 3;
            i++;
        } else if (byte < 0x20 || byte == 0x7f) {
            memcpy(out + used, "\\u00", 4);
            out[used + 4] = hex[byte >> 4];
            out[used + 5] = hex[byte & 15];
            used += 6;
            i++;
        } else {
            if (byte == '"' || byte == '\\') {
                out[used++] = '\\';
            }
            memcpy(out + used, text->ptr + i, length);
            used += length;
            i += length;
        }
    }
    *text = str_from(*text, i);
    return used;
}
