#include "route/scan.h"

#include "base/check.h"
#include "base/epoch.h"
#include "observe/log.h"
#include "route/look.h"
#include "route/progress.h"
#include "route/real_path.h"
#include "route/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Kept open from one name to the next: changes come in runs from the same directory. */
static struct view recent = {.fd = -1};
static struct dir *to_scan;
static bool descend; /* a scan of everything, not only of what is new */

static void queue_scan(struct dir *dir)
{
    if (!dir->queued) {
        dir->queued = true;
        dir->to_scan = to_scan;
        to_scan = dir;
    }
}

static void remove_children(struct dir *dir)
{
    while (dir->children != NULL) {
        tree_remove(dir->children);
    }
}

/* ---- one name ------------------------------------------------------------------------------------ */

static bool is_same(const struct cell *cell, const struct entry *entry)
{
    const struct site_node *node = &cell->node;
    const char *target = cell->link != NULL ? cell->link->target : NULL;
    bool same_target = entry->target == NULL ? target == NULL : target != NULL && strcmp(target, entry->target) == 0;
    if (node->kind != entry->kind || node->hidden != entry->hidden || node->companion != entry->companion ||
        node->symlink_out != entry->symlink_out || (cell->link != NULL) != entry->is_link || !same_target ||
        node->inode != entry->st.st_ino || node->device != entry->st.st_dev) {
        return false;
    }
    return node->kind == NODE_DIRECTORY ||
           (node->size == (uint64_t)entry->st.st_size && node->mtime.tv_sec == entry->st.st_mtim.tv_sec &&
            node->mtime.tv_nsec == entry->st.st_mtim.tv_nsec);
}

/* The site that a name belongs to (NULL: a host that is new), and its URL there. False: a
 * name that is not indexed. */
static bool locate(const struct dir *dir, struct str name, struct site **site, char url[PATH_MAX], size_t *length)
{
    *length = 0;
    if (dir->cell == NULL) {
        *site = tree_site_find(name);
        return !name_is_dotted(name);
    }
    const struct str base = dir->cell->node.url;
    bool well_known = base.len == 0 && str_eq(name, STR(".well-known"));
    if ((name_is_dotted(name) && !well_known) || base.len + 1 + name.len > tree.settings.max_length ||
        dir->depth >= tree.settings.max_depth) {
        return false;
    }
    *site = dir->site;
    memcpy(url, base.ptr, base.len);
    url[base.len] = '/';
    memcpy(url + base.len + 1, name.ptr, name.len);
    *length = base.len + 1 + name.len;
    return true;
}

/* Two directories whose names differ in case alone are one host: the first keeps it. */
static bool is_other_host(const struct cell *root, struct str name)
{
    if (root == NULL || str_eq(base_name(root->node.file), name)) {
        return false;
    }
    log_warning("%s: not served, %s is a site of the same host name", name.ptr, root->path);
    return true;
}

static void after_directory(struct cell *cell, const struct entry *entry, bool fresh, bool moved)
{
    struct dir *dir = cell->dir;
    dir->nesting = (uint16_t)((cell->parent != NULL ? cell->parent->nesting : 0) + (entry->is_link ? 1 : 0));
    if (entry->hidden || entry->symlink_out || dir->depth >= tree.settings.max_depth) {
        remove_children(dir);
        watch_drop(dir);
    } else if (fresh || moved || descend) {
        queue_scan(dir);
    }
}

