/* What every store must do, run against each of them. */
#include "tests/unit/sessions/store_support.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <string.h>

static int setup_memory(void **state)
{
    struct fixture *f = fixture_make(&store_memory);
    fixture_open(f);
    *state = f;
    return 0;
}

static int setup_lmdb(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    fixture_open(f);
    *state = f;
    return 0;
}

static int setup_strict(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    f->options.strict = true;
    fixture_open(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static void values_are_kept_by_key(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(do_create(f, "alpha", 100), STORE_OK);
    assert_int_equal(do_set(f, "alpha", "name", "\"Ada\"", 1), STORE_OK);
    assert_int_equal(do_set(f, "alpha", "age", "36", 1), STORE_OK);
    assert_string_equal(do_get(f, "alpha", "name", 1), "\"Ada\"");
    assert_string_equal(do_get(f, "alpha", "age", 1), "36");
    assert_null(do_get(f, "alpha", "nam", 1));
    assert_null(do_get(f, "alpha", "names", 1));
    assert_null(do_get(f, "alph", "name", 1));
    assert_int_equal(do_set(f, "alpha", "name", "{\"first\": \"Ada\"}", 1), STORE_OK);
    assert_string_equal(do_get(f, "alpha", "name", 1), "{\"first\": \"Ada\"}");
    assert_string_equal(do_get(f, "alpha", "age", 1), "36");
    assert_int_equal(do_remove(f, "alpha", "name", 1), STORE_OK);
    assert_int_equal(do_remove(f, "alpha", "name", 1), STORE_NOT_FOUND);
    assert_null(do_get(f, "alpha", "name", 1));
    assert_string_equal(do_get(f, "alpha", "age", 1), "36");
}

static void sessions_do_not_mix(void **state)
{
    struct fixture *f = *state;
    /* Lengths are part of the key: "a" + "bc" is not "ab" + "c". */
    assert_int_equal(do_create(f, "a", 100), STORE_OK);
    assert_int_equal(do_create(f, "ab", 100), STORE_OK);
    assert_int_equal(do_set(f, "a", "bc", "1", 1), STORE_OK);
    assert_int_equal(do_set(f, "ab", "c", "2", 1), STORE_OK);
    assert_string_equal(do_get_all(f, "a", 1), "{\"bc\":1}");
    assert_string_equal(do_get_all(f, "ab", 1), "{\"c\":2}");
    assert_int_equal(do_destroy(f, "a"), STORE_OK);
    assert_null(do_get_all(f, "a", 1));
    assert_string_equal(do_get_all(f, "ab", 1), "{\"c\":2}");
}

static void all_values_are_one_object(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(do_create(f, "id", 100), STORE_OK);
    assert_string_equal(do_get_all(f, "id", 1), "{}");
    assert_int_equal(do_set(f, "id", "list", "[1,2,{\"x\":null}]", 1), STORE_OK);
    assert_int_equal(do_set(f, "id", "quote\"d\n", "\"v\"", 1), STORE_OK);
    cJSON *tree = cJSON_Parse(do_get_all(f, "id", 1));
    assert_non_null(tree);
    assert_int_equal(cJSON_GetArraySize(tree), 2);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(tree, "list")), 3);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "quote\"d\n")), "v");
    cJSON_Delete(tree);
}

static void a_session_is_begun_with_a_first_value(void **state)
{
    struct fixture *f = *state;
    struct store_op op = {.kind = STORE_CREATE, .id = STR("id"), .expires = 10, .key = STR("k"), .json = STR("true")};
    assert_int_equal(run_op(f, op, NULL), STORE_OK);
    assert_string_equal(do_get(f, "id", "k", 1), "true");
    op.id = STR("other");
    op.json = STR("tru");
    assert_int_equal(run_op(f, op, NULL), STORE_INVALID);
    assert_int_equal(do_exists(f, "other", 1, NULL), STORE_NOT_FOUND);
}

