/* HTTP/2 as the server uses nghttp2: frames in pieces, answers that read, pause, stream, cut, wait; a peer
 * that reads slowly, ends or resets. What goes out must be well-formed frames on streams that were opened
 * and not ended; every request that began must end; nothing may be left. A leading four bytes choose the
 * pieces and the peer's behaviour; the preface and SETTINGS are put before the rest. */
#include "fuzz.h"

#include "tests/support/fake_conn.h"

#include "protocol/http2.h"
#include "request/request.h"

#include <nghttp2/nghttp2.h>

enum { MAX_HELD = 256, MAX_STREAMS = 4096, FRAME_HEAD = 9 };

void __wrap_request_start(struct request *req);

static const uint8_t hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";

static struct loop *loop;
static struct fake peer;
static struct request *held[MAX_HELD];
static unsigned held_count;
static unsigned begun;
static unsigned freed;
static char block[70000];

/* ---- answers ------------------------------------------------------------------------------- */

static char way_of(const struct request *req)
{
    return req->target.len > 1 ? req->target.ptr[1] : '/';
}

static void hold(struct request *req)
{
    if (held_count == MAX_HELD) {
        response_send(req, "full", 4);
        return;
    }
    held[held_count++] = req;
}

static void let_go(const struct request *req)
{
    for (unsigned i = 0; i < held_count; i++) {
        if (held[i] == req) {
            held[i] = held[--held_count];
            return;
        }
    }
}

static void count_free(void *arg)
{
    (void)arg;
    freed++;
}

static bool sink_bytes(struct request *req, const uint8_t *data, size_t len)
{
    CHECK(len > 0 && data != NULL && !req->body.complete);
    if (way_of(req) == 'f') {
        response_send(req, "first", 5);
    } else if (way_of(req) == 'p') {
        req->ops->body_pause(req);
        hold(req);
    }
    return true;
}

static void sink_end(struct request *req)
{
    CHECK(req->body.complete && !req->response.head_sent);
    for (unsigned i = 0; i < req->trailer_count; i++) {
        CHECK(strlen(req->trailers[i].name.ptr) == req->trailers[i].name.len);
    }
    let_go(req);
    response_send(req, "end", 3);
}

static void sink_error(struct request *req, int status)
{
    let_go(req);
    if (status != 0) {
        response_error(req, status);
    }
}

static const struct body_sink sink = {sink_bytes, sink_end, sink_error};

static void stream(struct request *req)
{
    response_begin(req, RESPONSE_LENGTH_UNKNOWN);
    for (uint32_t i = fuzz_roll(5); i > 0; i--) {
        if (fuzz_roll(2) != 0) {
            response_write(req, block, fuzz_roll(30000));
        } else {
            response_write_ref(req, block, fuzz_roll(sizeof block), NULL, NULL);
        }
        if (fuzz_roll(4) == 0) {
            request_hold(req);
            req->ops->flush(req);
            bool gone = req->gone || req->ended;
            request_release(req);
            if (gone) {
                return;
            }
        }
    }
    response_end(req);
}

static void cut(struct request *req)
{
    response_begin(req, 100);
    response_write(req, "too few", 7);
    response_end(req);
}

static void answer(struct request *req)
{
    switch (way_of(req)) {
    case 's': stream(req); break;
    case '2':
        req->response.status = 204;
        response_send(req, "", 0);
        break;
    case 'l': response_send_ref(req, block, sizeof block, NULL, NULL); break;
    case 'x': cut(req); break;
    case 'n': response_error(req, 404); break;
    default: response_send(req, "hello", 5); break;
    }
}

void __wrap_request_start(struct request *req)
{
    begun++;
    CHECK(arena_defer(&req->arena, count_free, NULL));
    req->response.no_body = req->method == METHOD_HEAD;
    CHECK(strlen(req->target.ptr) == req->target.len && req->host.ptr != NULL);
    for (unsigned i = 0; i < req->header_count; i++) {
        CHECK(strlen(req->headers[i].name.ptr) == req->headers[i].name.len);
        CHECK(strlen(req->headers[i].value.ptr) == req->headers[i].value.len);
    }
    req->on_gone = (void (*)(struct request *))let_go;
    if (way_of(req) == 'h') {
        hold(req);
    } else if (req->body.present && strchr("r/pf", way_of(req)) != NULL) {
        req->body.sink = &sink;
        req->ops->body_resume(req);
    } else {
        answer(req);
    }
}

