/* DESIGN: what the server keeps of static files between requests. An entry belongs to one
 * site node and holds everything an answer needs: the bytes of a small file (or an open
 * descriptor of a larger one), its gzip, brotli and zstd forms, and for each of these the
 * ready response heads. The hot path is one atomic load from the node, one counter, one
 * write.
 *
 * Readers find an entry through node->cached under the epoch of their loop iteration and
 * take a reference before they let it outlive that (output that is queued). The cache
 * drops its own reference through epoch_retire(), so a count never comes back from zero.
 * An entry is immutable but for its variants, which are added once made.
 *
 * It is bounded by FileCacheSize (bytes, second-chance eviction) and by a number of open
 * descriptors. An entry goes when its node goes, when the config changes (its heads were
 * made from it), when a precompressed sibling changes, and when a look at the file, once a
 * second at most, finds it different (mapped writes and network file systems send no
 * inotify event). */
#ifndef KILN_ANSWER_FILE_CACHE_H
#define KILN_ANSWER_FILE_CACHE_H

#include "base/str.h"

struct site;
struct site_node;

/* ---- for the site index --------------------------------------------------------------- */
/* A node's memory is about to be freed, after its epoch: drops node->cached. Any thread. */
void file_cache_forget(struct site_node *node);
/* A file was added, replaced or removed, and the index says so by now. Drops the entry of
 * "/a.css" when "/a.css.gz", ".br" or ".zst" changes; anything else costs a look at the
 * suffix. On the writer's thread. */
void file_cache_url_changed(struct site *site, struct str url);

/* ---- for the worker and the console ---------------------------------------------------- */
/* Empties it. Before the site index goes. */
void file_cache_stop(void);
struct file_cache_counts {
    size_t files;
    size_t bytes;
    unsigned descriptors;
};
void file_cache_counts(struct file_cache_counts *out);

#endif
