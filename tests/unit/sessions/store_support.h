/* Short words for store operations, and a temporary directory, for the tests of sessions/. */
#ifndef KILN_TESTS_STORE_SUPPORT_H
#define KILN_TESTS_STORE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sessions/store.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    const struct store_ops *ops;
    struct store_options options;
    struct store *store;
    char directory[PATH_MAX];
    struct buffer out; /* of the last get */
};

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void make_directory(char *directory, size_t size)
{
    const char *base = getenv("TMPDIR");
    snprintf(directory, size, "%s/kiln-test-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(directory));
}

static inline void fixture_open(struct fixture *f)
{
    struct buffer error = BUFFER_EMPTY;
    f->store = f->ops->open(&f->options, &error);
    if (f->store == NULL) {
        fail_msg("open: %.*s", STR_ARG(buffer_str(&error)));
    }
    buffer_free(&error);
}

static inline struct fixture *fixture_make(const struct store_ops *ops)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->ops = ops;
    make_directory(f->directory, sizeof f->directory);
    f->options = (struct store_options){
        .directory = f->directory,
        .sync_ms = 50,
        .max_value = 65536,
        .max_session = 200000,
        .max_bytes = 64 << 20,
    };
    return f;
}

static inline void fixture_close(struct fixture *f)
{
    if (f->store != NULL) {
        f->ops->close(f->store);
        f->store = NULL;
    }
}

static inline void fixture_free(struct fixture *f)
{
    fixture_close(f);
    buffer_free(&f->out);
    remove_tree(f->directory);
    free(f);
}

static inline enum store_result run_op(struct fixture *f, struct store_op op, struct store_op *after)
{
    enum store_result result = store_run(f->ops, f->store, &op);
    if (after != NULL) {
        *after = op;
    }
    return result;
}

static inline enum store_result do_create(struct fixture *f, const char *id, int64_t expires)
{
    return run_op(f, (struct store_op){.kind = STORE_CREATE, .id = str_of(id), .expires = expires}, NULL);
}

static inline enum store_result do_set(struct fixture *f, const char *id, const char *key, const char *json,
                                       int64_t now)
{
    return run_op(
        f, (struct store_op){.kind = STORE_SET, .id = str_of(id), .key = str_of(key), .json = str_of(json), .now = now},
        NULL);
}

static inline enum store_result do_remove(struct fixture *f, const char *id, const char *key, int64_t now)
{
    return run_op(f, (struct store_op){.kind = STORE_REMOVE, .id = str_of(id), .key = str_of(key), .now = now}, NULL);
}

static inline enum store_result do_increment(struct fixture *f, const char *id, const char *key, int64_t by,
                                             int64_t *sum)
{
    struct store_op after;
    enum store_result result = run_op(
        f, (struct store_op){.kind = STORE_INCREMENT, .id = str_of(id), .key = str_of(key), .number = by, .now = 1},
        &after);
    if (sum != NULL) {
        *sum = after.number;
    }
    return result;
}

static inline enum store_result do_touch(struct fixture *f, const char *id, int64_t now, int64_t expires)
{
    return run_op(f, (struct store_op){.kind = STORE_TOUCH, .id = str_of(id), .now = now, .expires = expires}, NULL);
}

static inline enum store_result do_rename(struct fixture *f, const char *id, const char *new_id, int64_t now,
                                          int64_t expires)
{
    return run_op(f,
                  (struct store_op){
                      .kind = STORE_RENAME, .id = str_of(id), .new_id = str_of(new_id), .now = now, .expires = expires},
                  NULL);
}

static inline enum store_result do_destroy(struct fixture *f, const char *id)
{
    return run_op(f, (struct store_op){.kind = STORE_DESTROY, .id = str_of(id)}, NULL);
}

static inline enum store_result do_exists(struct fixture *f, const char *id, int64_t now, int64_t *expires)
{
    struct store_op after;
    enum store_result result = run_op(f, (struct store_op){.kind = STORE_EXISTS, .id = str_of(id), .now = now}, &after);
    if (expires != NULL) {
        *expires = after.expires;
    }
    return result;
}

static inline int64_t do_sweep(struct fixture *f, int64_t now, int64_t most)
{
    struct store_op after;
    assert_int_equal(run_op(f, (struct store_op){.kind = STORE_SWEEP, .now = now, .number = most}, &after), STORE_OK);
    return after.number;
}

/* The JSON text, or NULL; valid until the next call. */
static inline const char *do_get(struct fixture *f, const char *id, const char *key, int64_t now)
{
    f->out.len = 0;
    struct store_op op = {.kind = STORE_GET, .id = str_of(id), .key = str_of(key), .now = now, .out = &f->out};
    if (store_run(f->ops, f->store, &op) != STORE_OK) {
        return NULL;
    }
    buffer_append_char(&f->out, '\0');
    return f->out.data;
}

static inline const char *do_get_all(struct fixture *f, const char *id, int64_t now)
{
    f->out.len = 0;
    struct store_op op = {.kind = STORE_GET_ALL, .id = str_of(id), .now = now, .out = &f->out};
    if (store_run(f->ops, f->store, &op) != STORE_OK) {
        return NULL;
    }
    buffer_append_char(&f->out, '\0');
    return f->out.data;
}

#endif
