/* Readers of what helpers write: kiln-cc's records, the messages of gcc and clang, make rules, and
 * pragmas in preprocessed text. All of it may be shaped by a hostile source, so nothing here
 * trusts a length or a number. */
#include "endpoint/build.h"

#include <stdlib.h>

static bool next_line(struct str *rest, struct str *line)
{
    if (rest->len == 0) {
        return false;
    }
    size_t end = str_find(*rest, '\n');
    if (end == SIZE_MAX) {
        *line = *rest;
        *rest = str_from(*rest, rest->len);
    } else {
        *line = str_first(*rest, end);
        *rest = str_from(*rest, end + 1);
    }
    if (line->len > 0 && line->ptr[line->len - 1] == '\r') {
        line->len--;
    }
    return true;
}

static unsigned line_number(struct str digits)
{
    uint64_t value;
    return str_to_u64(digits, 1000000000, &value) ? (unsigned)value : 0;
}

/* ---- kiln-cc's report ---------------------------------------------------------------------------- */

enum { FIELDS_MAX = 6 };

/* Splits at tabs and undoes \\ \t \n; the fields point into `text`, which is changed. */
static size_t split_record(char *text, size_t len, struct str fields[FIELDS_MAX])
{
    size_t count = 0;
    char *to = text;
    char *start = text;
    for (size_t i = 0; i <= len; i++) {
        if (i == len || text[i] == '\t') {
            if (count < FIELDS_MAX) {
                fields[count++] = (struct str){start, (size_t)(to - start)};
            }
            start = to;
            continue;
        }
        char c = text[i];
        if (c == '\\' && i + 1 < len) {
            c = text[++i];
            c = c == 't' ? '\t' : c == 'n' ? '\n' : c;
        }
        *to++ = c;
    }
    return count;
}

static bool is_record(struct str line)
{
    return line.len >= 2 && line.ptr[1] == '\t' && line.ptr[0] != '\0' && strchr("DFME", line.ptr[0]) != NULL;
}

static void add_file(struct dependencies *dependencies, const struct str *fields)
{
    uint64_t size;
    uint64_t mtime;
    uint64_t inode;
    if (!str_to_u64(fields[1], UINT64_MAX, &size) || !str_to_u64(fields[2], UINT64_MAX, &mtime) ||
        !str_to_u64(fields[3], UINT64_MAX, &inode)) {
        return;
    }
    struct dependency *d = dependencies_add(dependencies, fields[4], false);
    if (d != NULL) {
        d->size = size;
        d->mtime_ns = mtime;
        d->inode = inode;
    }
}

bool report_parse(struct str text, struct diagnostics *diagnostics, struct dependencies *dependencies,
                  struct buffer *stray)
{
    bool ok = false;
    struct str line;
    while (next_line(&text, &line)) {
        if (!is_record(line)) {
            if (stray != NULL) {
                buffer_append_str(stray, line);
                buffer_append_char(stray, '\n');
            }
            continue;
        }
        char *copy = malloc(line.len + 1);
        if (copy == NULL) {
            return false;
        }
        memcpy(copy, line.ptr, line.len);
        struct str fields[FIELDS_MAX];
        size_t count = split_record(copy, line.len, fields);
        switch (copy[0]) {
        case 'D':
            if (count == 5) {
                enum severity severity = str_eq(fields[1], STR("error")) ? SEVERITY_ERROR : SEVERITY_WARNING;
                diagnostics_add(diagnostics, severity, fields[2], line_number(fields[3]), fields[4]);
            }
            break;
        case 'F':
            if (count == 5) {
                add_file(dependencies, fields);
            }
            break;
        case 'M':
            if (count == 2) {
                dependencies_add(dependencies, fields[1], true);
            }
            break;
        default: ok = count == 2 && str_eq(fields[1], STR("ok")); break;
        }
        free(copy);
    }
    return ok;
}

/* ---- gcc and clang ------------------------------------------------------------------------------------ */

/* The place where `needle` begins, or SIZE_MAX. */
static size_t find_text(struct str s, struct str needle)
{
    if (s.len < needle.len) {
        return SIZE_MAX;
    }
    const char *at = memmem(s.ptr, s.len, needle.ptr, needle.len);
    return at != NULL ? (size_t)(at - s.ptr) : SIZE_MAX;
}

/* Takes ":digits" from the end of *place. */
static bool take_number(struct str *place, unsigned *number)
{
    size_t colon = str_find_last(*place, ':');
    if (colon == SIZE_MAX) {
        return false;
    }
    struct str digits = str_from(*place, colon + 1);
    uint64_t value;
    if (!str_to_u64(digits, 1000000000, &value)) {
        return false;
    }
    *number = (unsigned)value;
    *place = str_first(*place, colon);
    return true;
}

