#include "protocol/head_scan.h"

#include "base/bytes16.h"
#include "base/check.h"

#include <stdbool.h>

/* As many bytes as a mask of 64 bits holds. */
enum { BLOCK = 64 / BYTES16_STEP };

/* The bytes of a block that are to be looked at one by one: no text in ASCII, the blank and HTAB. */
static inline uint64_t suspects(const uint8_t *block)
{
    uint64_t mask = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < BLOCK; i += 16) {
        /* One comparison finds controls, DEL and what is beyond ASCII: plus one they are below 0x21 as signed numbers. */
        mask |= bytes16_mask(bytes16_above(bytes16_plus_one(bytes16_load(block + i)), 0x20)) << (i * BYTES16_STEP);
    }
    return ~mask;
}

/* The same for the last bytes, from i on: fewer than a block. */
static uint64_t suspects_of_rest(const uint8_t *data, size_t i, size_t len)
{
    if (len >= BLOCK) {
        return suspects(data + len - BLOCK) >> ((BLOCK - (len - i)) * BYTES16_STEP);
    }
    uint8_t block[BLOCK];
    memset(block, ' ', sizeof block);
    memcpy(block, data + i, len - i);
    return suspects(block);
}

/* A suspect that begins no CRLF: HTAB and what is beyond ASCII may stand anywhere, an LF may only belong to the line
 * that has just ended. */
static bool may_stand(const uint8_t *data, size_t at, size_t line_start)
{
    return data[at] == '\t' || data[at] >= 0x80 || (at + 1 == line_start && data[at] == '\n');
}

enum head_scan_result head_scan(struct head_scan *scan, const uint8_t *data, size_t len)
{
    size_t line_start = scan->line_start;
    unsigned lines = scan->lines;
    for (size_t i = line_start; i < len; i += BLOCK) {
        uint64_t mask = LIKELY(len - i >= BLOCK) ? suspects(data + i) : suspects_of_rest(data, i, len);
        while (mask != 0) {
            size_t at = i + bytes16_first(mask);
            mask = bytes16_rest(mask);
            if (UNLIKELY(data[at] != '\r')) {
                if (may_stand(data, at, line_start)) {
                    continue;
                }
                return HEAD_BAD;
            }
            if (UNLIKELY(at + 1 == len)) {
                break;
            }
            if (UNLIKELY(data[at + 1] != '\n')) {
                return HEAD_BAD;
            }
            lines++;
            if (UNLIKELY(at == line_start)) {
                *scan = (struct head_scan){.line_start = at + 2, .lines = lines, .end = at + 2};
                return HEAD_COMPLETE;
            }
            line_start = at + 2;
            if (LIKELY(mask != 0)) {
                mask = bytes16_rest(mask); /* the LF, unless it begins the next block */
            }
        }
    }
    scan->line_start = line_start;
    scan->lines = lines;
    return HEAD_INCOMPLETE;
}
