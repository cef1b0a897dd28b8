/* libkilnws as a program uses it: pairs, halves, streams and what is stacked on them, blocking servers, the loop, the
 * caller's own loop. Links the library alone, never the server. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <kiln_ws.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void new_pair(kiln_ws *ends[2], const kiln_ws_options *options)
{
    assert_int_equal(kiln_ws_pair(ends, options), KILN_OK);
}

static void *free_ws(void *ws)
{
    kiln_ws_free(ws);
    return NULL;
}

/* Both ends close at once, as two programs would. */
static void end_pair(kiln_ws *ends[2])
{
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, free_ws, ends[0]), 0);
    kiln_ws_free(ends[1]);
    pthread_join(other, NULL);
}

static void test_messages_and_their_nul(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    kiln_ws_message m;
    new_pair(ends, NULL);
    for (int from = 0; from < 2; from++) {
        assert_int_equal(kiln_ws_send_text(ends[from], "one"), KILN_OK);
        assert_int_equal(kiln_ws_send(ends[from], KILN_WS_BINARY, "\0\1", 2), KILN_OK);
        assert_int_equal(kiln_ws_printf(ends[from], "%d", 42), KILN_OK);
        assert_int_equal(kiln_ws_send_text(ends[from], ""), KILN_OK);
        assert_int_equal(kiln_ws_send(ends[from], KILN_WS_TEXT, "\xff", 1), KILN_INVALID);
        assert_int_equal(kiln_ws_send(ends[from], 7, "x", 1), KILN_INVALID);
        kiln_ws *to = ends[1 - from];
        assert_int_equal(kiln_ws_recv(to, &m), 1);
        assert_int_equal(m.type, KILN_WS_TEXT);
        assert_string_equal(m.data, "one"); /* a NUL stands behind it, where the next frame begins */
        assert_int_equal(kiln_ws_recv(to, &m), 1);
        assert_int_equal(m.type, KILN_WS_BINARY);
        assert_memory_equal(m.data, "\0\1\0", 3);
        assert_int_equal(kiln_ws_recv(to, &m), 1);
        assert_string_equal(m.data, "42");
        assert_int_equal(kiln_ws_recv(to, &m), 1);
        assert_int_equal(m.length, 0);
        assert_string_equal(m.data, "");
        assert_int_equal(kiln_ws_recv_timeout(to, &m, 0), KILN_TIMEOUT);
    }
    end_pair(ends);
}

static void test_parts_and_order(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    kiln_ws_message m;
    new_pair(ends, NULL);
    assert_int_equal(kiln_ws_send_part(ends[1], KILN_WS_TEXT, "\xc3", 1, 0), KILN_OK);
    assert_int_equal(kiln_ws_send_text(ends[1], "between"), KILN_LATE);
    assert_int_equal(kiln_ws_ping(ends[1], "p", 1), KILN_OK);
    assert_int_equal(kiln_ws_send_part(ends[1], KILN_WS_TEXT, "\xa4", 1, 1), KILN_OK);
    assert_int_equal(kiln_ws_recv(ends[0], &m), 1);
    assert_string_equal(m.data, "\xc3\xa4");
    assert_int_equal(kiln_ws_recv_timeout(ends[1], &m, 0), KILN_TIMEOUT);
    int64_t took;
    assert_int_equal(kiln_ws_pongs(ends[1], &took), 1);
    assert_true(took >= 0);
    end_pair(ends);
}

static void test_the_last_message_before_a_close_arrives(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    kiln_ws_message m;
    new_pair(ends, NULL);
    kiln_ws_send_text(ends[0], "last");
    assert_int_equal(kiln_ws_close(ends[0], 1005, NULL), KILN_INVALID);
    assert_int_equal(kiln_ws_close(ends[0], 4001, "done"), KILN_OK);
    assert_int_equal(kiln_ws_send_text(ends[0], "late"), KILN_GONE);
    assert_int_equal(kiln_ws_recv(ends[1], &m), 1);
    assert_string_equal(m.data, "last");
    assert_int_equal(kiln_ws_recv(ends[1], &m), 0);
    assert_int_equal(kiln_ws_close_code(ends[1]), 4001);
    assert_string_equal(kiln_ws_close_reason(ends[1]), "done");
    assert_int_equal(kiln_ws_recv(ends[0], &m), 0);
    assert_int_equal(kiln_ws_close_code(ends[0]), 4001);
    end_pair(ends);
}

