/* A process that is the home of one endpoint needs neither builder nor janitor: what it has is given
 * to it at the start, and it ends with it. */
#include "endpoint/endpoint.h"
#include "endpoint/home.h"

#include <string.h>

struct endpoint *endpoint_alone(struct str file, const char *object, struct str build, const cJSON *sources,
                                unsigned loops, struct build_result *result)
{
    struct endpoint *e = endpoint_open(file);
    if (e == NULL || !hash_from_hex(build, result->content)) {
        build_fail(result, e == NULL ? "no endpoint, or no memory" : "its build has no hash");
        return NULL;
    }
    const cJSON *source;
    cJSON_ArrayForEach(source, sources)
    {
        if (cJSON_IsString(source)) {
            dependencies_add(&e->dependencies, str_of(source->valuestring), false);
        }
    }
    struct module *module = module_load(e, object, loops, &home_alone, result);
    if (module == NULL) {
        return NULL;
    }
    memcpy(e->content, result->content, HASH_SIZE);
    if ((module->entry.flags & 1u) != 0) {
        atomic_store(&e->place, PLACE_POOL);
    }
    atomic_store(&e->current, module);
    return e;
}

bool endpoint_alone_is_used(struct endpoint *e)
{
    return module_is_used(atomic_load(&e->current));
}

void endpoint_alone_end(struct endpoint *e)
{
    struct module *module = atomic_exchange(&e->current, NULL);
    if (module != NULL && !atomic_load(&module->crashed) && !module_is_used(module)) {
        module->entry.home->unload(module);
    }
}
