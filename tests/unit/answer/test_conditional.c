#include "answer/conditional.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const int64_t now = 1800000000; /* January 2027 */

static void assert_date(const char *text, int64_t wanted)
{
    int64_t got = -1;
    if (!http_date_parse(str_of(text), now, &got) || got != wanted) {
        fail_msg("\"%s\": got %lld", text, (long long)got);
    }
}

static void assert_no_date(const char *text)
{
    int64_t got;
    if (http_date_parse(str_of(text), now, &got)) {
        fail_msg("\"%s\" was taken for a date", text);
    }
}

static void three_formats_of_dates_are_read(void **state)
{
    (void)state;
    assert_date("Sun, 06 Nov 1994 08:49:37 GMT", 784111777);
    assert_date("Sunday, 06-Nov-94 08:49:37 GMT", 784111777);
    assert_date("Sun Nov  6 08:49:37 1994", 784111777);
    assert_date("Thu Nov 16 08:49:37 1995", 816511777);
    assert_date("  Sun, 06 Nov 1994 08:49:37 GMT ", 784111777);
    assert_date("Thu, 29 Feb 2024 00:00:00 GMT", 1709164800);
    assert_date("Thu, 01 Jan 1970 00:00:00 GMT", 0);
    assert_date("Wed, 31 Dec 1969 23:59:59 GMT", -1);
}

static void two_digit_years_are_within_fifty_years(void **state)
{
    (void)state;
    assert_date("Friday, 01-Jan-77 00:00:00 GMT", 3376684800);
    assert_date("Sunday, 01-Jan-78 00:00:00 GMT", 252460800);
}

static void what_is_no_date_is_refused(void **state)
{
    (void)state;
    assert_no_date("");
    assert_no_date("784111777");
    assert_no_date("Sun, 06 Nov 1994 08:49:37");
    assert_no_date("Sun, 06 Nov 1994 08:49:37 UTC");
    assert_no_date("Sun, 06 Nov 1994 08:49:37 GMT x");
    assert_no_date("Sun, 6 Nov 1994 08:49:37 GMT");
    assert_no_date("Sun, 00 Nov 1994 08:49:37 GMT");
    assert_no_date("Sun, 31 Nov 1994 08:49:37 GMT");
    assert_no_date("Wed, 29 Feb 2023 00:00:00 GMT");
    assert_no_date("Sun, 06 Nov 1994 24:00:00 GMT");
    assert_no_date("Sun, 06 Nov 1994 08:60:00 GMT");
    assert_no_date("Xxx, 06 Nov 1994 08:49:37 GMT");
    assert_no_date("Sun, 06 Xxx 1994 08:49:37 GMT");
    assert_no_date("Sun Nov 6 08:49:37 1994");
    assert_no_date("Sun, -6 Nov 1994 08:49:37 GMT");
}

static void dates_are_written(void **state)
{
    (void)state;
    char out[HTTP_DATE_LENGTH + 1];
    http_date_format(784111777, out);
    assert_string_equal(out, "Sun, 06 Nov 1994 08:49:37 GMT");
    http_date_format(INT64_MAX, out);
    assert_string_equal(out, "Fri, 31 Dec 9999 23:59:59 GMT");
    http_date_format(INT64_MIN, out);
    assert_int_equal(strlen(out), HTTP_DATE_LENGTH);
}

static bool matches(const char *list, enum etag_comparison how, size_t *which)
{
    const struct str tags[] = {STR("\"one\""), STR("\"two,2\""), STR("W/\"three\"")};
    return etag_list_matches(str_of(list), tags, 3, how, which);
}

static void entity_tags_are_compared(void **state)
{
    (void)state;
    size_t which;
    assert_true(matches("\"one\"", ETAG_STRONG, &which));
    assert_true(matches("W/\"one\"", ETAG_WEAK, &which));
    assert_false(matches("W/\"one\"", ETAG_STRONG, &which));
    assert_true(matches(" \"x\" ,\t\"two,2\"", ETAG_STRONG, &which));
    assert_int_equal(which, 1);
    assert_false(matches("\"three\"", ETAG_STRONG, &which));
    assert_true(matches("\"three\"", ETAG_WEAK, &which));
    assert_int_equal(which, 2);
    assert_true(matches("*", ETAG_STRONG, &which));
    assert_false(matches("", ETAG_WEAK, &which));
    assert_false(matches("one", ETAG_WEAK, &which));
    assert_false(matches("\"one", ETAG_WEAK, &which));
    assert_false(matches("w/\"one\"", ETAG_WEAK, &which));
    assert_true(matches("junk, , \"one\"", ETAG_WEAK, &which));
    assert_false(matches("W/", ETAG_WEAK, &which));
}

