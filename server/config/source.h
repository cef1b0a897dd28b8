/* DESIGN: the text of a config file, cleaned for cJSON, with the place of every value.
 * cJSON gives no positions and is lax, so our own scanner goes over the text first: it
 * turns comments, a BOM and trailing commas into spaces (offsets stay true), checks the
 * grammar strictly, and notes where each member and element stands, in document order.
 * cJSON keeps that order too, so the n-th node of its tree is the n-th note. */
#ifndef KILN_CONFIG_SOURCE_H
#define KILN_CONFIG_SOURCE_H

#include "config/config.h"

#include <cjson/cJSON.h>

struct source {
    const char *file;
    char *text; /* cleaned, NUL-terminated; owned */
    size_t len;
    size_t *offsets; /* of each node in document order; owned */
    size_t count;
    size_t cap;
    cJSON *root; /* an object; owned */
};

/* False when the text is not a JSON object; the errors say where and why, and nothing
 * needs closing. A key that stands twice in one object is counted as an error, but the
 * rest can still be checked. */
bool source_open(struct source *source, struct str text, const char *file, struct config_errors *errors);
void source_close(struct source *source);

/* Line of a node of source->root, from 1. */
unsigned source_line(const struct source *source, const cJSON *item);

bool text_is_utf8(struct str text);

/* One more problem or warning, as "file:line: message"; line 0 is left out, and so is a NULL file. */
void errors_add(struct config_errors *errors, const char *file, unsigned line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void errors_warn(struct config_errors *errors, const char *file, unsigned line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
