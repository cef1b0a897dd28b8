/* Bytes as hexadecimal text, lower case, and back. */
#ifndef KILN_CONNECTION_HEX_H
#define KILN_CONNECTION_HEX_H

#include "base/str.h"

/* Twice as many characters and a NUL. */
static inline void hex_print(const unsigned char *bytes, size_t len, char *out)
{
    for (size_t i = 0; i < len; i++) {
        out[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    out[2 * len] = '\0';
}

static inline int hex_value(char c)
{
    return ascii_is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Half as many bytes. False: not what hex_print() writes. */
static inline bool hex_read(struct str text, unsigned char *out)
{
    for (size_t i = 0; i + 1 < text.len; i += 2) {
        int high = hex_value(text.ptr[i]);
        int low = hex_value(text.ptr[i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out[i / 2] = (unsigned char)(high << 4 | low);
    }
    return text.len % 2 == 0;
}

#endif