static void nothing_is_adopted(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(do_set(f, "ghost", "k", "1", 1), STORE_NOT_FOUND);
    assert_int_equal(do_increment(f, "ghost", "k", 1, NULL), STORE_NOT_FOUND);
    assert_int_equal(do_touch(f, "ghost", 1, 100), STORE_NOT_FOUND);
    assert_int_equal(do_rename(f, "ghost", "other", 1, 100), STORE_NOT_FOUND);
    assert_int_equal(do_remove(f, "ghost", "k", 1), STORE_NOT_FOUND);
    assert_int_equal(do_destroy(f, "ghost"), STORE_OK);
    assert_int_equal(f->ops->count(f->store), 0);
    assert_int_equal(do_create(f, "id", 100), STORE_OK);
    assert_int_equal(do_create(f, "id", 200), STORE_CONFLICT);
}

static void an_ended_session_is_not_there(void **state)
{
    struct fixture *f = *state;
    int64_t expires = 0;
    assert_int_equal(do_create(f, "id", 100), STORE_OK);
    assert_int_equal(do_set(f, "id", "k", "1", 99), STORE_OK);
    assert_int_equal(do_exists(f, "id", 99, &expires), STORE_OK);
    assert_int_equal(expires, 100);
    assert_int_equal(do_exists(f, "id", 100, NULL), STORE_NOT_FOUND);
    assert_null(do_get(f, "id", "k", 100));
    assert_null(do_get_all(f, "id", 100));
    assert_int_equal(do_set(f, "id", "k", "2", 100), STORE_NOT_FOUND);
    assert_int_equal(do_touch(f, "id", 100, 200), STORE_NOT_FOUND);
    assert_int_equal(do_touch(f, "id", 99, 200), STORE_OK);
    assert_int_equal(do_exists(f, "id", 150, &expires), STORE_OK);
    assert_int_equal(expires, 200);
    assert_string_equal(do_get(f, "id", "k", 150), "1");
}

static void sweeping_removes_what_ended(void **state)
{
    struct fixture *f = *state;
    char id[16];
    for (int i = 0; i < 500; i++) {
        snprintf(id, sizeof id, "s%d", i);
        assert_int_equal(do_create(f, id, 1000 + i), STORE_OK);
        assert_int_equal(do_set(f, id, "k", "1", 1), STORE_OK);
    }
    assert_int_equal(do_touch(f, "s0", 1, 5000), STORE_OK);
    assert_int_equal(f->ops->count(f->store), 500);
    assert_int_equal(do_sweep(f, 999, 1000), 0);
    assert_int_equal(do_sweep(f, 1000, 1000), 0);
    assert_int_equal(do_sweep(f, 1250, 100), 100);
    assert_int_equal(f->ops->count(f->store), 400);
    assert_int_equal(do_sweep(f, 1250, 1000), 150);
    assert_int_equal(do_sweep(f, 1250, 1000), 0);
    assert_int_equal(f->ops->count(f->store), 250);
    assert_int_equal(do_exists(f, "s250", 1, NULL), STORE_NOT_FOUND);
    assert_int_equal(do_exists(f, "s251", 1, NULL), STORE_OK);
    assert_string_equal(do_get(f, "s0", "k", 4999), "1");
    assert_int_equal(do_sweep(f, 9999, 1000), 250);
    assert_int_equal(f->ops->count(f->store), 0);
}

