/* DESIGN: builds and loads run on a few builder threads, one job per endpoint at a time, however
 * many requests wait for it. Endpoints that a request waits for come first. A job looks whether
 * the content of any file differs from the last attempt, builds, loads, publishes, wakes the
 * waiters, and only then writes the cache: whoever waits does not pay for that.
 * The janitor thread unloads old modules, and once a second looks after endpoints that no index
 * watches. `queued`, `running` and what a job reads and writes are guarded by the endpoint's lock;
 * the links of the queues by the queue's. */
#include "base/check.h"
#include "base/epoch.h"
#include "config/config.h"
#include "endpoint/endpoint.h"
#include "endpoint/home.h"
#include "endpoint/quarantine.h"
#include "isolate/isolate.h"
#include "observe/log.h"
#include "route/site_index.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BUILDERS = 4, ATTEMPTS = 3, DRAIN_MS = 10, TICK_MS = 1000, TIDY_SECONDS = 5, PRUNE_SECONDS = 6 * 3600 };

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static struct list urgent = {&urgent, &urgent};
static struct list normal = {&normal, &normal};
static bool stopping;

static pthread_mutex_t settings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings *settings_now;

static struct cache *cache;
static unsigned loop_count;
static pthread_t builders[BUILDERS];
static unsigned builder_count;
static pthread_t janitor;
static bool janitor_started;
static pthread_cond_t janitor_wake; /* with queue_lock; monotonic clock */

/* ---- settings ------------------------------------------------------------------------------------ */

struct settings *builder_settings_ref(void)
{
    pthread_mutex_lock(&settings_lock);
    struct settings *settings = settings_now != NULL ? settings_ref(settings_now) : NULL;
    pthread_mutex_unlock(&settings_lock);
    return settings;
}

void builder_settings(const struct config *config)
{
    struct settings *fresh = settings_create(config);
    if (fresh == NULL) {
        return;
    }
    pthread_mutex_lock(&settings_lock);
    struct settings *old = settings_now;
    bool other_builds = old == NULL || !settings_same_builds(old, fresh);
    if (!other_builds) {
        fresh->generation = old->generation;
    }
    settings_now = fresh;
    pthread_mutex_unlock(&settings_lock);
    settings_unref(old);
    registry_offload(fresh);
    if (other_builds) {
        registry_check_all();
    }
}

void endpoints_config_changed(const struct config *config)
{
    builder_settings(config);
}

/* ---- queue ------------------------------------------------------------------------------------------ */

bool builder_want(struct endpoint *e, unsigned wanted, bool is_urgent)
{
    pthread_mutex_lock(&queue_lock);
    if (stopping || builder_count == 0) {
        pthread_mutex_unlock(&queue_lock);
        return false;
    }
    e->wanted |= wanted;
    bool raise = is_urgent && !e->urgent;
    e->urgent = e->urgent || is_urgent;
    if (!e->running) { /* else its job queues it again at the end */
        if (!e->queued) {
            e->queued = true;
            list_append(e->urgent ? &urgent : &normal, &e->queue_node);
            pthread_cond_signal(&queue_filled);
        } else if (raise && !list_is_empty(&e->queue_node)) { /* empty: a builder has just taken it */
            list_remove(&e->queue_node);
            list_append(&urgent, &e->queue_node);
        }
    }
    pthread_mutex_unlock(&queue_lock);
    return true;
}

/* Waits for work; NULL when stopping. */
static struct endpoint *take_next(void)
{
    struct endpoint *e = NULL;
    pthread_mutex_lock(&queue_lock);
    while (!stopping && list_is_empty(&urgent) && list_is_empty(&normal)) {
        pthread_cond_wait(&queue_filled, &queue_lock);
    }
    if (!stopping) {
        struct list *node = list_is_empty(&urgent) ? normal.next : urgent.next;
        list_remove(node);
        e = LIST_ENTRY(node, struct endpoint, queue_node);
    }
    pthread_mutex_unlock(&queue_lock);
    return e;
}

/* ---- a job --------------------------------------------------------------------------------------------- */

