/* DESIGN: the index as its writer sees it. A cell is one published node with what only the
 * writer needs: its place among the children of its directory. A changed file gets a new
 * cell and the old one is retired through the epoch; a directory's `struct dir` stays for
 * as long as the directory does. All of it is changed under tree.lock: by the watcher
 * thread, by a rescan, and by a request that checks the disk when there are no watches.
 *
 * Who answers a URL when several could:
 *   1. a real file or directory of that name (route.c gives what a directory cannot answer
 *      to the endpoint beside it);
 *   2. the short name of name.so;
 *   3. the short name of name._c.
 * "/name._c" with only name.so on the disk leads to name.so (it is what it was built from). */
#ifndef KILN_ROUTE_TREE_H
#define KILN_ROUTE_TREE_H

#include "base/list.h"
#include "route/path_table.h"
#include "route/settings.h"
#include "route/site_index.h"

#include <pthread.h>

enum { SYMLINK_NESTING = 8 }; /* links that one path may lead through */

struct dir;

/* A symbolic link in the tree, wherever it leads, also when it leads nowhere. */
struct link {
    struct list node; /* in tree.links */
    struct cell *cell;
    struct link *same; /* others with the same target */
    char *target; /* real path; NULL when dangling */
};

struct cell {
    struct site_node node;
    struct dir *parent; /* NULL: the root directory of a site */
    struct cell *next;
    struct cell *prev;
    struct dir *dir; /* of a directory */
    struct link *link; /* of a symbolic link */
    uint32_t seen; /* the scan that met it last */
    bool keeps_endpoint; /* the endpoint went on to the next cell of the file */
    char path[]; /* node.file */
};

struct dir {
    struct cell *cell; /* NULL: the directory of all sites */
    struct site *site;
    struct dir *parent;
    struct cell *children;
    struct dir *to_scan; /* work list of a scan */
    struct dir *same_watch; /* others on the same inotify watch: the same directory by links */
    int watch; /* -1: none */
    uint16_t depth; /* slashes of its own URL */
    uint16_t nesting; /* links on the way to it */
    dev_t device;
    ino_t inode;
    bool queued;
};

struct site {
    struct str name; /* lower case; "" in a layout of one site */
    size_t file_prefix; /* bytes of node.file before the URL */
    struct path_table table;
    _Atomic uint32_t endpoints; /* files with an endpoint's suffix, whether they run or not */
    struct dir *root; /* NULL: the host's directory is gone */
};

struct host_map {
    struct map by_name; /* -> struct site */
};

struct tree {
    pthread_mutex_t lock; /* of the writer; tree_lock() */
    pthread_mutex_t rules_lock; /* also held where settings and real_root change: site_open() reads them */
    struct index_settings settings;
    int layout; /* readers' copies, constant while running */
    struct str root;
    _Atomic int root_fd; /* -1: none */
    struct dir *top; /* the directory of all sites; NULL in a layout of one */
    struct site *single;
    struct map sites; /* name -> struct site; every one there ever was: readers may keep the pointer */
    _Atomic(struct host_map *) hosts;
    bool hosts_changed;
    bool scanning_first; /* nobody reads yet: no notices to other rooms */
    struct list links;
    struct map links_by_target; /* real path -> struct link chain */
    uint32_t scan; /* number of the last directory scan */
    struct str real_root; /* where settings.root leads now */
    dev_t root_device;
    ino_t root_inode;
    _Atomic uint64_t files;
    _Atomic uint64_t directories;
    _Atomic uint64_t endpoints;
    _Atomic uint64_t watches;
    _Atomic bool degraded;
};

extern struct tree tree;

void tree_lock(void);
/* False when the writer is busy for longer than a request should wait. */
bool tree_lock_soon(void);
void tree_unlock(void);
/* The calling thread is the writer at the moment. */
bool tree_is_mine(void);

/* ---- cells ---------------------------------------------------------------------------- */
/* What a look at the disk says about one name. */
struct entry {
    enum node_kind kind;
    bool hidden;
    bool companion;
    bool symlink_out;
    bool is_link;
    const char *target; /* real path of a link */
    struct stat st; /* of what it leads to; zero when dangling */
};

/* A child by its exact URL, not by a short name; NULL when there is none. */
struct cell *tree_find(const struct site *site, struct str url);
static inline struct cell *cell_of(const struct site_node *node)
{
    return CONTAINER_OF(node, struct cell, node);
}

/* Adds, or puts in the place of `old` (same URL, same kind of thing: directory or not).
 * NULL when out of memory; the index is as before. */
struct cell *tree_put(struct site *site, struct dir *parent, struct str name, const struct entry *entry,
                      struct cell *old);
/* With everything below. */
void tree_remove(struct cell *cell);
/* Which of indexPriority answers. */
void tree_refresh_index(struct dir *dir);
void tree_link_target_set(struct link *link, const char *target);

/* ---- sites ---------------------------------------------------------------------------- */
/* The site of that name (any case); its root is NULL while it has no directory. */
struct site *tree_site_find(struct str name);
/* The same, made when there was none. */
struct site *tree_site(struct str name);
/* Publishes the names of the sites after some came or went. */
void tree_publish_hosts(void);
void tree_publish_no_hosts(void);
struct dir *dir_new(struct site *site, struct dir *parent);
/* Everything; readers may still hold nodes. */
void tree_clear(void);

#endif
