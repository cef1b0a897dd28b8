/* DESIGN: where the code of a module lives. Here, in the worker, is what is fast; an endpoint that is
 * trusted less lives in a process of its own (isolate/isolate.h). Build, cache, reload, quarantine and
 * the use counts are the same for both: they know a home by this vtable alone. */
#ifndef KILN_ENDPOINT_HOME_H
#define KILN_ENDPOINT_HOME_H

#include "endpoint/build.h"
#include "endpoint/loader.h"

#include <cjson/cJSON.h>

struct home {
    const char *name;
    /* Loads what lies at module->path and has it run its kiln_load. False with the reason in `result`;
     * then close() follows. On a builder thread; may take seconds. */
    bool (*open)(struct module *module, const struct elf_facts *facts, struct build_result *result);
    /* No request uses it any more: kiln_unload. */
    void (*unload)(struct module *module);
    /* Afterwards: lets it go. False: it has to stay, and the module with it. */
    bool (*close)(struct module *module);
    /* On the request's loop, which holds the module: runs the endpoint for it and completes the
     * response. Gives the module back. */
    void (*start)(struct kiln_context *ctx);
};

extern const struct home home_here; /* module.c, answer/endpoint.c */
extern const struct home home_alone; /* the same in a process that has no other endpoint (isolate/host.c) */
extern const struct home home_isolated; /* isolate/isolate.c */

/* Where an endpoint with this file lives: option Isolate. */
const struct home *settings_home(const struct settings *settings, struct str file);

/* home_here.start (answer/endpoint.c). */
void endpoint_start_here(struct kiln_context *ctx);

/* The one endpoint of a process: `object` is its build, whose hash is `build`, made from `sources`, an array of
 * paths (alone.c). NULL with the reason in `result`. */
struct endpoint *endpoint_alone(struct str file, const char *object, struct str build, const cJSON *sources,
                                unsigned loops, struct build_result *result);
bool endpoint_alone_is_used(struct endpoint *endpoint);
/* It unloads, unless a request holds it still. */
void endpoint_alone_end(struct endpoint *endpoint);

#endif
