/* DESIGN: endpoints by file name, and what requests do with them. An endpoint is opened and closed
 * by the site index; after the last close it stays for a minute, so that an editor which deletes
 * and creates the file loses no good build, and for as long as a module or a waiting request
 * needs it. Requests take no lock while a good build is current. */
#include "base/check.h"
#include "base/epoch.h"
#include "base/map.h"
#include "endpoint/endpoint.h"
#include "endpoint/quarantine.h"
#include "observe/log.h"
#include "supervisor/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { KEEP_CLOSED_SECONDS = 60, RETRY_SECONDS = 3 };

static const struct loader *const loaders[] = {&loader_so, &loader_c};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct map by_file;
static struct list endpoints = {&endpoints, &endpoints};

double monotonic_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static const struct loader *loader_for(struct str file_name)
{
    for (size_t i = 0; i < ARRAY_LEN(loaders); i++) {
        struct str suffix = str_of(loaders[i]->suffix);
        if (file_name.len > suffix.len && str_ends(file_name, suffix) &&
            file_name.ptr[file_name.len - suffix.len - 1] != '/') {
            return loaders[i];
        }
    }
    return NULL;
}

bool endpoint_name_matches(struct str file_name)
{
    return loader_for(file_name) != NULL;
}

/* ---- life --------------------------------------------------------------------------------------- */

static struct endpoint *create(struct str file, const struct loader *loader)
{
    struct endpoint *e = calloc(1, sizeof *e);
    char *copy = strndup(file.ptr, file.len);
    if (e == NULL || copy == NULL) {
        free(e);
        free(copy);
        return NULL;
    }
    e->magic = ENDPOINT_MAGIC;
    e->loader = loader;
    e->file = (struct str){copy, file.len};
    pthread_mutex_init(&e->lock, NULL);
    list_init(&e->waiters);
    list_init(&e->queue_node);
    list_init(&e->optimize_node);
    list_init(&e->node);
    list_init(&e->loaded);
    struct settings *settings = builder_settings_ref();
    if (settings != NULL) {
        atomic_init(&e->place, settings_offload(settings, e->file) ? PLACE_POOL : PLACE_TRIAL);
        atomic_init(&e->timeout_ms, settings_request_timeout(settings, e->file));
        settings_unref(settings);
    }
    return e;
}

/* Its lock is held. A change concerns it: without any of these the next request, or nobody, builds it. A build that
 * found the file in motion leaves no verdict (attempted), but what it was to replace still answers. */
static bool is_in_use(const struct endpoint *e)
{
    return e->attempted || e->running || atomic_load(&e->current) != NULL;
}

