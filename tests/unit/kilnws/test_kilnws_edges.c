/* libkilnws where things go wrong: connections that break in the middle, peers that do not read, two threads that meet,
 * listeners that are asked for what cannot be. */
#include "kilnws_support.h"

#include <stdatomic.h>

/* ---- messages ---------------------------------------------------------------------------------------------- */

static void test_a_message_outlives_the_connection_that_brought_it(void **state)
{
    (void)state;
    char text[1000];
    char rest[1000];
    int peer;
    memset(text, 'a', sizeof text);
    kiln_ws *ws = with_raw_peer(&peer, NULL);
    kiln_ws_message m;
    peer_sends(peer, 2, text, sizeof text);
    peer_sends(peer, 2, text, sizeof text);
    assert_int_equal(kiln_ws_recv(ws, &m), 1);
    assert_int_equal(kiln_ws_read(ws, rest, 100), 100);
    close(peer);
    while (kiln_ws_send_text(ws, "is anybody there?") == KILN_OK) {
    }
    assert_int_equal(kiln_ws_close_code(ws), 1006);
    memset(rest, 0, sizeof rest);
    assert_int_equal(kiln_ws_read(ws, rest, sizeof rest), 900);
    assert_memory_equal(rest, text, 900);
    assert_int_equal(kiln_ws_recv(ws, &m), 0);
    kiln_ws_free(ws);
}

static void *drain(void *arg)
{
    int peer = *(int *)arg;
    static uint8_t bytes[65536];
    size_t got = 0;
    ssize_t n;
    while ((n = read(peer, bytes, sizeof bytes)) > 0) {
        got += (size_t)n;
    }
    return (void *)(n < 0 ? 0 : got);
}

static void test_a_peer_that_has_said_its_last_still_gets_all(void **state)
{
    (void)state;
    enum { MUCH = 4 << 20, HEADS = 14 + 8 };
    int peer;
    kiln_ws *ws = with_raw_peer(&peer, &(kiln_ws_options){.close_timeout = 60000});
    kiln_ws_set_blocking(ws, 0);
    char *data = calloc(1, MUCH);
    assert_int_equal(kiln_ws_send(ws, KILN_WS_BINARY, data, MUCH), KILN_OK);
    free(data);
    assert_true(kiln_ws_pending(ws) > MUCH / 2);
    peer_sends(peer, 8, "\x03\xe8", 2);
    shutdown(peer, SHUT_WR);
    kiln_ws_message m;
    kiln_ws_step(ws);
    kiln_ws_recv(ws, &m);
    kiln_ws_step(ws); /* now its end has been read, too */
    pthread_t thread;
    pthread_create(&thread, NULL, drain, &peer);
    while (kiln_ws_step(ws) != KILN_WS_CLOSED) {
        poll_for(ws);
    }
    void *got;
    pthread_join(thread, &got);
    assert_int_equal((size_t)got, MUCH + HEADS);
    assert_int_equal(kiln_ws_close_code(ws), 1000);
    kiln_ws_free(ws);
    close(peer);
}

static void test_messages_that_are_here_already_need_no_event(void **state)
{
    (void)state;
    int peer;
    kiln_ws *ws = with_raw_peer(&peer, NULL);
    kiln_ws_set_blocking(ws, 0);
    for (int i = 0; i < 3; i++) {
        peer_sends(peer, 1, "x", 1);
    }
    kiln_ws_message m;
    for (int i = 0; i < 3; i++) { /* one for each wait */
        assert_int_equal(kiln_ws_step(ws), KILN_WS_OPEN);
        assert_int_equal(kiln_ws_recv(ws, &m), 1);
        assert_int_equal(kiln_ws_timeout(ws), i < 2 ? 0 : -1);
    }
    kiln_ws_free(ws);
    close(peer);
}

static void *receive_all(void *ws)
{
    kiln_ws_message m;
    int result;
    while ((result = kiln_ws_recv(ws, &m)) > 0) {
    }
    return (void *)(intptr_t)result;
}

