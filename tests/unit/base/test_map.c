#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/map.h"

#include <stdio.h>
#include <stdlib.h>

static void *number(uintptr_t n)
{
    return (void *)n; /* the map never looks at values */
}

static void test_put_get_remove(void **state)
{
    (void)state;
    struct map map = {0};
    void *old = number(1);
    assert_null(map_get(&map, STR("a")));
    assert_null(map_remove(&map, STR("a")));
    assert_true(map_put(&map, STR("a"), number(10), &old));
    assert_null(old);
    assert_true(map_put(&map, STR("a"), number(11), &old));
    assert_ptr_equal(old, number(10));
    assert_true(map_put(&map, STR_NONE, number(12), NULL));
    assert_ptr_equal(map_get(&map, STR("")), number(12));
    assert_true(map_put(&map, (struct str){"a\0b", 3}, number(13), NULL));
    assert_ptr_equal(map_get(&map, STR("a")), number(11));
    assert_null(map_get(&map, (struct str){"a\0c", 3}));
    assert_int_equal(map.count, 3);
    assert_ptr_equal(map_remove(&map, STR("a")), number(11));
    assert_null(map_get(&map, STR("a")));
    assert_int_equal(map.count, 2);
    map_free(&map);
    assert_int_equal(map.count, 0);
    map_free(&map);
}

static void test_keys_are_copied(void **state)
{
    (void)state;
    struct map map = {0};
    char key[] = "key";
    map_put(&map, str_of(key), number(1), NULL);
    key[0] = 'x';
    assert_ptr_equal(map_get(&map, STR("key")), number(1));
    assert_null(map_get(&map, str_of(key)));
    map_free(&map);
}

/* Random operations beside an array: removals leave no holes in the probe sequences. */
static void test_random_operations_against_a_model(void **state)
{
    (void)state;
    enum { KEYS = 500, OPERATIONS = 200000 };
    static uintptr_t model[KEYS];
    struct map map = {0};
    size_t count = 0;
    srand(4711);
    for (unsigned i = 0; i < OPERATIONS; i++) {
        unsigned k = (unsigned)rand() % KEYS;
        char key[16];
        snprintf(key, sizeof key, "key%u", k);
        switch (rand() % 3) {
        case 0: {
            void *old;
            assert_true(map_put(&map, str_of(key), number(i + 1), &old));
            assert_ptr_equal(old, number(model[k]));
            count += model[k] == 0;
            model[k] = i + 1;
            break;
        }
        case 1:
            assert_ptr_equal(map_remove(&map, str_of(key)), number(model[k]));
            count -= model[k] != 0;
            model[k] = 0;
            break;
        default: assert_ptr_equal(map_get(&map, str_of(key)), number(model[k])); break;
        }
        assert_int_equal(map.count, count);
    }
    size_t seen = 0;
    struct str key;
    void *value;
    for (size_t i = 0; map_next(&map, &i, &key, &value);) {
        assert_ptr_equal(value, number(model[atoi(key.ptr + 3)]));
        seen++;
    }
    assert_int_equal(seen, count);
    map_free(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_get_remove),
        cmocka_unit_test(test_keys_are_copied),
        cmocka_unit_test(test_random_operations_against_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
