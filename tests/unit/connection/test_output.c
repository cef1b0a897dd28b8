/* The output queue under its connection: order, references released once, files, small socket buffers,
 * release functions that write, finish or close, and memory that runs out (malloc is wrapped). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "connection/output.h"
#include "tests/support/fake_conn.h"

#include <fcntl.h>
#include <poll.h>

/* ---- malloc that fails when told to ------------------------------------------------------------ */

static unsigned mallocs_left = UINT32_MAX;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    if (mallocs_left == 0) {
        return NULL;
    }
    mallocs_left -= mallocs_left == UINT32_MAX ? 0 : 1;
    return __real_malloc(size);
}

/* ---- a protocol that only counts ------------------------------------------------------------------ */

static struct loop *loop;
static struct fake peer;
static unsigned closes;
static unsigned drains;
static enum conn_close_reason close_reason;

static bool on_open(struct conn *conn)
{
    (void)conn;
    return true;
}

static void on_data(struct conn *conn, const uint8_t *data, size_t len)
{
    (void)conn;
    (void)data;
    (void)len;
}

static void on_nothing(struct conn *conn)
{
    (void)conn;
}

static void on_drained(struct conn *conn)
{
    (void)conn;
    drains++;
}

static void on_close(struct conn *conn, enum conn_close_reason reason)
{
    (void)conn;
    closes++;
    close_reason = reason;
}

static const struct protocol counting = {
    .name = "counting",
    .on_open = on_open,
    .on_data = on_data,
    .on_eof = on_nothing,
    .on_drained = on_drained,
    .on_deadline = on_nothing,
    .on_shutdown = on_nothing,
    .on_close = on_close,
};

static int set_up(void **state)
{
    (void)state;
    closes = 0;
    drains = 0;
    mallocs_left = UINT32_MAX;
    return fake_open(&peer, loop, &counting) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    mallocs_left = UINT32_MAX;
    fake_close(&peer);
    return closes == 1 ? 0 : -1;
}

static void expect_output(const char *text)
{
    assert_int_equal(peer.out.len, strlen(text));
    assert_memory_equal(peer.out.data, text, peer.out.len);
}

/* ---- order and releases ---------------------------------------------------------------------------- */

static void count_release(void *arg)
{
    (*(unsigned *)arg)++;
}

static void test_what_an_event_writes_leaves_at_once(void **state)
{
    (void)state;
    unsigned released = 0;
    conn_write(peer.conn, "one ", 4);
    conn_write_ref(peer.conn, "two ", 4, count_release, &released);
    memcpy(conn_reserve(peer.conn, 100), "three", 5);
    conn_commit(peer.conn, 5);
    conn_write(peer.conn, "", 0);
    conn_write_ref(peer.conn, "", 0, count_release, &released);
    assert_int_equal(conn_pending(peer.conn), 13);
    assert_int_equal(peer.out.len, 0);
    fake_run(&peer);
    expect_output("one two three");
    assert_int_equal(released, 2);
    assert_int_equal(peer.sends, 1);
    assert_int_equal(conn_pending(peer.conn), 0);
    assert_null(peer.conn->out);
}

static void test_references_are_released_on_close(void **state)
{
    (void)state;
    unsigned released = 0;
    peer.budget = 6;
    conn_write_ref(peer.conn, "12345", 5, count_release, &released);
    conn_write_ref(peer.conn, "12345", 5, count_release, &released);
    conn_write_ref(peer.conn, "12345", 5, count_release, &released);
    fake_run(&peer);
    assert_int_equal(released, 1);
    struct conn *conn = peer.conn;
    conn_close(conn, CONN_CLOSE_LOCAL);
    assert_int_equal(released, 3);
    conn_write_ref(conn, "x", 1, count_release, &released);
    conn_write(conn, "x", 1);
    assert_null(conn_reserve(conn, 10));
    assert_int_equal(released, 4);
}

static void test_writes_behind_finish_are_dropped(void **state)
{
    (void)state;
    unsigned released = 0;
    peer.budget = 0;
    conn_write(peer.conn, "last", 4);
    fake_run(&peer);
    conn_finish(peer.conn, CONN_CLOSE_LOCAL);
    conn_write(peer.conn, "x", 1);
    conn_write_ref(peer.conn, "x", 1, count_release, &released);
    assert_int_equal(released, 1);
    assert_int_equal(closes, 0);
    peer.budget = SIZE_MAX;
    fake_run(&peer);
    expect_output("last");
    assert_true(peer.half_closed && peer.conn->lingering);
    fake_eof(&peer);
    assert_int_equal(closes, 1);
}

