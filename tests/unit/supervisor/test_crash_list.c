/* When crashes of an endpoint become a quarantine. */
#include "supervisor/crash_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct crash_list list;
static const struct crash_rule rule = {.crashes = 3, .window_ms = 1000, .time_ms = 5000};

static int make_list(void **state)
{
    (void)state;
    crash_list_init(&list);
    return 0;
}

static int free_list(void **state)
{
    (void)state;
    crash_list_free(&list);
    return list.count == 0 ? 0 : -1;
}

static const struct crash_record *crash(const char *file, const char *build, uint64_t at)
{
    return crash_list_add(&list, file, build, at, &rule);
}

static void test_third_crash_within_the_window(void **state)
{
    (void)state;
    assert_null(crash("/a", "x", 10000));
    assert_null(crash("/a", "x", 10500));
    const struct crash_record *record = crash("/a", "x", 11000);
    assert_non_null(record);
    assert_string_equal(record->file, "/a");
    assert_string_equal(record->build, "x");
    assert_true(record->until_ms == 16000);
    assert_true(crash_record_in_quarantine(record, 15999));
    assert_false(crash_record_in_quarantine(record, 16000));
}

static void test_crashes_far_apart_are_forgotten(void **state)
{
    (void)state;
    for (uint64_t at = 10000; at < 30000; at += 501) {
        assert_null(crash("/a", "x", at));
        at += 500;
    }
    /* Two of the last second, and one more. */
    assert_null(crash("/a", "x", 40000));
    assert_null(crash("/a", "x", 40001));
    assert_non_null(crash("/a", "x", 41000));
}

static void test_window_larger_than_the_clock(void **state)
{
    (void)state;
    assert_null(crash("/a", "x", 1));
    assert_null(crash("/a", "x", 2));
    assert_non_null(crash("/a", "x", 3));
}

static void test_files_and_builds_are_counted_apart(void **state)
{
    (void)state;
    assert_null(crash("/a", "x", 10000));
    assert_null(crash("/a", "x", 10001));
    assert_null(crash("/b", "x", 10002));
    assert_null(crash("/a", "y", 10003));
    assert_null(crash("/a", "y", 10004));
    const struct crash_record *record = crash("/a", "y", 10005);
    assert_non_null(record);
    assert_int_equal(record->total, 5);
    /* Yet another build begins anew, although this one is in quarantine. */
    assert_null(crash("/a", "z", 10006));
    assert_null(crash("/a", "z", 10007));
    assert_non_null(crash("/a", "z", 10008));
}

static void test_a_quarantine_begins_once(void **state)
{
    (void)state;
    crash("/a", "x", 10000);
    crash("/a", "x", 10001);
    assert_non_null(crash("/a", "x", 10002));
    /* Requests that ran already. */
    assert_null(crash("/a", "x", 10003));
    assert_null(crash("/a", "x", 10004));
    /* Its time has passed, and it goes on. */
    assert_null(crash("/a", "x", 20000));
    assert_null(crash("/a", "x", 20001));
    assert_non_null(crash("/a", "x", 20002));
}

static void test_release(void **state)
{
    (void)state;
    assert_false(crash_list_release(&list, "/a"));
    crash("/a", "x", 10000);
    assert_false(crash_list_release(&list, "/a"));
    crash("/a", "x", 10001);
    assert_non_null(crash("/a", "x", 10002));
    assert_true(crash_list_release(&list, "/a"));
    assert_false(crash_list_release(&list, "/a")); /* each worker tells it */
    assert_null(crash("/a", "x", 10003));
    assert_null(crash("/a", "x", 10004));
    assert_non_null(crash("/a", "x", 10005));
}

static void test_a_quarantine_of_another_list_is_taken_over(void **state)
{
    (void)state;
    crash_list_put(&list, "/a", "x", 15000);
    const struct crash_record *record = LIST_ENTRY(list.records.next, struct crash_record, node);
    assert_true(crash_record_in_quarantine(record, 14999));
    assert_string_equal(record->build, "x");
    assert_null(crash("/a", "x", 10000));
    assert_true(crash_list_release(&list, "/a"));
    assert_null(crash("/a", "x", 10001));
}

static void test_off(void **state)
{
    (void)state;
    const struct crash_rule off = {.crashes = 0, .window_ms = 1000, .time_ms = 5000};
    for (unsigned i = 0; i < 3 * CRASH_TIMES; i++) {
        assert_null(crash_list_add(&list, "/a", "x", 10000, &off));
    }
    /* More crashes than are remembered are enough for any rule. */
    const struct crash_rule most = {.crashes = CRASH_TIMES, .window_ms = 1000, .time_ms = 5000};
    assert_non_null(crash_list_add(&list, "/a", "x", 10000, &most));
}

static void test_the_oldest_file_is_forgotten(void **state)
{
    (void)state;
    char name[32];
    crash("/kept", "x", 10000);
    crash("/lost", "x", 10000);
    for (unsigned i = 0; i < CRASH_RECORDS - 1; i++) {
        crash("/kept", "other", 10000); /* a crash makes it the newest */
        snprintf(name, sizeof name, "/%u", i);
        crash(name, "x", 10000);
    }
    assert_int_equal(list.count, CRASH_RECORDS);
    const struct crash_rule first = {.crashes = 1, .window_ms = 1000, .time_ms = 5000};
    assert_int_equal(crash_list_add(&list, "/lost", "x", 10000, &first)->total, 1);
    assert_null(crash("/kept", "x", 10000));
    assert_int_equal(list.count, CRASH_RECORDS);
}

static void test_long_build_is_the_same_build(void **state)
{
    (void)state;
    char build[3 * CRASH_BUILD_LENGTH];
    memset(build, 'f', sizeof build);
    build[CRASH_BUILD_LENGTH] = '\0';
    crash("/a", build, 10000);
    crash("/a", build, 10000);
    assert_non_null(crash("/a", build, 10000));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_list, free_list)
    const struct CMUnitTest tests[] = {
        TEST(test_third_crash_within_the_window),
        TEST(test_crashes_far_apart_are_forgotten),
        TEST(test_window_larger_than_the_clock),
        TEST(test_files_and_builds_are_counted_apart),
        TEST(test_a_quarantine_begins_once),
        TEST(test_release),
        TEST(test_a_quarantine_of_another_list_is_taken_over),
        TEST(test_off),
        TEST(test_the_oldest_file_is_forgotten),
        TEST(test_long_build_is_the_same_build),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
