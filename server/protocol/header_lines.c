#include "protocol/header_lines.h"

#include "base/bytes16.h"
#include "base/check.h"

/* The colon behind a name, or a byte that may not be in one: at the latest the CR of the line. */
static inline char *name_end(char *at)
{
    for (;; at += 16) {
        bytes16 block = bytes16_load(at);
        uint64_t mask = bytes16_mask(bytes16_or(bytes16_at_most(block, ' '), bytes16_equal(block, ':')));
        if (LIKELY(mask != 0)) {
            return at + bytes16_first(mask);
        }
    }
}

static inline char *line_end(char *at)
{
    for (;; at += 16) {
        uint64_t mask = bytes16_mask(bytes16_equal(bytes16_load(at), '\r'));
        if (mask != 0) {
            return at + bytes16_first(mask);
        }
    }
}

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

bool header_lines_split(char *bytes, struct header *items, unsigned count)
{
    char *line = bytes;
    for (unsigned i = 0; i < count; i++) {
        char *colon = name_end(line);
        if (*colon != ':' || colon == line) {
            return false;
        }
        char *value = colon + 1;
        char *cr = line_end(value);
        while (is_blank(*value)) {
            value++; /* ends at the CR */
        }
        char *end = cr;
        while (end > value && is_blank(end[-1])) {
            end--;
        }
        *colon = '\0';
        *end = '\0';
        items[i] = (struct header){{line, (size_t)(colon - line)}, {value, (size_t)(end - value)}};
        line = cr + 2;
    }
    return true;
}
