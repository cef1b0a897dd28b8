/* HTTP/2 against nghttp2's client side, with a peer and a clock that the test drives: what leaves in one
 * send, what waits for whom, deadlines, the two GOAWAYs, memory. */
#include "tests/support/http1_answers.h"

#include "protocol/http2.h"
#include "protocol/http2_private.h"

#include <nghttp2/nghttp2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MAX = 64 };

static struct loop *loop;
static struct fake peer;

/* What the client has seen of each stream, by number / 2. */
static struct seen {
    int status;
    size_t body;
    bool ended;
    int reset; /* -1: no */
} seen[MAX];
static unsigned goaways;
static int32_t last_goaway_id;
static uint32_t goaway_error;
static nghttp2_session *client;

/* ---- the client ------------------------------------------------------------------------------ */

static int client_header(nghttp2_session *s, const nghttp2_frame *f, const uint8_t *name, size_t name_len,
                         const uint8_t *value, size_t value_len, uint8_t flags, void *arg)
{
    (void)s;
    (void)flags;
    (void)arg;
    (void)value_len;
    if (name_len == 7 && memcmp(name, ":status", 7) == 0 && f->headers.cat != NGHTTP2_HCAT_PUSH_RESPONSE) {
        seen[f->hd.stream_id / 2].status = atoi((const char *)value);
    }
    return 0;
}

static int client_data(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *data, size_t len, void *arg)
{
    (void)s;
    (void)flags;
    (void)data;
    (void)arg;
    seen[id / 2].body += len;
    return 0;
}

static int client_frame(nghttp2_session *s, const nghttp2_frame *f, void *arg)
{
    (void)s;
    (void)arg;
    if (f->hd.type == NGHTTP2_GOAWAY) {
        goaways++;
        last_goaway_id = f->goaway.last_stream_id;
        goaway_error = f->goaway.error_code;
    } else if (f->hd.type == NGHTTP2_RST_STREAM) {
        seen[f->hd.stream_id / 2].reset = (int)f->rst_stream.error_code;
    }
    if ((f->hd.type == NGHTTP2_DATA || f->hd.type == NGHTTP2_HEADERS) && (f->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        seen[f->hd.stream_id / 2].ended = true;
    }
    return 0;
}

static void client_start(bool open_windows)
{
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, client_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, client_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, client_frame);
    nghttp2_option_new(&option);
    nghttp2_option_set_no_auto_window_update(option, !open_windows);
    assert_int_equal(nghttp2_session_client_new2(&client, callbacks, NULL, option), 0);
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(client, NGHTTP2_FLAG_NONE, NULL, 0);
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < MAX; i++) {
        seen[i].reset = -1;
    }
    goaways = 0;
}

/* Everything that the client has to say, as one input. */
static void client_talks(void)
{
    struct buffer bytes = BUFFER_EMPTY;
    const uint8_t *data;
    ssize_t len;
    while ((len = nghttp2_session_mem_send(client, &data)) > 0) {
        buffer_append(&bytes, data, (size_t)len);
    }
    if (bytes.len > 0 && peer.conn != NULL) {
        fake_input(&peer, bytes.data, bytes.len);
    }
    buffer_free(&bytes);
}

static void client_listens(void)
{
    struct buffer out = peer.out;
    peer.out = BUFFER_EMPTY;
    if (out.len > 0) {
        assert_int_equal(nghttp2_session_mem_recv(client, (const uint8_t *)out.data, out.len), (ssize_t)out.len);
    }
    buffer_free(&out);
}

/* Until neither has anything to say. */
static void talk(void)
{
    do {
        client_talks();
        client_listens();
    } while (peer.conn != NULL && (nghttp2_session_want_write(client) != 0 || peer.out.len > 0));
}

static ssize_t client_body(nghttp2_session *s, int32_t id, uint8_t *buf, size_t length, uint32_t *flags,
                           nghttp2_data_source *source, void *arg)
{
    size_t *left = source->ptr;
    size_t n = *left < length ? *left : length;
    (void)s;
    (void)id;
    (void)arg;
    memset(buf, 'u', n);
    *left -= n;
    if (*left == 0) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    }
    return (ssize_t)n;
}

static int32_t ask(const char *path, size_t *body)
{
#define NV(name, value, len) \
    { \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), strlen(name), len, 0 \
    }
    const nghttp2_nv head[] = {
        NV(":method", body != NULL ? "POST" : "GET", body != NULL ? 4 : 3),
        NV(":scheme", "http", 4),
        NV(":authority", "localhost", 9),
        NV(":path", path, strlen(path)),
    };
    nghttp2_data_provider provider = {.source.ptr = body, .read_callback = client_body};
    return nghttp2_submit_request(client, NULL, head, ARRAY_LEN(head), body != NULL ? &provider : NULL, NULL);
}

static struct seen *of(int32_t id)
{
    return &seen[id / 2];
}