static void numbers_add_up(void **state)
{
    struct fixture *f = *state;
    int64_t sum = 0;
    assert_int_equal(do_create(f, "id", 100), STORE_OK);
    assert_int_equal(do_increment(f, "id", "n", 5, &sum), STORE_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(do_increment(f, "id", "n", -7, &sum), STORE_OK);
    assert_int_equal(sum, -2);
    assert_string_equal(do_get(f, "id", "n", 1), "-2");
    assert_int_equal(do_set(f, "id", "n", "9223372036854775806", 1), STORE_OK);
    assert_int_equal(do_increment(f, "id", "n", 1, &sum), STORE_OK);
    assert_true(sum == INT64_MAX);
    assert_int_equal(do_increment(f, "id", "n", 1, NULL), STORE_CONFLICT);
    assert_string_equal(do_get(f, "id", "n", 1), "9223372036854775807");
    assert_int_equal(do_set(f, "id", "n", "-9223372036854775808", 1), STORE_OK);
    assert_int_equal(do_increment(f, "id", "n", -1, NULL), STORE_CONFLICT);
    assert_int_equal(do_increment(f, "id", "n", 0, &sum), STORE_OK);
    assert_true(sum == INT64_MIN);
    static const char *const no_integers[] = {"\"1\"", "1.5", "1e3", "null", "[1]", "true"};
    for (size_t i = 0; i < sizeof no_integers / sizeof *no_integers; i++) {
        assert_int_equal(do_set(f, "id", "n", no_integers[i], 1), STORE_OK);
        assert_int_equal(do_increment(f, "id", "n", 1, NULL), STORE_CONFLICT);
        assert_string_equal(do_get(f, "id", "n", 1), no_integers[i]);
    }
}

static void a_new_id_takes_everything_along(void **state)
{
    struct fixture *f = *state;
    char key[16];
    int64_t expires = 0;
    assert_int_equal(do_create(f, "before", 100), STORE_OK);
    assert_int_equal(do_create(f, "taken", 100), STORE_OK);
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "key%d", i);
        assert_int_equal(do_set(f, "before", key, "\"value\"", 1), STORE_OK);
    }
    assert_int_equal(do_rename(f, "before", "taken", 1, 200), STORE_CONFLICT);
    assert_int_equal(do_rename(f, "before", "before", 1, 200), STORE_INVALID);
    assert_int_equal(do_rename(f, "before", "after-it", 1, 200), STORE_OK);
    assert_int_equal(do_exists(f, "before", 1, NULL), STORE_NOT_FOUND);
    assert_null(do_get(f, "before", "key1", 1));
    assert_int_equal(do_exists(f, "after-it", 150, &expires), STORE_OK);
    assert_int_equal(expires, 200);
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "key%d", i);
        assert_string_equal(do_get(f, "after-it", key, 1), "\"value\"");
    }
    assert_int_equal(f->ops->count(f->store), 2);
    assert_int_equal(do_sweep(f, 100, 10), 1); /* "taken"; the old end of "before" is forgotten */
    assert_int_equal(do_sweep(f, 200, 10), 1);
    /* The old id may be used again, and is empty. */
    assert_int_equal(do_create(f, "before", 300), STORE_OK);
    assert_string_equal(do_get_all(f, "before", 1), "{}");
}