static void poke_held(void)
{
    if (held_count == 0) {
        return;
    }
    struct request *req = held[fuzz_roll(held_count)];
    let_go(req);
    if (way_of(req) == 'p' && !req->body.complete) {
        req->ops->body_resume(req);
    } else {
        answer(req);
    }
}

/* ---- what went out ------------------------------------------------------------------------------ */

static void check_output(void)
{
    static uint8_t ended[MAX_STREAMS];
    memset(ended, 0, sizeof ended);
    const uint8_t *at = (const uint8_t *)peer.out.data;
    const uint8_t *end = at + peer.out.len;
    bool first = true;
    while (end - at >= FRAME_HEAD) {
        size_t len = (size_t)at[0] << 16 | (size_t)at[1] << 8 | at[2];
        uint32_t id = (uint32_t)at[5] << 24 | (uint32_t)at[6] << 16 | (uint32_t)at[7] << 8 | at[8];
        CHECK(len <= 16384 && at[3] <= NGHTTP2_CONTINUATION && at[3] != NGHTTP2_PUSH_PROMISE && id < 1u << 31);
        CHECK(!first || at[3] == NGHTTP2_SETTINGS);
        first = false;
        bool is_message = at[3] == NGHTTP2_DATA || at[3] == NGHTTP2_HEADERS;
        CHECK(!is_message || id % 2 == 1);
        if (is_message && id / 2 < MAX_STREAMS) {
            CHECK(!ended[id / 2]);
            ended[id / 2] = (at[4] & NGHTTP2_FLAG_END_STREAM) != 0;
        } else if (at[3] == NGHTTP2_RST_STREAM && id / 2 < MAX_STREAMS) {
            CHECK(len == 4 && id % 2 == 1);
        }
        if ((size_t)(end - at) < FRAME_HEAD + len) {
            return; /* the connection was cut */
        }
        at += FRAME_HEAD + len;
    }
}

/* ---- one run ---------------------------------------------------------------------------------------- */

static void act(void)
{
    switch (fuzz_roll(14)) {
    case 0:
    case 1: poke_held(); break;
    case 2: peer.budget = 0; break;
    case 3: peer.budget = fuzz_roll(5000); break;
    case 4:
    case 5: peer.budget = SIZE_MAX; break;
    case 6: fake_wait(&peer, fuzz_roll(3000)); break;
    default: break;
    }
    fake_run(&peer);
}

static void feed(const uint8_t *data, size_t size, uint32_t largest)
{
    size_t at = 0;
    while (at < size && peer.conn != NULL) {
        size_t n = 1 + fuzz_roll(largest);
        n = n < size - at ? n : size - at;
        fake_input(&peer, data + at, n);
        at += n;
        while (peer.in_len > 0 && peer.conn != NULL) {
            peer.budget = SIZE_MAX; /* it does not read on: something must go first */
            poke_held();
            fake_run(&peer);
        }
        act();
    }
}

static void settle(void)
{
    peer.budget = SIZE_MAX;
    fake_run(&peer);
    while (held_count > 0) {
        poke_held();
        fake_run(&peer);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (loop == NULL) {
        static const char *const options[] = {"Http2MaxStreams",
                                              "16",
                                              "RequestHeadersTimeout",
                                              "2",
                                              "ResponseTimeout",
                                              "5",
                                              "MaxHeaderSize",
                                              "4096",
                                              NULL};
        loop = fake_loop(options);
        memset(block, 'b', sizeof block);
    }
    if (size < 4) {
        return 0;
    }
    fuzz_dice = (uint32_t)data[0] | (uint32_t)data[1] << 8;
    uint32_t largest = fuzz_largest_piece(data[2]);
    uint8_t end = data[3];
    held_count = 0;
    begun = 0;
    freed = 0;
    if (!fake_open(&peer, loop, &protocol_http2)) {
        abort();
    }
    feed(hello, sizeof hello - 1, largest);
    feed(data + 4, size - 4, largest);
    if (peer.conn != NULL && (end & 7) == 0) {
        peer.reset = true;
        fake_run(&peer);
    } else if (peer.conn != NULL && (end & 7) == 1) {
        conn_shutdown_all(loop);
        settle();
        fake_wait(&peer, 2000);
    } else {
        settle();
        if (peer.conn != NULL) {
            fake_eof(&peer);
            settle();
        }
    }
    check_output();
    fake_close(&peer);
    CHECK(held_count == 0 && begun == freed);
    return 0;
}
