#include "endpoint/stabs.h"

#include <string.h>

enum { STAB_HEADER = 0x00, STAB_FUNCTION = 0x24, STAB_LINE = 0x44, STAB_SOURCE = 0x64, STAB_INCLUDED = 0x84 };

struct stab {
    uint32_t name;
    uint8_t type;
    uint8_t other;
    uint16_t line;
    uint32_t value;
};
_Static_assert(sizeof(struct stab) == 12, "as in the file");

struct reader {
    struct str strings;
    size_t base; /* of the present unit's names */
    size_t next_base;
    struct str directory;
    struct str file;
    uint32_t function_start;
    bool in_function;
    bool wanted; /* the present function may hold the address */
};

/* "" when it lies outside or does not end. */
static struct str text_at(const struct reader *r, uint32_t name)
{
    size_t at = r->base + name;
    if (at >= r->strings.len) {
        return STR("");
    }
    const char *end = memchr(r->strings.ptr + at, '\0', r->strings.len - at);
    return end != NULL ? (struct str){r->strings.ptr + at, (size_t)(end - r->strings.ptr) - at} : STR("");
}

static void on_source(struct reader *r, const struct stab *stab)
{
    struct str name = text_at(r, stab->name);
    r->in_function = false;
    if (name.len > 0 && name.ptr[name.len - 1] == '/') {
        r->directory = name;
    } else {
        r->file = name;
    }
}

/* The function that begins last before the address holds it. */
static void on_function(struct reader *r, const struct stab *stab, uint32_t address, struct stabs_place *place,
                        uint32_t *best)
{
    struct str name = text_at(r, stab->name);
    if (name.len == 0) {
        r->in_function = false;
        return;
    }
    r->in_function = true;
    r->function_start = stab->value;
    r->wanted = stab->value <= address && (place->function.ptr == NULL || stab->value >= *best);
    if (r->wanted) {
        *best = stab->value;
        *place = (struct stabs_place){
            .function = str_first(name, str_find(name, ':')), .directory = r->directory, .file = r->file};
    }
}

bool stabs_find(struct str entries, struct str strings, uint32_t address, struct stabs_place *place)
{
    struct reader r = {.strings = strings, .directory = STR(""), .file = STR("")};
    uint32_t best = 0;
    *place = (struct stabs_place){0};
    for (size_t at = 0; at + sizeof(struct stab) <= entries.len; at += sizeof(struct stab)) {
        struct stab stab;
        memcpy(&stab, entries.ptr + at, sizeof stab);
        switch (stab.type) {
        case STAB_HEADER:
            r.base = r.next_base;
            r.next_base += stab.value;
            break;
        case STAB_SOURCE: on_source(&r, &stab); break;
        case STAB_INCLUDED: r.file = text_at(&r, stab.name); break;
        case STAB_FUNCTION: on_function(&r, &stab, address, place, &best); break;
        case STAB_LINE:
            if (r.in_function && r.wanted && r.function_start + stab.value <= address) {
                place->line = stab.line;
            }
            break;
        default: break;
        }
    }
    return place->function.ptr != NULL;
}
