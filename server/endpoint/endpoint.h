/* Inside of endpoints and modules, shared by registry.c, builder.c and module.c. Locks, in the
 * order in which they may be taken: registry, endpoint, builder queue; janitor alone. */
#ifndef KILN_ENDPOINT_ENDPOINT_H
#define KILN_ENDPOINT_ENDPOINT_H

#include "endpoint/build.h"
#include "endpoint/crash.h"
#include "endpoint/loader.h"
#include "observe/metrics.h"

#include <pthread.h>

enum { ENDPOINT_MAGIC = 0x656e6470, MODULE_MAGIC = 0x6d6f6475 };

/* What the builder is asked to do; several may be pending. */
enum wanted {
    WANT_BUILD = 1, /* was never built */
    WANT_CHECK = 2, /* files may have changed: look, and build if they did */
    WANT_AGAIN = 8, /* its quarantine is over */
    WANT_SWAP = 4, /* an optimised build of the same content is in the cache */
};

/* Where its requests run. A new build is tried on the pool, where it can delay nobody, until a few
 * runs have shown that it is quick (pace.h). */
enum place { PLACE_LOOP, PLACE_TRIAL, PLACE_POOL };

struct failure {
    struct buffer text; /* one line; len 0: the last build did not fail */
    struct buffer page;
    bool transient;
    double at; /* monotonic seconds */
};

struct endpoint {
    uint32_t magic;
    /* Read by every request. */
    _Atomic bool check_wanted; /* the next request asks the builder to look at the files first */
    _Atomic unsigned char place; /* enum place */
    _Atomic uint64_t timeout_ms; /* RequestTimeout; 0: none */
    _Atomic(struct module *) current; /* epoch-protected until used */
    _Atomic uint64_t quarantined_until_ms; /* 0: it may run */

    const struct loader *loader;
    struct str file; /* absolute, NUL-terminated, owned */
    struct list node; /* registry: all endpoints */
    unsigned references; /* of the index, registry lock; 0: closed */
    _Atomic unsigned holders; /* requests that wait */
    struct endpoint_pace pace;
    double closed_at;

    pthread_mutex_t lock; /* everything below */
    struct list waiters;
    struct list queue_node; /* builder: in one of its queues */
    bool queued; /* until a builder has begun with it */
    bool urgent;
    bool running; /* a builder works on it, and alone may change what follows */
    unsigned wanted; /* enum wanted */
    bool attempted; /* dependencies are those of the last attempt */
    unsigned settings_generation;
    struct dependencies dependencies;
    bool unwatched; /* some lie where no index watches */
    struct failure failure;
    unsigned char content[HASH_SIZE]; /* of the current module */
    unsigned char tried[HASH_SIZE]; /* of the last attempt */
    bool current_optimized;
    bool closed;
    bool optimize_queued;
    bool optimize_again; /* another version came meanwhile */
    struct list optimize_node; /* builder: waits for an optimised build */
    _Atomic unsigned modules; /* loaded and not yet unmapped */
    _Atomic unsigned crashes; /* in this worker */
    /* For figures.c: what is rare is counted here, runs in their modules. */
    _Atomic int64_t counted[ENDPOINT_FIGURES];
    struct list loaded; /* modules, those included that drain */
    int64_t hits_gone; /* of modules that are not loaded any more */
    int64_t told[ENDPOINT_FIGURES]; /* registry lock */
};

/* Written by its loop alone: requests that took the module, and that gave it back. So the number of
 * runs costs nothing beyond what unloading needs to know. */
struct module_use {
    _Alignas(64) _Atomic uint64_t begun;
    _Atomic uint64_t ended;
};

struct module {
    struct module_entry entry; /* first: module_entry() is a cast */
    uint32_t magic;
    struct endpoint *endpoint;
    struct crash_text text;
    void *handle; /* dlopen; here */
    void *away; /* the home's own, elsewhere */
    void (*unload)(const struct kiln_module *sdk);
    char *path; /* private copy; removed at the end */
    unsigned char content[HASH_SIZE]; /* of the build */
    _Atomic bool crashed; /* stays mapped for ever */
    struct crash_guard guard; /* around kiln_load and kiln_unload */
    struct kiln_module sdk; /* as kiln_load and kiln_unload see it; directory is owned */
    struct list node; /* janitor: draining */
    struct list sibling; /* endpoint: loaded */
    unsigned loops;
    struct module_use uses[];
};

/* ---- module.c ---------------------------------------------------------------------------------- */
/* Loads the private copy at `path` (removed on failure). NULL with the reason in `result`. */
struct module *module_load(struct endpoint *endpoint, const char *path, unsigned loops, const struct home *home,
                           struct build_result *result);
/* Unloads it once no loop can see it and no request uses it. */
void module_retire(struct module *module);
/* Unloads what is drained; returns how many modules still wait. Janitor thread. */
unsigned modules_drain(void);
/* Unloads what is left at the end; modules in use stay mapped. */
void modules_finish(void);

static inline void module_use(struct module *module, unsigned loop_index)
{
    _Atomic uint64_t *begun = &module->uses[loop_index].begun;
    atomic_store_explicit(begun, atomic_load_explicit(begun, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* ---- figures.c ------------------------------------------------------------------------------------ */
/* What is too rare to mind that threads share it. */
static inline void endpoint_count(struct endpoint *endpoint, enum endpoint_figure figure)
{
    atomic_fetch_add_explicit(&endpoint->counted[figure], 1, memory_order_relaxed);
}

/* The module ends, or begins, to count for its endpoint. */
void figures_module_begins(struct module *module);
void figures_module_ends(struct module *module);

/* ---- builder.c ----------------------------------------------------------------------------------- */
bool builder_start(const struct config *config, unsigned loops);
void builder_stop(void);
void builder_settings(const struct config *config);
/* A reference of the caller's. */
struct settings *builder_settings_ref(void);
/* Asks for work on it; the endpoint's lock is held. Urgent: a request waits. False while stopping. */
bool builder_want(struct endpoint *endpoint, unsigned wanted, bool urgent);

/* ---- optimizer.c ------------------------------------------------------------------------------------ */
bool optimizer_start(struct cache *object_cache);
void optimizer_stop(void);
/* Builds it with gcc or clang when there is time. Endpoint's lock is held. */
void optimizer_want(struct endpoint *endpoint);

/* ---- include_names.c -------------------------------------------------------------------------------- */
/* An endpoint's dependencies become `added` instead of `removed`. */
void include_names_change(const struct dependencies *added, const struct dependencies *removed);
void include_names_building(bool begins);
/* False: no endpoint can depend on this file. */
bool include_names_may_concern(struct str file);

/* ---- registry.c --------------------------------------------------------------------------------------- */
double monotonic_seconds(void);
/* Wakes every waiter; the endpoint's lock is held. */
void endpoint_wake(struct endpoint *endpoint);
/* Tells requests of endpoints that nobody watches to look first; frees endpoints that were closed
 * long ago. Janitor thread, once a second. */
void registry_tick(bool index_degraded);
void registry_free_all(void);
/* Calls fn for each endpoint under the registry's lock, until it returns false; the next time it begins
 * with those that were left out. */
void registry_each(bool (*fn)(struct endpoint *endpoint, void *arg), void *arg);
/* Moves endpoints that the settings name to the pool. */
void registry_offload(const struct settings *settings);
/* Other settings hold: what was built or failed is looked at again, in the background. */
void registry_check_all(void);

#endif