static void test_drained_is_told_once_the_queue_is_empty(void **state)
{
    (void)state;
    conn_notify_drained(peer.conn);
    assert_int_equal(drains, 0);
    fake_run(&peer);
    assert_int_equal(drains, 1);
    peer.budget = 3;
    conn_write(peer.conn, "12345", 5);
    conn_notify_drained(peer.conn);
    fake_run(&peer);
    assert_int_equal(drains, 1);
    peer.budget = 3;
    fake_run(&peer);
    assert_int_equal(drains, 2);
    fake_run(&peer);
    assert_int_equal(drains, 2);
}

/* ---- release functions that act ----------------------------------------------------------------------- */

static void write_more(void *arg)
{
    conn_write(peer.conn, arg, strlen(arg));
    conn_flush(peer.conn); /* may not send from the middle of a send */
}

static void test_release_that_writes(void **state)
{
    (void)state;
    for (size_t budget = 1; budget < 12; budget++) {
        conn_write_ref(peer.conn, "abc", 3, write_more, "-more-");
        conn_write_ref(peer.conn, "def", 3, NULL, NULL);
        do {
            peer.budget = budget;
            fake_run(&peer);
        } while (conn_pending(peer.conn) > 0);
        expect_output("abcdef-more-");
        peer.out.len = 0;
    }
}

static void close_it(void *arg)
{
    count_release(arg);
    conn_close(peer.conn, CONN_CLOSE_LOCAL);
}

static void test_release_that_closes(void **state)
{
    (void)state;
    unsigned released = 0;
    conn_write_ref(peer.conn, "abc", 3, close_it, &released);
    conn_write_ref(peer.conn, "def", 3, count_release, &released);
    conn_write(peer.conn, "ghi", 3);
    fake_run(&peer);
    assert_int_equal(closes, 1);
    assert_int_equal(released, 2);
}

static void finish_it(void *arg)
{
    count_release(arg);
    conn_finish(peer.conn, CONN_CLOSE_LOCAL);
}

static void test_release_that_finishes(void **state)
{
    (void)state;
    unsigned released = 0;
    peer.budget = 4;
    conn_write_ref(peer.conn, "abc", 3, finish_it, &released);
    conn_write_ref(peer.conn, "def", 3, count_release, &released);
    fake_run(&peer);
    peer.budget = SIZE_MAX;
    fake_run(&peer);
    expect_output("abcdef");
    assert_int_equal(released, 2);
    assert_true(peer.conn->lingering);
}

/* ---- anything, in pieces of any size -------------------------------------------------------------------- */

enum { PATTERN = 1 << 20 };
static char pattern[PATTERN];
static int pattern_fd;
static unsigned refs_taken;
static unsigned refs_released;

/* Writes the next n bytes of the pattern one way or another. */
static void write_some(struct conn *conn, size_t at, size_t n)
{
    switch (rand() % 5) {
    case 0:
        refs_taken++;
        conn_write_ref(conn, pattern + at, n, count_release, &refs_released);
        break;
    case 1:
        refs_taken++;
        conn_write_file(conn, pattern_fd, (off_t)at, n, count_release, &refs_released);
        break;
    case 2: {
        char *to = conn_reserve(conn, n + (size_t)(rand() % 3000));
        memcpy(to, pattern + at, n);
        conn_commit(conn, n);
        break;
    }
    default: conn_write(conn, pattern + at, n); break;
    }
}

static size_t random_length(void)
{
    static const size_t most[] = {10, 200, 5000, 40000};
    return 1 + (size_t)rand() % most[rand() % 4];
}

static void test_random_writes_and_budgets(void **state)
{
    (void)state;
    srand(17);
    for (unsigned round = 0; round < 30; round++) {
        size_t at = 0;
        refs_taken = 0;
        refs_released = 0;
        while (at < 400000) {
            size_t n = random_length();
            write_some(peer.conn, at, n);
            at += n;
            if (rand() % 3 == 0) {
                peer.budget = (size_t)(rand() % 20000);
                fake_run(&peer);
                assert_true(conn_pending(peer.conn) + peer.out.len == at);
            }
        }
        peer.budget = SIZE_MAX;
        fake_run(&peer);
        assert_int_equal(peer.out.len, at);
        assert_memory_equal(peer.out.data, pattern, at);
        assert_int_equal(refs_released, refs_taken);
        peer.out.len = 0;
    }
}