static int start(void **state)
{
    static const char *const options[] = {"KeepAliveTimeout",
                                          "10",
                                          "RequestHeadersTimeout",
                                          "3",
                                          "gracePeriod",
                                          "1",
                                          "ResponseTimeout",
                                          "4",
                                          "bytesPerSecond",
                                          "100",
                                          "Http2MaxStreams",
                                          "20",
                                          "LingerTimeout",
                                          "0.1",
                                          NULL};
    (void)state;
    loop = fake_loop(options);
    answers_reset();
    assert_true(fake_open(&peer, loop, &protocol_http2));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fake_close(&peer);
    nghttp2_session_del(client);
    fake_loop_free(loop);
    answers_reset();
    return 0;
}

/* ---- tests --------------------------------------------------------------------------------------- */

static void all_answers_of_one_event_leave_in_one_send(void **state)
{
    (void)state;
    client_start(true);
    talk();
    int32_t ids[10];
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        ids[i] = ask("/early", NULL);
    }
    peer.sends = 0;
    client_talks();
    assert_int_equal(peer.sends, 1);
    talk();
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        assert_int_equal(of(ids[i])->status, 200);
        assert_true(of(ids[i])->ended);
    }
}

static void large_answers_arrive_through_small_windows(void **state)
{
    (void)state;
    client_start(true);
    int32_t one = ask("/large", NULL);
    int32_t two = ask("/large", NULL);
    peer.budget = 1000;
    for (int i = 0; i < 100000 && peer.conn != NULL && !(of(one)->ended && of(two)->ended); i++) {
        client_talks();
        peer.budget = 3000;
        fake_run(&peer);
        client_listens();
    }
    assert_int_equal(of(one)->body, sizeof large);
    assert_int_equal(of(two)->body, sizeof large);
}

static void a_paused_body_opens_no_window(void **state)
{
    (void)state;
    size_t left = 3000000;
    client_start(true);
    int32_t id = ask("/pause", &left);
    talk();
    assert_non_null(held);
    assert_true(left > 1500000); /* the client waits, at Http2StreamWindow */
    assert_true(body_seen.len < 70000);
    size_t other = 1000;
    int32_t second = ask("/echo", &other);
    talk();
    assert_int_equal(of(second)->status, 200); /* and nobody else does */
    while (held != NULL) {
        struct request *req = held;
        req->ops->body_resume(req);
        fake_run(&peer);
        talk();
    }
    assert_true(of(id)->ended);
    assert_int_equal(body_seen.len, 3001000);
}

static void a_slow_body_is_answered_408(void **state)
{
    (void)state;
    size_t left = 70000; /* more than the first window */
    client_start(true);
    client_talks(); /* preface and settings */
    int32_t id = ask("/echo", &left);
    talk();
    assert_true(of(id)->ended);
    /* A body of which nothing comes. */
    size_t stuck = SIZE_MAX / 2;
    peer.budget = SIZE_MAX;
    int32_t slow = ask("/echo", &stuck);
    const uint8_t *data;
    ssize_t len = nghttp2_session_mem_send(client, &data); /* its head alone */
    fake_input(&peer, data, (size_t)len);
    fake_wait(&peer, 5000);
    fake_wait(&peer, 5000);
    client_listens();
    assert_int_equal(of(slow)->status, 408);
    assert_int_equal(body_error, 408);
}

static void an_answer_that_the_client_holds_back_is_reset(void **state)
{
    (void)state;
    client_start(false);
    int32_t id = ask("/large", NULL);
    talk();
    assert_int_equal(of(id)->body, 65535);
    for (int i = 0; i < 2000 && of(id)->reset < 0; i++) {
        fake_wait(&peer, 500);
        client_listens();
    }
    assert_int_equal(of(id)->reset, NGHTTP2_CANCEL);
    assert_non_null(peer.conn);
}

static void an_idle_connection_says_goodbye(void **state)
{
    (void)state;
    client_start(true);
    talk();
    fake_wait(&peer, 9000);
    client_listens();
    assert_int_equal(goaways, 0);
    fake_wait(&peer, 1500);
    client_listens();
    assert_int_equal(goaways, 1);
    assert_int_equal(goaway_error, NGHTTP2_NO_ERROR);
    fake_wait(&peer, 500);
    assert_null(peer.conn);
}

static void a_client_without_a_preface_is_given_up(void **state)
{
    (void)state;
    client_start(true);
    fake_wait(&peer, 3100);
    fake_wait(&peer, 500);
    assert_null(peer.conn);
}

static void two_goaways_let_running_requests_end(void **state)
{
    (void)state;
    client_start(true);
    int32_t id = ask("/hold", NULL);
    client_talks();
    client_listens();
    conn_shutdown_all(loop);
    fake_run(&peer);
    client_listens();
    assert_int_equal(goaways, 1);
    assert_int_equal(last_goaway_id, INT32_MAX);
    client_talks(); /* acknowledges the PING behind it */
    client_listens();
    assert_int_equal(goaways, 2);
    assert_int_equal(last_goaway_id, id);
    assert_non_null(peer.conn);
    struct request *req = held;
    held = NULL;
    answer_echo(req);
    fake_run(&peer);
    client_listens();
    assert_true(of(id)->ended);
    fake_wait(&peer, 500);
    assert_null(peer.conn);
}

