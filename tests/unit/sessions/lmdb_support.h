/* A store of LMDB in a directory of its own, around each test. */
#ifndef KILN_TESTS_LMDB_SUPPORT_H
#define KILN_TESTS_LMDB_SUPPORT_H

#include "tests/unit/sessions/store_support.h"

#include <string.h>

static inline int setup(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    f->options.boot_id = "boot-1";
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static inline void path_in(const struct fixture *f, const char *name, char path[static PATH_MAX + 64])
{
    snprintf(path, PATH_MAX + 64, "%s/%s", f->directory, name);
}

static inline void file_load(const struct fixture *f, const char *name, struct buffer *out)
{
    char path[PATH_MAX + 64];
    path_in(f, name, path);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    char block[65536];
    size_t n;
    out->len = 0;
    while ((n = fread(block, 1, sizeof block, in)) > 0) {
        buffer_append(out, block, n);
    }
    fclose(in);
}

static inline void file_store(const struct fixture *f, const char *name, const void *data, size_t len)
{
    char path[PATH_MAX + 64];
    path_in(f, name, path);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, len, out), len);
    fclose(out);
}

static inline void file_remove(const struct fixture *f, const char *name)
{
    char path[PATH_MAX + 64];
    path_in(f, name, path);
    assert_int_equal(unlink(path), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
