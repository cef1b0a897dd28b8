/* The whole request path: bytes in pieces through the protocol, answers that read, ignore, pause,
 * stream, cut; a peer that reads slowly, ends or resets. What the server took for requests and bodies
 * must be exactly what an independent strict parser finds, and what it sent must parse as
 * answers to exactly those. A leading four bytes choose the pieces and the peer's behaviour. */
#include "fuzz.h"

#include "tests/support/fake_conn.h"
#include "tests/support/strict_http1.h"

#include "protocol/http1.h"
#include "request/request.h"

enum { MAX_SEEN = 2048 };

struct seen {
    char method[16];
    struct str target; /* copied */
    uint32_t hash;
    uint64_t body;
    bool ended;
    int error; /* -1: none */
    bool http10;
};

void __wrap_request_start(struct request *req);

static struct loop *loop;
static struct fake peer;
static struct request *held;
static struct seen seen[MAX_SEEN];
static unsigned seen_count;
static char block[70000];

/* ---- answers ------------------------------------------------------------------------------- */

static char way_of(struct str target)
{
    return target.len > 1 ? target.ptr[1] : '/';
}

static void answer(struct request *req)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%.*s %llu", STR_ARG(req->method_text), (unsigned long long)req->body.received);
    response_send(req, text, (size_t)n);
}

static bool sink_bytes(struct request *req, const uint8_t *data, size_t len)
{
    struct seen *s = req->body.sink_arg;
    CHECK(!s->ended && s->error == -1 && len > 0);
    s->hash = strict_hash(s->hash, data, len);
    s->body += len;
    if (way_of(req->target) == 'f') {
        answer(req);
        return true;
    }
    if (way_of(req->target) == 'p') {
        req->ops->body_pause(req);
        held = req;
    }
    return true;
}

static void sink_end(struct request *req)
{
    struct seen *s = req->body.sink_arg;
    CHECK(!s->ended && s->error == -1 && req->body.complete);
    s->ended = true;
    held = NULL;
    answer(req);
}

static void sink_error(struct request *req, int status)
{
    struct seen *s = req->body.sink_arg;
    CHECK(!s->ended && s->error == -1);
    s->error = status;
    held = NULL;
    if (status != 0) {
        response_error(req, status);
    }
}

static const struct body_sink sink = {sink_bytes, sink_end, sink_error};

static void on_gone(struct request *req)
{
    if (held == req) {
        held = NULL;
    }
}

static void stream(struct request *req)
{
    response_begin(req, RESPONSE_LENGTH_UNKNOWN);
    for (uint32_t i = fuzz_roll(5); i > 0; i--) {
        if (fuzz_roll(2) != 0) {
            response_write(req, block, fuzz_roll(3000));
        } else {
            response_write_ref(req, block, fuzz_roll(sizeof block), NULL, NULL);
        }
        if (fuzz_roll(4) == 0) {
            req->ops->flush(req);
            if (peer.conn == NULL) {
                return;
            }
        }
    }
    response_end(req);
}

/* Of a request whose body, if any, nobody reads. */
static void answer_now(struct request *req)
{
    switch (way_of(req->target)) {
    case 's': stream(req); break;
    case '2':
        req->response.status = 204;
        response_send(req, "", 0);
        break;
    case '3':
        req->response.status = 304;
        response_send(req, "none", 4);
        break;
    case 'l': response_send_ref(req, block, sizeof block, NULL, NULL); break;
    case 'x':
        response_begin(req, 100);
        response_write(req, "too few", 7);
        response_end(req);
        break;
    case 'n': response_error(req, 404); break;
    default: answer(req); break;
    }
}

static bool reads_body(char way)
{
    return strchr("eh23slxn", way) == NULL;
}