static void put_entry(const struct view *view, struct site *site, struct str name, const struct entry *entry,
                      struct cell *old, bool touched)
{
    bool is_site = view->dir->cell == NULL;
    bool moved = old != NULL && (touched || old->node.inode != entry->st.st_ino ||
                                 old->node.device != entry->st.st_dev || old->node.hidden != entry->hidden);
    bool was_link = old != NULL && old->link != NULL;
    struct cell *cell = old;
    if (is_site && old == NULL) {
        site->file_prefix = tree.settings.root.len + 1 + name.len;
    }
    if (old == NULL || (touched && entry->kind != NODE_DIRECTORY) || !is_same(old, entry)) {
        if (entry->symlink_out && (old == NULL || !old->node.symlink_out)) {
            log_notice("%s/%s leads out of the web directory to %s and is not served; SymlinksOutside allows it",
                       path_of(view->dir), name.ptr, entry->target);
        }
        cell = tree_put(site, view->dir, name, entry, old);
        if (cell == NULL) {
            return;
        }
        if (is_site && old == NULL) {
            site->root = cell->dir;
        }
        tree.hosts_changed = tree.hosts_changed || is_site;
        if (old == NULL || entry->is_link || was_link) {
            watch_note_links();
        }
    }
    cell->seen = tree.scan;
    if (cell->dir != NULL) {
        after_directory(cell, entry, old == NULL, moved);
    }
}

static void look_at(const struct view *view, struct str name, bool touched)
{
    struct site *site;
    char url[PATH_MAX];
    size_t length;
    if (!locate(view->dir, name, &site, url, &length)) {
        return;
    }
    bool is_site = view->dir->cell == NULL;
    struct cell *old = is_site ? (site != NULL && site->root != NULL ? site->root->cell : NULL)
                               : tree_find(site, (struct str){url, length});
    if (is_site && is_other_host(old, name)) {
        return;
    }
    struct entry entry;
    char target[PATH_MAX];
    bool there = look(view, name, &entry, target) && (!is_site || entry.kind == NODE_DIRECTORY);
    if (old != NULL && (!there || (old->dir != NULL) != (entry.kind == NODE_DIRECTORY))) {
        tree_remove(old);
        watch_note_links();
        old = NULL;
    }
    if (there && site == NULL) {
        site = tree_site(name);
    }
    if (there && site != NULL) {
        put_entry(view, site, name, &entry, old, touched);
    }
}

/* ---- one directory ----------------------------------------------------------------------------- */

static void look_at_all(const struct view *view)
{
    static _Alignas(struct dirent64) char buffer[65536];
    for (;;) {
        long got = syscall(SYS_getdents64, view->fd, buffer, sizeof buffer);
        if (got <= 0) {
            return;
        }
        for (long at = 0; at < got;) {
            const struct dirent64 *item = (const struct dirent64 *)(const void *)(buffer + at);
            at += item->d_reclen;
            struct str name = str_of(item->d_name);
            if (!str_eq(name, STR(".")) && !str_eq(name, STR(".."))) {
                look_at(view, name, false);
            }
        }
    }
}

/* Only asked for without watches: a directory that changed since is looked at again. One that
 * changed just now may change once more within the same tick of its clock. */
static void remember_time(struct dir *dir, const struct stat *st)
{
    struct cell *cell = dir->cell;
    if (cell == NULL || !atomic_load_explicit(&tree.degraded, memory_order_relaxed)) {
        return;
    }
    struct entry entry = {
        .kind = NODE_DIRECTORY,
        .is_link = cell->link != NULL,
        .target = cell->link != NULL ? cell->link->target : NULL,
        .st = *st,
    };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec - st->st_mtim.tv_sec < 2) {
        entry.st.st_mtim = (struct timespec){0};
    }
    if (cell->node.mtime.tv_sec != entry.st.st_mtim.tv_sec || cell->node.mtime.tv_nsec != entry.st.st_mtim.tv_nsec) {
        struct str name = cell->node.url.len == 0 && tree.top == NULL ? STR("") : base_name(cell->node.file);
        struct cell *fresh = tree_put(dir->site, cell->parent, name, &entry, cell);
        if (fresh != NULL) {
            fresh->seen = cell->seen;
        }
    }
}