/* The lock is held. Tells the log once per version of the file. */
static void set_failure(struct endpoint *e, const struct build_result *result, const struct settings *settings)
{
    struct buffer text = BUFFER_EMPTY;
    struct buffer page = BUFFER_EMPTY;
    build_error_text(result, e->file.ptr, settings->web_root, &text);
    build_error_page(result, e->file.ptr, settings->web_root, &page);
    bool news = !str_eq(buffer_str(&text), buffer_str(&e->failure.text));
    buffer_free(&e->failure.text);
    buffer_free(&e->failure.page);
    e->failure.text = text;
    e->failure.page = page;
    e->failure.transient = result->transient;
    e->failure.at = monotonic_seconds();
    pthread_mutex_lock(&queue_lock);
    bool quiet = !news || e->closed || stopping;
    pthread_mutex_unlock(&queue_lock);
    if (quiet) {
        return;
    }
    const struct diagnostic *error = diagnostics_first_error(&result->diagnostics);
    const char *hint = error != NULL ? build_error_hint(error->message) : NULL;
    const char *serves = atomic_load(&e->current) != NULL ? " (the last good build still answers)" : "";
    log_error("%.*s%s%s%s", STR_ARG(buffer_str(&text)), serves, hint != NULL ? " -- " : "", hint != NULL ? hint : "");
}

static void clear_failure(struct endpoint *e)
{
    buffer_free(&e->failure.text);
    buffer_free(&e->failure.page);
    e->failure = (struct failure){0};
}

static void log_built(const struct endpoint *e, const struct build_result *result, double started)
{
    double ms = (monotonic_seconds() - started) * 1000;
    log_info("%s: loaded in %.1f ms%s%s%s", e->file.ptr, ms, result->compiler[0] != '\0' ? ", built by " : "",
             result->compiler, result->from_cache ? ", from the cache" : "");
    for (size_t i = 0; i < result->diagnostics.count; i++) {
        const struct diagnostic *d = &result->diagnostics.items[i];
        if (d->severity == SEVERITY_WARNING) {
            log_info("%s:%u: warning: %s", d->file, d->line, d->message);
        }
    }
}

struct outcome {
    struct build_result result;
    struct build_result last_good; /* what `module` is of when the files do not build */
    struct build_job job;
    struct module *module; /* to publish; NULL: keep what is current */
};

/* Builds until it saw files that hold still. */
static void build(struct endpoint *e, const struct settings *settings, struct outcome *o)
{
    for (int i = 0; i < ATTEMPTS; i++) {
        build_result_free(&o->result);
        o->job = (struct build_job){.source = e->file.ptr, .settings = settings, .cache = cache};
        cache_private_path(cache, e->file, e->loader == &loader_so ? "" : ".so", o->job.output);
        o->result.compiler = "";
        e->loader->build(&o->job, &o->result);
        if (o->result.ok) {
            return;
        }
        unlink(o->job.output);
        if (!o->result.moved) {
            return;
        }
    }
}

/* In quarantine not even its kiln_load is run. */
static bool hold_back(struct endpoint *e, const struct build_result *result, struct outcome *o)
{
    if (quarantine_until(e->file.ptr, result->content) == 0) {
        return false;
    }
    unlink(o->job.output);
    return true;
}

/* Loads the build unless it is what is loaded already. */
static void load(struct endpoint *e, unsigned wanted, const struct home *home, struct outcome *o)
{
    const struct module *current = atomic_load(&e->current);
    bool same = current != NULL && current->entry.home == home && memcmp(o->result.content, e->content, HASH_SIZE) == 0;
    bool better = (wanted & WANT_SWAP) != 0 && o->result.optimized && !e->current_optimized;
    if (same && !better) {
        unlink(o->job.output); /* keeps the static variables of what runs */
        return;
    }
    if (hold_back(e, &o->result, o)) {
        return;
    }
    o->module = module_load(e, o->job.output, loop_count, home, &o->result);
    o->result.ok = o->module != NULL;
}

/* A worker that was started while the source does not build: what answered in the one before. */
static void load_last_good(struct endpoint *e, const struct settings *settings, struct outcome *o)
{
    struct build_result *good = &o->last_good;
    if (o->result.moved || e->loader != &loader_c || !settings->enable_c || atomic_load(&e->current) != NULL ||
        access(e->file.ptr, F_OK) != 0 || !cache_last_good(cache, e->file.ptr, settings, o->job.output, good)) {
        return;
    }
    if (!hold_back(e, good, o)) {
        o->module = module_load(e, o->job.output, loop_count, settings_home(settings, e->file), good);
    }
}

/* The lock is held. `result` is that of the module. */
static void publish(struct endpoint *e, struct outcome *o, const struct build_result *result,
                    const struct settings *settings)
{
    bool same = memcmp(e->content, result->content, HASH_SIZE) == 0;
    memcpy(e->content, result->content, HASH_SIZE);
    e->current_optimized = result->optimized;
    bool offload = (o->module->entry.flags & 1u) != 0 || settings_offload(settings, e->file);
    if (offload || !same) { /* what is known of the same source stays true */
        atomic_store_explicit(&e->place, offload ? PLACE_POOL : PLACE_TRIAL, memory_order_relaxed);
        atomic_store_explicit(&e->pace.slow_slices, 0, memory_order_relaxed);
        atomic_store_explicit(&e->pace.quick_slices, 0, memory_order_relaxed);
    }
    struct module *old = atomic_exchange_explicit(&e->current, o->module, memory_order_acq_rel);
    if (old != NULL) {
        module_retire(old);
        pthread_mutex_lock(&queue_lock);
        pthread_cond_signal(&janitor_wake);
        pthread_mutex_unlock(&queue_lock);
    }
}

