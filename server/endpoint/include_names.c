/* The last path components of all files that current builds depend on, counted. The index tells of
 * every changed file, thousands in a burst, and nearly none of them is an include: those are
 * dismissed by one look-up. While a build runs, its dependencies are not known yet, so nothing is
 * dismissed. */
#include "base/map.h"
#include "endpoint/endpoint.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct map counts; /* name -> how often, as a pointer's value */
static unsigned building;

static struct str name_of(const char *path)
{
    struct str all = str_of(path);
    size_t slash = str_find_last(all, '/');
    return slash == SIZE_MAX ? all : str_from(all, slash + 1);
}

void include_names_change(const struct dependencies *added, const struct dependencies *removed)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < added->count; i++) {
        struct str name = name_of(added->items[i].path);
        uintptr_t count = (uintptr_t)map_get(&counts, name);
        map_put(&counts, name, (void *)(count + 1), NULL);
    }
    for (size_t i = 0; i < removed->count; i++) {
        struct str name = name_of(removed->items[i].path);
        uintptr_t count = (uintptr_t)map_get(&counts, name);
        if (count <= 1) {
            map_remove(&counts, name);
        } else {
            map_put(&counts, name, (void *)(count - 1), NULL);
        }
    }
    if (counts.count == 0) {
        map_free(&counts);
        counts = (struct map){0};
    }
    pthread_mutex_unlock(&lock);
}

void include_names_building(bool begins)
{
    pthread_mutex_lock(&lock);
    building += begins ? 1u : -1u;
    pthread_mutex_unlock(&lock);
}

bool include_names_may_concern(struct str file)
{
    size_t slash = str_find_last(file, '/');
    struct str name = slash == SIZE_MAX ? file : str_from(file, slash + 1);
    pthread_mutex_lock(&lock);
    bool concern = building > 0 || map_get(&counts, name) != NULL;
    pthread_mutex_unlock(&lock);
    return concern;
}