struct endpoint *endpoint_open(struct str file)
{
    const struct loader *loader = loader_for(file);
    if (loader == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    struct endpoint *e = map_get(&by_file, file);
    if (e == NULL) {
        e = create(file, loader);
        if (e != NULL && !map_put(&by_file, file, e, NULL)) {
            free((char *)e->file.ptr);
            free(e);
            e = NULL;
        }
        if (e != NULL) {
            list_append(&endpoints, &e->node);
        }
    }
    if (e != NULL && ++e->references == 1) {
        pthread_mutex_lock(&e->lock);
        bool reopened = e->closed;
        e->closed = false;
        if (reopened && is_in_use(e)) { /* what runs may have read the file before */
            builder_want(e, WANT_CHECK, false);
        }
        pthread_mutex_unlock(&e->lock);
    }
    pthread_mutex_unlock(&lock);
    return e;
}

void endpoint_close(struct endpoint *e)
{
    MAGIC_CAST(struct endpoint, e, ENDPOINT_MAGIC);
    pthread_mutex_lock(&lock);
    CHECK(e->references > 0);
    if (--e->references == 0) {
        e->closed_at = monotonic_seconds();
        pthread_mutex_lock(&e->lock);
        e->closed = true; /* who waits for it is told by the build, which fails */
        pthread_mutex_unlock(&e->lock);
    }
    pthread_mutex_unlock(&lock);
}

static void free_endpoint(void *arg)
{
    struct endpoint *e = arg;
    include_names_change(&(struct dependencies){0}, &e->dependencies);
    dependencies_free(&e->dependencies);
    buffer_free(&e->failure.text);
    buffer_free(&e->failure.page);
    pthread_mutex_destroy(&e->lock);
    e->magic = 0;
    free((char *)e->file.ptr);
    free(e);
}

/* The registry's lock is held. True when it was taken out of the registry. */
static bool try_remove(struct endpoint *e, bool now)
{
    pthread_mutex_lock(&e->lock);
    bool busy =
        e->running || e->queued || e->optimize_queued || !list_is_empty(&e->waiters) || atomic_load(&e->holders) > 0;
    bool remove = !busy && (now || (e->closed && monotonic_seconds() - e->closed_at > KEEP_CLOSED_SECONDS));
    struct module *module = remove ? atomic_exchange(&e->current, NULL) : NULL;
    pthread_mutex_unlock(&e->lock);
    if (module != NULL) {
        module_retire(module);
    }
    if (!remove || atomic_load(&e->modules) > 0) {
        return false; /* its module drains first */
    }
    map_remove(&by_file, e->file);
    list_remove(&e->node);
    return true;
}

void endpoint_ref(struct endpoint *e)
{
    atomic_fetch_add_explicit(&e->holders, 1, memory_order_relaxed);
}

void endpoint_unref(struct endpoint *e)
{
    CHECK(atomic_fetch_sub_explicit(&e->holders, 1, memory_order_acq_rel) > 0);
}

/* ---- changes --------------------------------------------------------------------------------------- */

void endpoint_file_changed(struct endpoint *e)
{
    pthread_mutex_lock(&e->lock);
    if (is_in_use(e)) {
        builder_want(e, WANT_CHECK, false);
    }
    pthread_mutex_unlock(&e->lock);
}

void endpoints_include_changed(struct str file)
{
    if (!include_names_may_concern(file)) {
        return;
    }
    size_t slash = str_find_last(file, '/');
    struct str name = slash == SIZE_MAX ? file : str_from(file, slash + 1);
    pthread_mutex_lock(&lock);
    LIST_EACH(node, &endpoints) {
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, node);
        pthread_mutex_lock(&e->lock);
        /* By name alone, so that links and ".." do not matter; the builder looks closely. */
        if (is_in_use(e) && (e->running || !e->attempted || dependencies_name(&e->dependencies, name))) {
            builder_want(e, WANT_CHECK, false);
        }
        pthread_mutex_unlock(&e->lock);
    }
    pthread_mutex_unlock(&lock);
}

void endpoint_prepare(struct endpoint *e)
{
    pthread_mutex_lock(&e->lock);
    if (!e->attempted && !e->running && e->loader != &loader_so) {
        builder_want(e, WANT_BUILD, false);
    }
    pthread_mutex_unlock(&e->lock);
}

void registry_offload(const struct settings *settings)
{
    pthread_mutex_lock(&lock);
    LIST_EACH(node, &endpoints) {
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, node);
        atomic_store_explicit(&e->timeout_ms, settings_request_timeout(settings, e->file), memory_order_relaxed);
        if (settings_offload(settings, e->file)) {
            endpoint_set_offloaded(e, "OffloadEndpoints names it");
        }
    }
    pthread_mutex_unlock(&lock);
}

void registry_each(bool (*fn)(struct endpoint *endpoint, void *arg), void *arg)
{
    pthread_mutex_lock(&lock);
    struct list *last = endpoints.prev;
    bool go_on = !list_is_empty(&endpoints);
    for (struct list *node = endpoints.next; go_on;) {
        struct list *next = node->next;
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, node);
        go_on = fn(e, arg) && node != last;
        /* Whoever was looked at stands behind the others, for a caller that stops half-way. */
        list_remove(node);
        list_append(&endpoints, node);
        node = next;
    }
    pthread_mutex_unlock(&lock);
}

void registry_check_all(void)
{
    pthread_mutex_lock(&lock);
    LIST_EACH(node, &endpoints) {
        endpoint_file_changed(LIST_ENTRY(node, struct endpoint, node));
    }
    pthread_mutex_unlock(&lock);
}

static void tick_endpoint(struct endpoint *e, bool index_degraded)
{
    pthread_mutex_lock(&e->lock);
    bool look = e->attempted && !e->closed && (index_degraded || e->unwatched);
    /* A full disk, say, is no verdict on the new version: without a current build requests ask again. */
    bool again = e->attempted && !e->closed && e->failure.transient && atomic_load(&e->current) != NULL &&
                 monotonic_seconds() - e->failure.at > RETRY_SECONDS;
    if (again) {
        e->attempted = false;
        builder_want(e, WANT_CHECK, false);
    }
    pthread_mutex_unlock(&e->lock);
    if (look) {
        atomic_store_explicit(&e->check_wanted, true, memory_order_relaxed);
    }
}

