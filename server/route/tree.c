#include "route/tree.h"

#include "answer/answer.h"
#include "answer/file_cache.h"
#include "base/epoch.h"
#include "endpoint/loader.h"
#include "observe/log.h"
#include "route/names.h"
#include "route/scan.h"
#include "route/watch.h"

#include <limits.h>
#include <stdlib.h>

enum { PATIENCE_NS = 20 * 1000 * 1000 };

struct tree tree = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .rules_lock = PTHREAD_MUTEX_INITIALIZER,
    .root_fd = -1,
    .links = {&tree.links, &tree.links},
};

static _Thread_local bool is_mine;

void tree_lock(void)
{
    pthread_mutex_lock(&tree.lock);
    is_mine = true;
}

bool tree_lock_soon(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    is_mine = pthread_mutex_timedlock(&tree.lock, &until) == 0;
    return is_mine;
}

void tree_unlock(void)
{
    is_mine = false;
    pthread_mutex_unlock(&tree.lock);
}

bool tree_is_mine(void)
{
    return is_mine;
}

/* ---- cells ---------------------------------------------------------------------------- */

struct cell *tree_find(const struct site *site, struct str url)
{
    const struct site_node *node = path_table_find(&site->table, url);
    return node != NULL && node->url.len == url.len ? cell_of(node) : NULL;
}

/* After the last reader. */
static void cell_free(void *arg)
{
    struct cell *cell = arg;
    file_cache_forget(&cell->node);
    if (cell->node.endpoint != NULL && !cell->keeps_endpoint) {
        endpoint_close(cell->node.endpoint);
    }
    free(cell);
}

static const struct answer *answer_of(enum node_kind kind)
{
    switch (kind) {
    case NODE_DIRECTORY: return &answer_listing;
    case NODE_ENDPOINT: return &answer_endpoint;
    default: return &answer_static_file;
    }
}

/* `name` is "" for the root directory of a site. */
static struct cell *cell_new(struct site *site, struct dir *parent, struct str name, const struct entry *entry)
{
    struct str base = parent != NULL && parent->cell != NULL ? parent->cell->node.file : tree.settings.root;
    size_t slash = name.len > 0 ? 1 : 0;
    size_t length = base.len + slash + name.len;
    struct cell *cell = calloc(1, sizeof *cell + length + 1);
    if (cell == NULL) {
        return NULL;
    }
    memcpy(cell->path, base.ptr, base.len);
    if (slash != 0) {
        cell->path[base.len] = '/';
        memcpy(cell->path + base.len + 1, name.ptr, name.len);
    }
    cell->parent = parent;
    cell->seen = tree.scan;
    struct site_node *node = &cell->node;
    node->kind = entry->kind;
    node->hidden = entry->hidden;
    node->companion = entry->companion;
    node->symlink_out = entry->symlink_out;
    node->file = (struct str){cell->path, length};
    node->url = str_from(node->file, site->file_prefix);
    node->size = (uint64_t)entry->st.st_size;
    node->mtime = entry->st.st_mtim;
    node->inode = entry->st.st_ino;
    node->device = entry->st.st_dev;
    node->answer = answer_of(entry->kind);
    node->site = site;
    return cell;
}

static void count(const struct cell *cell, uint64_t by)
{
    struct site *site = cell->node.site;
    switch (cell->node.kind) {
    case NODE_DIRECTORY: atomic_fetch_add(&tree.directories, by); return;
    case NODE_ENDPOINT: atomic_fetch_add(&tree.endpoints, by); break;
    default: break;
    }
    atomic_fetch_add(&tree.files, by);
    if (name_endpoint_stem(cell->node.url) > 0) {
        atomic_fetch_add(&site->endpoints, (uint32_t)by);
    }
}

/* ---- short names ------------------------------------------------------------------------ */