struct row {
    const char *match, *none_match, *modified_since, *unmodified_since;
    bool is_read;
    enum precondition wanted;
};

static void preconditions_follow_the_order_of_the_rfc(void **state)
{
    (void)state;
    static const char same[] = "Sun, 06 Nov 1994 08:49:37 GMT";
    static const char before[] = "Sun, 06 Nov 1994 08:49:36 GMT";
    static const char after[] = "Sun, 06 Nov 1994 08:49:38 GMT";
    const struct row rows[] = {
        {NULL, NULL, NULL, NULL, true, PRECONDITION_PASSED},
        {"\"e\"", NULL, NULL, NULL, true, PRECONDITION_PASSED},
        {"\"x\"", NULL, NULL, NULL, true, PRECONDITION_FAILED},
        {"W/\"e\"", NULL, NULL, NULL, true, PRECONDITION_FAILED},
        {"*", NULL, NULL, NULL, true, PRECONDITION_PASSED},
        {"\"e\"", NULL, NULL, before, true, PRECONDITION_PASSED}, /* If-Match makes the date void */
        {NULL, NULL, NULL, before, true, PRECONDITION_FAILED},
        {NULL, NULL, NULL, same, true, PRECONDITION_PASSED},
        {NULL, NULL, NULL, "yesterday", true, PRECONDITION_PASSED},
        {NULL, "\"e\"", NULL, NULL, true, PRECONDITION_NOT_MODIFIED},
        {NULL, "W/\"e\"", NULL, NULL, true, PRECONDITION_NOT_MODIFIED},
        {NULL, "*", NULL, NULL, true, PRECONDITION_NOT_MODIFIED},
        {NULL, "\"e\"", NULL, NULL, false, PRECONDITION_FAILED},
        {NULL, "\"x\"", same, NULL, true, PRECONDITION_PASSED}, /* If-None-Match makes the date void */
        {NULL, "\"e\"", before, NULL, true, PRECONDITION_NOT_MODIFIED},
        {NULL, NULL, same, NULL, true, PRECONDITION_NOT_MODIFIED},
        {NULL, NULL, after, NULL, true, PRECONDITION_NOT_MODIFIED},
        {NULL, NULL, before, NULL, true, PRECONDITION_PASSED},
        {NULL, NULL, "soon", NULL, true, PRECONDITION_PASSED},
        {NULL, NULL, same, NULL, false, PRECONDITION_PASSED},
        {"\"x\"", "\"e\"", NULL, NULL, true, PRECONDITION_FAILED},
        {"\"e\"", "\"e\"", NULL, NULL, true, PRECONDITION_NOT_MODIFIED},
        {NULL, "\"e\"", NULL, before, true, PRECONDITION_FAILED},
    };
    const struct str tag = STR("\"e\"");
    const struct validators validators = {&tag, 1, 784111777};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        const struct conditional_fields fields = {str_of(row->match), str_of(row->none_match),
                                                  str_of(row->modified_since), str_of(row->unmodified_since)};
        size_t which;
        enum precondition got = preconditions_check(&fields, &validators, row->is_read, now, &which);
        if (got != row->wanted) {
            fail_msg("row %zu: got %d, wanted %d", i, (int)got, (int)row->wanted);
        }
    }
}

static void if_range_needs_a_strong_validator(void **state)
{
    (void)state;
    const struct str tag = STR("\"e\"");
    const struct str weak = STR("W/\"e\"");
    const int64_t modified = 784111777;
    assert_true(if_range_holds(STR("\"e\""), tag, modified, now));
    assert_false(if_range_holds(STR("\"x\""), tag, modified, now));
    assert_false(if_range_holds(STR("W/\"e\""), tag, modified, now));
    assert_false(if_range_holds(STR("W/\"e\""), weak, modified, now));
    assert_false(if_range_holds(STR("\"e\""), weak, modified, now));
    assert_true(if_range_holds(STR("Sun, 06 Nov 1994 08:49:37 GMT"), tag, modified, now));
    assert_false(if_range_holds(STR("Sun, 06 Nov 1994 08:49:38 GMT"), tag, modified, now));
    assert_false(if_range_holds(STR("Sun, 06 Nov 1994 08:49:37 GMT"), tag, modified, modified));
    assert_false(if_range_holds(STR("e"), tag, modified, now));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_formats_of_dates_are_read),
        cmocka_unit_test(two_digit_years_are_within_fifty_years),
        cmocka_unit_test(what_is_no_date_is_refused),
        cmocka_unit_test(dates_are_written),
        cmocka_unit_test(entity_tags_are_compared),
        cmocka_unit_test(preconditions_follow_the_order_of_the_rfc),
        cmocka_unit_test(if_range_needs_a_strong_validator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