/* The lock is held. Quarantine is about the build that would run now. */
static void look_at_quarantine(struct endpoint *e, bool published)
{
    const unsigned char *runs = atomic_load(&e->current) != NULL ? e->content : e->tried;
    uint64_t until = quarantine_until(e->file.ptr, runs);
    atomic_store(&e->quarantined_until_ms, until);
    if (published && until == 0) {
        quarantine_release(e->file.ptr, e->content);
    }
}

/* The lock is held. Takes the result's dependencies. */
static void record_attempt(struct endpoint *e, struct outcome *o, const struct settings *settings)
{
    e->attempted = true;
    e->settings_generation = settings->generation;
    include_names_change(&o->result.dependencies, &e->dependencies);
    dependencies_free(&e->dependencies);
    e->dependencies = o->result.dependencies;
    o->result.dependencies = (struct dependencies){0};
    e->unwatched = dependencies_unwatched(&e->dependencies, settings->web_root, settings->sdk_include);
    memcpy(e->tried, o->result.content, HASH_SIZE);
    if (!o->result.ok) {
        if (o->module != NULL) {
            publish(e, o, &o->last_good, settings);
        }
        set_failure(e, &o->result, settings);
        look_at_quarantine(e, o->module != NULL);
        return;
    }
    clear_failure(e);
    if (o->module != NULL) {
        publish(e, o, &o->result, settings);
    }
    look_at_quarantine(e, o->module != NULL);
    if (settings->optimize && settings->compiler != NULL && e->loader == &loader_c && !e->current_optimized) {
        optimizer_want(e);
    }
}

static void count(struct endpoint *e, const struct outcome *o)
{
    if (!o->result.from_cache && !o->result.moved) {
        endpoint_count(e, ENDPOINT_FIGURE_BUILDS);
        metric_add(METRIC_BUILDS, 1);
    }
    if (!o->result.ok && !o->result.moved) {
        endpoint_count(e, ENDPOINT_FIGURE_BUILDS_FAILED);
        metric_add(METRIC_BUILDS_FAILED, 1);
    }
    if (o->module != NULL) {
        endpoint_count(e, ENDPOINT_FIGURE_LOADS);
    }
}

static void attempt(struct endpoint *e, unsigned wanted, const struct settings *settings)
{
    double started = monotonic_seconds();
    struct outcome *o = calloc(1, sizeof *o);
    if (o == NULL) {
        return;
    }
    build(e, settings, o);
    if (o->result.ok) {
        load(e, wanted, settings_home(settings, e->file), o);
    }
    if (!o->result.ok) {
        load_last_good(e, settings, o);
    }
    count(e, o);
    bool loaded = o->module != NULL;
    pthread_mutex_lock(&e->lock);
    struct build_result *result = &o->result;
    if (result->moved && builder_want(e, WANT_CHECK, false)) {
        e->attempted = false; /* somebody is writing: no verdict, once more */
    } else {
        record_attempt(e, o, settings);
    }
    if (loaded) {
        endpoint_wake(e);
    }
    pthread_mutex_unlock(&e->lock);
    if (loaded && result->ok) {
        log_built(e, result, started);
        if (!result->from_cache && e->loader == &loader_c) {
            result->dependencies = e->dependencies; /* this job alone may change them */
            cache_store(cache, e->file.ptr,
                        result->optimized ? settings->native_fingerprint : settings->tcc_fingerprint, o->module->path,
                        result);
            result->dependencies = (struct dependencies){0};
        }
    }
    build_result_free(&o->last_good);
    build_result_free(result);
    free(o);
}

static void warm_up(const struct settings *settings)
{
    if (settings->enable_c && settings->helper != NULL) {
        helper_warm_up(settings->helper);
    }
}

