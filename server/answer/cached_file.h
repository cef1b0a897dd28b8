/* What lies in the file cache: a file, its forms (one for each content coding), their
 * heads. Private to answer/; file_cache.h has the rules of life. */
#ifndef KILN_ANSWER_CACHED_FILE_H
#define KILN_ANSWER_CACHED_FILE_H

#include "answer/compress.h"
#include "request/request.h"
#include "route/site_index.h"

#include <stdatomic.h>
#include <sys/stat.h>

enum { CACHED_FILE_MAGIC = 0x46494c45, ETAG_MAX = 64 };

/* The same bytes, as far as the file system tells. */
struct file_identity {
    dev_t device;
    ino_t inode;
    uint64_t size;
    struct timespec mtime;
};

struct file_form {
    enum coding coding;
    int fd; /* -1: the bytes are in memory */
    const uint8_t *body; /* malloc'ed; NULL when fd has them */
    uint64_t length;
    struct ready_head full; /* 200 */
    struct ready_head not_modified; /* 304 */
    char *head_memory; /* both heads lie in it */
    size_t charge; /* bytes this form takes */
};

struct variant_job;
struct load_job;

struct cached_file {
    uint32_t magic;
    _Atomic unsigned references;
    const struct config *config; /* compared only: the one its heads were made from */
    struct file_identity identity;
    struct file_identity siblings[CODING_COUNT]; /* size 0: none when it was loaded */
    int64_t modified; /* Last-Modified */
    bool weak; /* entity tags are weak: it changed too lately to tell a further change */
    bool compressible; /* variants may be made */
    bool negotiable; /* there is or may be another form than identity */
    bool text;
    enum compression_level level;
    struct str etags[CODING_COUNT]; /* of the forms that exist or can; "" else. In etag_text. */
    char etag_text[CODING_COUNT][ETAG_MAX];
    char *path; /* on disk, NUL-terminated */

    _Atomic(struct file_form *) forms[CODING_COUNT]; /* identity is always there */
    _Atomic bool incompressible; /* was tried, did not shrink or does not fit */
    _Atomic int64_t checked_second;
    _Atomic bool used; /* second chance of the eviction */

    /* Under the cache's lock. */
    struct list ring;
    struct site_node *node; /* whose slot holds it; NULL: not, or no longer, in the cache */
    size_t charge;
    unsigned descriptors;
    struct variant_job *jobs[CODING_COUNT];
};

/* ---- references ---------------------------------------------------------------------------- */
void cached_file_ref(struct cached_file *file);
/* Also as the release function of queued output. */
void cached_file_unref(void *file);

/* ---- heads (file_head.c) --------------------------------------------------------------------- */
enum { HEAD_MAX_HEADERS = 64 };
/* The headers that config and type give a file: DefaultHeaders, media type, ExtTypes. `*type`
 * is the resulting Content-Type. Returns how many; values point into the config, the tables
 * and `disposition`. */
unsigned file_headers(const struct config *config, struct str path, struct buffer *disposition,
                      struct response_header out[HEAD_MAX_HEADERS], struct str *type);
struct str header_list_get(const struct response_header *headers, unsigned count, struct str name);
/* Makes both heads of the form from `base`, adding what belongs to this file and coding.
 * False when out of memory. */
bool form_render(struct file_form *form, const struct cached_file *file, const struct response_header *base,
                 unsigned count);
/* True for the headers that a 304 has. */
bool header_belongs_in_304(struct str name);
/* Fills file->etags for identity and for every coding that `siblings` or compression gives. */
void file_make_etags(struct cached_file *file);

/* ---- loading (file_load.c) -------------------------------------------------------------------- */
enum file_load_result {
    FILE_LOADED, /* *file, with a reference of the caller */
    FILE_LOADING, /* the disk is slow: the waiter is called */
    FILE_MISSING,
    FILE_FORBIDDEN,
    FILE_BUSY, /* out of descriptors or memory */
};

/* Lies in the request's arena; the request is held until it was called. */
struct file_waiter {
    struct task task;
    struct request *req;
    struct list node;
    struct load_job *job;
    void (*done)(struct file_waiter *waiter); /* on the loop's thread; never when the request is gone */
    /* Results. */
    enum file_load_result result;
    struct cached_file *file; /* with a reference */
};

/* Opens the node's file, reads it when it is small, and puts it into the cache. */
enum file_load_result file_load(const struct site_node *node, struct file_waiter *waiter, struct cached_file **file);
/* Back on the loop after FILE_LOADING, before the waiter is called. */
void file_load_finish(struct file_waiter *waiter);
bool file_identity_equal(const struct file_identity *a, const struct file_identity *b);
struct file_identity file_identity_of(const struct stat *st);
/* The sibling that may stand for the file in this coding, or NULL. */
const struct site_node *file_sibling(const struct site_node *node, const struct config *config,
                                     const struct file_identity *original, enum coding coding);
/* A write that comes right after this change might leave the same identity. */
bool file_identity_is_young(const struct file_identity *identity);

/* ---- the cache (file_cache.c) --------------------------------------------------------------------- */
/* An entry that is still true, or NULL. Valid until the end of the loop's iteration unless
 * a reference is taken. */
bool cached_file_recheck(struct cached_file *file, const struct site_node *node, const struct config *config,
                         int64_t now);
static inline struct cached_file *file_cache_find(const struct request *req, const struct site_node *node)
{
    struct cached_file *file = atomic_load_explicit(&node->cached, memory_order_acquire);
    if (file == NULL || file->config != req->config) {
        return NULL;
    }
    int64_t now = loop_wall_seconds(req->loop);
    if (UNLIKELY(atomic_load_explicit(&file->checked_second, memory_order_relaxed) != now) &&
        !cached_file_recheck(file, node, req->config, now)) {
        return NULL;
    }
    if (!atomic_load_explicit(&file->used, memory_order_relaxed)) {
        atomic_store_explicit(&file->used, true, memory_order_relaxed);
    }
    return file;
}
/* Into the node's slot if the config is current, the slot free and the size allowed. Takes
 * the caller's reference and returns one: of the file itself, or of the same file that
 * another loop has put there first. */
struct cached_file *file_cache_publish(struct cached_file *file, const struct site_node *node,
                                       const struct config *config);
/* Adds a variant to the file; takes the form over. False: it does not fit, the form is freed. */
bool file_cache_add_form(struct cached_file *file, struct file_form *form);
void file_form_free(struct file_form *form);
void file_cache_lock(void);
void file_cache_unlock(void);

/* ---- variants (variant.c) ----------------------------------------------------------------------------- */
/* Has the coding made on the pool, once however many ask; the waiter (or NULL) is called
 * when it is made or has failed. False: this file gets none. */
bool variant_make(struct cached_file *file, enum coding coding, struct file_waiter *waiter);
/* Hands the waiter to its loop; from any thread. */
void file_waiter_post(struct file_waiter *waiter);
void file_waiter_start(struct file_waiter *waiter);

#endif
