/* DESIGN: a file comes into the cache by open, fstat and, when it is small, one read. What
 * counts is what fstat says of the open descriptor; the index may be a moment behind. The
 * read happens on the loop while the page cache has the bytes (RWF_NOWAIT) and on the pool
 * when the disk would be waited for. A file that changes while it is read is read again;
 * one that keeps changing is answered from what was read, once, with a weak tag. */
#include "answer/cached_file.h"
#include "answer/mime.h"
#include "loop/pool.h"
#include "observe/log.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_INLINE_MAX = 262144, /* a larger one would hold the loop too long even from memory */
    READ_ATTEMPTS = 3,
};

/* ---- identity ---------------------------------------------------------------------------- */

bool file_identity_equal(const struct file_identity *a, const struct file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size && a->mtime.tv_sec == b->mtime.tv_sec &&
           a->mtime.tv_nsec == b->mtime.tv_nsec;
}

struct file_identity file_identity_of(const struct stat *st)
{
    return (struct file_identity){st->st_dev, st->st_ino, (uint64_t)st->st_size, st->st_mtim};
}

/* The kernel stamps files with a clock that ticks every 1 to 10 ms; two writes within one
 * tick leave one time. File systems without fractions of a second tick every 1 or 2 s. */
bool file_identity_is_young(const struct file_identity *identity)
{
    enum { TICK_NS = 20000000 };
    const int64_t second_ns = 1000000000;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    int64_t seconds = (int64_t)now.tv_sec - (int64_t)identity->mtime.tv_sec;
    if (seconds < -3 || seconds > 3) {
        return false;
    }
    int64_t age = seconds * second_ns + (now.tv_nsec - identity->mtime.tv_nsec);
    int64_t tick = identity->mtime.tv_nsec == 0 ? 2 * second_ns : TICK_NS;
    return age > -tick && age < tick;
}

/* ---- reading ------------------------------------------------------------------------------- */

enum read_result { READ_DONE, READ_COLD, READ_UNSETTLED, READ_FAILED };

struct reading {
    int fd;
    struct stat st; /* of the bytes read */
    char *body;
    bool unsettled;
};

/* Exactly `size` bytes from the start; READ_UNSETTLED when there are fewer. */
static enum read_result read_bytes(int fd, char *to, size_t size, bool may_wait)
{
    size_t have = 0;
    while (have < size) {
        struct iovec vector = {to + have, size - have};
        ssize_t n = may_wait ? pread(fd, to + have, size - have, (off_t)have)
                             : preadv2(fd, &vector, 1, (off_t)have, RWF_NOWAIT);
        if (n > 0) {
            have += (size_t)n;
        } else if (n == 0) {
            return READ_UNSETTLED;
        } else if (errno == EAGAIN && !may_wait) {
            return READ_COLD;
        } else if ((errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) && !may_wait) {
            may_wait = true; /* a file system without RWF_NOWAIT lies in memory, as a rule */
        } else if (errno != EINTR) {
            return READ_FAILED;
        }
    }
    return READ_DONE;
}

static enum read_result read_whole(struct reading *reading, bool may_wait)
{
    for (int attempt = 0;; attempt++) {
        size_t size = (size_t)reading->st.st_size;
        free(reading->body);
        reading->body = malloc(size > 0 ? size : 1);
        if (reading->body == NULL) {
            return READ_FAILED;
        }
        enum read_result result = read_bytes(reading->fd, reading->body, size, may_wait);
        if (result == READ_COLD || result == READ_FAILED) {
            return result;
        }
        struct file_identity before = file_identity_of(&reading->st);
        struct stat st;
        if (fstat(reading->fd, &st) != 0) {
            return READ_FAILED;
        }
        struct file_identity after = file_identity_of(&st);
        if (result == READ_DONE && file_identity_equal(&before, &after)) {
            return READ_DONE;
        }
        if (result == READ_DONE && attempt + 1 >= READ_ATTEMPTS) {
            reading->unsettled = true;
            return READ_DONE;
        }
        if (attempt >= 2 * READ_ATTEMPTS) {
            return READ_FAILED;
        }
        reading->st = st;
    }
}

static void reading_free(struct reading *reading)
{
    if (reading->fd >= 0) {
        close(reading->fd);
    }
    free(reading->body);
}

/* ---- siblings --------------------------------------------------------------------------------- */