static void test_a_reading_stream_does_not_wait_for_the_peer_to_read(void **state)
{
    (void)state;
    enum { PIECE = 50000 };
    int peer;
    kiln_ws *ws = with_raw_peer(&peer, &(kiln_ws_options){.close_timeout = 50});
    kiln_ws_stream *s = kiln_ws_stream_open(ws);
    static char data[PIECE];
    char byte;
    while (kiln_ws_pending(ws) == 0) { /* until the kernel takes no more: the peer does not read */
        assert_int_equal(kiln_ws_stream_write(s, data, sizeof data), KILN_OK);
        peer_sends(peer, 2, "x", 1);
        assert_int_equal(kiln_ws_stream_read(s, &byte, 1), 1);
    }
    pthread_t thread; /* whoever flushes waits until all is out */
    pthread_create(&thread, NULL, drain, &peer);
    assert_int_equal(kiln_ws_stream_flush(s), KILN_OK);
    assert_int_equal(kiln_ws_pending(ws), 0);
    kiln_ws_stream_free(s);
    pthread_join(thread, NULL);
    close(peer);
}

static void test_a_slow_reader_is_not_a_silent_peer(void **state)
{
    (void)state;
    enum { INTERVAL = 600, SLICE = 20 };
    int peer;
    kiln_ws *ws = with_raw_peer(&peer, &(kiln_ws_options){.ping_interval = INTERVAL});
    kiln_ws_set_blocking(ws, 0);
    char *data = calloc(1, 16 << 20);
    assert_int_equal(kiln_ws_send(ws, KILN_WS_BINARY, data, 16 << 20), KILN_OK);
    uint64_t end = now_ms() + 3 * INTERVAL;
    while (now_ms() < end) { /* it takes a little now and then, and cannot have seen the ping */
        assert_true(read(peer, data, 65536) > 0);
        assert_int_equal(kiln_ws_step(ws), KILN_WS_OPEN);
        poll(NULL, 0, SLICE);
    }
    assert_true(kiln_ws_pending(ws) > 0);
    free(data);
    kiln_ws_free(ws);
    close(peer);
}

static void *accept_one(void *listener)
{
    kiln_ws *ws = kiln_ws_listener_accept(listener, -1);
    receive_all(ws);
    kiln_ws_free(ws);
    return NULL;
}

static void test_only_a_step_connects(void **state)
{
    (void)state;
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    pthread_t thread;
    pthread_create(&thread, NULL, accept_one, listener);
    kiln_ws *ws = kiln_ws_open(url_of(listener, "ws"), NULL);
    kiln_ws_message m;
    int state_now = KILN_WS_CONNECTING;
    while (state_now == KILN_WS_CONNECTING) { /* who looks at what it returns is told that it is open */
        for (int i = 0; i < 20; i++) {
            poll_for(ws);
            assert_int_equal(kiln_ws_recv(ws, &m), KILN_TIMEOUT);
            assert_int_equal(kiln_ws_state(ws), KILN_WS_CONNECTING);
        }
        state_now = kiln_ws_step(ws);
    }
    assert_int_equal(state_now, KILN_WS_OPEN);
    kiln_ws_set_blocking(ws, 1);
    kiln_ws_free(ws);
    pthread_join(thread, NULL);
    kiln_ws_listener_free(listener);
}

static void test_senders_do_not_wait_for_a_peer_that_is_given_up(void **state)
{
    (void)state;
    enum { MUCH = 4 << 20 };
    int peer;
    char *data = calloc(1, MUCH);
    kiln_ws *ws = with_raw_peer(&peer, &(kiln_ws_options){.ping_interval = 50});
    assert_int_equal(kiln_ws_send(ws, KILN_WS_BINARY, data, MUCH), KILN_GONE);
    assert_string_equal(kiln_ws_error(ws), "the peer does not answer pings");
    kiln_ws_free(ws);
    close(peer);
    ws = with_raw_peer(&peer, &(kiln_ws_options){.close_timeout = 50});
    kiln_ws_set_blocking(ws, 0);
    assert_int_equal(kiln_ws_send(ws, KILN_WS_BINARY, data, MUCH), KILN_OK);
    kiln_ws_set_blocking(ws, 1);
    assert_int_equal(kiln_ws_close(ws, 1000, NULL), KILN_GONE);
    assert_string_equal(kiln_ws_error(ws), "the peer does not answer the close frame");
    kiln_ws_free(ws);
    close(peer);
    free(data);
}

/* ---- threads ------------------------------------------------------------------------------------------------ */

static void *connect_and_close(void *url)
{
    kiln_ws *ws = kiln_ws_connect(url, NULL);
    kiln_ws_message m;
    int got = 0;
    while (ws != NULL && got < 2 && kiln_ws_recv(ws, &m) > 0) {
        got++;
    }
    kiln_ws_free(ws);
    return (void *)(intptr_t)got;
}

