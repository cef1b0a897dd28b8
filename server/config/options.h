/* options.def as a table at run time, and what the parts of config/ share. */
#ifndef KILN_CONFIG_OPTIONS_H
#define KILN_CONFIG_OPTIONS_H

#include "base/arena.h"
#include "config/config.h"

enum option_type {
    OPTION_bool,
    OPTION_int,
    OPTION_size,
    OPTION_number,
    OPTION_string,
    OPTION_path,
    OPTION_list,
    OPTION_path_list,
    OPTION_port_list,
    OPTION_string_map,
    OPTION_header_map,
    OPTION_header_list,
    OPTION_enum,
};

/* Checks one text of an option and may replace it by its regular spelling (arena). For
 * maps `key` is the member's name, otherwise NULL. Returns what would have been right. */
typedef const char *option_form(struct arena *arena, struct str *key, struct str *value);

struct option {
    const char *key;
    enum option_type type;
    size_t offset; /* of the member in struct config */
    double least;
    double most;
    const char *const *words; /* of an enum, NULL-terminated; value = place */
    option_form *form;
    const char *default_json;
    const char *later; /* NULL: active; else what is not in this version */
    const char *category;
    const char *help;
};

extern const struct option options[];
extern const size_t option_count;

/* Exact key, as in a file. NULL when unknown. */
const struct option *option_find(struct str key);
/* Any case, short names too, as on the command line. */
const struct option *option_find_nocase(struct str name);
/* The known key that looks most like `name`, or NULL when none does. */
const char *option_nearest(struct str name);
/* The element of a NULL-terminated list that looks most like `name`, or NULL. */
const char *word_nearest(struct str name, const char *const *words);

/* "a whole number from 1 to 64", "true or false", ... */
void option_describe(const struct option *option, struct buffer *out);

/* "1 to 64", for numbers only; sizes in the unit that makes them short. */
void option_describe_range(const struct option *option, struct buffer *out);

static inline void *option_member(const struct option *option, struct config *config)
{
    return (char *)config + option->offset;
}

static inline const void *option_member_const(const struct option *option, const struct config *config)
{
    return (const char *)config + option->offset;
}

option_form form_address, form_admin_listen, form_alphabet, form_extensions, form_file_mode, form_forwards,
    form_timeouts, form_host_part, form_hosts, form_hsts, form_index_names, form_media_types, form_token,
    form_url_aliases;

/* "Name: value" as one legal header line. Returns what would have been right, or NULL. */
const char *form_header(struct str name, struct str value);

#endif
