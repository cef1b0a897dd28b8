/* DESIGN: runs of ASCII are skipped in blocks; other characters are checked against the table of
 * well-formed byte sequences of the Unicode standard (overlong forms, surrogates and what lies
 * beyond U+10FFFF show at their second byte). */
#include "ws/utf8.h"

#include <string.h>

enum { BLOCK = 32 };

/* The number of bytes from `data` on that are ASCII; may stop early within a block. */
static size_t ascii_run(const uint8_t *data, size_t len)
{
    size_t i = 0;
    for (; i + BLOCK <= len; i += BLOCK) {
        uint64_t words[BLOCK / 8];
        memcpy(words, data + i, BLOCK);
        if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) != 0) {
            break;
        }
    }
    for (size_t end = i + BLOCK < len ? i + BLOCK : len; i < end && data[i] < 0x80; i++) {
    }
    return i;
}

/* The first byte of a character that is not ASCII. */
static bool begin(struct ws_utf8 *state, uint8_t c)
{
    state->low = 0x80;
    state->high = 0xbf;
    if (c >= 0xc2 && c <= 0xdf) {
        state->need = 1;
        return true;
    }
    if (c >= 0xe0 && c <= 0xef) {
        state->need = 2;
        if (c == 0xe0) {
            state->low = 0xa0;
        } else if (c == 0xed) {
            state->high = 0x9f;
        }
        return true;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        state->need = 3;
        if (c == 0xf0) {
            state->low = 0x90;
        } else if (c == 0xf4) {
            state->high = 0x8f;
        }
        return true;
    }
    return false;
}

bool ws_utf8_check(struct ws_utf8 *state, const uint8_t *data, size_t len)
{
    struct ws_utf8 s = *state;
    size_t i = 0;
    while (i < len) {
        if (s.need == 0) {
            if (data[i] < 0x80) {
                i += ascii_run(data + i, len - i);
                continue;
            }
            if (!begin(&s, data[i])) {
                return false;
            }
            i++;
            continue;
        }
        if (data[i] < s.low || data[i] > s.high) {
            return false;
        }
        s.low = 0x80;
        s.high = 0xbf;
        s.need--;
        i++;
    }
    *state = s;
    return true;
}

bool ws_utf8_is_valid(const void *data, size_t len)
{
    struct ws_utf8 state = {0};
    return ws_utf8_check(&state, data, len) && ws_utf8_is_whole(&state);
}
