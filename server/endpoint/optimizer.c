/* DESIGN: where gcc or clang is installed, every C source that libtcc built is built again with
 * optimisation, by one thread with time to spare. The object goes to the cache, where any later
 * load of the same content finds it, and it takes the running build's place at once when that
 * loses nothing: no writable variable, no constructor, no kiln_load. A `static int visits` keeps
 * the libtcc build until the server restarts or the source changes. Edits in quick succession are
 * built once. */
#include "base/check.h"
#include "endpoint/endpoint.h"
#include "observe/log.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 4, PAUSE_MS = 150 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static struct list waiting = {&waiting, &waiting};
static bool stopping;
static bool started;
static pthread_t thread;
static struct cache *cache;

void optimizer_want(struct endpoint *e)
{
    if (e->optimize_queued) {
        e->optimize_again = true; /* what is being compiled may be the version before */
        return;
    }
    e->optimize_queued = true;
    pthread_mutex_lock(&lock);
    list_append(&waiting, &e->optimize_node);
    pthread_cond_signal(&filled);
    pthread_mutex_unlock(&lock);
}

/* Lets an editor's burst of writes pass. False when stopping. */
static bool pause_a_little(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PAUSE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    while (!stopping && pthread_cond_timedwait(&filled, &lock, &until) != ETIMEDOUT) {
    }
    bool go_on = !stopping;
    pthread_mutex_unlock(&lock);
    return go_on;
}

static struct endpoint *take_next(void)
{
    struct endpoint *e = NULL;
    pthread_mutex_lock(&lock);
    while (!stopping && list_is_empty(&waiting)) {
        pthread_cond_wait(&filled, &lock);
    }
    if (!stopping) {
        struct list *node = waiting.next;
        list_remove(node);
        e = LIST_ENTRY(node, struct endpoint, optimize_node);
    }
    pthread_mutex_unlock(&lock);
    return e;
}

/* Stores the object; asks the builder to load it when nothing is lost by that. */
static void take_result(struct endpoint *e, const char *object, struct build_result *result,
                        const struct settings *settings)
{
    pthread_mutex_lock(&e->lock);
    bool same = !e->running && memcmp(e->content, result->content, HASH_SIZE) == 0;
    /* What libtcc looked for in vain invalidates this build as well. */
    for (size_t i = 0; same && i < e->dependencies.count; i++) {
        if (e->dependencies.items[i].missing) {
            dependencies_add(&result->dependencies, str_of(e->dependencies.items[i].path), true);
        }
    }
    pthread_mutex_unlock(&e->lock);
    if (!same) {
        return; /* edited meanwhile: the new version is queued by itself */
    }
    cache_store(cache, e->file.ptr, settings->native_fingerprint, object, result);
    if (elf_has_state(object)) {
        log_debug("%s: the optimised build waits for the next start, because the running one has state", e->file.ptr);
        return;
    }
    pthread_mutex_lock(&e->lock);
    if (!e->closed) {
        builder_want(e, WANT_SWAP, false);
    }
    pthread_mutex_unlock(&e->lock);
}

/* The files are those of the running build: what was edited since is queued by itself. Together with the comparison
 * of take_result this also covers an include that changes while the compiler reads it. */
static bool is_up_to_date(struct endpoint *e)
{
    pthread_mutex_lock(&e->lock);
    e->optimize_again = false;
    bool same = !dependencies_changed(&e->dependencies, false);
    pthread_mutex_unlock(&e->lock);
    return same;
}

static void optimize(struct endpoint *e)
{
    struct settings *settings = builder_settings_ref();
    struct build_job *job = calloc(1, sizeof *job);
    struct build_result result = {0};
    if (job != NULL && settings != NULL && settings->compiler != NULL && settings->helper != NULL &&
        settings->sdk_include != NULL) {
        job->source = e->file.ptr;
        job->settings = settings;
        job->cache = cache;
        cache_private_path(cache, e->file, ".fast.so", job->output);
        if (native_build(job, &result, PATIENCE)) {
            take_result(e, job->output, &result, settings);
        } else {
            const struct diagnostic *error = diagnostics_first_error(&result.diagnostics);
            log_debug("%s: no optimised build: %s", e->file.ptr, error != NULL ? error->message : "unknown error");
        }
        unlink(job->output);
    }
    build_result_free(&result);
    free(job);
    settings_unref(settings);
}

static void *optimizer_main(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "kiln-optimize");
    struct endpoint *e;
    while ((e = take_next()) != NULL) {
        if (pause_a_little() && is_up_to_date(e)) {
            optimize(e);
        }
        pthread_mutex_lock(&e->lock);
        e->optimize_queued = false;
        if (e->optimize_again && !e->closed) {
            optimizer_want(e);
        }
        pthread_mutex_unlock(&e->lock);
    }
    return NULL;
}

bool optimizer_start(struct cache *object_cache)
{
    cache = object_cache;
    stopping = false;
    started = pthread_create(&thread, NULL, optimizer_main, NULL) == 0;
    return started;
}

void optimizer_stop(void)
{
    if (!started) {
        return;
    }
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_broadcast(&filled);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    started = false;
    LIST_EACH(node, &waiting) {
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, optimize_node);
        list_remove(node);
        e->optimize_queued = false;
    }
}