static void the_second_goaway_does_not_wait_for_ever(void **state)
{
    (void)state;
    client_start(true);
    talk();
    conn_shutdown_all(loop);
    fake_run(&peer);
    fake_wait(&peer, 600);
    fake_wait(&peer, 600);
    client_listens();
    assert_int_equal(goaways, 2);
    fake_wait(&peer, 500);
    assert_null(peer.conn);
}

static void a_reset_ends_the_request(void **state)
{
    (void)state;
    client_start(true);
    int32_t id = ask("/hold", NULL);
    talk();
    assert_non_null(held);
    nghttp2_submit_rst_stream(client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    talk();
    assert_null(held);
    assert_int_equal(held_gone, 1);
    int32_t other = ask("/early", NULL);
    talk();
    assert_int_equal(of(other)->status, 200);
}

static void the_end_of_the_connection_ends_its_requests(void **state)
{
    (void)state;
    client_start(true);
    ask("/hold", NULL);
    ask("/large", NULL);
    size_t left = 10;
    ask("/pause", &left);
    peer.budget = 100;
    client_talks();
    peer.reset = true;
    fake_run(&peer);
    fake_run(&peer);
    assert_null(peer.conn);
    assert_null(held);
}

static void the_client_that_reads_nothing_is_not_read(void **state)
{
    (void)state;
    client_start(true);
    talk();
    peer.budget = 0;
    struct buffer pings = BUFFER_EMPTY;
    static const uint8_t ping[17] = {0, 0, 8, NGHTTP2_PING};
    for (int i = 0; i < 900; i++) {
        buffer_append(&pings, ping, sizeof ping);
    }
    for (int i = 0; i < 3 && peer.conn != NULL; i++) {
        fake_input(&peer, pings.data, pings.len);
    }
    buffer_free(&pings);
    assert_true(peer.conn == NULL || conn_pending(peer.conn) < 400000);
}

static void an_idle_connection_is_small(void **state)
{
    (void)state;
    client_start(true);
    assert_true(sizeof(struct http2) <= 512);
    assert_true(sizeof(struct http2_stream) <= 512); /* beside its request in one block of the arena */
}

/* Sessions of a thread keep what streams gave back, and nothing longer than they live. */
static void memory_goes_back_with_the_last_session(void **state)
{
    (void)state;
    client_start(true);
    nghttp2_mem *memory = http2_memory_enter();
    if (memory == NULL) {
        http2_memory_leave();
        skip(); /* a sanitizer sees to all of it */
    }
    assert_int_equal(http2_memory_kept(), 0);
    for (int i = 0; i < 10; i++) {
        ask("/early", NULL);
    }
    talk();
    size_t kept = http2_memory_kept();
    assert_true(kept > 1000);
    for (int i = 0; i < 10; i++) {
        ask("/early", NULL);
    }
    talk();
    assert_true(http2_memory_kept() < kept + 2000); /* the second ten took what the first ten left */
    void *many[4000];
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        many[i] = memory->malloc(i % 600, NULL);
        assert_non_null(many[i]);
        memset(many[i], 0xee, i % 600);
        many[i] = memory->realloc(many[i], i % 600 + 100, NULL);
    }
    uint8_t *zeros = memory->calloc(10, 20, NULL);
    for (size_t i = 0; i < 200; i++) {
        assert_int_equal(zeros[i], 0);
    }
    memory->free(zeros, NULL);
    memory->free(NULL, NULL);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        memory->free(many[i], NULL);
    }
    assert_true(http2_memory_kept() > 40000 && http2_memory_kept() <= 65536);
    fake_close(&peer);
    assert_true(http2_memory_kept() > 40000);
    http2_memory_leave();
    assert_int_equal(http2_memory_kept(), 0);
    void *late = memory->malloc(100, NULL);
    memory->free(late, NULL);
    assert_int_equal(http2_memory_kept(), 0);
    assert_true(fake_open(&peer, loop, &protocol_http2));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(all_answers_of_one_event_leave_in_one_send),
        TEST(large_answers_arrive_through_small_windows),
        TEST(a_paused_body_opens_no_window),
        TEST(a_slow_body_is_answered_408),
        TEST(an_answer_that_the_client_holds_back_is_reset),
        TEST(an_idle_connection_says_goodbye),
        TEST(a_client_without_a_preface_is_given_up),
        TEST(two_goaways_let_running_requests_end),
        TEST(the_second_goaway_does_not_wait_for_ever),
        TEST(a_reset_ends_the_request),
        TEST(the_end_of_the_connection_ends_its_requests),
        TEST(the_client_that_reads_nothing_is_not_read),
        TEST(an_idle_connection_is_small),
        TEST(memory_goes_back_with_the_last_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
