#include "config/options.h"

#include "base/check.h"

#include <math.h>
#include <stddef.h>

static const char *const compression_levels[] = {"Optimal", "Fastest", "NoCompression", "SmallestSize", NULL};
static const char *const access_log_formats[] = {"Combined", "JSON", NULL};
static const char *const log_levels[] = {"debug", "info", "notice", "warning", "error", NULL};
static const char *const session_stores[] = {"lmdb", "memory", NULL};
static const char *const tls_profiles[] = {"intermediate", "modern", NULL};
static const char *const client_certificates[] = {"none", "optional", "required", NULL};
static const char *const unknown_names[] = {"default", "refuse", NULL};
static const char *const session_syncs[] = {"grouped", "strict", NULL};

#define ANY .form = NULL
#define RANGE(from, to) .least = (double)(from), .most = (double)(to)
#define WORDS(list) .words = list
#define FORM(name) .form = form_##name
#define ACTIVE NULL
#define LATER(what) what
#define OPTION(member_, key_, type_, bounds_, default_, status_, category_, help_) \
    {.key = (key_), \
     .type = OPTION_##type_, \
     .offset = offsetof(struct config, member_), \
     .default_json = (default_), \
     .later = (status_), \
     .category = (category_), \
     .help = (help_), \
     bounds_},
const struct option options[] = {
#include "config/options.def"
};
#undef OPTION
const size_t option_count = ARRAY_LEN(options);

/* Names that the earlier server's command line had. */
static const struct {
    const char *name;
    const char *key;
} short_names[] = {
    {"httpPort", "HttpPorts"}, {"httpsPort", "HttpsPorts"}, {"backend", "BackendDir"},
    {"webPath", "WWWdir"},     {"certPath", "CertDir"},
};

const struct option *option_find(struct str key)
{
    for (size_t i = 0; i < option_count; i++) {
        if (str_eq(key, str_of(options[i].key))) {
            return &options[i];
        }
    }
    return NULL;
}

const struct option *option_find_nocase(struct str name)
{
    for (size_t i = 0; i < ARRAY_LEN(short_names); i++) {
        if (str_eq_nocase(name, str_of(short_names[i].name))) {
            return option_find(str_of(short_names[i].key));
        }
    }
    for (size_t i = 0; i < option_count; i++) {
        if (str_eq_nocase(name, str_of(options[i].key))) {
            return &options[i];
        }
    }
    return NULL;
}

/* ---- nearest names --------------------------------------------------------------------------- */

enum { LONGEST_NAME = 48 };

static unsigned least_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap of neighbours) between two names, case aside. */
static unsigned edit_distance(struct str a, struct str b)
{
    unsigned rows[3][LONGEST_NAME + 1];
    for (unsigned j = 0; j <= b.len; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= a.len; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *above = rows[(i - 1) % 3];
        const unsigned *two_above = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b.len; j++) {
            char x = ascii_lower(a.ptr[i - 1]);
            char y = ascii_lower(b.ptr[j - 1]);
            unsigned best = least_of(above[j - 1] + (x != y), least_of(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == ascii_lower(b.ptr[j - 2]) && ascii_lower(a.ptr[i - 2]) == y) {
                best = least_of(best, two_above[j - 2] + 1);
            }
            row[j] = best;
        }
    }
    return rows[a.len % 3][b.len];
}

/* Keeps the better of two names; a third of the letters may differ. */
static void consider(struct str name, const char *candidate, const char **best, unsigned *best_distance)
{
    struct str other = str_of(candidate);
    if (name.len == 0 || name.len > LONGEST_NAME || other.len > LONGEST_NAME) {
        return;
    }
    unsigned distance = edit_distance(name, other);
    size_t longer = name.len > other.len ? name.len : other.len;
    if (distance < *best_distance && distance <= 1 + longer / 4) {
        *best = candidate;
        *best_distance = distance;
    }
}

const char *option_nearest(struct str name)
{
    const char *best = NULL;
    unsigned distance = UINT32_MAX;
    const struct option *known = option_find_nocase(name);
    if (known != NULL) {
        return known->key;
    }
    for (size_t i = 0; i < option_count; i++) {
        consider(name, options[i].key, &best, &distance);
    }
    for (size_t i = 0; i < ARRAY_LEN(short_names); i++) {
        unsigned before = distance;
        consider(name, short_names[i].name, &best, &distance);
        if (distance < before) {
            best = short_names[i].key;
        }
    }
    return best;
}

const char *word_nearest(struct str name, const char *const *words)
{
    const char *best = NULL;
    unsigned distance = UINT32_MAX;
    for (size_t i = 0; words[i] != NULL; i++) {
        consider(name, words[i], &best, &distance);
    }
    return best;
}

/* ---- description ----------------------------------------------------------------------------- */

static void describe_bound(const struct option *option, double bound, struct buffer *out)
{
    static const char letters[] = "KMGT";
    const char *unit = letters;
    if (option->type != OPTION_size || bound < 1024 || fmod(bound, 1024) != 0) {
        buffer_printf(out, "%.15g", bound);
        return;
    }
    for (bound /= 1024; unit[1] != '\0' && bound >= 1024 && fmod(bound, 1024) == 0; bound /= 1024) {
        unit++;
    }
    buffer_printf(out, "%.15g%c", bound, *unit);
}

void option_describe_range(const struct option *option, struct buffer *out)
{
    describe_bound(option, option->least, out);
    buffer_append_z(out, " to ");
    describe_bound(option, option->most, out);
}

static void describe_range(const struct option *option, const char *what, struct buffer *out)
{
    buffer_printf(out, "%s from ", what);
    option_describe_range(option, out);
}

void option_describe(const struct option *option, struct buffer *out)
{
    switch (option->type) {
    case OPTION_bool: buffer_append_z(out, "true or false"); break;
    case OPTION_int: describe_range(option, "a whole number", out); break;
    case OPTION_size: describe_range(option, "a number of bytes, as 65536 or \"64K\",", out); break;
    case OPTION_number: describe_range(option, "a number", out); break;
    case OPTION_string: buffer_append_z(out, "a text"); break;
    case OPTION_path: buffer_append_z(out, "a path"); break;
    case OPTION_list: buffer_append_z(out, "a list of texts"); break;
    case OPTION_path_list: buffer_append_z(out, "a list of paths"); break;
    case OPTION_port_list: buffer_append_z(out, "a list of ports from 0 to 65535 (0: the system chooses)"); break;
    case OPTION_string_map: buffer_append_z(out, "an object of texts"); break;
    case OPTION_header_map:
        buffer_append_z(out, "an object of header lists, as {\"html,htm\": [\"Content-Type: text/html\"]}");
        break;
    case OPTION_header_list: buffer_append_z(out, "an object of headers, as {\"Server\": \"Kiln\"}"); break;
    case OPTION_enum:
        buffer_append_z(out, "one of");
        for (size_t i = 0; option->words[i] != NULL; i++) {
            buffer_printf(out, "%s \"%s\"", i == 0 ? "" : option->words[i + 1] == NULL ? " or" : ",", option->words[i]);
        }
        break;
    }
}