static void test_deadline(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    kiln_ws_message m;
    new_pair(ends, NULL);
    kiln_ws_deadline(ends[0], 20);
    assert_int_equal(kiln_ws_recv(ends[0], &m), KILN_TIMEOUT);
    kiln_ws_deadline(ends[1], 50); /* nobody reads: a send ends as well */
    size_t size = 8 << 20;
    char *big = calloc(1, size);
    assert_int_equal(kiln_ws_send(ends[1], KILN_WS_BINARY, big, size), KILN_TIMEOUT);
    assert_true(kiln_ws_pending(ends[1]) > 0);
    kiln_ws_set_blocking(ends[0], 0);
    kiln_ws_free(ends[0]);
    kiln_ws_free(ends[1]);
    free(big);
}

/* ---- two threads -------------------------------------------------------------------------------------------- */

enum { BULK = 24 << 20 };

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 31 ^ i >> 9);
}

static void *write_bulk(void *arg)
{
    kiln_ws_stream *s = arg;
    uint8_t chunk[7001];
    for (size_t at = 0; at < BULK;) {
        size_t n = at % sizeof chunk + 1;
        n = n < BULK - at ? n : BULK - at;
        for (size_t i = 0; i < n; i++) {
            chunk[i] = byte_at(at + i);
        }
        if (kiln_ws_stream_write(s, chunk, n) != KILN_OK) {
            return s;
        }
        at += n;
    }
    return kiln_ws_stream_flush(s) == KILN_OK ? NULL : s;
}

static bool read_bulk(kiln_ws_stream *s)
{
    uint8_t chunk[10007];
    for (size_t at = 0; at < BULK;) {
        size_t want = BULK - at < sizeof chunk ? BULK - at : sizeof chunk;
        ssize_t n = kiln_ws_stream_read(s, chunk, want);
        if (n <= 0) {
            return false;
        }
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] != byte_at(at + (size_t)i)) {
                return false;
            }
        }
        at += (size_t)n;
    }
    return true;
}

static void *read_bulk_thread(void *s)
{
    return read_bulk(s) ? NULL : s;
}

static void *free_stream(void *s)
{
    kiln_ws_stream_free(s);
    return NULL;
}

static void test_both_halves_of_streams_from_two_threads(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    new_pair(ends, NULL);
    kiln_ws_stream *s[2] = {kiln_ws_stream_open(ends[0]), kiln_ws_stream_open(ends[1])};
    pthread_t threads[3];
    void *result;
    pthread_create(&threads[0], NULL, write_bulk, s[0]);
    pthread_create(&threads[1], NULL, write_bulk, s[1]);
    pthread_create(&threads[2], NULL, read_bulk_thread, s[0]);
    assert_true(read_bulk(s[1]));
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    kiln_ws_stream_close(s[0]);
    char byte;
    assert_int_equal(kiln_ws_stream_read(s[1], &byte, 1), 0);
    pthread_create(&threads[0], NULL, free_stream, s[0]); /* both ends say their last: so do two programs */
    kiln_ws_stream_free(s[1]);
    pthread_join(threads[0], NULL);
}

static void *answer_half(void *arg)
{
    kiln_ws_reader *reader = arg;
    kiln_ws_message m;
    size_t count = 0;
    while (kiln_ws_reader_recv(reader, &m) > 0) {
        count++;
    }
    kiln_ws_reader_free(reader);
    return (void *)count;
}

static void test_halves(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    kiln_ws_reader *reader;
    kiln_ws_writer *writer;
    new_pair(ends, NULL);
    assert_int_equal(kiln_ws_split(ends[0], &reader, &writer), KILN_OK);
    pthread_t thread;
    pthread_create(&thread, NULL, answer_half, reader);
    kiln_ws_message m;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(kiln_ws_send_text(ends[1], "to the reader"), KILN_OK);
        assert_int_equal(kiln_ws_writer_write(writer, "from the writer", 15), KILN_OK);
        assert_int_equal(kiln_ws_recv(ends[1], &m), 1);
        assert_int_equal(m.length, 15);
    }
    kiln_ws_free(ends[1]);
    void *count;
    pthread_join(thread, &count);
    assert_int_equal((size_t)count, 100);
    kiln_ws_writer_free(writer);
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

/* A layer that changes every byte and counts them: what an encryption does. */
struct veil {
    kiln_ws_stream *below;
    uint8_t key;
};