/* Decides anew who answers `stem`, which is no real file. */
static void refresh_short_name(struct site *site, struct str stem)
{
    const struct site_node *now = path_table_find(&site->table, stem);
    if (now != NULL && now->url.len == stem.len) {
        return;
    }
    char url[PATH_MAX];
    for (size_t i = 0; i < NAME_ENDPOINT_SUFFIXES; i++) {
        struct str suffix = name_endpoint_suffixes[i];
        if (stem.len + suffix.len > sizeof url) {
            continue;
        }
        memcpy(url, stem.ptr, stem.len);
        memcpy(url + stem.len, suffix.ptr, suffix.len);
        const struct cell *cell = tree_find(site, (struct str){url, stem.len + suffix.len});
        if (cell != NULL && cell->node.kind == NODE_ENDPOINT && !cell->node.hidden) {
            path_table_set(&site->table, stem.len, &cell->node);
            return;
        }
    }
    if (now != NULL) {
        path_table_remove(&site->table, stem);
    }
}

static void refresh_short_name_of(const struct cell *cell)
{
    if (cell->node.kind == NODE_ENDPOINT) {
        refresh_short_name(cell->node.site, str_first(cell->node.url, name_endpoint_stem(cell->node.url)));
    }
}

/* ---- index ------------------------------------------------------------------------------ */

void tree_refresh_index(struct dir *dir)
{
    struct cell *cell = dir->cell;
    if (cell == NULL) {
        return;
    }
    const struct site_node *found = NULL;
    char url[PATH_MAX];
    size_t length = cell->node.url.len;
    memcpy(url, cell->node.url.ptr, length);
    url[length++] = '/';
    for (size_t i = 0; i < tree.settings.index_count && found == NULL; i++) {
        struct str name = tree.settings.index[i];
        if (length + name.len > sizeof url) {
            continue;
        }
        memcpy(url + length, name.ptr, name.len);
        const struct cell *child = tree_find(dir->site, (struct str){url, length + name.len});
        if (child != NULL && child->node.kind != NODE_DIRECTORY && !child->node.hidden && !child->node.symlink_out) {
            found = &child->node;
        }
    }
    atomic_store_explicit(&cell->node.index, found, memory_order_release);
}

/* ---- change ------------------------------------------------------------------------------- */

static void link_to_parent(struct cell *cell)
{
    struct dir *parent = cell->parent;
    if (parent != NULL) {
        cell->next = parent->children;
        if (cell->next != NULL) {
            cell->next->prev = cell;
        }
        parent->children = cell;
    }
}

static void unlink_from_parent(struct cell *cell)
{
    if (cell->next != NULL) {
        cell->next->prev = cell->prev;
    }
    if (cell->prev != NULL) {
        cell->prev->next = cell->next;
    } else if (cell->parent != NULL && cell->parent->children == cell) {
        cell->parent->children = cell->next;
    }
    cell->next = NULL;
    cell->prev = NULL;
}

/* Other rooms hear of it once the index says so. */
static void tell(const struct cell *cell)
{
    if (tree.scanning_first || cell->node.kind == NODE_DIRECTORY) {
        return;
    }
    file_cache_url_changed(cell->node.site, cell->node.url);
    if (atomic_load_explicit(&tree.endpoints, memory_order_relaxed) > 0) {
        endpoints_include_changed(cell->node.file); /* whatever its name: C includes anything */
    }
}

static bool take_endpoint(struct cell *cell, struct cell *old)
{
    if (cell->node.kind != NODE_ENDPOINT) {
        return true;
    }
    if (old != NULL && old->node.kind == NODE_ENDPOINT) {
        cell->node.endpoint = old->node.endpoint;
        return true;
    }
    cell->node.endpoint = endpoint_open(cell->node.file);
    if (cell->node.endpoint != NULL && tree.settings.build_ahead) {
        endpoint_prepare(cell->node.endpoint);
    }
    return cell->node.endpoint != NULL;
}

static void drop_link(struct cell *cell)
{
    tree_link_target_set(cell->link, NULL);
    list_remove(&cell->link->node);
    free(cell->link);
    cell->link = NULL;
}