void registry_tick(bool index_degraded)
{
    pthread_mutex_lock(&lock);
    LIST_EACH(node, &endpoints) {
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, node);
        if (e->references == 0) {
            if (try_remove(e, false)) {
                epoch_retire(free_endpoint, e);
            }
        } else {
            tick_endpoint(e, index_degraded);
        }
    }
    pthread_mutex_unlock(&lock);
}

void registry_free_all(void)
{
    pthread_mutex_lock(&lock);
    LIST_EACH(node, &endpoints) {
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, node);
        if (try_remove(e, true) && e->references == 0) {
            free_endpoint(e);
        }
    }
    pthread_mutex_unlock(&lock);
    modules_finish();
    /* Those whose module is still used, or whose owner has not closed them, stay for ever. */
    pthread_mutex_lock(&lock);
    LIST_EACH(node, &endpoints) {
        struct endpoint *e = LIST_ENTRY(node, struct endpoint, node);
        if (e->references == 0 && atomic_load(&e->modules) == 0 && atomic_load(&e->holders) == 0) {
            map_remove(&by_file, e->file);
            list_remove(&e->node);
            free_endpoint(e);
        }
    }
    if (by_file.count == 0) {
        map_free(&by_file);
        by_file = (struct map){0};
    }
    pthread_mutex_unlock(&lock);
}

/* ---- by requests --------------------------------------------------------------------------------------- */

void endpoint_wake(struct endpoint *e)
{
    LIST_EACH(node, &e->waiters) {
        struct endpoint_waiter *waiter = LIST_ENTRY(node, struct endpoint_waiter, node);
        list_remove(node);
        waiter->queued = false;
        waiter->posted = true;
        /* The last touch: its loop may free it at once. */
        loop_post(waiter->loop, &waiter->task);
    }
}

static enum endpoint_status wait_for_build(struct endpoint *e, struct endpoint_waiter *waiter)
{
    if (waiter != NULL && !waiter->queued) {
        waiter->queued = true;
        waiter->posted = false;
        list_append(&e->waiters, &waiter->node);
    }
    return ENDPOINT_BUILDING;
}

/* No build is current, or the files are to be looked at first. The lock is held. */
static enum endpoint_status acquire_locked(struct endpoint *e, unsigned loop_index, struct module **module,
                                           struct endpoint_waiter *waiter)
{
    bool look = waiter != NULL && atomic_exchange(&e->check_wanted, false);
    if (look && builder_want(e, WANT_CHECK, true)) {
        return wait_for_build(e, waiter);
    }
    struct module *current = atomic_load_explicit(&e->current, memory_order_acquire);
    if (current != NULL) {
        module_use(current, loop_index);
        *module = current;
        return ENDPOINT_READY;
    }
    if (e->running || e->queued) {
        builder_want(e, 0, true);
        return wait_for_build(e, waiter);
    }
    bool failed = e->failure.text.len > 0;
    if (failed && !(e->failure.transient && monotonic_seconds() - e->failure.at > RETRY_SECONDS)) {
        return ENDPOINT_FAILED;
    }
    e->attempted = e->attempted && !failed;
    return builder_want(e, WANT_BUILD, true) ? wait_for_build(e, waiter) : ENDPOINT_FAILED;
}

enum endpoint_status endpoint_acquire(struct endpoint *e, unsigned loop_index, struct module **module,
                                      struct endpoint_waiter *waiter)
{
    struct module *current = atomic_load_explicit(&e->current, memory_order_acquire);
    if (LIKELY(current != NULL) && LIKELY(!atomic_load_explicit(&e->check_wanted, memory_order_relaxed))) {
        module_use(current, loop_index);
        *module = current;
        return ENDPOINT_READY;
    }
    pthread_mutex_lock(&e->lock);
    enum endpoint_status status = acquire_locked(e, loop_index, module, waiter);
    pthread_mutex_unlock(&e->lock);
    return status;
}

bool endpoint_wait_cancel(struct endpoint *e, struct endpoint_waiter *waiter)
{
    pthread_mutex_lock(&e->lock);
    if (waiter->queued) {
        list_remove(&waiter->node);
        waiter->queued = false;
    }
    bool posted = waiter->posted;
    pthread_mutex_unlock(&e->lock);
    return !posted;
}

/* ---- quarantine ------------------------------------------------------------------------------------------ */

