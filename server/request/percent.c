#include "request/percent.h"

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || ascii_is_digit(c) || c == '-' || c == '.' || c == '_' ||
           c == '~';
}

size_t percent_encoded_length(struct str text)
{
    size_t len = text.len;
    for (size_t i = 0; i < text.len; i++) {
        len += is_unreserved(text.ptr[i]) ? 0 : 2;
    }
    return len;
}

size_t percent_encode_to(char *out, struct str text)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (is_unreserved(c)) {
            out[n++] = c;
            continue;
        }
        out[n++] = '%';
        out[n++] = digits[((unsigned char)c) >> 4];
        out[n++] = digits[((unsigned char)c) & 15];
    }
    return n;
}

bool percent_encode(struct buffer *out, struct str text)
{
    size_t len = percent_encoded_length(text);
    char *to = buffer_reserve(out, len);
    if (to == NULL) {
        return len == 0 && !out->failed;
    }
    out->len += percent_encode_to(to, text);
    return true;
}

bool percent_decode(char *out, struct str text, size_t *len)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '%') {
            int high = i + 2 < text.len ? hex_digit(text.ptr[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(text.ptr[i + 2]) : -1;
            if (low < 0) {
                return false;
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        out[n++] = c;
    }
    *len = n;
    return true;
}
