/* UTF-8 as it arrives: says at the first wrong byte that the text is wrong, wherever pieces end. */
#ifndef KILN_WS_UTF8_H
#define KILN_WS_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero: at the beginning of a character. */
struct ws_utf8 {
    uint8_t need; /* bytes that the running character still needs */
    uint8_t low; /* bounds of the next one */
    uint8_t high;
};

/* False: these bytes cannot go on what came before. */
bool ws_utf8_check(struct ws_utf8 *state, const uint8_t *data, size_t len);
/* True when no character is begun. */
static inline bool ws_utf8_is_whole(const struct ws_utf8 *state)
{
    return state->need == 0;
}
/* Whole text at once. */
bool ws_utf8_is_valid(const void *data, size_t len);

#endif
