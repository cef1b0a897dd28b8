/* A snapshot as JSON, and the option table as a default file, as help and as a manual. */
#include "base/check.h"
#include "config/options.h"

#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 96 };

/* ---- a snapshot ------------------------------------------------------------------------------ */

/* The shortest decimal that reads back as the same number. */
static void print_number(double value, struct buffer *out)
{
    char text[40];
    for (int precision = 6; precision <= 17; precision += 1) {
        snprintf(text, sizeof text, "%.*g", precision, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    buffer_append_z(out, text);
}

static void print_strings(const struct config_strings *list, struct buffer *out)
{
    buffer_append_char(out, '[');
    for (size_t i = 0; i < list->count; i++) {
        buffer_append_z(out, i > 0 ? ", " : "");
        buffer_append_json(out, list->items[i]);
    }
    buffer_append_char(out, ']');
}

static void print_ports(const struct config_ports *ports, struct buffer *out)
{
    buffer_append_char(out, '[');
    for (size_t i = 0; i < ports->count; i++) {
        buffer_printf(out, "%s%u", i > 0 ? ", " : "", ports->items[i]);
    }
    buffer_append_char(out, ']');
}

static void print_header_list(const struct config_headers *headers, struct buffer *out)
{
    buffer_append_char(out, '{');
    for (size_t i = 0; i < headers->count; i++) {
        buffer_append_z(out, i > 0 ? ", " : "");
        buffer_append_json(out, headers->items[i].name);
        buffer_append_z(out, ": ");
        buffer_append_json(out, headers->items[i].value);
    }
    buffer_append_char(out, '}');
}

static void print_header_lines(const struct config_headers *headers, struct buffer *out)
{
    struct buffer line = BUFFER_EMPTY;
    buffer_append_char(out, '[');
    for (size_t i = 0; i < headers->count; i++) {
        line.len = 0;
        buffer_append_str(&line, headers->items[i].name);
        buffer_append_z(&line, ": ");
        buffer_append_str(&line, headers->items[i].value);
        buffer_append_z(out, i > 0 ? ", " : "");
        buffer_append_json(out, buffer_str(&line));
    }
    buffer_append_char(out, ']');
    out->failed |= line.failed;
    buffer_free(&line);
}

struct entry {
    struct str key;
    void *value;
};

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a;
    const struct entry *y = b;
    size_t shorter = x->key.len < y->key.len ? x->key.len : y->key.len;
    int order = memcmp(x->key.ptr, y->key.ptr, shorter);
    return order != 0 ? order : x->key.len < y->key.len ? -1 : x->key.len > y->key.len;
}

/* A map has no order of its own; sorted, equal snapshots print equally. */
static void print_map(const struct map *map, bool headers, struct buffer *out)
{
    struct entry *entries = calloc(map->count + 1, sizeof *entries);
    if (entries == NULL) {
        out->failed = true;
        return;
    }
    size_t count = 0;
    for (size_t i = 0; map_next(map, &i, &entries[count].key, &entries[count].value);) {
        count++;
    }
    qsort(entries, count, sizeof *entries, compare_entries);
    buffer_append_char(out, '{');
    for (size_t i = 0; i < count; i++) {
        buffer_append_z(out, i > 0 ? ", " : "");
        buffer_append_json(out, entries[i].key);
        buffer_append_z(out, ": ");
        if (headers) {
            print_header_lines(entries[i].value, out);
        } else {
            buffer_append_json(out, *(const struct str *)entries[i].value);
        }
    }
    buffer_append_char(out, '}');
    free(entries);
}

static void print_value(const struct option *option, const struct config *config, struct buffer *out)
{
    const void *member = option_member_const(option, config);
    switch (option->type) {
    case OPTION_bool: buffer_append_z(out, *(const bool *)member ? "true" : "false"); break;
    case OPTION_int:
    case OPTION_size: buffer_printf(out, "%lld", (long long)*(const int64_t *)member); break;
    case OPTION_number: print_number(*(const double *)member, out); break;
    case OPTION_string:
    case OPTION_path: buffer_append_json(out, *(const struct str *)member); break;
    case OPTION_list:
    case OPTION_path_list: print_strings(member, out); break;
    case OPTION_port_list: print_ports(member, out); break;
    case OPTION_string_map: print_map(member, false, out); break;
    case OPTION_header_map: print_map(member, true, out); break;
    case OPTION_header_list: print_header_list(member, out); break;
    case OPTION_enum: buffer_printf(out, "\"%s\"", option->words[*(const int *)member]); break;
    }
}

void config_print(const struct config *config, struct buffer *out)
{
    buffer_append_z(out, "{\n");
    for (size_t i = 0; i < option_count; i++) {
        buffer_printf(out, "    \"%s\": ", options[i].key);
        print_value(&options[i], config, out);
        buffer_append_z(out, i + 1 < option_count ? ",\n" : "\n");
    }
    buffer_append_z(out, "}\n");
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Words of `text` in lines of WIDTH, each after `indent`; `column` is where the first one starts. */
static void print_wrapped(struct str text, const char *indent, size_t column, struct buffer *out)
{
    struct str word;
    bool first = true;
    while (str_split_next(&text, ' ', &word)) {
        if (!first && column + 1 + word.len > WIDTH) {
            buffer_append_char(out, '\n');
            buffer_append_z(out, indent);
            column = strlen(indent);
        } else if (!first) {
            buffer_append_char(out, ' ');
            column++;
        }
        buffer_append_str(out, word);
        column += word.len;
        first = false;
    }
}

static bool starts_category(size_t i)
{
    return i == 0 || strcmp(options[i].category, options[i - 1].category) != 0;
}

/* "1 to 64", for numbers only. */
static void print_range(const struct option *option, struct buffer *out)
{
    bool number = option->type == OPTION_int || option->type == OPTION_size || option->type == OPTION_number;
    if (number) {
        buffer_append_char(out, ' ');
        option_describe_range(option, out);
        buffer_append_char(out, '.');
    }
}

void config_print_defaults(struct buffer *out)
{
    size_t last_active = 0;
    for (size_t i = 0; i < option_count; i++) {
        last_active = options[i].later == NULL ? i : last_active;
    }
    buffer_append_z(
        out, "// Every option of kiln " KILN_VERSION " with its default. Keep what you change; comments may stay.\n"
             "// Sizes are bytes and may be written as \"64M\"; relative paths start from this file's directory.\n"
             "{\n");
    for (size_t i = 0; i < option_count; i++) {
        const struct option *option = &options[i];
        if (starts_category(i)) {
            buffer_printf(out, "%s    // ---- %s ----\n", i > 0 ? "\n" : "", option->category);
        }
        struct buffer help = BUFFER_EMPTY;
        buffer_append_z(&help, option->help);
        print_range(option, &help);
        if (option->later != NULL) {
            buffer_printf(&help, " Not active in this version, which has no %s.", option->later);
        }
        buffer_append_z(out, "    // ");
        print_wrapped(buffer_str(&help), "    // ", 7, out);
        buffer_free(&help);
        buffer_printf(out, "\n    %s\"%s\": ", option->later != NULL ? "// " : "", option->key);
        print_wrapped(str_of(option->default_json), "        ", strlen(option->key) + 8, out);
        buffer_append_z(out, option->later == NULL && i != last_active ? ",\n" : "\n");
    }
    buffer_append_z(out, "}\n");
}

static const char *placeholder(const struct option *option)
{
    static const char *const of_type[] = {
        [OPTION_bool] = "true|false", [OPTION_int] = "N",           [OPTION_size] = "BYTES",
        [OPTION_number] = "N",        [OPTION_string] = "TEXT",     [OPTION_path] = "PATH",
        [OPTION_list] = "A,B",        [OPTION_path_list] = "A,B",   [OPTION_port_list] = "PORT,PORT",
        [OPTION_string_map] = "JSON", [OPTION_header_map] = "JSON", [OPTION_header_list] = "JSON",
        [OPTION_enum] = "WORD",
    };
    return of_type[option->type];
}

static bool short_default(const struct option *option)
{
    return strlen(option->default_json) <= 40 && strcmp(option->default_json, "\"\"") != 0 &&
           strcmp(option->default_json, "[]") != 0 && strcmp(option->default_json, "{}") != 0;
}

void config_print_help(struct buffer *out, bool colour)
{
    const char *heading = colour ? "\033[1m" : "";
    const char *name = colour ? "\033[36m" : "";
    const char *plain = colour ? "\033[0m" : "";
    for (size_t i = 0; i < option_count; i++) {
        const struct option *option = &options[i];
        if (starts_category(i)) {
            bool later = strcmp(option->category, "Later") == 0;
            buffer_printf(out, "\n%s%s%s%s\n", heading, option->category, plain,
                          later ? " (accepted; the feature is not in this version)" : "");
        }
        buffer_printf(out, "  %s--%s%s=%s\n      ", name, option->key, plain, placeholder(option));
        struct buffer help = BUFFER_EMPTY;
        buffer_append_z(&help, option->help);
        if (short_default(option)) {
            buffer_printf(&help, " Default: %s.", option->default_json);
        }
        print_wrapped(buffer_str(&help), "      ", 6, out);
        buffer_free(&help);
        buffer_append_char(out, '\n');
    }
}

/* Text for roff: backslashes and leading dots have a meaning there. */
static void print_roff(const char *text, struct buffer *out)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\\') {
            buffer_append_z(out, "\\e");
        } else if (*p == '-') {
            buffer_append_z(out, "\\-");
        } else if ((*p == '.' || *p == '\'') && (p == text || p[-1] == '\n')) {
            buffer_append_z(out, "\\&");
            buffer_append_char(out, *p);
        } else {
            buffer_append_char(out, *p);
        }
    }
}

void config_print_man(struct buffer *out)
{
    for (size_t i = 0; i < option_count; i++) {
        const struct option *option = &options[i];
        if (starts_category(i)) {
            buffer_printf(out, ".SS %s\n", option->category);
        }
        buffer_append_z(out, ".TP\n.B ");
        print_roff(option->key, out);
        buffer_append_char(out, '\n');
        print_roff(option->help, out);
        buffer_append_z(out, "\n.br\nValue: ");
        struct buffer text = BUFFER_EMPTY;
        option_describe(option, &text);
        buffer_append_z(&text, ". Default: ");
        buffer_append_z(&text, option->default_json);
        buffer_append_char(&text, '\0');
        print_roff(text.data != NULL ? text.data : "", out);
        buffer_free(&text);
        buffer_append_char(out, '\n');
        if (option->later != NULL) {
            buffer_printf(out, "Accepted, but not active in this version, which has no %s.\n", option->later);
        }
    }
}
