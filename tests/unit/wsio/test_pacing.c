/* Who is paced by the kernel, and who is not any more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "wsio/pacing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_storage address_of(const char *text)
{
    struct sockaddr_storage address = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;
    if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
        in->sin_family = AF_INET;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
        in6->sin6_family = AF_INET6;
    }
    return address;
}

static void test_what_stays_on_the_machine(void **state)
{
    (void)state;
    static const struct {
        const char *address;
        bool needless;
    } cases[] = {
        {"127.0.0.1", true},        {"127.9.8.7", true},         {"::1", true},
        {"::ffff:127.0.0.1", true}, {"::ffff:128.0.0.1", false}, {"126.0.0.1", false},
        {"10.0.0.127", false},      {"0.0.0.0", false},          {"::", false},
        {"fe80::1", false},         {"7f00::7f00:1:127", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sockaddr_storage address = address_of(cases[i].address);
        assert_int_equal(pacing_is_needless((struct sockaddr *)&address), cases[i].needless);
    }
    const struct sockaddr_un local = {.sun_family = AF_UNIX};
    assert_false(pacing_is_needless((const struct sockaddr *)&local));
}

static void assert_congestion(int fd, const char *wanted)
{
    char name[16] = "";
    socklen_t len = sizeof name;
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    assert_string_equal(name, wanted);
}

/* One whose owner has chosen a congestion control; -1: this kernel does not offer it. */
static int socket_with(const char *name)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void test_only_what_is_paced_is_changed(void **state)
{
    (void)state;
    static const char *const kept[] = {"cubic", "reno", "dctcp"};
    struct sockaddr_storage near = address_of("127.0.0.1");
    struct sockaddr_storage far = address_of("192.0.2.1");
    for (size_t i = 0; i < 3; i++) {
        int fd = socket_with(kept[i]);
        if (fd >= 0) {
            pacing_suit(fd, (struct sockaddr *)&near);
            assert_congestion(fd, kept[i]);
            close(fd);
        }
    }
    int fd = socket_with("bbr");
    if (fd < 0) {
        skip();
    }
    pacing_suit(fd, (struct sockaddr *)&far);
    assert_congestion(fd, "bbr");
    assert_true(pacing_is_on(fd));
    pacing_suit(fd, (struct sockaddr *)&near);
    assert_congestion(fd, "reno");
    assert_false(pacing_is_on(fd));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_stays_on_the_machine),
        cmocka_unit_test(test_only_what_is_paced_is_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
