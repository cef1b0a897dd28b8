/* What the LMDB store makes of files that it cannot use, and of a disk that is full. */
#include "tests/unit/sessions/lmdb_support.h"

#include "observe/log.h"

#include <lmdb.h>
#include <signal.h>
#include <sys/resource.h>

/* ---- files that cannot be used ------------------------------------------------------------------------------ */

static void expect_refusal(struct fixture *f, const char *const words[])
{
    struct buffer error = BUFFER_EMPTY;
    struct store *store = f->ops->open(&f->options, &error);
    assert_null(store);
    for (; *words != NULL; words++) {
        if (memmem(error.data, error.len, *words, strlen(*words)) == NULL) {
            fail_msg("\"%.*s\" does not say \"%s\"", STR_ARG(buffer_str(&error)), *words);
        }
    }
    buffer_free(&error);
}

#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A store with 300 values, closed. */
static void fill(struct fixture *f)
{
    char key[16];
    char value[1001];
    memset(value, 'v', 1000);
    value[0] = value[999] = '"';
    value[1000] = '\0';
    f->options.max_session = 1 << 20;
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(do_set(f, "id", key, value, 1), STORE_OK);
    }
    fixture_close(f);
}

static void expect_unchanged(const struct fixture *f, const char *name, const struct buffer *before)
{
    struct buffer now = BUFFER_EMPTY;
    file_load(f, name, &now);
    assert_true(str_eq(buffer_str(&now), buffer_str(before)));
    buffer_free(&now);
}

static void damage(struct fixture *f, const char *name, const char *other, size_t keep, size_t garbage)
{
    char moved[64];
    char from[PATH_MAX + 64];
    char to[PATH_MAX + 64];
    struct buffer bytes = BUFFER_EMPTY;
    fill(f);
    file_load(f, name, &bytes);
    if (keep > 0) {
        bytes.len = keep;
    }
    memset(bytes.data, 'x', garbage);
    file_store(f, name, bytes.data, bytes.len);
    expect_refusal(f, SAYS(name, other, "ove", "start again"));
    expect_unchanged(f, name, &bytes);
    /* As the message says. */
    snprintf(moved, sizeof moved, "%s.moved", name);
    path_in(f, name, from);
    path_in(f, moved, to);
    assert_int_equal(rename(from, to), 0);
    fixture_open(f);
    assert_non_null(do_get(f, "id", "k0", 1));
    assert_non_null(do_get(f, "id", "k299", 1));
    assert_int_equal(do_set(f, "id", "k0", "1", 1), STORE_OK);
    fixture_close(f);
    fixture_open(f);
    assert_string_equal(do_get(f, "id", "k0", 1), "1");
    fixture_close(f);
    buffer_free(&bytes);
}

static void garbage_in_live(void **state)
{
    damage(*state, "live.mdb", "saved.mdb", 0, 8192);
}

static void garbage_in_saved(void **state)
{
    damage(*state, "saved.mdb", "live.mdb", 0, 8192);
}

static void live_cut_short(void **state)
{
    damage(*state, "live.mdb", "saved.mdb", 40960, 0);
}

static void saved_cut_short(void **state)
{
    damage(*state, "saved.mdb", "live.mdb", 40960, 0);
}

static void saved_is_missing(void **state)
{
    struct fixture *f = *state;
    fill(f);
    file_remove(f, "saved.mdb");
    fixture_open(f); /* live.mdb is of this run of the machine: complete */
    assert_non_null(do_get(f, "id", "k7", 1));
    fixture_close(f);
    f->options.boot_id = "boot-2";
    fixture_open(f);
    assert_non_null(do_get(f, "id", "k7", 1));
    fixture_close(f);
    file_remove(f, "saved.mdb");
    f->options.boot_id = "boot-3";
    expect_refusal(f, SAYS("saved.mdb", "missing", "live.mdb"));
    struct buffer bytes = BUFFER_EMPTY;
    file_load(f, "live.mdb", &bytes);
    assert_true(bytes.len > 300000);
    buffer_free(&bytes);
}

static void someone_elses_lmdb_file(void **state)
{
    struct fixture *f = *state;
    char path[PATH_MAX + 64];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_val key = {3, "abc"};
    path_in(f, "saved.mdb", path);
    assert_int_equal(mdb_env_create(&env), 0);
    mdb_env_set_maxdbs(env, 2);
    assert_int_equal(mdb_env_open(env, path, MDB_NOSUBDIR, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, "rows", MDB_CREATE, &dbi), 0);
    assert_int_equal(mdb_put(txn, dbi, &key, &key, 0), 0);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
    expect_refusal(f, SAYS("saved.mdb", "not made by Kiln"));
}

static void directories_are_made_and_private(void **state)
{
    struct fixture *f = *state;
    char path[PATH_MAX + 64];
    struct stat st;
    path_in(f, "deep/er", path);
    f->options.directory = path;
    fixture_open(f);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    static const char *const names[] = {"live.mdb", "saved.mdb", "live.mdb-lock", "boot", "lock"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[PATH_MAX + 128];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(st.st_mode & 0077, 0);
    }
    fixture_close(f);
    assert_int_equal(chmod(path, 0755), 0);
    fixture_open(f);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    fixture_close(f);
    file_store(f, "file", "", 0);
    path_in(f, "file", path);
    expect_refusal(f, SAYS("file", "directory"));
    f->options.directory = f->directory;
}

/* The largest file that the process may write stands for the full disk. */
static void a_full_disk_refuses_and_harms_nothing(void **state)
{
    struct fixture *f = *state;
    char id[16];
    char value[4001];
    memset(value, 'v', 4000);
    value[0] = value[3999] = '"';
    value[4000] = '\0';
    fixture_open(f);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){2 << 20, before.rlim_max}), 0);
    enum store_result result = STORE_OK;
    int made = 0;
    while (result == STORE_OK && made < 2000) {
        snprintf(id, sizeof id, "s%d", made);
        struct store_op op = {
            .kind = STORE_CREATE, .id = str_of(id), .expires = 100, .key = STR("v"), .json = str_of(value)};
        result = run_op(f, op, NULL);
        made += result == STORE_OK;
    }
    bool first = do_get(f, "s0", "v", 1) != NULL;
    bool last = do_get(f, id, "v", 1) != NULL;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(result == STORE_FULL || result == STORE_FAILED); /* a short write looks like a broken disk */
    assert_true(made > 100 && made < 2000);
    assert_true(first);
    assert_false(last);
    assert_int_equal(do_create(f, "again", 100), STORE_OK);
    assert_int_equal(do_set(f, "again", "v", value, 1), STORE_OK);
    assert_int_equal(f->ops->count(f->store), made + 1);
    fixture_close(f);
    f->options.boot_id = "boot-2";
    fixture_open(f);
    assert_int_equal(f->ops->count(f->store), made + 1);
    assert_string_equal(do_get(f, "again", "v", 1), value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(garbage_in_live),
        TEST(garbage_in_saved),
        TEST(live_cut_short),
        TEST(saved_cut_short),
        TEST(saved_is_missing),
        TEST(someone_elses_lmdb_file),
        TEST(directories_are_made_and_private),
        TEST(a_full_disk_refuses_and_harms_nothing),
    };
    log_level_set(LOG_ERROR + 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