/* The same through the kernel, with buffers as small as it allows. */
static void test_real_sockets_with_small_buffers(void **state)
{
    (void)state;
    int pair[2];
    int small = 1;
    const struct sockaddr_storage from = {.ss_family = AF_UNIX};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    struct conn *conn = conn_open(loop, pair[0], NULL, &transport_plain, &counting, &from);
    assert_non_null(conn);
    srand(18);
    size_t at = 0;
    size_t received = 0;
    bool blocked = false;
    refs_taken = 0;
    refs_released = 0;
    while (at < 500000 || received < at) {
        if (at < 500000 && conn_pending(conn) < 100000) {
            size_t n = random_length();
            write_some(conn, at, n);
            at += n;
        }
        loop_run_deferred(loop);
        struct pollfd poll_fd = {.fd = pair[0], .events = POLLOUT};
        if (conn_pending(conn) > 0 && poll(&poll_fd, 1, 0) == 1) {
            conn->watch.on_ready(&conn->watch, LOOP_WRITE);
        }
        blocked = blocked || (conn->watch.wanted & LOOP_WRITE) != 0;
        char got[3000];
        ssize_t n = recv(pair[1], got, sizeof got, 0);
        if (n > 0) {
            assert_memory_equal(got, pattern + received, (size_t)n);
            received += (size_t)n;
        }
    }
    assert_true(blocked);
    assert_int_equal(refs_released, refs_taken);
    assert_null(conn->out);
    conn_close(conn, CONN_CLOSE_LOCAL);
    closes--;
    loop_run_deferred(loop);
    close(pair[1]);
}

static void test_file_that_has_become_shorter(void **state)
{
    (void)state;
    unsigned released = 0;
    conn_write(peer.conn, "head", 4);
    conn_write_file(peer.conn, pattern_fd, PATTERN - 10, 20, count_release, &released);
    fake_run(&peer);
    assert_int_equal(closes, 1);
    assert_int_equal(close_reason, CONN_CLOSE_ERROR);
    assert_int_equal(peer.out.len, 14);
    assert_int_equal(released, 1);
}

/* ---- no memory -------------------------------------------------------------------------------------------- */

static void test_memory_that_runs_out(void **state)
{
    (void)state;
    for (unsigned left = 0; left < 12; left++) {
        unsigned released = 0;
        unsigned taken = 0;
        peer.budget = 0;
        buffer_reserve(&peer.out, 1000000);
        mallocs_left = left;
        for (unsigned i = 0; i < 60; i++) {
            conn_write(peer.conn, pattern, 3000);
            conn_write_ref(peer.conn, pattern, 10, count_release, &released);
            taken++;
            char *to = conn_reserve(peer.conn, 20000);
            if (to != NULL) {
                memset(to, 'x', 20000);
                conn_commit(peer.conn, 20000);
            }
            /* Not before the next flush: whoever writes is in the middle of something. */
            assert_int_equal(closes, 0);
        }
        mallocs_left = UINT32_MAX;
        fake_run(&peer);
        assert_int_equal(closes, 1);
        assert_int_equal(released, taken);
        closes = 0;
        fake_close(&peer);
        output_pool_free(loop);
        assert_true(fake_open(&peer, loop, &counting));
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_what_an_event_writes_leaves_at_once),
        TEST(test_references_are_released_on_close),
        TEST(test_writes_behind_finish_are_dropped),
        TEST(test_drained_is_told_once_the_queue_is_empty),
        TEST(test_release_that_writes),
        TEST(test_release_that_closes),
        TEST(test_release_that_finishes),
        TEST(test_random_writes_and_budgets),
        TEST(test_real_sockets_with_small_buffers),
        TEST(test_file_that_has_become_shorter),
        TEST(test_memory_that_runs_out),
    };
    char name[] = "/tmp/kiln-output-XXXXXX";
    pattern_fd = mkstemp(name);
    unlink(name);
    for (size_t i = 0; i < PATTERN; i++) {
        pattern[i] = (char)(i * 2654435761u >> 13);
    }
    if (pattern_fd < 0 || write(pattern_fd, pattern, PATTERN) != PATTERN) {
        return 1;
    }
    loop = fake_loop(NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_loop_free(loop);
    close(pattern_fd);
    return failed;
}