static void run_job(struct endpoint *e)
{
    struct settings *settings = builder_settings_ref();
    pthread_mutex_lock(&e->lock);
    unsigned wanted = e->wanted;
    e->wanted = 0;
    e->urgent = false;
    e->queued = false;
    e->running = true;
    atomic_store_explicit(&e->check_wanted, false, memory_order_relaxed);
    bool known = e->attempted && e->settings_generation == settings->generation;
    bool skip = e->closed && list_is_empty(&e->waiters);
    include_names_building(true);
    pthread_mutex_unlock(&e->lock);

    if (!skip && ((wanted & (WANT_SWAP | WANT_AGAIN)) != 0 || !known || dependencies_changed(&e->dependencies, true))) {
        attempt(e, wanted, settings);
    }

    warm_up(settings);
    pthread_mutex_lock(&e->lock);
    include_names_building(false);
    e->running = false;
    if (e->wanted == 0 || !builder_want(e, 0, e->urgent)) {
        endpoint_wake(e);
    }
    pthread_mutex_unlock(&e->lock);
    settings_unref(settings);
}

static void *builder_main(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "kiln-build");
    struct settings *settings = builder_settings_ref();
    warm_up(settings);
    settings_unref(settings);
    struct endpoint *e;
    while ((e = take_next()) != NULL) {
        run_job(e);
    }
    return NULL;
}

/* ---- janitor ---------------------------------------------------------------------------------------------- */

/* False when stopping. */
static bool janitor_sleep(unsigned ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&queue_lock);
    if (!stopping) {
        pthread_cond_timedwait(&janitor_wake, &queue_lock, &until);
    }
    bool go_on = !stopping;
    pthread_mutex_unlock(&queue_lock);
    return go_on;
}

static void *janitor_main(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "kiln-janitor");
    double pruned = monotonic_seconds();
    double tidied = pruned;
    double ticked = 0;
    unsigned waiting = 0;
    cache_prune(cache);
    while (janitor_sleep(waiting > 0 ? DRAIN_MS : TICK_MS)) {
        epoch_reclaim();
        waiting = modules_drain();
        double now = monotonic_seconds();
        if (now - ticked >= TICK_MS / 1000.0) {
            ticked = now;
            struct site_index_counts counts = {0};
            site_index_counts(&counts);
            registry_tick(counts.degraded);
        }
        if (now - tidied >= TIDY_SECONDS) {
            tidied = now;
            cache_remove_dead_runs(cache);
        }
        if (now - pruned > PRUNE_SECONDS) {
            pruned = now;
            cache_prune(cache);
        }
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static bool start_threads(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&janitor_wake, &attributes);
    pthread_condattr_destroy(&attributes);
    while (builder_count < BUILDERS && pthread_create(&builders[builder_count], NULL, builder_main, NULL) == 0) {
        builder_count++;
    }
    janitor_started = pthread_create(&janitor, NULL, janitor_main, NULL) == 0;
    return builder_count > 0 && janitor_started && optimizer_start(cache);
}

bool endpoints_start(const struct config *config, unsigned loops)
{
    CHECK(loops > 0 && loops <= ENDPOINT_MAX_LOOPS);
    CHECK(cache == NULL);
    helpers_allow();
    stopping = false;
    loop_count = loops;
    builder_settings(config);
    struct settings *settings = builder_settings_ref();
    if (settings == NULL) {
        return false;
    }
    cache = cache_open(config->cache_dir.ptr, settings->web_root);
    const char *lack = settings_lack(settings);
    if (cache != NULL && settings->enable_c && lack != NULL) {
        log_warning("C sources cannot be compiled: %s", lack);
    }
    settings_unref(settings);
    if (cache == NULL) {
        return false;
    }
    if (!start_threads()) {
        log_error("cannot start the builder threads");
        endpoints_stop();
        return false;
    }
    return true;
}

/* No builder runs any more. */
static void forget_queue(struct list *queue)
{
    LIST_EACH(node, queue) {
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, queue_node);
        pthread_mutex_lock(&e->lock);
        list_remove(node);
        e->queued = false;
        e->wanted = 0;
        endpoint_wake(e);
        pthread_mutex_unlock(&e->lock);
    }
}

void endpoints_stop(void)
{
    if (cache == NULL) {
        return;
    }
    pthread_mutex_lock(&queue_lock);
    stopping = true;
    pthread_cond_broadcast(&queue_filled);
    pthread_cond_broadcast(&janitor_wake);
    pthread_mutex_unlock(&queue_lock);
    helpers_stop();
    isolation_cancel();
    optimizer_stop();
    while (builder_count > 0) {
        pthread_join(builders[--builder_count], NULL);
    }
    forget_queue(&urgent);
    forget_queue(&normal);
    if (janitor_started) {
        pthread_join(janitor, NULL);
        janitor_started = false;
    }
    registry_free_all();
    cache_close(cache);
    cache = NULL;
    pthread_mutex_lock(&settings_lock);
    settings_unref(settings_now);
    settings_now = NULL;
    pthread_mutex_unlock(&settings_lock);
}