void endpoint_quarantine(struct str file, struct str build, uint64_t until_ms)
{
    unsigned char hash[HASH_SIZE];
    if (!hash_from_hex(build, hash)) {
        return;
    }
    quarantine_set(file.ptr, hash, until_ms);
    pthread_mutex_lock(&lock);
    struct endpoint *e = map_get(&by_file, file);
    if (e != NULL) {
        pthread_mutex_lock(&e->lock);
        const unsigned char *runs = atomic_load(&e->current) != NULL ? e->content : e->tried;
        if (memcmp(runs, hash, HASH_SIZE) == 0) {
            atomic_store(&e->quarantined_until_ms, until_ms);
        }
        pthread_mutex_unlock(&e->lock);
    }
    pthread_mutex_unlock(&lock);
}

/* The time has passed: whoever sees it first lets it run again. */
static void release(struct endpoint *e, uint64_t until)
{
    pthread_mutex_lock(&e->lock);
    unsigned char build[HASH_SIZE];
    memcpy(build, atomic_load(&e->current) != NULL ? e->content : e->tried, HASH_SIZE);
    bool first = atomic_compare_exchange_strong(&e->quarantined_until_ms, &until, 0);
    if (first && atomic_load(&e->current) == NULL) {
        builder_want(e, WANT_AGAIN, true);
    }
    pthread_mutex_unlock(&e->lock);
    if (first) {
        quarantine_release(e->file.ptr, build);
    }
}

static unsigned in_quarantine(struct endpoint *e, uint64_t until)
{
    uint64_t now = clock_now_ms();
    if (now >= until) {
        release(e, until);
        return 0;
    }
    if (atomic_exchange(&e->check_wanted, false)) {
        pthread_mutex_lock(&e->lock);
        builder_want(e, WANT_CHECK, false);
        pthread_mutex_unlock(&e->lock);
    }
    return (unsigned)((until - now + 999) / 1000);
}

unsigned endpoint_quarantined(struct endpoint *e)
{
    uint64_t until = atomic_load_explicit(&e->quarantined_until_ms, memory_order_relaxed);
    return LIKELY(until == 0) ? 0 : in_quarantine(e, until);
}

unsigned endpoint_crashes(const struct endpoint *e)
{
    return atomic_load_explicit(&e->crashes, memory_order_relaxed);
}

/* ---- what is known about it ------------------------------------------------------------------------------ */

bool endpoint_has_failed(struct endpoint *e)
{
    pthread_mutex_lock(&e->lock);
    bool failed = e->failure.page.len > 0;
    pthread_mutex_unlock(&e->lock);
    return failed;
}

void endpoint_error_text(struct endpoint *e, struct buffer *out)
{
    pthread_mutex_lock(&e->lock);
    if (e->failure.text.len > 0) {
        buffer_append_str(out, buffer_str(&e->failure.text));
    } else {
        buffer_append_z(out, "the server is stopping");
    }
    pthread_mutex_unlock(&e->lock);
}

void endpoint_error_page(struct endpoint *e, struct buffer *html)
{
    pthread_mutex_lock(&e->lock);
    buffer_append_str(html, buffer_str(&e->failure.page));
    pthread_mutex_unlock(&e->lock);
}

bool endpoint_is_offloaded(const struct endpoint *e)
{
    return atomic_load_explicit(&e->place, memory_order_relaxed) == PLACE_POOL;
}

bool endpoint_wants_pool(const struct endpoint *e)
{
    return atomic_load_explicit(&e->place, memory_order_relaxed) != PLACE_LOOP;
}

bool endpoint_is_on_trial(const struct endpoint *e)
{
    return atomic_load_explicit(&e->place, memory_order_relaxed) == PLACE_TRIAL;
}

void endpoint_trial_passed(struct endpoint *e)
{
    unsigned char trial = PLACE_TRIAL;
    atomic_compare_exchange_strong(&e->place, &trial, PLACE_LOOP);
}

uint64_t endpoint_timeout_ms(const struct endpoint *e)
{
    return atomic_load_explicit(&e->timeout_ms, memory_order_relaxed);
}

void endpoint_set_offloaded(struct endpoint *e, const char *why)
{
    if (atomic_exchange(&e->place, PLACE_POOL) != PLACE_POOL) {
        log_notice("%s runs on the thread pool from now on: %s", e->file.ptr, why);
    }
}

struct endpoint_pace *endpoint_pace(struct endpoint *e)
{
    return &e->pace;
}

struct str endpoint_file(const struct endpoint *e)
{
    return e->file;
}