static void scan_one(struct dir *dir)
{
    struct view view = {.fd = -1};
    if (!view_open(&view, dir)) {
        if (errno != ENOENT && errno != ENOTDIR) {
            log_warning("%s: %s; nothing below it is served", path_of(dir),
                        errno == EXDEV ? "leads out of the web directory" : strerror(errno));
        }
        remove_children(dir);
        watch_drop(dir);
        return;
    }
    struct stat st = {0};
    fstat(view.fd, &st);
    dir->device = st.st_dev;
    dir->inode = st.st_ino;
    watch_add(dir, view.fd, path_of(dir)); /* before looking, so that nothing slips through */
    uint32_t scan = ++tree.scan;
    look_at_all(&view);
    for (struct cell *child = dir->children; child != NULL;) {
        struct cell *next = child->next;
        if (child->seen != scan) {
            tree_remove(child);
            watch_note_links();
        }
        child = next;
    }
    tree_refresh_index(dir);
    remember_time(dir, &st);
    view_close(&view);
}

static void run_scans(void)
{
    while (to_scan != NULL) {
        struct dir *dir = to_scan;
        to_scan = dir->to_scan;
        dir->to_scan = NULL;
        dir->queued = false;
        scan_one(dir);
        progress_step();
    }
}

void scan_forget(struct dir *dir)
{
    if (recent.dir == dir) {
        view_close(&recent);
    }
    if (dir->queued) {
        struct dir **at = &to_scan;
        while (*at != dir) {
            at = &(*at)->to_scan;
        }
        *at = dir->to_scan;
    }
}

/* ---- hints ------------------------------------------------------------------------------------- */

/* Links that lead to the very file show its new contents. */
static void look_at_links_to(const struct view *view, struct str name)
{
    char path[PATH_MAX];
    if (tree.links_by_target.count == 0 || view->real.len + 1 + name.len >= sizeof path) {
        return;
    }
    memcpy(path, view->real.ptr, view->real.len);
    path[view->real.len] = '/';
    memcpy(path + view->real.len + 1, name.ptr, name.len);
    struct link *link = map_get(&tree.links_by_target, (struct str){path, view->real.len + 1 + name.len});
    while (link != NULL) {
        struct link *next = link->same;
        struct cell *cell = link->cell;
        struct view other = {.fd = -1};
        if (cell->dir == NULL && cell->parent != NULL && view_open(&other, cell->parent)) {
            look_at(&other, base_name(cell->node.file), true);
            tree_refresh_index(other.dir);
            view_close(&other);
        }
        link = next;
    }
}

void scan_name(struct dir *dir, struct str name, bool touched)
{
    if (recent.dir != dir) {
        view_close(&recent);
        if (!view_open(&recent, dir)) {
            return; /* gone or moved: its parent's event is on its way */
        }
    }
    look_at(&recent, name, touched);
    if (touched) {
        look_at_links_to(&recent, name);
    }
    tree_refresh_index(dir);
    run_scans();
}

/* The indexed directory of that absolute path. */
static struct dir *find_dir(struct str path)
{
    struct str root = tree.settings.root;
    if (!str_starts(path, root) || (path.len > root.len && path.ptr[root.len] != '/')) {
        return NULL;
    }
    struct str rest = str_from(path, root.len);
    struct site *site = tree.single;
    if (tree.top != NULL) {
        if (rest.len == 0) {
            return tree.top;
        }
        size_t end = str_find(str_from(rest, 1), '/');
        struct str host = end == SIZE_MAX ? str_from(rest, 1) : str_first(str_from(rest, 1), end);
        site = tree_site_find(host);
        rest = str_from(rest, 1 + host.len);
    }
    if (site == NULL || site->root == NULL) {
        return NULL;
    }
    const struct cell *cell = tree_find(site, rest.len > 0 ? rest : STR(""));
    return cell != NULL ? cell->dir : NULL;
}

void scan_path(struct str path, bool touched)
{
    size_t slash = str_find_last(path, '/');
    struct dir *dir = slash != SIZE_MAX ? find_dir(str_first(path, slash)) : NULL;
    char name[NAME_MAX + 1];
    struct str last = str_from(path, slash + 1);
    if (dir == NULL || last.len == 0 || last.len >= sizeof name) {
        return;
    }
    memcpy(name, last.ptr, last.len);
    name[last.len] = '\0';
    scan_name(dir, (struct str){name, last.len}, touched);
}