static void limits_hold(void **state)
{
    struct fixture *f = *state;
    char *big = calloc(1, 70000);
    char key[300];
    assert_int_equal(do_create(f, "id", 100), STORE_OK);
    memset(big, 'x', 69999);
    big[0] = '"';
    big[65535] = '"';
    big[65536] = '\0';
    assert_int_equal(do_set(f, "id", "a", big, 1), STORE_OK); /* 65536 bytes */
    big[65535] = 'x';
    big[65536] = '"';
    big[65537] = '\0';
    assert_int_equal(do_set(f, "id", "b", big, 1), STORE_TOO_LARGE);
    big[65535] = '"';
    big[65536] = '\0';
    assert_int_equal(do_set(f, "id", "b", big, 1), STORE_OK);
    assert_int_equal(do_set(f, "id", "c", big, 1), STORE_OK);
    assert_int_equal(do_set(f, "id", "d", big, 1), STORE_TOO_LARGE); /* the session, 200000 bytes */
    assert_int_equal(do_set(f, "id", "c", "1", 1), STORE_OK);
    assert_int_equal(do_set(f, "id", "d", big, 1), STORE_OK);
    assert_int_equal(do_remove(f, "id", "a", 1), STORE_OK);
    assert_int_equal(do_set(f, "id", "e", big, 1), STORE_OK);
    free(big);

    memset(key, 'k', sizeof key);
    key[255] = '\0';
    assert_int_equal(do_set(f, "id", key, "1", 1), STORE_OK);
    assert_string_equal(do_get(f, "id", key, 1), "1");
    key[255] = 'k';
    key[256] = '\0';
    assert_int_equal(do_set(f, "id", key, "1", 1), STORE_INVALID);
    assert_int_equal(do_set(f, "id", "", "1", 1), STORE_INVALID);
    key[65] = '\0';
    assert_int_equal(do_create(f, key, 100), STORE_INVALID);
    key[64] = '\0';
    assert_int_equal(do_create(f, key, 100), STORE_OK);
    assert_int_equal(do_set(f, key, "k", "1", 1), STORE_OK);
    assert_int_equal(do_set(f, "id", "j", "{", 1), STORE_INVALID);
    assert_int_equal(do_set(f, "id", "j", "", 1), STORE_INVALID);
}

/* Fills the store, sees the refusal, and sees that deleting makes room. */
static void a_full_store_refuses_and_recovers(void **state)
{
    struct fixture *f = *state;
    char id[24];
    fixture_close(f);
    f->options.max_bytes = 1 << 20;
    fixture_open(f);
    char value[4001];
    memset(value, 'v', 4000);
    value[0] = value[3999] = '"';
    value[4000] = '\0';
    int made = 0;
    enum store_result result = STORE_OK;
    while (result == STORE_OK && made < 1000) {
        snprintf(id, sizeof id, "session-%04d", made);
        result = do_create(f, id, 100 + made);
        if (result == STORE_OK) {
            made++;
            result = do_set(f, id, "value", value, 1);
        }
    }
    assert_int_equal(result, STORE_FULL);
    assert_in_range(made, 240, 260);
    /* Nothing was harmed. */
    assert_string_equal(do_get(f, "session-0000", "value", 1), value);
    assert_int_equal(do_set(f, "session-0000", "other", value, 1), STORE_FULL);
    assert_null(do_get(f, "session-0000", "other", 1));
    assert_int_equal(do_set(f, "session-0000", "value", "1", 1), STORE_OK);
    /* Room again. */
    assert_int_equal(do_destroy(f, "session-0001"), STORE_OK);
    assert_int_equal(do_set(f, "session-0000", "value", value, 1), STORE_OK);
    assert_int_equal(do_sweep(f, 100 + made, 10000), made - 1);
    for (int i = 0; i < 200; i++) {
        snprintf(id, sizeof id, "second-%04d", i);
        assert_int_equal(do_create(f, id, 100), STORE_OK);
        assert_int_equal(do_set(f, id, "value", value, 1), STORE_OK);
    }
}

/* ---- threads ------------------------------------------------------------------------------------ */

enum { THREADS = 8, ROUNDS = 200 };

struct thread {
    struct fixture *f;
    unsigned index;
    pthread_t handle;
    unsigned failures;
    int64_t largest;
};

static void *increment_main(void *arg)
{
    struct thread *t = arg;
    char key[16];
    snprintf(key, sizeof key, "own%u", t->index);
    for (int i = 0; i < ROUNDS; i++) {
        struct store_op both = {.kind = STORE_INCREMENT, .id = STR("shared"), .key = STR("n"), .number = 1};
        struct store_op own = {.kind = STORE_INCREMENT, .id = STR("shared"), .key = str_of(key), .number = 2};
        t->failures += store_run(t->f->ops, t->f->store, &both) != STORE_OK;
        t->failures += both.number <= t->largest; /* the sums that one thread sees only grow */
        t->largest = both.number;
        t->failures += store_run(t->f->ops, t->f->store, &own) != STORE_OK || own.number != 2 * (i + 1);
    }
    return NULL;
}