const struct site_node *file_sibling(const struct site_node *node, const struct config *config,
                                     const struct file_identity *original, enum coding coding)
{
    char url[4096];
    struct str suffix = coding_infos[coding].suffix;
    if (!config->precompressed || node->url.len + suffix.len > sizeof url) {
        return NULL;
    }
    memcpy(url, node->url.ptr, node->url.len);
    memcpy(url + node->url.len, suffix.ptr, suffix.len);
    const struct site_node *sibling = site_lookup(node->site, (struct str){url, node->url.len + suffix.len});
    if (sibling == NULL || sibling->kind != NODE_FILE || site_node_is_hidden(sibling) || sibling->size == 0 ||
        sibling->size >= original->size) {
        return NULL;
    }
    bool older = sibling->mtime.tv_sec < original->mtime.tv_sec ||
                 (sibling->mtime.tv_sec == original->mtime.tv_sec && sibling->mtime.tv_nsec < original->mtime.tv_nsec);
    return older ? NULL : sibling;
}

/* ---- building ----------------------------------------------------------------------------------- */

/* Takes body and descriptor out of the reading. */
static struct file_form *form_new(enum coding coding, struct reading *reading)
{
    struct file_form *form = calloc(1, sizeof *form);
    if (form == NULL) {
        return NULL;
    }
    form->coding = coding;
    form->length = (uint64_t)reading->st.st_size;
    form->body = (const uint8_t *)reading->body;
    form->fd = -1;
    if (form->body == NULL) {
        form->fd = reading->fd;
        reading->fd = -1;
    }
    reading->body = NULL;
    return form;
}

static void add_sibling(struct cached_file *file, const struct site_node *node, const struct config *config,
                        enum coding coding)
{
    const struct site_node *sibling = file_sibling(node, config, &file->identity, coding);
    if (sibling == NULL) {
        return;
    }
    struct reading reading = {.fd = -1};
    reading.fd = site_open(sibling, &reading.st);
    if (reading.fd < 0 || reading.st.st_size == 0) {
        reading_free(&reading);
        return;
    }
    bool small = reading.st.st_size <= config->file_cache_max_file && reading.st.st_size <= READ_INLINE_MAX;
    if (!small || read_whole(&reading, false) != READ_DONE) {
        free(reading.body); /* cold or large: sent from the descriptor */
        reading.body = NULL;
    }
    struct file_form *form = form_new(coding, &reading);
    reading_free(&reading);
    if (form != NULL) {
        file->siblings[coding] = file_identity_of(&reading.st);
        atomic_init(&file->forms[coding], form);
    }
}

/* True when variants of the file may be made. */
static bool is_compressible(const struct cached_file *file, const struct config *config,
                            const struct response_header *headers, unsigned count, struct str type)
{
    struct str cache_control = header_list_get(headers, count, STR("Cache-Control"));
    return file->level != COMPRESSION_NONE && file->identity.size >= (uint64_t)config->compress_min_size &&
           file->identity.size <= (uint64_t)config->compress_max_size && file->identity.size > 1 &&
           header_list_get(headers, count, STR("Content-Encoding")).ptr == NULL &&
           !str_list_has(cache_control, STR("no-transform")) &&
           media_type_in(type, config->compress_types.items, config->compress_types.count);
}

static bool is_text(struct str type)
{
    return str_starts(type, STR("text/")) || memmem(type.ptr, type.len, "json", 4) != NULL ||
           memmem(type.ptr, type.len, "xml", 3) != NULL || memmem(type.ptr, type.len, "javascript", 10) != NULL;
}

/* Identity form and siblings, rendered. The buffer's bytes are copied by rendering. */
static bool fill(struct cached_file *file, const struct config *config, const struct site_node *node,
                 struct reading *reading)
{
    struct response_header headers[HEAD_MAX_HEADERS];
    struct buffer disposition = BUFFER_EMPTY;
    struct str type;
    unsigned count = file_headers(config, str_of(file->path), &disposition, headers, &type);
    file->level = (enum compression_level)config->compression_level;
    file->compressible = is_compressible(file, config, headers, count, type);
    file->text = is_text(type);
    file->negotiable = file->compressible;
    bool coded = header_list_get(headers, count, STR("Content-Encoding")).ptr != NULL;
    for (int i = 0; i < CODING_IDENTITY && node != NULL && !coded; i++) {
        add_sibling(file, node, config, (enum coding)i);
        file->negotiable = file->negotiable || file->siblings[i].size > 0;
    }
    file_make_etags(file);
    struct file_form *identity = form_new(CODING_IDENTITY, reading);
    atomic_init(&file->forms[CODING_IDENTITY], identity);
    bool made = identity != NULL;
    for (int i = 0; i < CODING_COUNT && made; i++) {
        struct file_form *form = atomic_load_explicit(&file->forms[i], memory_order_relaxed);
        made = form == NULL || form_render(form, file, headers, count);
    }
    buffer_free(&disposition);
    return made;
}

