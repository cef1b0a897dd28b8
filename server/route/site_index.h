/* DESIGN: every path below the web root, in memory. A site is one host directory (or the
 * whole root); each site has a hash table from URL path to node, compared exactly. Readers
 * (loop threads) take no lock: buckets and nodes are published with release stores and
 * freed through base/epoch.h. One writer, the watcher thread, changes it from inotify
 * events; where a change cannot be told exactly, it rescans the directory. */
#ifndef KILN_ROUTE_SITE_INDEX_H
#define KILN_ROUTE_SITE_INDEX_H

#include "base/buffer.h"
#include "base/str.h"
#include "config/config.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

struct answer;
struct endpoint;
struct cached_file;
struct site;

enum node_kind { NODE_FILE, NODE_DIRECTORY, NODE_ENDPOINT };

/* Immutable once published, except for the atomics. A changed file gets a new node. */
struct site_node {
    enum node_kind kind;
    bool hidden; /* exists but is never served: source, the server's own file, unsafe link */
    bool companion; /* .c, .h and the like: hidden once its site has an endpoint; ask site_node_is_hidden() */
    bool symlink_out; /* resolves outside the root */
    struct str url; /* "/dir/file.html"; directories "/dir" and "" for the root */
    struct str file; /* absolute path on disk, NUL-terminated; url is its tail */
    uint64_t size;
    struct timespec mtime;
    ino_t inode;
    dev_t device;
    const struct answer *answer;
    struct site *site;
    struct endpoint *endpoint; /* NODE_ENDPOINT */
    _Atomic(const struct site_node *) index; /* NODE_DIRECTORY: what answers "/dir/" */
    /* File cache's slot (answer/file_cache.c), released with the node. */
    _Atomic(struct cached_file *) cached;
};

/* Scans the root (progress line on a terminal, `kiln: 104,233 files in 2,114 directories,
 * 0.62 s`), starts the watcher thread. False with a log line when the root is unusable.
 * `watch` false: scan only (tools, tests). */
bool site_index_start(const struct config *config, bool watch);
void site_index_stop(void);
/* A new config is current: ExtTypes, indexPriority... may differ. Rescans in background. */
void site_index_config_changed(const struct config *config);

/* Sites by directory name; SITE_SINGLE: always the one site. NULL: no such host. */
struct site *site_find(struct str hostname);
/* Exact match of a decoded, normalised path without trailing slash ("" is the root). Hidden
 * nodes are found too. An endpoint is also found by its short name: then the URL of the
 * node is longer than `path`. When the watcher has given up on part of the tree
 * (inotify limit), checks the disk first. */
const struct site_node *site_lookup(struct site *site, struct str path);
/* What answers the URL "directory/": a file or endpoint of indexPriority, or NULL. */
const struct site_node *site_directory_index(const struct site_node *directory);
bool site_node_is_hidden(const struct site_node *node);
struct str site_name(const struct site *site);
/* The site's error404.html (error500.html...), or NULL. */
const struct site_node *site_error_page(struct site *site, int status);

/* Opens the node's file for reading and fills *st from the descriptor. What is opened is
 * what the index looked at, or a regular file that passes the same rules now: a link or
 * directory swapped in the meantime cannot lead to a file outside the root, to a source
 * or to a dotfile. -1 with errno: ENOENT gone, EACCES not allowed, or as open() says. */
int site_open(const struct site_node *node, struct stat *st);

/* For the console's listfiles and countfiles: calls fn for each file below `prefix`, a path
 * as in a URL, after the host name in a server of many sites ("example.com/img"). Not on a
 * loop thread: it waits for a running scan. */
void site_index_each(struct str prefix, void (*fn)(const struct site_node *node, void *arg), void *arg);
struct site_index_counts {
    uint64_t files, directories, endpoints, watches;
    bool degraded;
};
void site_index_counts(struct site_index_counts *out);
/* Tests and the console's indexfiles: scan `path` (a prefix as above; empty: all) now and
 * wait for it. */
void site_index_rescan(struct str path);
/* Waits until every event that the kernel has queued so far is applied (tests). */
void site_index_settle(void);

#endif
