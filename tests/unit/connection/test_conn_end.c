/* How a connection ends whose transport has last words of its own (close_notify). */
#include "tests/support/fake_conn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct loop *loop;
static struct fake peer;
static bool full; /* the socket takes nothing */
static bool said;

static bool resume(struct conn *conn)
{
    said = !full;
    conn_transport_waits(conn, full);
    return true;
}

static void say_last(struct conn *conn)
{
    resume(conn);
}

static const struct transport reluctant = {
    .name = "reluctant",
    .receive = fake_receive,
    .send = fake_send,
    .send_file = fake_send_file,
    .resume = resume,
    .shutdown = say_last,
    .close = fake_closed,
};

static bool on_open(struct conn *conn)
{
    (void)conn;
    return true;
}

static void nothing(struct conn *conn)
{
    (void)conn;
}

static void on_close(struct conn *conn, enum conn_close_reason reason)
{
    (void)conn;
    (void)reason;
}

static const struct protocol quiet = {
    .name = "quiet",
    .on_open = on_open,
    .on_drained = nothing,
    .on_eof = nothing,
    .on_deadline = nothing,
    .on_shutdown = nothing,
    .on_close = on_close,
};

static void begin(bool no_room)
{
    full = no_room;
    said = false;
    assert_true(fake_open(&peer, loop, &quiet));
    peer.conn->transport = &reluctant;
    conn_finish(peer.conn, CONN_CLOSE_LOCAL);
}

/* The far end of the socket pair sees the end of our output. */
static bool ended(void)
{
    char byte;
    return recv(peer.other, &byte, 1, MSG_DONTWAIT) == 0;
}

static void the_end_follows_the_last_words(void **state)
{
    (void)state;
    begin(false);
    assert_true(said);
    assert_true(ended());
    fake_close(&peer);
}

static void last_words_that_find_no_room_are_waited_for(void **state)
{
    (void)state;
    begin(true);
    assert_false(ended());
    assert_true((peer.conn->watch.wanted & LOOP_WRITE) != 0);
    peer.conn->watch.on_ready(&peer.conn->watch, LOOP_WRITE);
    assert_false(ended());
    full = false;
    peer.conn->watch.on_ready(&peer.conn->watch, LOOP_WRITE);
    assert_true(said);
    assert_true(ended());
    assert_non_null(peer.conn);
    fake_close(&peer);
}

static void but_not_for_ever(void **state)
{
    (void)state;
    begin(true);
    fake_wait(&peer, 1000000);
    assert_null(peer.conn);
    fake_close(&peer);
}

static int start(void **state)
{
    (void)state;
    loop = fake_loop(NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fake_loop_free(loop);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_end_follows_the_last_words, start, stop),
        cmocka_unit_test_setup_teardown(last_words_that_find_no_room_are_waited_for, start, stop),
        cmocka_unit_test_setup_teardown(but_not_for_ever, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
