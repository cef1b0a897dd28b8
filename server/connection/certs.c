#include "connection/certs.h"

#include "base/map.h"

#include <stdlib.h>
#include <time.h>

enum { NAME_MAX_LEN = 253 };

struct cert_set {
    _Atomic unsigned references;
    struct cert_pair **pairs; /* a reference each */
    size_t count;
    struct map names; /* struct cert_choice *, whose pairs are those above */
    struct cert_choice *fallback; /* one of the names', or `alone` */
    struct cert_choice alone;
};

/* Of two pairs of one kind for one name: the directory of that name, then what is valid now,
 * then the newer one. */
static bool is_better(struct str name, const struct cert_source *a, const struct cert_pair *b, bool b_is_named)
{
    bool a_is_named = str_eq_nocase(a->directory, name);
    if (a_is_named != b_is_named) {
        return a_is_named;
    }
    time_t now = time(NULL);
    bool a_is_valid = cert_pair_is_valid(a->pair, now);
    if (a_is_valid != cert_pair_is_valid(b, now)) {
        return a_is_valid;
    }
    return a->pair->not_before > b->not_before;
}

static const struct cert_source *source_of(const struct cert_source *sources, size_t count,
                                           const struct cert_pair *pair)
{
    for (size_t i = 0; i < count; i++) {
        if (sources[i].pair == pair) {
            return &sources[i];
        }
    }
    return NULL;
}

static struct cert_choice *add_name(struct cert_set *set, const struct cert_source *sources, size_t count,
                                    const struct cert_source *source, struct str name)
{
    struct cert_choice *choice = map_get(&set->names, name);
    if (choice == NULL) {
        choice = calloc(1, sizeof *choice);
        if (choice == NULL || !map_put(&set->names, name, choice, NULL)) {
            free(choice);
            return NULL;
        }
    }
    struct cert_pair **slot = &choice->by_kind[source->pair->kind];
    if (*slot != NULL) {
        const struct cert_source *holder = source_of(sources, count, *slot);
        if (!is_better(name, source, *slot, holder != NULL && str_eq_nocase(holder->directory, name))) {
            return choice;
        }
    }
    *slot = source->pair;
    return choice;
}

static struct str lower(struct str name, char out[NAME_MAX_LEN + 1])
{
    for (size_t i = 0; i < name.len; i++) {
        out[i] = ascii_lower(name.ptr[i]);
    }
    return (struct str){out, name.len};
}

static bool add_source(struct cert_set *set, const struct cert_source *sources, size_t count,
                       const struct cert_source *source)
{
    for (size_t i = 0; i < source->pair->name_count; i++) {
        if (add_name(set, sources, count, source, source->pair->names[i]) == NULL) {
            return false;
        }
    }
    char text[NAME_MAX_LEN + 1];
    if (!cert_name_is_valid(source->directory) || map_get(&set->names, lower(source->directory, text)) != NULL) {
        return true;
    }
    return add_name(set, sources, count, source, lower(source->directory, text)) != NULL;
}

static const struct cert_source *find_directory(const struct cert_source *sources, size_t count, struct str directory)
{
    for (size_t i = 0; directory.len > 0 && i < count; i++) {
        if (str_eq_nocase(sources[i].directory, directory)) {
            return &sources[i];
        }
    }
    return NULL;
}

static void choose_default(struct cert_set *set, const struct cert_source *sources, size_t count, struct str preferred)
{
    if (count == 0) {
        return;
    }
    const struct cert_source *source = find_directory(sources, count, preferred);
    if (source == NULL && preferred.len > 0) {
        const struct cert_choice *named = cert_set_find(set, preferred);
        if (named != NULL) {
            set->fallback = (struct cert_choice *)(uintptr_t)named;
            return;
        }
    }
    if (source == NULL) {
        source = find_directory(sources, count, STR("default"));
    }
    source = source != NULL ? source : &sources[0];
    const struct cert_pair *pair = source->pair;
    struct cert_choice *choice = pair->name_count > 0 ? map_get(&set->names, pair->names[0]) : NULL;
    if (choice == NULL || choice->by_kind[pair->kind] != pair) {
        set->alone.by_kind[pair->kind] = source->pair;
        choice = &set->alone;
    }
    set->fallback = choice;
}

struct cert_set *cert_set_make(const struct cert_source *sources, size_t count, struct str preferred)
{
    struct cert_set *set = calloc(1, sizeof *set);
    struct cert_pair **pairs = calloc(count + 1, sizeof *pairs); /* NOLINT(bugprone-sizeof-expression) */
    if (set == NULL || pairs == NULL) {
        free(set);
        free(pairs);
        return NULL;
    }
    atomic_init(&set->references, 1);
    set->pairs = pairs;
    for (size_t i = 0; i < count; i++) {
        pairs[set->count++] = cert_pair_ref(sources[i].pair);
        if (!add_source(set, sources, count, &sources[i])) {
            cert_set_unref(set);
            return NULL;
        }
    }
    choose_default(set, sources, count, preferred);
    return set;
}

struct cert_set *cert_set_ref(struct cert_set *set)
{
    atomic_fetch_add_explicit(&set->references, 1, memory_order_relaxed);
    return set;
}

void cert_set_unref(struct cert_set *set)
{
    if (set == NULL || atomic_fetch_sub_explicit(&set->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    size_t cursor = 0;
    struct str name;
    void *choice;
    while (map_next(&set->names, &cursor, &name, &choice)) {
        free(choice);
    }
    map_free(&set->names);
    for (size_t i = 0; i < set->count; i++) {
        cert_pair_unref(set->pairs[i]);
    }
    free(set->pairs);
    free(set);
}

const struct cert_choice *cert_set_find(const struct cert_set *set, struct str name)
{
    char text[NAME_MAX_LEN + 1];
    if (name.len == 0 || name.len > NAME_MAX_LEN) {
        return NULL;
    }
    name = lower(name, text);
    const struct cert_choice *choice = map_get(&set->names, name);
    size_t dot = str_find(name, '.');
    if (choice != NULL || dot == SIZE_MAX || dot == 0 || text[0] == '*') {
        return choice;
    }
    text[dot - 1] = '*';
    return map_get(&set->names, str_from(name, dot - 1));
}

const struct cert_choice *cert_set_default(const struct cert_set *set)
{
    return set->fallback;
}

size_t cert_set_count(const struct cert_set *set)
{
    return set->count;
}

struct cert_pair *cert_set_pair(const struct cert_set *set, size_t index)
{
    return set->pairs[index];
}