static ssize_t veil_read(void *self, void *buffer, size_t size)
{
    struct veil *veil = self;
    ssize_t n = kiln_ws_stream_read(veil->below, buffer, size);
    for (ssize_t i = 0; i < n; i++) {
        ((uint8_t *)buffer)[i] ^= veil->key;
    }
    return n;
}

static int veil_write(void *self, const void *data, size_t length)
{
    struct veil *veil = self;
    uint8_t *copy = malloc(length);
    for (size_t i = 0; i < length; i++) {
        copy[i] = ((const uint8_t *)data)[i] ^ veil->key;
    }
    int result = kiln_ws_stream_write(veil->below, copy, length);
    free(copy);
    return result;
}

static int veil_flush(void *self)
{
    return kiln_ws_stream_flush(((struct veil *)self)->below);
}

static int veil_close(void *self)
{
    return kiln_ws_stream_close(((struct veil *)self)->below);
}

static void veil_free(void *self)
{
    kiln_ws_stream_free(((struct veil *)self)->below);
    free(self);
}

static const kiln_ws_layer veil_layer = {
    .read = veil_read, .write = veil_write, .flush = veil_flush, .close = veil_close, .free = veil_free};

static kiln_ws_stream *veiled(kiln_ws_stream *below, uint8_t key)
{
    struct veil *veil = malloc(sizeof *veil);
    *veil = (struct veil){below, key};
    return kiln_ws_stream_wrap(&veil_layer, veil);
}

static void *echo_lines(void *arg)
{
    char line[100];
    kiln_ws_stream *s = arg;
    while (kiln_ws_stream_read_line(s, line, sizeof line) > 0) {
        kiln_ws_stream_printf(s, "echo %s", line); /* goes out before the next read waits */
    }
    kiln_ws_stream_free(s);
    return NULL;
}

static void test_stacked_streams_and_files(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    new_pair(ends, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, echo_lines, veiled(veiled(kiln_ws_stream_open(ends[0]), 0x55), 0x0f));
    FILE *file = kiln_ws_stream_file(veiled(veiled(kiln_ws_stream_open(ends[1]), 0x55), 0x0f));
    assert_non_null(file);
    char line[100];
    for (int i = 0; i < 50; i++) {
        assert_true(fprintf(file, "line %d\n", i) > 0);
        assert_int_equal(fflush(file), 0);
        char expected[100];
        snprintf(expected, sizeof expected, "echo line %d\n", i);
        assert_non_null(fgets(line, sizeof line, file));
        assert_string_equal(line, expected);
    }
    fclose(file);
    pthread_join(thread, NULL);
}

static void test_lines_that_are_too_long(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    char line[8];
    new_pair(ends, &(kiln_ws_options){.close_timeout = 50}); /* one thread for both ends */
    kiln_ws_stream *s = kiln_ws_stream_open(ends[0]);
    kiln_ws_write(ends[1], "short\n", 6);
    kiln_ws_write(ends[1], "much longer\nrest", 16);
    assert_int_equal(kiln_ws_stream_read_line(s, line, sizeof line), 6);
    assert_string_equal(line, "short\n");
    assert_int_equal(kiln_ws_stream_read_line(s, line, sizeof line), KILN_TOO_LARGE);
    char all[12];
    assert_int_equal(kiln_ws_stream_read_all(s, all, 12), KILN_OK);
    assert_memory_equal(all, "much longer\n", 12);
    kiln_ws_close(ends[1], 1000, NULL);
    assert_int_equal(kiln_ws_stream_read_line(s, line, sizeof line), 4); /* the end of the last line */
    assert_int_equal(kiln_ws_stream_read_line(s, line, sizeof line), 0);
    kiln_ws_stream_free(s);
    kiln_ws_free(ends[1]);
}

/* ---- servers and clients --------------------------------------------------------------------------------------------- */

static void serve_echo(kiln_ws *ws, void *user)
{
    (void)user;
    kiln_ws_message m;
    while (kiln_ws_recv(ws, &m) > 0) {
        kiln_ws_send(ws, m.type, m.data, m.length);
    }
}

static void judge(kiln_ws *ws, void *user)
{
    (void)user;
    if (strcmp(kiln_ws_target(ws), "/no") == 0) {
        kiln_ws_refuse(ws, 403, "not here");
    } else if (kiln_ws_offers(ws, "second")) {
        kiln_ws_accept(ws, "second");
    }
}

static void *serve_thread(void *listener)
{
    kiln_ws_listener_serve(listener, serve_echo, NULL);
    return NULL;
}