void scan_directory_of(struct dir *dir)
{
    queue_scan(dir);
    run_scans();
}

void scan_links(void)
{
    struct list links;
    if (list_is_empty(&tree.links)) {
        return;
    }
    /* Looking at one may remove others, so each goes back to the tree's list before its turn. */
    links.next = tree.links.next;
    links.prev = tree.links.prev;
    links.next->prev = &links;
    links.prev->next = &links;
    list_init(&tree.links);
    while (!list_is_empty(&links)) {
        struct link *link = LIST_ENTRY(links.next, struct link, node);
        list_remove(&link->node);
        list_append(&tree.links, &link->node);
        char name[NAME_MAX + 1];
        struct str last = base_name(link->cell->node.file);
        if (link->cell->parent != NULL && last.len < sizeof name) {
            memcpy(name, last.ptr, last.len + 1);
            scan_name(link->cell->parent, (struct str){name, last.len}, false);
        }
    }
}

bool scan_has_links_outside(void)
{
    LIST_EACH(it, &tree.links) {
        const struct link *link = LIST_ENTRY(it, struct link, node);
        if (link->target != NULL && !real_path_is_inside(str_of(link->target)) && !link->cell->node.symlink_out) {
            return true;
        }
    }
    return false;
}

void scan_finish(void)
{
    view_close(&recent);
    tree_publish_hosts();
}

/* ---- everything ---------------------------------------------------------------------------------- */

static void close_fd(void *arg)
{
    close((int)(intptr_t)arg);
}

static void keep_root(int fd, struct str real)
{
    int before = atomic_exchange(&tree.root_fd, fd);
    if (before >= 0) {
        epoch_retire(close_fd, (void *)(intptr_t)before);
    }
    pthread_mutex_lock(&tree.rules_lock);
    struct str old = tree.real_root;
    tree.real_root = real;
    pthread_mutex_unlock(&tree.rules_lock);
    free((char *)old.ptr);
}

void scan_forget_root(void)
{
    keep_root(-1, STR_NONE);
    tree.root_inode = 0;
    tree.root_device = 0;
}

/* Opens the root, wherever the configured path leads now. */
static bool find_root(struct stat *st)
{
    int fd = open(tree.settings.root.ptr, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    char path[PATH_MAX];
    struct str real = real_path_of(fd, path);
    char *copy = real.len > 0 ? strdup(path) : realpath(tree.settings.root.ptr, NULL);
    if (copy == NULL || fstat(fd, st) != 0) {
        free(copy);
        close(fd);
        return false;
    }
    keep_root(fd, str_of(copy));
    tree.root_device = st->st_dev;
    tree.root_inode = st->st_ino;
    return true;
}

static bool set_up_root(const struct stat *st)
{
    if (tree.settings.layout == SITE_PER_HOST) {
        tree.top = tree.top != NULL ? tree.top : dir_new(NULL, NULL);
        return tree.top != NULL;
    }
    struct site *site = tree.single;
    if (site->root == NULL) {
        struct entry entry = {.kind = NODE_DIRECTORY, .st = *st};
        site->file_prefix = tree.settings.root.len;
        struct cell *cell = tree_put(site, NULL, STR(""), &entry, NULL);
        site->root = cell != NULL ? cell->dir : NULL;
    }
    return site->root != NULL;
}

void scan_below(struct dir *dir)
{
    descend = true;
    queue_scan(dir);
    run_scans();
    descend = false;
}

bool scan_all(void)
{
    struct stat st;
    if (!find_root(&st) || !set_up_root(&st)) {
        int error = errno;
        tree_clear();
        tree.root_inode = 0;
        errno = error;
        return false;
    }
    scan_below(tree.top != NULL ? tree.top : tree.single->root);
    return true;
}