static bool take_link(struct cell *cell, struct cell *old, const struct entry *entry)
{
    if (old != NULL && old->link != NULL) {
        cell->link = old->link;
        old->link = NULL;
        if (!entry->is_link) {
            drop_link(cell);
        }
    } else if (entry->is_link) {
        cell->link = calloc(1, sizeof *cell->link);
        if (cell->link == NULL) {
            return false;
        }
        list_append(&tree.links, &cell->link->node);
    }
    if (cell->link != NULL) {
        cell->link->cell = cell;
        tree_link_target_set(cell->link, entry->target);
    }
    return true;
}

static bool take_directory(struct cell *cell, struct cell *old, struct dir *parent)
{
    if (cell->node.kind != NODE_DIRECTORY) {
        return true;
    }
    cell->dir = old != NULL ? old->dir : dir_new(cell->node.site, parent);
    if (cell->dir == NULL) {
        return false;
    }
    if (old != NULL) {
        atomic_store_explicit(&cell->node.index, atomic_load_explicit(&old->node.index, memory_order_relaxed),
                              memory_order_relaxed);
    }
    return true;
}

/* Undoes the three above. */
static void give_back(struct cell *cell, struct cell *old)
{
    if (old == NULL) {
        free(cell->dir);
        if (cell->link != NULL) {
            drop_link(cell);
        }
    } else if (cell->link != NULL) {
        old->link = cell->link;
        old->link->cell = old;
    }
    cell->keeps_endpoint = old != NULL && cell->node.endpoint == old->node.endpoint;
    cell_free(cell);
}

/* `cell` stands in the table already. */
static void retire_replaced(struct cell *cell, struct cell *old)
{
    bool was_index = old->parent != NULL && old->parent->cell != NULL &&
                     atomic_load_explicit(&old->parent->cell->node.index, memory_order_relaxed) == &old->node;
    unlink_from_parent(old);
    if (was_index) {
        tree_refresh_index(old->parent);
    }
    if (old->node.kind == NODE_ENDPOINT) {
        refresh_short_name_of(old);
        if (cell->node.endpoint == old->node.endpoint) {
            old->keeps_endpoint = true;
            endpoint_file_changed(cell->node.endpoint);
        }
    }
    count(old, (uint64_t)-1);
    epoch_retire(cell_free, old);
}

struct cell *tree_put(struct site *site, struct dir *parent, struct str name, const struct entry *entry,
                      struct cell *old)
{
    struct cell *cell = cell_new(site, parent, name, entry);
    if (cell == NULL) {
        return NULL;
    }
    if (!take_endpoint(cell, old) || !take_directory(cell, old, parent) || !take_link(cell, old, entry) ||
        !path_table_set(&site->table, cell->node.url.len, &cell->node)) {
        log_error("out of memory: %s is not indexed", cell->path);
        give_back(cell, old);
        return NULL;
    }
    if (cell->dir != NULL) {
        cell->dir->cell = cell;
    }
    link_to_parent(cell);
    count(cell, 1);
    refresh_short_name_of(cell);
    if (old != NULL) {
        retire_replaced(cell, old);
    }
    tell(cell);
    return cell;
}

static void dir_free(struct dir *dir)
{
    watch_drop(dir);
    scan_forget(dir);
    if (dir->site->root == dir) {
        dir->site->root = NULL;
        tree.hosts_changed = true;
    }
    free(dir);
}

void tree_remove(struct cell *cell)
{
    struct site *site = cell->node.site;
    if (cell->dir != NULL) {
        while (cell->dir->children != NULL) {
            tree_remove(cell->dir->children);
        }
        dir_free(cell->dir);
        cell->dir = NULL;
    }
    if (cell->link != NULL) {
        drop_link(cell);
    }
    path_table_remove(&site->table, cell->node.url);
    struct dir *parent = cell->parent;
    unlink_from_parent(cell);
    if (parent != NULL && parent->cell != NULL &&
        atomic_load_explicit(&parent->cell->node.index, memory_order_relaxed) == &cell->node) {
        tree_refresh_index(parent);
    }
    refresh_short_name_of(cell);
    if (atomic_load_explicit(&site->endpoints, memory_order_relaxed) > 0) {
        refresh_short_name(site, cell->node.url);
    }
    count(cell, (uint64_t)-1);
    tell(cell);
    epoch_retire(cell_free, cell);
}