static void test_blocking_server_and_client(void **state)
{
    (void)state;
    char error[200] = "";
    kiln_ws_listener *listener = kiln_ws_listen(
        &(kiln_ws_listen_options){.address = "127.0.0.1", .handshake = judge, .ws.deflate = KILN_WS_DEFLATE});
    assert_non_null(listener);
    pthread_t thread;
    pthread_create(&thread, NULL, serve_thread, listener);
    char url[64];
    const char *protocols[] = {"first", "second", NULL};
    kiln_ws_options options = {
        .protocols = protocols, .deflate = KILN_WS_DEFLATE, .error = error, .error_size = sizeof error};
    snprintf(url, sizeof url, "ws://127.0.0.1:%d/no", kiln_ws_listener_port(listener));
    assert_null(kiln_ws_connect(url, &options));
    assert_non_null(strstr(error, "403"));
    snprintf(url, sizeof url, "ws://127.0.0.1:%d/yes", kiln_ws_listener_port(listener));
    kiln_ws *ws = kiln_ws_connect(url, &options);
    assert_non_null(ws);
    assert_string_equal(kiln_ws_protocol(ws), "second");
    assert_true(kiln_ws_is_compressed(ws));
    assert_string_equal(kiln_ws_header(ws, "UPGRADE"), "websocket");
    assert_null(kiln_ws_tls(ws));
    kiln_ws_message m;
    for (size_t size = 0; size < 3000000; size = size * 3 + 1) {
        char *text = malloc(size + 1);
        memset(text, 'a', size);
        assert_int_equal(kiln_ws_send(ws, KILN_WS_TEXT, text, size), KILN_OK);
        assert_int_equal(kiln_ws_recv(ws, &m), 1);
        assert_int_equal(m.length, size);
        assert_memory_equal(m.data, text, size);
        free(text);
    }
    kiln_ws_free(ws);
    kiln_ws_listener_close(listener);
    pthread_join(thread, NULL);
    kiln_ws_listener_free(listener);
}

struct count {
    kiln_ws_loop *loop;
    int opened;
    int messages;
    int closed;
    int target;
};

static void on_open(kiln_ws *ws, void *user)
{
    ((struct count *)user)->opened++;
    kiln_ws_send_text(ws, "hello");
}

static void on_echo(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    (void)user;
    kiln_ws_send(ws, m->type, m->data, m->length);
}

static void on_answer(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    struct count *count = user;
    assert_string_equal(m->data, "hello");
    if (++count->messages % 3 == 0) {
        kiln_ws_close(ws, 1000, NULL);
    } else {
        kiln_ws_send_text(ws, "hello");
    }
}

static void on_close(kiln_ws *ws, int code, const char *reason, void *user)
{
    (void)ws;
    (void)reason;
    struct count *count = user;
    assert_int_equal(code, count->target == 0 ? 1006 : 1000);
    if (++count->closed == count->target) {
        kiln_ws_loop_stop(count->loop);
    }
}

static const kiln_ws_handler echo_handler = {.message = on_echo};
static const kiln_ws_handler client_handler = {.open = on_open, .message = on_answer, .close = on_close};

static void test_loop_with_many(void **state)
{
    (void)state;
    enum { MANY = 100 };
    struct count count = {.loop = kiln_ws_loop_create(), .target = 1};
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    assert_int_equal(kiln_ws_loop_listen(count.loop, listener, &echo_handler, NULL), KILN_OK);
    char url[64];
    snprintf(url, sizeof url, "ws://127.0.0.1:%d/", kiln_ws_listener_port(listener));
    for (int i = 0; i < MANY; i++) {
        assert_non_null(kiln_ws_loop_connect(count.loop, url, NULL, &client_handler, &count));
    }
    count.target = MANY;
    /* Messages are counted over all, so every third closes some socket; the others end with the loop. */
    while (count.messages < MANY) {
        assert_true(kiln_ws_loop_run_once(count.loop, 10000) >= 0);
    }
    assert_int_equal(count.opened, MANY);
    count.target = 0;
    kiln_ws_loop_free(count.loop);
    assert_int_equal(count.closed, MANY);
    kiln_ws_listener_free(listener);
}

static void stop_it(void *loop)
{
    kiln_ws_loop_stop(loop);
}

static void *post_stop(void *loop)
{
    kiln_ws_loop_post(loop, stop_it, loop);
    return NULL;
}

