/* DESIGN: compressed forms of a cached file, made on the pool: one job for a file and coding
 * however many requests want it. Requests for a small file wait for it; for a larger one the
 * first ones get the identity form. A job holds the file, not the node or the config. */
#include "answer/cached_file.h"
#include "loop/pool.h"

#include <stdlib.h>
#include <unistd.h>

struct variant_job {
    struct pool_job job;
    struct cached_file *file; /* with a reference */
    enum coding coding;
    struct list waiters; /* under the cache's lock */
};

/* ---- waiting ---------------------------------------------------------------------------- */

static void waiter_run(struct task *task)
{
    struct file_waiter *waiter = CONTAINER_OF(task, struct file_waiter, task);
    struct request *req = waiter->req;
    if (waiter->job != NULL) {
        file_load_finish(waiter);
    }
    if (req->gone) {
        if (waiter->file != NULL) {
            cached_file_unref(waiter->file);
        }
    } else {
        waiter->done(waiter);
    }
    request_release(req);
}

void file_waiter_start(struct file_waiter *waiter)
{
    waiter->task.run = waiter_run;
    request_hold(waiter->req); /* keeps the memory when the client leaves */
}

void file_waiter_post(struct file_waiter *waiter)
{
    loop_post(waiter->req->loop, &waiter->task);
}

/* ---- making -------------------------------------------------------------------------------- */

/* The identity bytes: in memory already, or read into *room. */
static const uint8_t *original_bytes(const struct file_form *identity, uint8_t **room)
{
    if (identity->body != NULL) {
        return identity->body;
    }
    uint8_t *bytes = malloc(identity->length);
    *room = bytes;
    uint64_t have = 0;
    while (bytes != NULL && have < identity->length) {
        ssize_t n = pread(identity->fd, bytes + have, identity->length - have, (off_t)have);
        if (n <= 0) {
            return NULL;
        }
        have += (uint64_t)n;
    }
    return bytes;
}

/* False when the descriptor's file is no longer what the entity tag stands for. */
static bool is_same_file(const struct cached_file *file, const struct file_form *identity)
{
    struct stat st;
    if (identity->fd < 0) {
        return true;
    }
    if (fstat(identity->fd, &st) != 0) {
        return false;
    }
    struct file_identity now = file_identity_of(&st);
    return file_identity_equal(&now, &file->identity);
}

static struct file_form *make_form(const struct cached_file *file, enum coding coding)
{
    const struct file_form *identity = atomic_load_explicit(&file->forms[CODING_IDENTITY], memory_order_acquire);
    uint8_t *room = NULL;
    const uint8_t *bytes = original_bytes(identity, &room);
    struct buffer coded = BUFFER_EMPTY;
    struct file_form *form = NULL;
    if (bytes != NULL && compress_bytes(coding, file->level, file->text, bytes, identity->length, &coded) &&
        is_same_file(file, identity)) {
        form = calloc(1, sizeof *form);
    }
    free(room);
    if (form == NULL) {
        buffer_free(&coded);
        return NULL;
    }
    form->coding = coding;
    form->fd = -1;
    form->body = (const uint8_t *)coded.data;
    form->length = coded.len;
    if (!form_render(form, file, identity->full.headers, identity->full.header_count)) {
        file_form_free(form);
        return NULL;
    }
    return form;
}

static void variant_run(struct pool_job *pool_job)
{
    struct variant_job *job = CONTAINER_OF(pool_job, struct variant_job, job);
    struct cached_file *file = job->file;
    struct file_form *form = make_form(file, job->coding);
    if (form == NULL || !file_cache_add_form(file, form)) {
        /* What one coding cannot shrink, the others cannot either. */
        atomic_store_explicit(&file->incompressible, true, memory_order_release);
    }
    struct list waiters;
    list_init(&waiters);
    file_cache_lock();
    file->jobs[job->coding] = NULL;
    LIST_EACH(it, &job->waiters) {
        list_remove(it);
        list_append(&waiters, it);
    }
    file_cache_unlock();
    LIST_EACH(it, &waiters) {
        struct file_waiter *waiter = LIST_ENTRY(it, struct file_waiter, node);
        cached_file_ref(file);
        waiter->file = file;
        waiter->result = FILE_LOADED;
        file_waiter_post(waiter);
    }
    cached_file_unref(file);
    free(job);
}

bool variant_make(struct cached_file *file, enum coding coding, struct file_waiter *waiter)
{
    if (!file->compressible || atomic_load_explicit(&file->incompressible, memory_order_acquire)) {
        return false;
    }
    struct variant_job *fresh = NULL;
    file_cache_lock();
    struct variant_job *job = file->jobs[coding];
    bool possible = atomic_load_explicit(&file->forms[coding], memory_order_relaxed) == NULL &&
                    (job != NULL || file->node != NULL); /* what is not kept is not worth making */
    if (possible && job == NULL) {
        fresh = calloc(1, sizeof *fresh);
        possible = fresh != NULL;
    }
    if (fresh != NULL) {
        fresh->job.run = variant_run;
        fresh->file = file;
        fresh->coding = coding;
        list_init(&fresh->waiters);
        cached_file_ref(file);
        file->jobs[coding] = fresh;
        job = fresh;
    }
    if (possible && waiter != NULL) {
        file_waiter_start(waiter);
        list_append(&job->waiters, &waiter->node);
    }
    file_cache_unlock();
    if (fresh != NULL) {
        pool_submit(&fresh->job);
    }
    return possible;
}
