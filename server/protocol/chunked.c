#include "protocol/chunked.h"

#include "base/str.h"

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF };
enum { MAX_DIGITS = 16, MAX_EXTENSION = 1024 };

/* One byte of a size line; CHUNKED_MORE: go on. */
static enum chunked_result size_byte(struct chunked *c, uint8_t byte)
{
    int digit = hex_digit((char)byte);
    if (digit >= 0) {
        if (c->left >> 59 != 0 || c->digits >= MAX_DIGITS) {
            return c->digits >= MAX_DIGITS ? CHUNKED_BAD : CHUNKED_TOO_LARGE;
        }
        c->left = c->left * 16 + (uint64_t)digit;
        c->digits++;
        return CHUNKED_MORE;
    }
    if (c->digits == 0) {
        return CHUNKED_BAD;
    }
    if (byte == '\r') {
        c->state = SIZE_LF;
        return CHUNKED_MORE;
    }
    if (byte == ';' || byte == ' ' || byte == '\t') {
        c->state = EXTENSION;
        c->extension_bytes = byte == ';' ? 1 : 0;
        return CHUNKED_MORE;
    }
    return CHUNKED_BAD;
}

static enum chunked_result extension_byte(struct chunked *c, uint8_t byte)
{
    if (byte == '\r') {
        /* "5 \r\n": blanks with no extension behind them are not in the grammar. */
        if (c->extension_bytes == 0) {
            return CHUNKED_BAD;
        }
        c->state = SIZE_LF;
        return CHUNKED_MORE;
    }
    if (c->extension_bytes == 0 && byte != ';') {
        return byte == ' ' || byte == '\t' ? CHUNKED_MORE : CHUNKED_BAD;
    }
    if ((byte < 0x20 && byte != '\t') || byte == 0x7f) {
        return CHUNKED_BAD;
    }
    if (++c->extension_bytes > MAX_EXTENSION) {
        return CHUNKED_TOO_LARGE;
    }
    return CHUNKED_MORE;
}

static enum chunked_result line_byte(struct chunked *c, uint8_t byte)
{
    switch (c->state) {
    case SIZE: return size_byte(c, byte);
    case EXTENSION: return extension_byte(c, byte);
    case SIZE_LF:
        if (byte != '\n') {
            return CHUNKED_BAD;
        }
        if (c->left == 0) {
            return CHUNKED_TRAILERS;
        }
        c->state = DATA;
        return CHUNKED_MORE;
    case DATA_CR: c->state = DATA_LF; return byte == '\r' ? CHUNKED_MORE : CHUNKED_BAD;
    default: *c = CHUNKED_START; return byte == '\n' ? CHUNKED_MORE : CHUNKED_BAD;
    }
}

enum chunked_result chunked_next(struct chunked *c, const uint8_t *input, size_t len, size_t *used,
                                 const uint8_t **data, size_t *data_len)
{
    size_t i = 0;
    while (i < len) {
        if (c->state == DATA) {
            size_t n = len - i < c->left ? len - i : (size_t)c->left;
            *data = input + i;
            *data_len = n;
            c->left -= n;
            if (c->left == 0) {
                c->state = DATA_CR;
            }
            *used = i + n;
            return CHUNKED_DATA;
        }
        enum chunked_result result = line_byte(c, input[i++]);
        if (result != CHUNKED_MORE) {
            *used = i;
            return result;
        }
    }
    *used = len;
    return CHUNKED_MORE;
}
