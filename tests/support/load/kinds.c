/* What is asked for, and what must come back: tests/plugins/chaos and two files. */
#include "load.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAM_LINES_MAX = 400, POST_MAX = 200000, EXAMPLES_EACH = 6 };

struct totals totals;
struct file small_file, large_file;
struct session sessions[SESSIONS_MAX];
unsigned session_count;
unsigned edit_highest;

static char *stream_text;
static size_t stream_line;

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint32_t random_below(uint32_t limit)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % limit;
}

void text_append(struct request_text *out, const void *data, size_t size)
{
    if (out->size + size > out->capacity) {
        out->capacity = (out->size + size) * 2;
        out->data = realloc(out->data, out->capacity);
        if (out->data == NULL) {
            abort();
        }
    }
    memcpy(out->data + out->size, data, size);
    out->size += size;
}

void text_printf(struct request_text *out, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_append(out, text, (size_t)size);
}

/* Some of each sort, told by the first letter. */
void note_example(const char *format, ...)
{
    static unsigned seen[256];
    if (totals.example_count < EXAMPLES_MAX && seen[(unsigned char)*format]++ < EXAMPLES_EACH) {
        va_list args;
        va_start(args, format);
        vsnprintf(totals.examples[totals.example_count++], sizeof totals.examples[0], format, args);
        va_end(args);
    }
}

static void begin(struct request_text *out, const struct sent *sent, const char *method, const char *target)
{
    text_printf(out, "%s %s HTTP/1.1\r\nHost: load\r\n%s", method, target, sent->close ? "Connection: close\r\n" : "");
}

static void expect(struct sent *sent, int status, const char *data, size_t size)
{
    sent->status = status;
    sent->expected = data;
    sent->expected_size = size;
}

/* ---- files -------------------------------------------------------------------------------- */

static void make_small(struct sent *sent, struct request_text *out)
{
    begin(out, sent, "GET", "/small.txt");
    text_printf(out, "\r\n");
    expect(sent, 200, small_file.data, small_file.size);
}

static void make_head(struct sent *sent, struct request_text *out)
{
    begin(out, sent, "HEAD", "/small.txt");
    text_printf(out, "\r\n");
    expect(sent, 200, small_file.data, 0);
    sent->bodiless = true;
}

static void make_missing(struct sent *sent, struct request_text *out)
{
    begin(out, sent, "GET", "/there/is/no/such/file");
    text_printf(out, "\r\n");
    sent->status = 404;
}

static void make_large(struct sent *sent, struct request_text *out)
{
    begin(out, sent, "GET", "/large.bin");
    text_printf(out, "\r\n");
    expect(sent, 200, large_file.data, large_file.size);
}

static void make_range(struct sent *sent, struct request_text *out)
{
    size_t first = random_below((uint32_t)large_file.size);
    size_t size = 1 + random_below((uint32_t)(large_file.size - first < 100000 ? large_file.size - first : 100000));
    begin(out, sent, "GET", "/large.bin");
    text_printf(out, "Range: bytes=%zu-%zu\r\n\r\n", first, first + size - 1);
    expect(sent, 206, large_file.data + first, size);
    sent->range_first = first;
}

static const char *check_range(struct sent *sent, const struct answer *answer)
{
    char range[96];
    snprintf(range, sizeof range, "bytes %zu-%zu/%zu", sent->range_first, sent->range_first + sent->expected_size - 1,
             large_file.size);
    return strcmp(range, answer->content_range) == 0 ? NULL : "another Content-Range";
}

/* ---- endpoints ----------------------------------------------------------------------------- */

static const char hello[] = "hello from an endpoint\n";

static void make_hello_c(struct sent *sent, struct request_text *out)
{
    begin(out, sent, "GET", "/hello._c");
    text_printf(out, "\r\n");
    expect(sent, 200, hello, sizeof hello - 1);
}

static void make_hello_so(struct sent *sent, struct request_text *out)
{
    begin(out, sent, "GET", "/hello.so");
    text_printf(out, "\r\n");
    expect(sent, 200, hello, sizeof hello - 1);
}

static void make_stream(struct sent *sent, struct request_text *out)
{
    char target[64];
    unsigned lines = 1 + random_below(STREAM_LINES_MAX);
    snprintf(target, sizeof target, "/stream?lines=%u", lines);
    begin(out, sent, "GET", target);
    text_printf(out, "\r\n");
    expect(sent, 200, stream_text, lines * stream_line);
}

