#include "answer/accept.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static enum page_type preferred(const char *accept)
{
    return page_type_preferred(str_of(accept));
}

static void html_is_for_browsers_and_for_who_does_not_care(void **state)
{
    (void)state;
    assert_int_equal(preferred(NULL), PAGE_HTML);
    assert_int_equal(preferred(""), PAGE_HTML);
    assert_int_equal(preferred("*/*"), PAGE_HTML);
    assert_int_equal(preferred("text/*"), PAGE_HTML);
    assert_int_equal(preferred("image/png"), PAGE_HTML);
    assert_int_equal(preferred("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), PAGE_HTML);
    assert_int_equal(preferred("application/json, text/html"), PAGE_HTML);
}

static void others_are_for_who_prefers_them(void **state)
{
    (void)state;
    assert_int_equal(preferred("application/json"), PAGE_JSON);
    assert_int_equal(preferred("Application/JSON; charset=utf-8"), PAGE_JSON);
    assert_int_equal(preferred("application/json, text/plain, */*;q=0.1"), PAGE_JSON);
    assert_int_equal(preferred("application/*"), PAGE_JSON);
    assert_int_equal(preferred("text/plain"), PAGE_TEXT);
    assert_int_equal(preferred("text/html;q=0.5, text/plain"), PAGE_TEXT);
    assert_int_equal(preferred("text/html;q=0, */*"), PAGE_JSON);
    assert_int_equal(preferred("*/*;q=0.1, text/plain;q=0.2"), PAGE_TEXT);
}

static void malformed_weights_count_as_none(void **state)
{
    (void)state;
    assert_int_equal(preferred("application/json;q=x"), PAGE_HTML);
    assert_int_equal(preferred(";;;,,q=1"), PAGE_HTML);
    assert_int_equal(preferred("application/json;q=0.999999, text/html;q=0.5"), PAGE_JSON);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(html_is_for_browsers_and_for_who_does_not_care),
        cmocka_unit_test(others_are_for_who_prefers_them),
        cmocka_unit_test(malformed_weights_count_as_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
