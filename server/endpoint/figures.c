/* DESIGN: what is counted of each endpoint, for the supervisor (supervisor/worker_figures.h). The way of
 * a request pays nothing for it: runs are the uses of modules that each loop counts on a cache line of
 * its own, because a module must not be unloaded under a request (endpoint.h). They are added up
 * here, a second apart, by the worker's first thread. A module that goes leaves its sum with its
 * endpoint, under the endpoint's lock, so that a sum never goes back. */
#include "endpoint/endpoint.h"

static int64_t runs(const struct module *module)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < module->loops; i++) {
        sum += atomic_load_explicit(&module->uses[i].begun, memory_order_relaxed);
    }
    return (int64_t)sum;
}

void figures_module_begins(struct module *module)
{
    struct endpoint *e = module->endpoint;
    pthread_mutex_lock(&e->lock);
    list_append(&e->loaded, &module->sibling);
    pthread_mutex_unlock(&e->lock);
}

void figures_module_ends(struct module *module)
{
    struct endpoint *e = module->endpoint;
    pthread_mutex_lock(&e->lock);
    e->hits_gone += runs(module);
    list_remove(&module->sibling);
    pthread_mutex_unlock(&e->lock);
}

void endpoint_timed_out(struct endpoint *e)
{
    endpoint_count(e, ENDPOINT_FIGURE_TIMEOUTS);
}

void endpoint_refused(struct endpoint *e)
{
    endpoint_count(e, ENDPOINT_FIGURE_REFUSED);
}

static void take(struct endpoint *e, int64_t figures[ENDPOINT_FIGURES])
{
    for (int i = 0; i < ENDPOINT_FIGURES; i++) {
        figures[i] = atomic_load_explicit(&e->counted[i], memory_order_relaxed);
    }
    pthread_mutex_lock(&e->lock);
    int64_t hits = e->hits_gone;
    LIST_EACH(node, &e->loaded) {
        hits += runs(LIST_ENTRY(node, struct module, sibling));
    }
    pthread_mutex_unlock(&e->lock);
    figures[ENDPOINT_FIGURE_HITS] = hits;
}

struct telling {
    bool all;
    endpoint_teller *tell;
    void *arg;
};

static bool tell_one(struct endpoint *e, void *arg)
{
    static const int64_t nothing[ENDPOINT_FIGURES];
    const struct telling *telling = arg;
    int64_t figures[ENDPOINT_FIGURES];
    take(e, figures);
    const int64_t *known = telling->all ? nothing : e->told;
    if (memcmp(figures, known, sizeof figures) == 0) {
        return true;
    }
    memcpy(e->told, figures, sizeof figures);
    return telling->tell(e->file, figures, telling->arg);
}

void endpoints_tell(bool all, endpoint_teller *tell, void *arg)
{
    struct telling telling = {all, tell, arg};
    registry_each(tell_one, &telling);
}
