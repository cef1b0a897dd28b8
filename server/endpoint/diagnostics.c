/* Lists of diagnostics, and the parts of a build result that hold them. */
#include "endpoint/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MESSAGE_MAX = 2000 };

void diagnostics_add(struct diagnostics *d, enum severity severity, struct str file, unsigned line, struct str message)
{
    if (d->count >= DIAGNOSTICS_MAX && (severity != SEVERITY_ERROR || diagnostics_first_error(d) != NULL)) {
        return;
    }
    if (d->count == d->cap) {
        size_t cap = d->cap == 0 ? 8 : d->cap * 2;
        struct diagnostic *grown = realloc(d->items, cap * sizeof *grown);
        if (grown == NULL) {
            return;
        }
        d->items = grown;
        d->cap = cap;
    }
    struct diagnostic added = {
        .severity = severity,
        .line = line,
        .file = strndup(file.ptr != NULL ? file.ptr : "", file.len < PATH_MAX ? file.len : PATH_MAX),
        .message =
            strndup(message.ptr != NULL ? message.ptr : "", message.len < MESSAGE_MAX ? message.len : MESSAGE_MAX),
    };
    if (added.file == NULL || added.message == NULL) {
        free(added.file);
        free(added.message);
        return;
    }
    d->items[d->count++] = added;
}

const struct diagnostic *diagnostics_first_error(const struct diagnostics *d)
{
    for (size_t i = 0; i < d->count; i++) {
        if (d->items[i].severity == SEVERITY_ERROR) {
            return &d->items[i];
        }
    }
    return NULL;
}

void diagnostics_free(struct diagnostics *d)
{
    for (size_t i = 0; i < d->count; i++) {
        free(d->items[i].file);
        free(d->items[i].message);
    }
    free(d->items);
    *d = (struct diagnostics){0};
}

void build_result_free(struct build_result *result)
{
    diagnostics_free(&result->diagnostics);
    dependencies_free(&result->dependencies);
    *result = (struct build_result){0};
}

void build_fail(struct build_result *result, const char *format, ...)
{
    char text[MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    result->ok = false;
    diagnostics_add(&result->diagnostics, SEVERITY_ERROR, STR_NONE, 0, str_of(text));
}

static int compare_hashes(const void *a, const void *b)
{
    return memcmp(a, b, HASH_SIZE);
}

/* Of the contents, not of their names: compilers spell the path of an include in different ways.
 * The source's own path counts, since debug information and __FILE__ hold it. */
void build_content_hash(struct build_result *result, const char *source)
{
    struct hasher *h = hasher_create();
    unsigned char(*hashes)[HASH_SIZE] = calloc(result->dependencies.count + 1, HASH_SIZE);
    size_t n = 0;
    for (size_t i = 0; hashes != NULL && i < result->dependencies.count; i++) {
        if (!result->dependencies.items[i].missing) {
            memcpy(hashes[n++], result->dependencies.items[i].hash, HASH_SIZE);
        }
    }
    memset(result->content, 0, HASH_SIZE);
    if (h != NULL && hashes != NULL) {
        hasher_add_field(h, str_of(source));
        qsort(hashes, n, HASH_SIZE, compare_hashes);
        for (size_t i = 0; i < n; i++) {
            if (i == 0 || memcmp(hashes[i], hashes[i - 1], HASH_SIZE) != 0) {
                hasher_add(h, hashes[i], HASH_SIZE);
            }
        }
    }
    if (h != NULL) {
        hasher_finish(h, result->content);
    }
    free(hashes);
}
