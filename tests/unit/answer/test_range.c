#include "answer/range.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* The parts as "first+length,..."; "ignored" or "beyond". */
static const char *parsed(const char *header, uint64_t size)
{
    static char text[4096];
    struct range_set set;
    switch (range_parse(str_of(header), size, &set)) {
    case RANGE_IGNORED: return "ignored";
    case RANGE_BEYOND: return "beyond";
    case RANGE_PARTS: break;
    }
    size_t used = 0;
    for (unsigned i = 0; i < set.count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu+%llu", i > 0 ? "," : "",
                                 (unsigned long long)set.parts[i].first, (unsigned long long)set.parts[i].length);
    }
    return text;
}

static void single_ranges(void **state)
{
    (void)state;
    assert_string_equal(parsed("bytes=0-0", 1000), "0+1");
    assert_string_equal(parsed("bytes=0-499", 1000), "0+500");
    assert_string_equal(parsed("BYTES=500-999", 1000), "500+500");
    assert_string_equal(parsed("bytes=500-5000", 1000), "500+500");
    assert_string_equal(parsed("bytes=999-", 1000), "999+1");
    assert_string_equal(parsed("bytes=-1", 1000), "999+1");
    assert_string_equal(parsed("bytes=-5000", 1000), "0+1000");
    assert_string_equal(parsed("bytes=4294967296-4294967300", 5000000000), "4294967296+5");
    assert_string_equal(parsed("bytes=0-99999999999999999999999", 1000), "0+1000");
    assert_string_equal(parsed("bytes=-99999999999999999999999", 1000), "0+1000");
}

static void ranges_behind_the_end(void **state)
{
    (void)state;
    assert_string_equal(parsed("bytes=1000-", 1000), "beyond");
    assert_string_equal(parsed("bytes=1000-2000", 1000), "beyond");
    assert_string_equal(parsed("bytes=-0", 1000), "beyond");
    assert_string_equal(parsed("bytes=99999999999999999999-", 1000), "beyond");
    assert_string_equal(parsed("bytes=0-", 0), "beyond");
    assert_string_equal(parsed("bytes=-5", 0), "ignored");
    assert_string_equal(parsed("bytes=2000-,0-1", 1000), "0+2");
}

static void malformed_ranges_are_ignored(void **state)
{
    (void)state;
    static const char *const bad[] = {"",           "bytes",        "bytes=",     "bytes=,",      "bytes=-",
                                      "bytes=5",    "bytes=5-4",    "bytes=a-b",  "bytes= 1 - 2", "bytes=1-2-3",
                                      "bytes=+1-2", "items=0-1",    "bytes =0-1", "bytes=0-1,x",  "bytes=0x1-2",
                                      "bytes=--1",  "bytes=0-1;2-3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (strcmp(parsed(bad[i], 1000), "ignored") != 0) {
            fail_msg("\"%s\" gave %s", bad[i], parsed(bad[i], 1000));
        }
    }
}

static void several_ranges_keep_their_order(void **state)
{
    (void)state;
    assert_string_equal(parsed("bytes=0-9,500-509", 1000), "0+10,500+10");
    assert_string_equal(parsed("bytes=500-509, 0-9", 1000), "500+10,0+10");
    assert_string_equal(parsed("bytes=,0-9 ,\t-10,", 1000), "0+10,990+10");
}

static void overlapping_and_touching_ranges_become_one(void **state)
{
    (void)state;
    assert_string_equal(parsed("bytes=0-99,50-149", 1000), "0+150");
    assert_string_equal(parsed("bytes=0-9,10-19", 1000), "0+20");
    assert_string_equal(parsed("bytes=20-29,0-9,10-19", 1000), "0+30");
    assert_string_equal(parsed("bytes=0-9,11-19", 1000), "0+10,11+9");
    assert_string_equal(parsed("bytes=500-,0-9,400-600", 1000), "0+10,400+600");
    assert_string_equal(parsed("bytes=0-,0-,0-,0-", 1000), "0+1000");
    assert_string_equal(parsed("bytes=100-199,120-130", 1000), "100+100");
}

static void too_many_ranges_are_ignored(void **state)
{
    (void)state;
    char header[8192] = "bytes=";
    size_t used = strlen(header);
    for (int i = 0; i < RANGE_MAX; i++) {
        used += (size_t)snprintf(header + used, sizeof header - used, "%d-%d,", i * 1000, i * 1000);
    }
    struct range_set set;
    assert_int_equal(range_parse(str_of(header), 1000000, &set), RANGE_PARTS);
    assert_int_equal(set.count, RANGE_MAX);
    snprintf(header + used, sizeof header - used, "999999-");
    assert_int_equal(range_parse(str_of(header), 1000000, &set), RANGE_IGNORED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_ranges),
        cmocka_unit_test(ranges_behind_the_end),
        cmocka_unit_test(malformed_ranges_are_ignored),
        cmocka_unit_test(several_ranges_keep_their_order),
        cmocka_unit_test(overlapping_and_touching_ranges_become_one),
        cmocka_unit_test(too_many_ranges_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
