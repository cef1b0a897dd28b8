#include "route/site_index.h"

#include "base/check.h"
#include "base/epoch.h"
#include "observe/log.h"
#include "route/progress.h"
#include "route/scan.h"
#include "route/tree.h"
#include "route/watch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* The directory in BackendDir that answers for hosts that have none of their own. */
static const char fallback_site[] = "default";

/* ---- life -------------------------------------------------------------------------------- */

bool site_index_start(const struct config *config, bool watch)
{
    if (!settings_take(&tree.settings, config)) {
        return false;
    }
    tree_lock();
    tree.layout = tree.settings.layout;
    tree.root = tree.settings.root;
    tree.single = tree_site(STR(""));
    tree.hosts_changed = true;
    tree.scanning_first = true;
    if (watch) {
        watch_start();
    }
    progress_begin();
    bool ok = tree.single != NULL && scan_all();
    int error = errno;
    scan_finish();
    progress_end();
    tree.scanning_first = false;
    tree_unlock();
    if (!ok) {
        log_error("cannot serve %s: %s", tree.settings.root.ptr, strerror(error));
        site_index_stop();
        return false;
    }
    if (watch) {
        watch_thread_start();
    }
    return true;
}

static void site_free(void *arg)
{
    struct site *site = arg;
    path_table_free(&site->table);
    free(site);
}

static void retire_sites(void)
{
    size_t cursor = 0;
    struct str name;
    void *value;
    while (map_next(&tree.sites, &cursor, &name, &value)) {
        epoch_retire(site_free, value); /* behind its cells, which name it */
    }
    map_free(&tree.sites);
    tree.single = NULL;
}

void site_index_stop(void)
{
    watch_thread_stop();
    tree_lock();
    tree_clear();
    if (tree.top != NULL) {
        scan_forget(tree.top);
        free(tree.top);
        tree.top = NULL;
    }
    tree_publish_no_hosts();
    retire_sites();
    map_free(&tree.links_by_target);
    scan_forget_root();
    settings_free(&tree.settings);
    tree.root = STR_NONE;
    atomic_store(&tree.degraded, false);
    atomic_store(&tree.watches, 0);
    tree_unlock();
    epoch_reclaim();
}

void site_index_config_changed(const struct config *config)
{
    struct index_settings fresh;
    if (!settings_take(&fresh, config)) {
        return;
    }
    tree_lock();
    pthread_mutex_lock(&tree.rules_lock);
    struct index_settings before = tree.settings;
    if (!str_eq(before.root, fresh.root) || before.layout != fresh.layout) {
        log_warning("the web directory or its layout changed: that takes effect when the server is restarted");
    }
    /* Nodes and readers build on the root as it was at the start. */
    struct str root = fresh.root;
    fresh.root = before.root;
    before.root = root;
    fresh.layout = before.layout;
    tree.settings = fresh;
    pthread_mutex_unlock(&tree.rules_lock);
    tree_unlock();
    settings_free(&before);
    watch_request_scan();
}

/* ---- lookup -------------------------------------------------------------------------------- */

struct site *site_find(struct str hostname)
{
    if (tree.layout != SITE_PER_HOST) {
        return tree.single;
    }
    const struct host_map *hosts = atomic_load_explicit(&tree.hosts, memory_order_acquire);
    if (hosts == NULL) {
        return NULL;
    }
    struct site *site = map_get(&hosts->by_name, hostname);
    return site != NULL ? site : map_get(&hosts->by_name, str_of(fallback_site));
}

/* There are no watches; and it is not the writer itself that asks, by way of another room. */
static bool must_check(void)
{
    return atomic_load_explicit(&tree.degraded, memory_order_relaxed) && !tree_is_mine();
}

/* "/name._c" is the URL of name.so as well. */
COLD static const struct site_node *find_built(const struct site *site, struct str path)
{
    char url[PATH_MAX];
    if (path.len >= sizeof url) {
        return NULL;
    }
    struct str built = STR(".so");
    memcpy(url, path.ptr, path.len - built.len);
    memcpy(url + path.len - built.len, built.ptr, built.len);
    const struct site_node *node = path_table_find(&site->table, (struct str){url, path.len});
    return node != NULL && node->kind == NODE_ENDPOINT ? node : NULL;
}