void __wrap_request_start(struct request *req)
{
    CHECK(seen_count < MAX_SEEN && held == NULL);
    struct seen *s = &seen[seen_count++];
    char way = way_of(req->target);
    snprintf(s->method, sizeof s->method, "%.*s", STR_ARG(req->method_text));
    char *copy = malloc(req->target.len + 1);
    memcpy(copy, req->target.ptr, req->target.len + 1);
    *s = (struct seen){.target = {copy, req->target.len}, .hash = STRICT_HASH_START, .error = -1};
    snprintf(s->method, sizeof s->method, "%.*s", STR_ARG(req->method_text));
    s->http10 = req->http_minor == 0;
    req->response.no_body = req->method == METHOD_HEAD;
    CHECK(strlen(req->target.ptr) == req->target.len);
    for (unsigned i = 0; i < req->header_count; i++) {
        CHECK(strlen(req->headers[i].name.ptr) == req->headers[i].name.len);
        CHECK(strlen(req->headers[i].value.ptr) == req->headers[i].value.len);
    }
    req->on_gone = on_gone;
    if (way == 'h') {
        held = req;
    } else if (!req->body.present || !reads_body(way)) {
        answer_now(req);
    } else {
        req->body.sink_arg = s;
        req->body.sink = &sink;
        req->ops->body_resume(req);
    }
}

static void poke_held(void)
{
    struct request *req = held;
    if (req == NULL) {
        return;
    }
    held = NULL;
    if (way_of(req->target) == 'h') {
        req->on_gone = NULL;
        answer(req);
    } else {
        req->ops->body_resume(req);
    }
}

/* ---- the second opinion ------------------------------------------------------------------------- */

/* Does the connection go on behind a request whose body was not asked for? */
static bool skip_unread(struct strict_input *in, struct strict_request *r)
{
    if (r->chunked || r->expects || r->length > 65536) {
        return false;
    }
    strict_take(in, r, r->length);
    return r->body == r->length;
}

/* Of what the sink was told. False: the connection ends behind it. */
static bool check_read_body(struct strict_input *in, struct strict_request *r, const struct seen *s, char way, bool cut)
{
    struct strict_input before = *in;
    enum strict_result result = strict_body(in, r);
    if (way == 'f' && (r->chunked ? r->any_data : r->body > 0)) {
        if (r->chunked || r->length > 65536) {
            return false;
        }
        *in = before;
        r->body = 0;
        strict_take(in, r, r->length);
        return r->body == r->length;
    }
    if (result == STRICT_EITHER) {
        return s->ended;
    }
    if (result == STRICT_OK) {
        CHECK(cut || s->ended);
        CHECK(!s->ended || (s->body == r->body && s->hash == r->hash));
        return s->ended;
    }
    CHECK(!s->ended && s->body <= r->body);
    CHECK(cut || s->error == 400 || s->error == 413);
    return false;
}

/* True when all requests were as the strict parser has them; `cut`: the peer went away early, so
 * there may be fewer. */
static void check_requests(const uint8_t *data, size_t size, bool cut)
{
    struct strict_input in = {data, size};
    unsigned n = 0;
    for (;;) {
        struct strict_request r;
        enum strict_result result = strict_head(&in, &r);
        if (result == STRICT_EITHER && n == seen_count) {
            return; /* it was refused */
        }
        if (result == STRICT_INCOMPLETE || result == STRICT_BAD) {
            CHECK(n == seen_count);
            return;
        }
        if (n == seen_count) {
            CHECK(cut);
            return;
        }
        const struct seen *s = &seen[n++];
        char way = way_of(s->target);
        if (result == STRICT_OK) {
            CHECK(strcmp(s->method, r.method) == 0);
            CHECK(str_eq(s->target, (struct str){r.target, r.target_len}));
        }
        bool goes_on = r.keep_alive && way != 'x' && !(way == 's' && r.minor_zero);
        if (r.chunked || r.length > 0) {
            bool behind = reads_body(way) ? check_read_body(&in, &r, s, way, cut) : skip_unread(&in, &r);
            goes_on = goes_on && behind;
        }
        if (!goes_on) {
            CHECK(n == seen_count);
            return;
        }
    }
}

/* ---- what was sent ------------------------------------------------------------------------------ */

static const char *find(const char *at, const char *end, const char *what)
{
    return memmem(at, (size_t)(end - at), what, strlen(what));
}

/* Behind a chunked body, or NULL when it is cut. */
static const char *skip_chunks(const char *at, const char *end)
{
    for (;;) {
        const char *line = find(at, end, "\r\n");
        if (line == NULL) {
            return NULL;
        }
        char *digits_end;
        unsigned long long n = strtoull(at, &digits_end, 16);
        CHECK(digits_end == line && digits_end > at);
        at = line + 2;
        if ((unsigned long long)(end - at) < n + 2) {
            return NULL;
        }
        CHECK(memcmp(at + n, "\r\n", 2) == 0);
        at += n + 2;
        if (n == 0) {
            return at;
        }
    }
}

