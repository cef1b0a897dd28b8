/* A server's link between accept() and the answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wsio/link.h"

static const char request[] = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/* The request comes after the loop's step and before it receives: it must be left for the next step, or the loop,
 * which looks for requests after a step, would wait for ever. */
static void test_receiving_takes_no_request(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    const kiln_ws_options options = {0};
    const struct wslink_manners manners = {.timeout_ms = 10000};
    struct link link;
    struct ws_item item;
    wslink_init(&link, &options, NULL);
    assert_true(wslink_greet(&link, fds[0], &manners));
    wslink_step(&link);
    assert_int_equal(link.state, WSLINK_GREETING);
    assert_int_equal(write(fds[1], request, strlen(request)), strlen(request));
    assert_int_equal(wslink_receive(&link, &item, NULL), WSLINK_NOTHING);
    assert_int_equal(link.state, WSLINK_GREETING);
    assert_int_equal(wslink_wants(&link), KILN_READ);
    wslink_step(&link);
    assert_int_equal(link.state, WSLINK_ASKED);
    assert_int_equal(wslink_accept(&link, NULL), KILN_OK);
    char answer[1024];
    assert_true(read(fds[1], answer, sizeof answer) > 0);
    assert_memory_equal(answer, "HTTP/1.1 101 ", 13);
    wslink_free(&link);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receiving_takes_no_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
