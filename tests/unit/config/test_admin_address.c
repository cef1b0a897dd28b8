#include "config/admin_address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void check(const char *text, const char *regular, bool loopback)
{
    struct admin_address address;
    assert_true(admin_address_parse(str_of(text), &address));
    assert_string_equal(address.text, regular);
    assert_int_equal(address.is_loopback, loopback);
}

static void test_addresses(void **state)
{
    (void)state;
    check("127.0.0.1:9180", "127.0.0.1:9180", true);
    check("localhost:9180", "127.0.0.1:9180", true);
    check("9180", "127.0.0.1:9180", true);
    check("127.200.0.9:0", "127.200.0.9:0", true);
    check("[0:0::1]:80", "[::1]:80", true);
    check("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80", true);
    check("[::]:80", "[::]:80", false);
    check("0.0.0.0:65535", "0.0.0.0:65535", false);
    check("192.0.2.1:1", "192.0.2.1:1", false);
    check("unix:/run/kiln/admin.sock", "unix:/run/kiln/admin.sock", true);
}

static void test_what_is_no_address(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",       "127.0.0.1",     "127.0.0.1:",     "127.0.0.1:65536", "127.1:80",      ":80",           "::1:80",
        "[::1",   "[::1]",         "[]:80",          "[127.0.0.1]:80",  "example.com:1", "127.0.0.1:-1",  "unix:",
        "unix:/", "unix:relative", "unix:/ends/in/", "127.0.0.1:8x",    "[::1%lo]:80",   "127.0.0.1 :80",
    };
    struct admin_address address;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(admin_address_parse(str_of(bad[i]), &address));
    }
    char longest[200] = "unix:/";
    memset(longest + 6, 'x', 106); /* 107 with its slash: what fits before the NUL */
    assert_true(admin_address_parse((struct str){longest, 5 + 107}, &address));
    memset(longest + 6, 'x', 107);
    assert_false(admin_address_parse((struct str){longest, 5 + 108}, &address));
    assert_false(admin_address_parse((struct str){"unix:/a\0b", 9}, &address));
}

static void test_hosts(void **state)
{
    (void)state;
    static const char *const local[] = {"localhost", "LOCALHOST:1", "127.0.0.1", "127.3.2.1:9180", "[::1]", "[::1]:80"};
    static const char *const foreign[] = {"",           "evil",        "localhost.evil", "127.0.0.1.evil", "::1",
                                          "localhost:", "localhost:x", "localhost:1:2",  "[::1",           "[::1]x",
                                          "[::1]:x",    "1270.0.0.1",  "127.0.0.1 ",     "localhost.",     "0x7f.1"};
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
        assert_true(admin_host_is_local(str_of(local[i]), false));
    }
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        assert_false(admin_host_is_local(str_of(foreign[i]), false));
        assert_false(admin_host_is_local(str_of(foreign[i]), true));
    }
    assert_false(admin_host_is_local(STR("192.0.2.1:80"), false));
    assert_true(admin_host_is_local(STR("192.0.2.1:80"), true));
    assert_true(admin_host_is_local(STR("[2001:db8::1]"), true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_what_is_no_address),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
