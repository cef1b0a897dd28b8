#include "request/token.h"

static bool token_bytes[256];

__attribute__((constructor)) static void index_token_bytes(void)
{
    for (const char *c = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&'*+-.^_`|~"; *c != '\0';
         c++) {
        token_bytes[(unsigned char)*c] = true;
    }
}

bool token_has_char(char c)
{
    return token_bytes[(unsigned char)c];
}

bool token_is_valid(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (!token_bytes[(unsigned char)s.ptr[i]]) {
            return false;
        }
    }
    return s.len > 0;
}

static bool is_text_byte(unsigned char c)
{
    return (c >= 0x20 && c != 0x7f) || c == '\t';
}

/* Of eight bytes, none below 0x20 and no 0x7f; a tab makes it false too. */
static bool is_plain_word(const char *at)
{
    const uint64_t each = 0x0101010101010101;
    uint64_t word;
    memcpy(&word, at, sizeof word);
    uint64_t control = (word - each * 0x20) & ~word;
    uint64_t del = word ^ (each * 0x7f);
    return ((control | ((del - each) & ~del)) & (each * 0x80)) == 0;
}

bool field_value_is_valid(struct str value)
{
    size_t i = 0;
    while (value.len - i >= 8 && is_plain_word(value.ptr + i)) {
        i += 8;
    }
    /* What is left of less than a word lies in the last one. */
    if (i > 0 && value.len - i < 8 && is_plain_word(value.ptr + value.len - 8)) {
        return true;
    }
    while (i < value.len && is_text_byte((unsigned char)value.ptr[i])) {
        i++;
    }
    return i == value.len;
}