static void make_post(struct sent *sent, struct request_text *out)
{
    size_t size = random_below(4) == 0 ? random_below(POST_MAX) : random_below(5000);
    const char *body = large_file.data + random_below((uint32_t)(large_file.size - size));
    begin(out, sent, "POST", random_below(2) == 0 ? "/echo?whole" : "/echo");
    if (random_below(2) == 0) {
        text_printf(out, "Content-Length: %zu\r\n\r\n", size);
        text_append(out, body, size);
    } else {
        text_printf(out, "Transfer-Encoding: chunked\r\n\r\n");
        for (size_t at = 0; at < size;) {
            size_t piece = 1 + random_below(30000);
            piece = piece < size - at ? piece : size - at;
            text_printf(out, "%zx\r\n", piece);
            text_append(out, body + at, piece);
            text_printf(out, "\r\n");
            at += piece;
        }
        text_printf(out, "0\r\n\r\n");
    }
    expect(sent, 200, body, size);
}

static void make_count(struct sent *sent, struct request_text *out)
{
    struct session *session = &sessions[random_below(session_count)];
    begin(out, sent, "GET", "/count");
    text_printf(out, "Cookie: %s\r\n\r\n", session->cookie);
    sent->status = 200;
    sent->session = session;
    sent->answered_before = session->answered;
    session->attempted++;
}

static const char *check_count(struct sent *sent, const struct answer *answer)
{
    (void)answer;
    char *end;
    struct session *session = sent->session;
    int64_t sum = strtoll(sent->text, &end, 10);
    if (end == sent->text || strcmp(end, "\n") != 0) {
        return "no sum";
    }
    session->answered++;
    session->highest = sum > session->highest ? sum : session->highest;
    /* Everything that was answered before this one was sent is in it, and nothing that nobody sent. */
    if (sum < (int64_t)sent->answered_before + 1) {
        return "a sum without increments that had been answered";
    }
    return sum <= (int64_t)session->attempted ? NULL : "a sum with increments that nobody sent";
}

static void make_edited(struct sent *sent, struct request_text *out)
{
    begin(out, sent, "GET", "/edited");
    text_printf(out, "\r\n");
    sent->status = 200;
}

/* Whatever version: all of it is of one. */
static const char *check_edited(struct sent *sent, const struct answer *answer)
{
    (void)answer;
    char expected[TEXT_MAX];
    unsigned version = 0;
    if (sscanf(sent->text, "version %u\n", &version) != 1) {
        return "no version";
    }
    int size = snprintf(expected, sizeof expected, "version %u\n", version);
    for (unsigned i = 0; i < 100; i++) {
        size += snprintf(expected + size, sizeof expected - (size_t)size, "%u of %u\n", i, version);
    }
    edit_highest = version > edit_highest ? version : edit_highest;
    return strcmp(expected, sent->text) == 0 ? NULL : "a mixture of versions";
}

static void make_crash(struct sent *sent, struct request_text *out)
{
    static const char *const ways[] = {"write", "abort", "stack", "exit", "divide", "jump", "later"};
    static const char *const places[] = {"crash", "crash_pool"};
    static unsigned number;
    char target[64];
    snprintf(target, sizeof target, "/%s?%s", places[number % 2], ways[number / 2 % (sizeof ways / sizeof *ways)]);
    number++;
    begin(out, sent, "GET", target);
    text_printf(out, "\r\n");
    sent->status = 500;
    totals.crashes++;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct kind kinds[] = {
    {"small", 30, true, make_small, NULL},
    {"head", 3, true, make_head, NULL},
    {"missing", 3, true, make_missing, NULL},
    {"large", 2, false, make_large, NULL},
    {"range", 6, true, make_range, check_range},
    {"hello._c", 25, true, make_hello_c, NULL},
    {"hello.so", 15, true, make_hello_so, NULL},
    {"stream", 3, false, make_stream, NULL},
    {"post", 8, false, make_post, NULL},
    {"count", 20, true, make_count, check_count},
    {"edited", 10, true, make_edited, check_edited},
    {"crash", 0, false, make_crash, NULL},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

const struct kind *kind_draw(bool pipelined)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < KINDS; i++) {
        sum += !pipelined || kinds[i].pipelines ? kinds[i].weight : 0;
    }
    unsigned at = random_below(sum);
    for (unsigned i = 0;; i++) {
        unsigned weight = !pipelined || kinds[i].pipelines ? kinds[i].weight : 0;
        if (at < weight) {
            return &kinds[i];
        }
        at -= weight;
    }
}

const struct kind *kind_crash(void)
{
    return &kinds[KINDS - 1];
}

void kinds_prepare(void)
{
    struct request_text text = {0};
    for (unsigned i = 0; i < STREAM_LINES_MAX; i++) {
        text_printf(&text, "line %06u of the stream\n", i);
    }
    stream_text = text.data;
    stream_line = text.size / STREAM_LINES_MAX;
}