/* Behind the body, or NULL when it is cut. */
static const char *skip_body(const char *head, const char *body, const char *end, const char *method, int status)
{
    if (strcmp(method, "HEAD") == 0 || status == 204 || status == 304) {
        return body;
    }
    if (find(head, body, "\r\nTransfer-Encoding: chunked\r\n") != NULL) {
        return skip_chunks(body, end);
    }
    const char *length = find(head, body, "\r\nContent-Length: ");
    if (length == NULL) {
        return end;
    }
    unsigned long long n = strtoull(length + 18, NULL, 10);
    return (unsigned long long)(end - body) < n ? NULL : body + n;
}

static void check_answers(bool cut)
{
    buffer_append_char(&peer.out, '\0');
    const char *at = peer.out.data;
    const char *end = at + peer.out.len - 1;
    unsigned answers = 0;
    bool closing = false;
    /* A cut answer takes what was queued with it. */
    cut = cut || (seen_count > 0 && way_of(seen[seen_count - 1].target) == 'x');
    while (at < end) {
        CHECK(!closing);
        const char *body = find(at, end, "\r\n\r\n");
        if (body == NULL) {
            CHECK(cut);
            return;
        }
        body += 4;
        int status = 0;
        CHECK(sscanf(at, "HTTP/1.1 %3d ", &status) == 1);
        if (status == 100) {
            at = body;
            continue;
        }
        CHECK(answers <= seen_count);
        const char *method = answers < seen_count ? seen[answers].method : "?";
        closing = find(at, body, "\r\nConnection: close\r\n") != NULL;
        const char *next = skip_body(at, body, end, method, status);
        /* A refused HEAD is not among the requests seen. */
        if (next == NULL && answers == seen_count && body == end) {
            next = end;
        }
        answers++;
        if (next == NULL) {
            CHECK(cut);
            return;
        }
        at = next;
    }
    CHECK(cut || answers == seen_count || answers == seen_count + 1);
}

/* ---- one run ---------------------------------------------------------------------------------------- */

static void act(void)
{
    switch (fuzz_roll(12)) {
    case 0:
    case 1: poke_held(); break;
    case 2: peer.budget = 0; break;
    case 3: peer.budget = fuzz_roll(5000); break;
    case 4:
    case 5: peer.budget = SIZE_MAX; break;
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
            /* It does not read on: something must happen first. */
            peer.budget = fuzz_roll(2) != 0 ? SIZE_MAX : fuzz_roll(100000);
            poke_held();
            fake_run(&peer);
        }
        act();
    }
}

/* Everything is answered and read to the end. */
static void settle(void)
{
    peer.budget = SIZE_MAX;
    fake_run(&peer);
    while (held != NULL) {
        poke_held();
        fake_run(&peer);
    }
}

static void start(void)
{
    /* A preface would make it another protocol's connection: that is fuzz_http2.c's. */
    static const char *const options[] = {"EnableHttp2", "false", NULL};
    loop = fake_loop(options);
    memset(block, 'b', sizeof block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (loop == NULL) {
        start();
    }
    if (size < 4) {
        return 0;
    }
    fuzz_dice = (uint32_t)data[0] | (uint32_t)data[1] << 8;
    uint32_t largest = fuzz_largest_piece(data[2]);
    uint8_t end = data[3];
    data += 4;
    size -= 4;
    held = NULL;
    seen_count = 0;
    if (!fake_open(&peer, loop, &protocol_http1)) {
        abort();
    }
    bool cut = (end & 15) == 0;
    size_t given = cut ? fuzz_roll((uint32_t)size + 1) : size;
    feed(data, given, largest);
    if ((end & 15) == 1) {
        cut = true; /* an orderly end, but in the middle of everything */
        fake_eof(&peer);
        settle();
    } else if (cut) {
        peer.reset = true;
        fake_run(&peer);
        CHECK(!fake_reads(&peer));
    } else {
        settle();
        fake_eof(&peer);
        settle();
        CHECK(peer.conn == NULL);
    }
    check_answers(cut);
    fake_close(&peer);
    CHECK(held == NULL);
    check_requests(data, given, cut);
    for (unsigned i = 0; i < seen_count; i++) {
        free((char *)(uintptr_t)seen[i].target.ptr);
    }
    return 0;
}