/* With one reference; NULL when out of memory. Empties the reading. */
static struct cached_file *file_new(const struct config *config, const struct site_node *node, struct str path,
                                    struct reading *reading)
{
    struct cached_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        reading_free(reading);
        return NULL;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    file->magic = CACHED_FILE_MAGIC;
    file->config = config;
    file->identity = file_identity_of(&reading->st);
    /* RFC 9110 8.8.2.1: never later than Date. */
    file->modified = reading->st.st_mtim.tv_sec < now.tv_sec ? reading->st.st_mtim.tv_sec : now.tv_sec;
    file->weak = reading->unsettled || file_identity_is_young(&file->identity);
    file->path = strndup(path.ptr, path.len);
    atomic_init(&file->references, 1);
    atomic_init(&file->checked_second, now.tv_sec);
    list_init(&file->ring);
    bool made = file->path != NULL && fill(file, config, node, reading);
    reading_free(reading);
    if (!made) {
        cached_file_unref(file);
        return NULL;
    }
    return file;
}

static enum file_load_result result_of_errno(struct str path)
{
    switch (errno) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENXIO: return FILE_MISSING;
    case EACCES:
    case EPERM: log_info("%.*s: %s", STR_ARG(path), strerror(errno)); return FILE_FORBIDDEN;
    default: log_error("%.*s: %s", STR_ARG(path), strerror(errno)); return FILE_BUSY;
    }
}

/* ---- on the pool ------------------------------------------------------------------------------------ */

struct load_job {
    struct pool_job job;
    struct file_waiter *waiter;
    struct reading reading;
    enum read_result result;
    struct str url; /* in the request's arena, as path */
    struct str path;
};

static void load_run(struct pool_job *pool_job)
{
    struct load_job *job = CONTAINER_OF(pool_job, struct load_job, job);
    job->result = read_whole(&job->reading, true);
    file_waiter_post(job->waiter);
}

/* Back on the loop: the node is looked up again, it may be another one by now. */
void file_load_finish(struct file_waiter *waiter)
{
    struct load_job *job = waiter->job;
    struct request *req = waiter->req;
    waiter->job = NULL;
    if (req->gone || job->result != READ_DONE) {
        reading_free(&job->reading);
        waiter->result = FILE_BUSY;
        free(job);
        return;
    }
    struct site *site = site_find(req->hostname);
    const struct site_node *node = site != NULL ? site_lookup(site, job->url) : NULL;
    if (node != NULL && (node->kind != NODE_FILE || !str_eq(node->file, job->path))) {
        node = NULL;
    }
    bool settled = !job->reading.unsettled;
    struct cached_file *file = file_new(req->config, node, job->path, &job->reading);
    if (file != NULL && node != NULL && settled) {
        file = file_cache_publish(file, node, req->config);
    }
    waiter->file = file;
    waiter->result = file != NULL ? FILE_LOADED : FILE_BUSY;
    free(job);
}

static enum file_load_result load_later(const struct site_node *node, struct file_waiter *waiter,
                                        struct reading *reading)
{
    struct load_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        reading_free(reading);
        return FILE_BUSY;
    }
    job->job.run = load_run;
    job->waiter = waiter;
    job->reading = *reading;
    job->url = arena_str(&waiter->req->arena, node->url);
    job->path = arena_str(&waiter->req->arena, node->file);
    if (job->url.ptr == NULL || job->path.ptr == NULL) {
        reading_free(reading);
        free(job);
        return FILE_BUSY;
    }
    waiter->job = job;
    file_waiter_start(waiter);
    pool_submit(&job->job);
    return FILE_LOADING;
}

enum file_load_result file_load(const struct site_node *node, struct file_waiter *waiter, struct cached_file **out)
{
    const struct config *config = waiter->req->config;
    struct reading reading = {.fd = -1};
    reading.fd = site_open(node, &reading.st);
    if (reading.fd < 0) {
        return result_of_errno(node->file);
    }
    if (reading.st.st_size <= config->file_cache_max_file) {
        enum read_result result = reading.st.st_size <= READ_INLINE_MAX ? read_whole(&reading, false) : READ_COLD;
        if (result == READ_COLD) {
            return load_later(node, waiter, &reading);
        }
        if (result != READ_DONE) {
            log_error("%.*s: cannot be read: %s", STR_ARG(node->file), strerror(errno));
            reading_free(&reading);
            return FILE_BUSY;
        }
    }
    bool settled = !reading.unsettled;
    *out = file_new(config, node, node->file, &reading);
    if (*out == NULL) {
        return FILE_BUSY;
    }
    if (settled) {
        *out = file_cache_publish(*out, node, config);
    }
    return FILE_LOADED;
}