/* ---- links -------------------------------------------------------------------------------- */

void tree_link_target_set(struct link *link, const char *target)
{
    if (link->target != NULL && target != NULL && strcmp(link->target, target) == 0) {
        return;
    }
    if (link->target != NULL) {
        struct str key = str_of(link->target);
        struct link *first = map_get(&tree.links_by_target, key);
        if (first == link) {
            map_remove(&tree.links_by_target, key);
            if (link->same != NULL) {
                map_put(&tree.links_by_target, key, link->same, NULL);
            }
        } else {
            while (first != NULL && first->same != link) {
                first = first->same;
            }
            if (first != NULL) {
                first->same = link->same;
            }
        }
        free(link->target);
    }
    link->same = NULL;
    link->target = target != NULL ? strdup(target) : NULL;
    if (link->target != NULL) {
        void *before = NULL;
        if (map_put(&tree.links_by_target, str_of(link->target), link, &before)) {
            link->same = before;
        }
    }
}

/* ---- sites -------------------------------------------------------------------------------- */

struct dir *dir_new(struct site *site, struct dir *parent)
{
    struct dir *dir = calloc(1, sizeof *dir);
    if (dir != NULL) {
        dir->site = site;
        dir->parent = parent;
        dir->watch = -1;
        dir->depth = parent != NULL && parent->cell != NULL ? (uint16_t)(parent->depth + 1) : 0;
    }
    return dir;
}

/* False: too long for the name of a directory. */
static bool lower_name(struct str name, char lower[NAME_MAX + 1], struct str *key)
{
    if (name.len > NAME_MAX) {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        lower[i] = ascii_lower(name.ptr[i]);
    }
    *key = (struct str){lower, name.len};
    return true;
}

struct site *tree_site_find(struct str name)
{
    char lower[NAME_MAX + 1];
    struct str key;
    return lower_name(name, lower, &key) ? map_get(&tree.sites, key) : NULL;
}

struct site *tree_site(struct str name)
{
    char lower[NAME_MAX + 1];
    struct str key;
    struct site *site = tree_site_find(name);
    if (site != NULL || !lower_name(name, lower, &key)) {
        return site;
    }
    site = calloc(1, sizeof *site + key.len + 1);
    if (site == NULL || !map_put(&tree.sites, key, site, NULL)) {
        free(site);
        return NULL;
    }
    char *own = (char *)(site + 1);
    memcpy(own, key.ptr, key.len);
    site->name = (struct str){own, key.len};
    return site;
}

static void hosts_free(void *arg)
{
    struct host_map *hosts = arg;
    map_free(&hosts->by_name);
    free(hosts);
}

static void publish(struct host_map *hosts)
{
    struct host_map *before = atomic_exchange(&tree.hosts, hosts);
    if (before != NULL) {
        epoch_retire(hosts_free, before);
    }
}

void tree_publish_no_hosts(void)
{
    publish(NULL);
}

void tree_publish_hosts(void)
{
    if (!tree.hosts_changed || tree.settings.layout != SITE_PER_HOST) {
        return;
    }
    tree.hosts_changed = false;
    struct host_map *hosts = calloc(1, sizeof *hosts);
    if (hosts == NULL) {
        log_error("out of memory: the list of sites is not brought up to date");
        return;
    }
    size_t cursor = 0;
    struct str name;
    void *value;
    while (map_next(&tree.sites, &cursor, &name, &value)) {
        const struct site *site = value;
        if (site->root != NULL && !site->root->cell->node.hidden && !site->root->cell->node.symlink_out) {
            map_put(&hosts->by_name, name, value, NULL);
        }
    }
    publish(hosts);
}

void tree_clear(void)
{
    size_t cursor = 0;
    struct str name;
    void *value;
    while (map_next(&tree.sites, &cursor, &name, &value)) {
        const struct site *site = value;
        if (site->root != NULL) {
            tree_remove(site->root->cell);
        }
        CHECK(site->root == NULL);
    }
}