static void test_loop_is_reached_from_other_threads(void **state)
{
    (void)state;
    kiln_ws_loop *loop = kiln_ws_loop_create();
    pthread_t thread;
    pthread_create(&thread, NULL, post_stop, loop);
    assert_int_equal(kiln_ws_loop_run(loop), KILN_OK);
    pthread_join(thread, NULL);
    kiln_ws_loop_free(loop);
}

static void test_own_loop(void **state)
{
    (void)state;
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    char url[64];
    snprintf(url, sizeof url, "ws://127.0.0.1:%d/", kiln_ws_listener_port(listener));
    kiln_ws *ws[2] = {kiln_ws_open(url, NULL), kiln_ws_listener_accept(listener, 10000)};
    assert_non_null(ws[1]);
    kiln_ws_set_blocking(ws[1], 0);
    kiln_ws_message m;
    int got = 0;
    bool asked = false;
    while (kiln_ws_state(ws[0]) != KILN_WS_CLOSED || kiln_ws_state(ws[1]) != KILN_WS_CLOSED) {
        struct pollfd fds[2];
        int wait = 1000;
        for (int i = 0; i < 2; i++) {
            int wanted = kiln_ws_wanted(ws[i]);
            int ms = kiln_ws_timeout(ws[i]);
            fds[i] = (struct pollfd){
                kiln_ws_fd(ws[i]), (short)((wanted & KILN_READ ? POLLIN : 0) | (wanted & KILN_WRITE ? POLLOUT : 0)), 0};
            wait = ms >= 0 && ms < wait ? ms : wait;
        }
        poll(fds, 2, wait);
        for (int i = 0; i < 2; i++) {
            kiln_ws_step(ws[i]);
            while (kiln_ws_recv(ws[i], &m) > 0) {
                got++;
                if (i == 1) {
                    kiln_ws_send(ws[1], m.type, m.data, m.length);
                } else {
                    kiln_ws_close(ws[0], 1000, "enough");
                }
            }
        }
        if (kiln_ws_state(ws[0]) == KILN_WS_OPEN && !asked) {
            asked = true;
            assert_int_equal(kiln_ws_send_text(ws[0], "hello"), KILN_OK);
        }
    }
    assert_int_equal(got, 2);
    assert_int_equal(kiln_ws_close_code(ws[1]), 1000);
    kiln_ws_free(ws[0]);
    kiln_ws_free(ws[1]);
    kiln_ws_listener_free(listener);
}

static void test_a_peer_that_never_reads_fills_no_memory(void **state)
{
    (void)state;
    kiln_ws *ends[2];
    new_pair(ends, &(kiln_ws_options){.send_queue = 1 << 20});
    kiln_ws_set_blocking(ends[1], 0);
    char chunk[65536] = "";
    int result = KILN_OK;
    for (int i = 0; i < 1000 && result == KILN_OK; i++) {
        result = kiln_ws_send(ends[1], KILN_WS_BINARY, chunk, sizeof chunk);
    }
    assert_int_equal(result, KILN_TOO_LARGE);
    assert_true(kiln_ws_pending(ends[1]) < (2 << 20));
    kiln_ws_set_blocking(ends[0], 0);
    kiln_ws_free(ends[0]);
    kiln_ws_free(ends[1]);
}

static void test_a_silent_peer_is_found_by_pings(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    kiln_ws *ws = kiln_ws_adopt(fds[0], KILN_WS_ROLE_SERVER, &(kiln_ws_options){.ping_interval = 20});
    kiln_ws_message m;
    assert_int_equal(kiln_ws_recv(ws, &m), 0);
    assert_int_equal(kiln_ws_close_code(ws), 1006);
    assert_string_equal(kiln_ws_error(ws), "the peer does not answer pings");
    uint8_t ping[2];
    assert_int_equal(read(fds[1], ping, 2), 2);
    assert_int_equal(ping[0], 0x89);
    kiln_ws_free(ws);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_and_their_nul),
        cmocka_unit_test(test_parts_and_order),
        cmocka_unit_test(test_the_last_message_before_a_close_arrives),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_both_halves_of_streams_from_two_threads),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_stacked_streams_and_files),
        cmocka_unit_test(test_lines_that_are_too_long),
        cmocka_unit_test(test_blocking_server_and_client),
        cmocka_unit_test(test_loop_with_many),
        cmocka_unit_test(test_loop_is_reached_from_other_threads),
        cmocka_unit_test(test_own_loop),
        cmocka_unit_test(test_a_peer_that_never_reads_fills_no_memory),
        cmocka_unit_test(test_a_silent_peer_is_found_by_pings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