static const struct site_node *find(const struct site *site, struct str path)
{
    const struct site_node *node = path_table_find(&site->table, path);
    if (LIKELY(node != NULL) || !str_ends(path, STR("._c"))) {
        return node;
    }
    return find_built(site, path);
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* The disk agrees with the node. */
static bool is_current(const struct site_node *node)
{
    struct stat st;
    if (stat(node->file.ptr, &st) != 0) {
        return node->inode == 0 && errno == ENOENT; /* a dangling link still dangles */
    }
    return st.st_ino == node->inode && st.st_dev == node->device && same_time(&st.st_mtim, &node->mtime) &&
           (node->kind == NODE_DIRECTORY || (uint64_t)st.st_size == node->size);
}

/* The nearest indexed directory above `path`, which is not "". */
static const struct site_node *directory_above(const struct site *site, struct str path)
{
    for (;;) {
        path = str_first(path, str_find_last(path, '/'));
        const struct site_node *node = path_table_find(&site->table, path);
        if (node != NULL && node->kind == NODE_DIRECTORY) {
            return node;
        }
        if (path.len == 0) {
            return NULL;
        }
    }
}

static void look_again(struct site *site, struct str url)
{
    if (!tree_lock_soon()) {
        return; /* a scan is running and will find it */
    }
    struct cell *cell = tree_find(site, url);
    if (cell != NULL && cell->dir != NULL) {
        scan_directory_of(cell->dir);
    } else if (cell != NULL) {
        scan_path(cell->node.file, true);
    }
    scan_finish();
    tree_unlock();
}

/* Without watches: what the request is about to use is compared with the disk first, a
 * few stat() calls. A directory's own time tells of names that came or went in it. */
static const struct site_node *find_checked(struct site *site, struct str path)
{
    const struct site_node *above = path.len > 0 ? directory_above(site, path) : NULL;
    if (above != NULL && !above->hidden && !is_current(above)) {
        look_again(site, above->url);
    }
    const struct site_node *node = find(site, path);
    if (node != NULL && !node->hidden && !is_current(node)) {
        look_again(site, node->url);
        node = find(site, path);
    }
    return node;
}

const struct site_node *site_lookup(struct site *site, struct str path)
{
    if (UNLIKELY(must_check())) {
        return find_checked(site, path);
    }
    return find(site, path);
}

const struct site_node *site_directory_index(const struct site_node *directory)
{
    const struct site_node *index = atomic_load_explicit(&directory->index, memory_order_acquire);
    if (index != NULL && UNLIKELY(must_check()) && !is_current(index)) {
        look_again(index->site, index->url);
        directory = find(directory->site, directory->url);
        index = directory != NULL ? atomic_load_explicit(&directory->index, memory_order_acquire) : NULL;
    }
    if (index == NULL || (index->companion && site_node_is_hidden(index))) {
        return NULL;
    }
    return index;
}

bool site_node_is_hidden(const struct site_node *node)
{
    return node->hidden || (node->companion && atomic_load_explicit(&node->site->endpoints, memory_order_relaxed) > 0);
}

struct str site_name(const struct site *site)
{
    return site->name;
}

const struct site_node *site_error_page(struct site *site, int status)
{
    char url[32];
    int length = snprintf(url, sizeof url, "/error%d.html", status);
    const struct site_node *node = site_lookup(site, (struct str){url, (size_t)length});
    return node != NULL && node->kind == NODE_FILE && !node->hidden && !node->symlink_out ? node : NULL;
}

/* ---- the console's ------------------------------------------------------------------------------ */

static void each_below(const struct dir *dir, void (*fn)(const struct site_node *node, void *arg), void *arg)
{
    for (const struct cell *cell = dir->children; cell != NULL; cell = cell->next) {
        if (cell->dir != NULL) {
            each_below(cell->dir, fn, arg);
        } else {
            fn(&cell->node, arg);
        }
    }
}

/* Takes the site off a path as the console has it; NULL when it names none. */
static struct site *take_site(struct str *path)
{
    while (path->len > 0 && path->ptr[path->len - 1] == '/') {
        path->len--;
    }
    if (tree.top == NULL) {
        return tree.single;
    }
    if (path->len > 0 && path->ptr[0] == '/') {
        *path = str_from(*path, 1);
    }
    size_t slash = str_find(*path, '/');
    struct str host = slash != SIZE_MAX ? str_first(*path, slash) : *path;
    *path = str_from(*path, host.len);
    return map_get(&tree.sites, host);
}

/* The cell that a console's path means, NULL when there is none. */
static struct cell *find_for_console(struct str path)
{
    struct site *site = take_site(&path);
    char url[PATH_MAX] = "/";
    if (site == NULL || site->root == NULL || path.len + 1 >= sizeof url) {
        return NULL;
    }
    size_t at = path.len > 0 && path.ptr[0] != '/' ? 1 : 0;
    memcpy(url + at, path.ptr != NULL ? path.ptr : "", path.len);
    return tree_find(site, (struct str){url, path.len > 0 ? at + path.len : 0});
}

void site_index_each(struct str prefix, void (*fn)(const struct site_node *node, void *arg), void *arg)
{
    tree_lock();
    if (tree.top != NULL && (prefix.len == 0 || str_eq(prefix, STR("/")))) {
        each_below(tree.top, fn, arg);
    } else {
        const struct cell *cell = find_for_console(prefix);
        if (cell != NULL && cell->dir != NULL) {
            each_below(cell->dir, fn, arg);
        } else if (cell != NULL) {
            fn(&cell->node, arg);
        }
    }
    tree_unlock();
}

void site_index_counts(struct site_index_counts *out)
{
    *out = (struct site_index_counts){
        .files = atomic_load(&tree.files),
        .directories = atomic_load(&tree.directories),
        .endpoints = atomic_load(&tree.endpoints),
        .watches = atomic_load(&tree.watches),
        .degraded = atomic_load(&tree.degraded),
    };
}

void site_index_rescan(struct str path)
{
    tree_lock();
    const struct cell *cell = path.len > 0 ? find_for_console(path) : NULL;
    if (cell != NULL && cell->dir != NULL) {
        scan_below(cell->dir);
    } else if (cell != NULL) {
        scan_path(cell->node.file, true);
    } else {
        scan_all();
    }
    scan_finish();
    tree_unlock();
}

void site_index_settle(void)
{
    watch_settle();
}