static void test_only_a_step_takes_a_request(void **state)
{
    (void)state;
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    kiln_ws_message m;
    pthread_t thread;
    pthread_create(&thread, NULL, connect_and_close, url_of(listener, "ws"));
    kiln_ws *ws = kiln_ws_listener_accept(listener, -1);
    kiln_ws_set_blocking(ws, 0);
    poll_for(ws);
    assert_int_equal(kiln_ws_recv(ws, &m), KILN_TIMEOUT);
    assert_int_equal(kiln_ws_send_text(ws, "early"), KILN_LATE);
    assert_int_equal(kiln_ws_state(ws), KILN_WS_CONNECTING);
    while (kiln_ws_step(ws) == KILN_WS_CONNECTING) {
        poll_for(ws);
    }
    assert_int_equal(kiln_ws_send_text(ws, "one"), KILN_OK);
    assert_int_equal(kiln_ws_send_text(ws, "two"), KILN_OK);
    while (kiln_ws_step(ws) != KILN_WS_CLOSED) {
        kiln_ws_recv(ws, &m);
        poll_for(ws);
    }
    void *got;
    pthread_join(thread, &got);
    assert_int_equal((intptr_t)got, 2);
    kiln_ws_free(ws);
    kiln_ws_listener_free(listener);
}

static void test_a_deadline_of_another_thread_ends_a_wait(void **state)
{
    (void)state;
    int peer;
    kiln_ws *ws = with_raw_peer(&peer, &(kiln_ws_options){.close_timeout = 50});
    pthread_t thread;
    pthread_create(&thread, NULL, receive_all, ws);
    poll(NULL, 0, 50); /* usually it waits by then */
    kiln_ws_deadline(ws, 1);
    void *result;
    pthread_join(thread, &result);
    assert_int_equal((int)(intptr_t)result, KILN_TIMEOUT);
    kiln_ws_free(ws);
    close(peer);
}

struct big_send {
    kiln_ws *ws;
    pthread_barrier_t begun;
};

static void *send_big(void *arg)
{
    enum { MUCH = 1 << 20 };
    struct big_send *big = arg;
    char *data = calloc(1, MUCH);
    pthread_barrier_wait(&big->begun);
    int result = kiln_ws_send(big->ws, KILN_WS_BINARY, data, MUCH);
    free(data);
    return (void *)(intptr_t)result;
}

static void test_a_send_that_the_other_thread_finds_broken_fails(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        int peer;
        struct big_send big = {.ws = with_raw_peer(&peer, NULL)};
        pthread_barrier_init(&big.begun, NULL, 2);
        pthread_t sender;
        pthread_t receiver;
        pthread_create(&sender, NULL, send_big, &big);
        pthread_create(&receiver, NULL, receive_all, big.ws);
        pthread_barrier_wait(&big.begun);
        while (kiln_ws_pending(big.ws) == 0) { /* until it waits */
        }
        close(peer);
        void *result;
        pthread_join(receiver, NULL);
        pthread_join(sender, &result);
        assert_int_equal((int)(intptr_t)result, KILN_GONE);
        assert_int_equal(kiln_ws_close_code(big.ws), 1006);
        kiln_ws_free(big.ws);
        pthread_barrier_destroy(&big.begun);
    }
}

static atomic_int handshakes;

static void count_handshake(kiln_ws *ws, void *user)
{
    (void)user;
    atomic_fetch_add(&handshakes, 1);
    assert_int_equal(kiln_ws_send_text(ws, "from the handshake"), KILN_OK); /* it accepts */
}

static void *greet(void *ws)
{
    return (void *)(intptr_t)kiln_ws_send_text(ws, "from the other thread");
}

static void test_two_threads_at_one_handshake(void **state)
{
    (void)state;
    kiln_ws_listener *listener =
        kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1", .handshake = count_handshake});
    for (int i = 0; i < 20; i++) {
        pthread_t threads[3];
        void *results[3];
        atomic_store(&handshakes, 0);
        pthread_create(&threads[0], NULL, connect_and_close, url_of(listener, "ws"));
        kiln_ws *ws = kiln_ws_listener_accept(listener, -1);
        assert_non_null(ws);
        pthread_create(&threads[1], NULL, receive_all, ws);
        pthread_create(&threads[2], NULL, greet, ws);
        for (int t = 0; t < 3; t++) {
            pthread_join(threads[t], &results[t]);
        }
        assert_int_equal((intptr_t)results[0], 2);
        assert_int_equal((intptr_t)results[1], 0);
        assert_int_equal((intptr_t)results[2], KILN_OK);
        assert_int_equal(atomic_load(&handshakes), 1);
        kiln_ws_free(ws);
    }
    kiln_ws_listener_free(listener);
}