static void parse_compiler_line(struct str line, struct diagnostics *diagnostics)
{
    static const struct {
        struct str mark;
        enum severity severity;
    } marks[] = {
        {{": fatal error: ", 14 + 1}, SEVERITY_ERROR},
        {{": error: ", 9}, SEVERITY_ERROR},
        {{": warning: ", 11}, SEVERITY_WARNING},
        {{": note: ", 8}, SEVERITY_NOTE},
    };
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        size_t at = find_text(line, marks[i].mark);
        if (at == SIZE_MAX) {
            continue;
        }
        struct str place = str_first(line, at);
        struct str message = str_from(line, at + marks[i].mark.len);
        unsigned first = 0;
        unsigned second = 0;
        if (!take_number(&place, &first)) {
            place = STR_NONE; /* "gcc: fatal error: ..." */
        } else if (take_number(&place, &second)) {
            first = second; /* file:line:column */
        }
        diagnostics_add(diagnostics, marks[i].severity, place, first, message);
        return;
    }
    /* The linker: "/usr/bin/ld: cannot find -lfoo: No such file". */
    size_t linker = find_text(line, STR("ld: "));
    if (linker != SIZE_MAX && find_text(line, STR("cannot find")) != SIZE_MAX) {
        diagnostics_add(diagnostics, SEVERITY_ERROR, STR_NONE, 0, str_from(line, linker + 4));
    }
}

void compiler_output_parse(struct str text, struct diagnostics *diagnostics)
{
    struct str line;
    while (next_line(&text, &line)) {
        parse_compiler_line(line, diagnostics);
    }
}

/* ---- make rules ------------------------------------------------------------------------------------------ */

void make_rule_parse(struct str text, struct dependencies *dependencies)
{
    /* "target: a.c b.h \<newline> c.h"; a blank in a name is "\ ", "$$" stands for "$". */
    size_t start = find_text(text, STR(": "));
    if (start == SIZE_MAX) {
        return;
    }
    char path[PATH_MAX];
    size_t len = 0;
    bool too_long = false;
    for (size_t i = start + 2; i <= text.len; i++) {
        char c = i < text.len ? text.ptr[i] : '\n';
        char after = i + 1 < text.len ? text.ptr[i + 1] : '\0';
        bool continued = c == '\\' && (after == '\n' || after == '\r');
        if (c == ' ' || c == '\n' || c == '\r' || continued) {
            if (len > 0 && !too_long) {
                dependencies_add(dependencies, (struct str){path, len}, false);
            }
            len = 0;
            too_long = false;
            if (c == '\n') {
                return; /* end of the rule */
            }
            i += continued ? (after == '\r' ? 2 : 1) : 0;
            continue;
        }
        if ((c == '\\' && (after == ' ' || after == '#')) || (c == '$' && after == '$')) {
            c = after;
            i++;
        }
        if (len == sizeof path) {
            too_long = true;
            continue;
        }
        path[len++] = c;
    }
}

/* ---- pragmas ------------------------------------------------------------------------------------------------- */

static bool take_word(struct str *s, struct str word)
{
    *s = str_trim(*s);
    if (!str_starts(*s, word)) {
        return false;
    }
    *s = str_from(*s, word.len);
    return true;
}

static bool is_library_name(struct str name)
{
    if (name.len == 0 || name.len > 100 || name.ptr[0] == '-') {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        char c = ascii_lower(name.ptr[i]);
        if (!((c >= 'a' && c <= 'z') || ascii_is_digit(c) || c == '_' || c == '-' || c == '+' || c == '.')) {
            return false;
        }
    }
    return true;
}

unsigned pragma_libraries(struct str text, struct buffer *out)
{
    unsigned count = 0;
    struct str line;
    while (next_line(&text, &line)) {
        struct str s = line;
        if (!take_word(&s, STR("#")) || !take_word(&s, STR("pragma")) || !take_word(&s, STR("comment")) ||
            !take_word(&s, STR("(")) || !take_word(&s, STR("lib")) || !take_word(&s, STR(",")) ||
            !take_word(&s, STR("\""))) {
            continue;
        }
        size_t end = str_find(s, '"');
        struct str name = str_first(s, end == SIZE_MAX ? 0 : end);
        if (is_library_name(name) && count < 64) {
            buffer_append_z(out, "-l");
            buffer_append_str(out, name);
            buffer_append_char(out, '\0');
            count++;
        }
    }
    return count;
}
