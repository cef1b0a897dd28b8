#include "answer/range.h"

enum spec_result { SPEC_PART, SPEC_BEYOND, SPEC_MALFORMED };

/* Digits only; a number past 64 bits counts as the largest. */
static bool parse_position(struct str digits, uint64_t *out)
{
    if (digits.len == 0) {
        return false;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < digits.len; i++) {
        if (!ascii_is_digit(digits.ptr[i])) {
            return false;
        }
        uint64_t digit = (uint64_t)(digits.ptr[i] - '0');
        value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
    }
    *out = value;
    return true;
}

static enum spec_result parse_spec(struct str spec, uint64_t size, struct byte_range *part)
{
    size_t dash = str_find(spec, '-');
    if (dash == SIZE_MAX) {
        return SPEC_MALFORMED;
    }
    struct str left = str_first(spec, dash);
    struct str right = str_from(spec, dash + 1);
    uint64_t first;
    uint64_t last = UINT64_MAX;
    if (left.len == 0) {
        uint64_t suffix;
        if (!parse_position(right, &suffix)) {
            return SPEC_MALFORMED;
        }
        if (suffix == 0) {
            return SPEC_BEYOND;
        }
        if (size == 0) {
            /* Satisfiable by RFC 9110, but no Content-Range can say so: the empty file as it is. */
            return SPEC_MALFORMED;
        }
        suffix = suffix > size ? size : suffix;
        *part = (struct byte_range){size - suffix, suffix};
        return SPEC_PART;
    }
    if (!parse_position(left, &first) || (right.len > 0 && (!parse_position(right, &last) || last < first))) {
        return SPEC_MALFORMED;
    }
    if (first >= size) {
        return SPEC_BEYOND;
    }
    last = last >= size ? size - 1 : last;
    *part = (struct byte_range){first, last - first + 1};
    return SPEC_PART;
}

static void sort_parts(struct range_set *set)
{
    for (unsigned i = 1; i < set->count; i++) {
        struct byte_range part = set->parts[i];
        unsigned j = i;
        for (; j > 0 && set->parts[j - 1].first > part.first; j--) {
            set->parts[j] = set->parts[j - 1];
        }
        set->parts[j] = part;
    }
}

/* The order that the client asked for is kept unless something has to be joined. */
static void coalesce(struct range_set *set)
{
    struct range_set sorted = *set;
    sort_parts(&sorted);
    unsigned kept = 0;
    for (unsigned i = 1; i < sorted.count; i++) {
        struct byte_range *last = &sorted.parts[kept];
        const struct byte_range *next = &sorted.parts[i];
        if (next->first > last->first + last->length) {
            sorted.parts[++kept] = *next;
            continue;
        }
        uint64_t end = next->first + next->length;
        if (end > last->first + last->length) {
            last->length = end - last->first;
        }
    }
    if (kept + 1 < sorted.count) {
        sorted.count = kept + 1;
        *set = sorted;
    }
}

enum range_result range_parse(struct str header, uint64_t size, struct range_set *out)
{
    static const char unit[] = "bytes=";
    out->count = 0;
    header = str_trim(header);
    if (header.len < sizeof unit - 1 || !str_eq_nocase(str_first(header, sizeof unit - 1), STR("bytes="))) {
        return RANGE_IGNORED;
    }
    struct str rest = str_from(header, sizeof unit - 1);
    struct str spec;
    unsigned specs = 0;
    while (str_split_next(&rest, ',', &spec)) {
        if (spec.len == 0) {
            continue;
        }
        if (++specs > RANGE_MAX) {
            return RANGE_IGNORED;
        }
        struct byte_range part;
        enum spec_result result = parse_spec(spec, size, &part);
        if (result == SPEC_MALFORMED) {
            return RANGE_IGNORED;
        }
        if (result == SPEC_PART) {
            out->parts[out->count++] = part;
        }
    }
    if (specs == 0) {
        return RANGE_IGNORED;
    }
    if (out->count == 0) {
        return RANGE_BEYOND;
    }
    coalesce(out);
    return RANGE_PARTS;
}