/* ---- listeners ------------------------------------------------------------------------------------------------- */

static void hold(kiln_ws *ws, void *user)
{
    (void)user;
    kiln_ws_message m;
    while (kiln_ws_recv(ws, &m) > 0) {
    }
}

static void *serve_held(void *listener)
{
    kiln_ws_listener_serve(listener, hold, NULL);
    return NULL;
}

static void test_one_connection_at_a_time_is_one(void **state)
{
    (void)state;
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1", .connections = 1});
    pthread_t thread;
    pthread_create(&thread, NULL, serve_held, listener);
    kiln_ws *first = kiln_ws_connect(url_of(listener, "ws"), NULL);
    assert_non_null(first);
    assert_null(kiln_ws_connect(url_of(listener, "ws"), &(kiln_ws_options){.connect_timeout = 200}));
    kiln_ws_free(first);
    kiln_ws *second = kiln_ws_connect(url_of(listener, "ws"), NULL);
    assert_non_null(second);
    kiln_ws_free(second);
    kiln_ws_listener_close(listener);
    pthread_join(thread, NULL);
    kiln_ws_listener_free(listener);
}

static void test_listeners_share_a_port_when_both_say_so(void **state)
{
    (void)state;
    char error[256] = "";
    kiln_ws_listen_options options = {
        .address = "127.0.0.1", .reuse_port = 1, .ws = {.error = error, .error_size = sizeof error}};
    kiln_ws_listener *one = kiln_ws_listen(&options);
    assert_non_null(one);
    options.port = kiln_ws_listener_port(one);
    kiln_ws_listener *two = kiln_ws_listen(&options);
    assert_non_null(two);
    options.reuse_port = 0;
    assert_null(kiln_ws_listen(&options));
    assert_non_null(strstr(error, "Address already in use"));
    kiln_ws_listener_free(one);
    kiln_ws_listener_free(two);
}

static void test_options_of_listeners_that_cannot_be(void **state)
{
    (void)state;
    char error[256];
    const char *many[66] = {NULL};
    for (int i = 0; i < 65; i++) {
        many[i] = "p";
    }
    const struct {
        kiln_ws_listen_options options;
        const char *why;
    } cases[] = {
        {{.port = 70000}, "port"},
        {{.protocols = many}, "more than 64"},
        {{.origins = many}, "more than 64"},
        {{.protocols = (const char *const[]){"a b", NULL}}, "subprotocol"},
        {{.ws.deflate = KILN_WS_DEFLATE, .ws.deflate_bits = 7}, "deflate_bits"},
        {{.cert_file = "/absent/cert.pem"}, "absent"},
        {{.address = "not an address"}, "cannot listen"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kiln_ws_listen_options options = cases[i].options;
        options.ws.error = error;
        options.ws.error_size = sizeof error;
        assert_null(kiln_ws_listen(&options));
        assert_non_null(strstr(error, cases[i].why));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_outlives_the_connection_that_brought_it),
        cmocka_unit_test(test_a_peer_that_has_said_its_last_still_gets_all),
        cmocka_unit_test(test_messages_that_are_here_already_need_no_event),
        cmocka_unit_test(test_a_reading_stream_does_not_wait_for_the_peer_to_read),
        cmocka_unit_test(test_a_slow_reader_is_not_a_silent_peer),
        cmocka_unit_test(test_only_a_step_connects),
        cmocka_unit_test(test_senders_do_not_wait_for_a_peer_that_is_given_up),
        cmocka_unit_test(test_only_a_step_takes_a_request),
        cmocka_unit_test(test_a_deadline_of_another_thread_ends_a_wait),
        cmocka_unit_test(test_a_send_that_the_other_thread_finds_broken_fails),
        cmocka_unit_test(test_two_threads_at_one_handshake),
        cmocka_unit_test(test_one_connection_at_a_time_is_one),
        cmocka_unit_test(test_listeners_share_a_port_when_both_say_so),
        cmocka_unit_test(test_options_of_listeners_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
