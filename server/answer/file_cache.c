#include "answer/file_cache.h"

#include "answer/cached_file.h"
#include "base/epoch.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* What one file may take of the whole. */
enum { SHARE = 4 };

static struct {
    pthread_mutex_t lock;
    struct list ring; /* oldest first; one that was used goes round once more */
    size_t files;
    size_t bytes;
    size_t limit;
    unsigned descriptors;
    unsigned max_descriptors;
    struct config *config; /* that all entries were made from; keeps its address taken */
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER, .ring = {&cache.ring, &cache.ring}};

void file_cache_lock(void)
{
    pthread_mutex_lock(&cache.lock);
}

void file_cache_unlock(void)
{
    pthread_mutex_unlock(&cache.lock);
}

/* ---- references ---------------------------------------------------------------------------- */

void file_form_free(struct file_form *form)
{
    if (form == NULL) {
        return;
    }
    if (form->fd >= 0) {
        close(form->fd);
    }
    free((void *)(uintptr_t)form->body);
    free(form->head_memory);
    free(form);
}

void cached_file_ref(struct cached_file *file)
{
    atomic_fetch_add_explicit(&file->references, 1, memory_order_relaxed);
}

void cached_file_unref(void *arg)
{
    struct cached_file *file = MAGIC_CAST(struct cached_file, arg, CACHED_FILE_MAGIC);
    if (atomic_fetch_sub_explicit(&file->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    CHECK(file->node == NULL);
    for (int i = 0; i < CODING_COUNT; i++) {
        file_form_free(atomic_load_explicit(&file->forms[i], memory_order_relaxed));
    }
    file->magic = 0;
    free(file->path);
    free(file);
}

/* ---- in and out, under the lock ----------------------------------------------------------------- */

/* Out of its node's slot, onto `dropped`: what is there keeps the cache's reference until
 * drop_all(), which must run without the lock (a reclaim may free nodes, which locks). */
static void unpublish(struct cached_file *file, struct list *dropped)
{
    atomic_store_explicit(&file->node->cached, NULL, memory_order_release);
    file->node = NULL;
    cache.files--;
    cache.bytes -= file->charge;
    cache.descriptors -= file->descriptors;
    list_remove(&file->ring);
    list_append(dropped, &file->ring);
}

static void drop_all(struct list *dropped)
{
    LIST_EACH(it, dropped) {
        epoch_retire(cached_file_unref, LIST_ENTRY(it, struct cached_file, ring));
    }
}

/* Second chance: what was used since it was last looked at goes to the end. NULL when
 * nothing but `spare` is left to go. */
static struct cached_file *find_victim(const struct cached_file *spare, bool only_descriptors)
{
    for (size_t looks = 2 * cache.files; looks > 0; looks--) {
        struct cached_file *file = LIST_ENTRY(cache.ring.next, struct cached_file, ring);
        list_remove(&file->ring);
        list_append(&cache.ring, &file->ring);
        if (file != spare && (!only_descriptors || file->descriptors > 0) &&
            !atomic_exchange_explicit(&file->used, false, memory_order_relaxed)) {
            return file;
        }
    }
    return NULL;
}

static void make_room(const struct cached_file *spare, struct list *dropped)
{
    while (cache.bytes > cache.limit || cache.descriptors > cache.max_descriptors) {
        struct cached_file *victim = find_victim(spare, cache.bytes <= cache.limit);
        if (victim == NULL) {
            return;
        }
        unpublish(victim, dropped);
    }
}

static void adopt_config(struct config *config, struct list *dropped)
{
    if (cache.max_descriptors == 0) {
        struct rlimit limit = {0};
        getrlimit(RLIMIT_NOFILE, &limit);
        cache.max_descriptors = limit.rlim_cur > 16384 ? 4096 : limit.rlim_cur > 64 ? (unsigned)limit.rlim_cur / 4 : 16;
    }
    LIST_EACH(it, &cache.ring) {
        unpublish(LIST_ENTRY(it, struct cached_file, ring), dropped);
    }
    cache.config = config != NULL ? config_ref(config) : NULL;
    cache.limit = config != NULL && config->file_cache_size > 0 ? (size_t)config->file_cache_size : 0;
}

/* ---- by requests --------------------------------------------------------------------------------- */

static void measure(struct cached_file *file)
{
    file->charge = sizeof *file;
    file->descriptors = 0;
    for (int i = 0; i < CODING_COUNT; i++) {
        const struct file_form *form = atomic_load_explicit(&file->forms[i], memory_order_relaxed);
        file->charge += form != NULL ? form->charge : 0;
        file->descriptors += form != NULL && form->fd >= 0;
    }
}

/* Under the lock. */
static struct cached_file *take_slot(struct cached_file *file, struct site_node *slot, struct list *dropped)
{
    struct cached_file *present = atomic_load_explicit(&slot->cached, memory_order_relaxed);
    if (present != NULL) {
        bool same = present->config == file->config && file_identity_equal(&present->identity, &file->identity);
        return same ? present : file;
    }
    if (file->charge <= cache.limit / SHARE) {
        cached_file_ref(file);
        file->node = slot;
        list_append(&cache.ring, &file->ring);
        cache.files++;
        cache.bytes += file->charge;
        cache.descriptors += file->descriptors;
        atomic_store_explicit(&slot->cached, file, memory_order_release);
        make_room(file, dropped);
    }
    return file;
}

struct cached_file *file_cache_publish(struct cached_file *file, const struct site_node *node,
                                       const struct config *config)
{
    struct config *current = config_current();
    if (config != current) {
        return file; /* a request of before the reload */
    }
    struct list dropped;
    struct config *old = NULL;
    list_init(&dropped);
    measure(file);
    file_cache_lock();
    if (cache.config != current) {
        old = cache.config;
        adopt_config(current, &dropped);
    }
    struct cached_file *kept = take_slot(file, (struct site_node *)(uintptr_t)node, &dropped);
    if (kept != file) {
        cached_file_ref(kept);
    }
    file_cache_unlock();
    if (kept != file) {
        cached_file_unref(file);
    }
    drop_all(&dropped);
    if (old != NULL) {
        config_unref(old);
    }
    return kept;
}

bool file_cache_add_form(struct cached_file *file, struct file_form *form)
{
    struct list dropped;
    list_init(&dropped);
    file_cache_lock();
    bool fits = form->charge <= cache.limit / SHARE;
    if (fits) {
        atomic_store_explicit(&file->forms[form->coding], form, memory_order_release);
        if (file->node != NULL) {
            file->charge += form->charge;
            cache.bytes += form->charge;
            make_room(file, &dropped);
        }
    }
    file_cache_unlock();
    drop_all(&dropped);
    if (!fits) {
        file_form_free(form);
    }
    return fits;
}

static bool is_unchanged(const struct cached_file *file, const struct site_node *node, const struct config *config)
{
    struct stat st;
    if (stat(file->path, &st) != 0) {
        return false;
    }
    struct file_identity identity = file_identity_of(&st);
    if (!file_identity_equal(&identity, &file->identity) || (file->weak && !file_identity_is_young(&file->identity))) {
        return false;
    }
    for (int i = 0; i < CODING_IDENTITY; i++) {
        const struct site_node *sibling = file_sibling(node, config, &file->identity, (enum coding)i);
        struct file_identity now = {0};
        if (sibling != NULL) {
            now = (struct file_identity){sibling->device, sibling->inode, sibling->size, sibling->mtime};
        }
        if (!file_identity_equal(&now, &file->siblings[i])) {
            return false;
        }
    }
    return true;
}

/* Takes the file out of the slot, if it is (still) in it. */
static void drop_from(struct site_node *node, const struct cached_file *only)
{
    struct list dropped;
    list_init(&dropped);
    file_cache_lock();
    struct cached_file *file = atomic_load_explicit(&node->cached, memory_order_relaxed);
    if (file != NULL && (only == NULL || file == only)) {
        unpublish(file, &dropped);
    }
    file_cache_unlock();
    drop_all(&dropped);
}

bool cached_file_recheck(struct cached_file *file, const struct site_node *node, const struct config *config,
                         int64_t now)
{
    int64_t seen = atomic_load_explicit(&file->checked_second, memory_order_relaxed);
    if (seen == now || !atomic_compare_exchange_strong(&file->checked_second, &seen, now)) {
        return true; /* another thread looks */
    }
    if (is_unchanged(file, node, config)) {
        return true;
    }
    drop_from((struct site_node *)(uintptr_t)node, file);
    return false;
}

/* ---- by the site index -------------------------------------------------------------------------------- */

void file_cache_forget(struct site_node *node)
{
    if (atomic_load_explicit(&node->cached, memory_order_relaxed) != NULL) {
        drop_from(node, NULL);
    }
}

void file_cache_url_changed(struct site *site, struct str url)
{
    for (int i = 0; i < CODING_IDENTITY; i++) {
        struct str suffix = coding_infos[i].suffix;
        if (!str_ends(url, suffix)) {
            continue;
        }
        const struct site_node *original = site_lookup(site, str_first(url, url.len - suffix.len));
        if (original != NULL && atomic_load_explicit(&original->cached, memory_order_relaxed) != NULL) {
            drop_from((struct site_node *)(uintptr_t)original, NULL);
        }
        return;
    }
}

void file_cache_stop(void)
{
    struct list dropped;
    list_init(&dropped);
    file_cache_lock();
    struct config *old = cache.config;
    adopt_config(NULL, &dropped);
    file_cache_unlock();
    drop_all(&dropped);
    if (old != NULL) {
        config_unref(old);
    }
}

void file_cache_counts(struct file_cache_counts *out)
{
    file_cache_lock();
    *out = (struct file_cache_counts){cache.files, cache.bytes, cache.descriptors};
    file_cache_unlock();
}