static void parallel_increments_lose_nothing(void **state)
{
    struct fixture *f = *state;
    struct thread threads[THREADS];
    assert_int_equal(do_create(f, "shared", 100), STORE_OK);
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.f = f, .index = i};
        assert_int_equal(pthread_create(&threads[i].handle, NULL, increment_main, &threads[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i].handle, NULL);
        assert_int_equal(threads[i].failures, 0);
    }
    int64_t sum = 0;
    assert_int_equal(do_increment(f, "shared", "n", 0, &sum), STORE_OK);
    assert_int_equal(sum, THREADS * ROUNDS);
    assert_int_equal(do_increment(f, "shared", "own3", 0, &sum), STORE_OK);
    assert_int_equal(sum, 2 * ROUNDS);
}

/* Sessions come, move and go while others read them. A reader sees a session with both of
 * its values or not at all. */
static void *churn_main(void *arg)
{
    struct thread *t = arg;
    struct fixture *f = t->f;
    char id[16];
    char other[16];
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(id, sizeof id, "c%u", t->index);
        snprintf(other, sizeof other, "d%u", t->index);
        struct store_op make = {
            .kind = STORE_CREATE, .id = str_of(id), .expires = 100, .key = STR("a"), .json = STR("1")};
        struct store_op move = {.kind = STORE_RENAME, .id = str_of(id), .new_id = str_of(other), .expires = 100};
        struct store_op end = {.kind = STORE_DESTROY, .id = str_of(other)};
        t->failures += store_run(f->ops, f->store, &make) != STORE_OK;
        t->failures += store_run(f->ops, f->store, &move) != STORE_OK;
        t->failures += store_run(f->ops, f->store, &end) != STORE_OK;
        struct buffer out = BUFFER_EMPTY;
        char peer[16];
        snprintf(peer, sizeof peer, "%c%u", i % 2 == 0 ? 'c' : 'd', (t->index + 1) % THREADS);
        struct store_op read = {.kind = STORE_GET_ALL, .id = str_of(peer), .out = &out};
        enum store_result result = store_run(f->ops, f->store, &read);
        t->failures += result != STORE_NOT_FOUND && (result != STORE_OK || !str_eq(buffer_str(&out), STR("{\"a\":1}")));
        buffer_free(&out);
        struct store_op sweep = {.kind = STORE_SWEEP, .now = 50, .number = 10};
        t->failures += store_run(f->ops, f->store, &sweep) != STORE_OK;
    }
    return NULL;
}

static void sessions_are_whole_under_churn(void **state)
{
    struct fixture *f = *state;
    struct thread threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.f = f, .index = i};
        assert_int_equal(pthread_create(&threads[i].handle, NULL, churn_main, &threads[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i].handle, NULL);
        assert_int_equal(threads[i].failures, 0);
    }
    assert_int_equal(f->ops->count(f->store), 0);
}

#define EACH_STORE(test) \
    {#test " (memory)", test, setup_memory, teardown, NULL}, {#test " (lmdb)", test, setup_lmdb, teardown, NULL}, \
    { \
#test " (lmdb strict)", test, setup_strict, teardown, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH_STORE(values_are_kept_by_key),
        EACH_STORE(sessions_do_not_mix),
        EACH_STORE(all_values_are_one_object),
        EACH_STORE(a_session_is_begun_with_a_first_value),
        EACH_STORE(nothing_is_adopted),
        EACH_STORE(an_ended_session_is_not_there),
        EACH_STORE(sweeping_removes_what_ended),
        EACH_STORE(numbers_add_up),
        EACH_STORE(a_new_id_takes_everything_along),
        EACH_STORE(limits_hold),
        EACH_STORE(a_full_store_refuses_and_recovers),
        EACH_STORE(parallel_increments_lose_nothing),
        EACH_STORE(sessions_are_whole_under_churn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
