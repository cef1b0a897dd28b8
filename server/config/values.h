/* From one JSON value to one member of struct config. */
#ifndef KILN_CONFIG_VALUES_H
#define KILN_CONFIG_VALUES_H

#include "config/options.h"
#include "config/source.h"

/* Where values come from and go to, for one config_parse(). */
struct reader {
    struct config *config;
    struct arena *arena;
    const struct source *source; /* NULL: the command line or a default */
    const char *base_dir; /* absolute; relative paths start here */
    struct config_errors *errors;
};

/* Sets the option from `value`; wrong values are reported and leave the member as it was. */
bool value_read(struct reader *reader, const struct option *option, const cJSON *value);
/* The JSON that a command-line text means for the option; NULL when it makes no sense.
 * cJSON_Delete() it. */
cJSON *value_from_text(const struct option *option, const char *text);
/* Frees what a member holds outside the arena. */
void value_free(const struct option *option, struct config *config);

/* `path` below `base` unless it is absolute; "." and double slashes and a slash at the end
 * are taken out. ptr NULL: out of memory. */
struct str path_absolute(struct arena *arena, const char *base, struct str path);

#endif
