#include "connection/output.h"
#include "observe/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

enum { INLINE_SEGMENTS = 24, INLINE_BYTES = 6144, MAX_VECTORS = 64, CHUNK_MIN = 16384, POOL_KEEP = 64 };

enum segment_kind { SEGMENT_BYTES, SEGMENT_FILE };

struct segment {
    enum segment_kind kind;
    int fd;
    const char *data;
    off_t offset;
    uint64_t len;
    void (*release)(void *);
    void *arg;
};

struct output {
    struct segment *segments; /* inline_segments or malloc'ed */
    uint32_t first; /* segment being sent */
    uint32_t count;
    uint32_t cap;
    char *fill; /* where the next copied byte goes */
    char *fill_end;
    char *fill_chunk; /* the chunk that fill points into; NULL: the inline buffer */
    size_t loose; /* bytes in the inline buffer that are no segment yet: there is none (count is 0) */
    bool failed; /* memory ran out: the connection must not go on */
    uint64_t pending;
    uint64_t blocked_since_ms;
    uint64_t sent_since;
    struct output *next_free;
    struct segment inline_segments[INLINE_SEGMENTS];
    char bytes[INLINE_BYTES];
};

struct output_pool {
    struct output *free;
    unsigned count;
};

static struct output_pool *pool_of(struct loop *loop)
{
    struct output_pool *pool = loop_slot(loop, LOOP_SLOT_OUTPUT);
    if (pool == NULL) {
        pool = calloc(1, sizeof *pool);
        CHECK(pool != NULL);
        loop_slot_set(loop, LOOP_SLOT_OUTPUT, pool);
    }
    return pool;
}

static void reset(struct output *out)
{
    out->segments = out->inline_segments;
    out->first = 0;
    out->count = 0;
    out->cap = INLINE_SEGMENTS;
    out->fill = out->bytes;
    out->fill_end = out->bytes + INLINE_BYTES;
    out->fill_chunk = NULL;
    out->loose = 0;
    out->failed = false;
    out->pending = 0;
    out->blocked_since_ms = 0;
    out->sent_since = 0;
}

struct output *output_take(struct loop *loop)
{
    struct output_pool *pool = pool_of(loop);
    struct output *out = pool->free;
    if (out != NULL) {
        pool->free = out->next_free;
        pool->count--;
        return out;
    }
    out = malloc(sizeof *out);
    if (out != NULL) {
        reset(out);
    }
    return out;
}

void output_give_back(struct loop *loop, struct output *out)
{
    for (uint32_t i = out->first; i < out->count; i++) {
        if (out->segments[i].release != NULL) {
            out->segments[i].release(out->segments[i].arg);
        }
    }
    if (out->segments != out->inline_segments) {
        free(out->segments);
    }
    struct output_pool *pool = pool_of(loop);
    if (pool->count >= POOL_KEEP) {
        free(out);
        return;
    }
    reset(out);
    out->next_free = pool->free;
    pool->free = out;
    pool->count++;
}

void output_pool_free(struct loop *loop)
{
    struct output_pool *pool = pool_of(loop);
    while (pool->free != NULL) {
        struct output *out = pool->free;
        pool->free = out->next_free;
        free(out);
    }
    free(pool);
    loop_slot_set(loop, LOOP_SLOT_OUTPUT, NULL);
}

/* Loose bytes become the first segment: others follow, or the kernel did not take all. */
static void settle(struct output *out)
{
    if (out->loose > 0) {
        out->segments[0] = (struct segment){.kind = SEGMENT_BYTES, .fd = -1, .data = out->bytes, .len = out->loose};
        out->count = 1;
        out->loose = 0;
    }
}

static struct segment *add_segment(struct output *out)
{
    CHECK(out->cap >= INLINE_SEGMENTS);
    settle(out);
    if (out->count == out->cap && out->first > out->cap / 2) {
        memmove(out->segments, out->segments + out->first, (out->count - out->first) * sizeof *out->segments);
        out->count -= out->first;
        out->first = 0;
    }
    if (out->count == out->cap) {
        uint32_t cap = out->cap * 2;
        struct segment *segments = malloc(cap * sizeof *segments);
        if (segments == NULL) {
            return NULL;
        }
        memcpy(segments, out->segments, out->count * sizeof *segments);
        if (out->segments != out->inline_segments) {
            free(out->segments);
        }
        out->segments = segments;
        out->cap = cap;
    }
    struct segment *segment = &out->segments[out->count++];
    *segment = (struct segment){.kind = SEGMENT_BYTES, .fd = -1};
    return segment;
}

/* No more copies into the current buffer. A chunk belongs to exactly one segment, whose end
 * frees it, so it is left when another segment follows. */
static void leave_chunk(struct output *out)
{
    if (out->fill_chunk != NULL) {
        out->fill_chunk = NULL;
        out->fill = out->bytes;
        out->fill_end = out->bytes;
    }
}

static bool new_chunk(struct output *out, size_t len)
{
    size_t size = len > CHUNK_MIN ? len : CHUNK_MIN;
    char *chunk = malloc(size);
    struct segment *segment = chunk != NULL ? add_segment(out) : NULL;
    if (segment == NULL) {
        free(chunk);
        return false;
    }
    segment->data = chunk;
    segment->release = free;
    segment->arg = chunk;
    out->fill = chunk;
    out->fill_end = chunk + size;
    out->fill_chunk = chunk;
    return true;
}

char *output_reserve(struct output *out, size_t len)
{
    if (len > (size_t)(out->fill_end - out->fill) && !new_chunk(out, len)) {
        return NULL;
    }
    return out->fill;
}

static bool last_segment_ends_at_fill(const struct output *out)
{
    if (out->count == out->first) {
        return false;
    }
    const struct segment *last = &out->segments[out->count - 1];
    return last->kind == SEGMENT_BYTES && last->data + last->len == out->fill;
}

void output_commit(struct output *out, size_t len)
{
    if (out->count == 0) {
        out->loose += len;
        out->fill += len;
        out->pending += len;
        return;
    }
    if (!last_segment_ends_at_fill(out)) {
        struct segment *segment = add_segment(out);
        if (segment == NULL) {
            out->failed = true;
            return;
        }
        segment->data = out->fill;
    }
    out->segments[out->count - 1].len += len;
    out->fill += len;
    out->pending += len;
}

bool output_copy(struct output *out, const void *data, size_t len)
{
    char *to = output_reserve(out, len);
    if (to == NULL) {
        return false;
    }
    memcpy(to, data, len);
    output_commit(out, len);
    return true;
}

bool output_ref(struct output *out, const void *data, size_t len, void (*release)(void *), void *arg)
{
    leave_chunk(out);
    struct segment *segment = add_segment(out);
    if (segment == NULL) {
        return false;
    }
    segment->data = data;
    segment->len = len;
    segment->release = release;
    segment->arg = arg;
    out->pending += len;
    return true;
}

bool output_file(struct output *out, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg)
{
    leave_chunk(out);
    struct segment *segment = add_segment(out);
    if (segment == NULL) {
        return false;
    }
    segment->kind = SEGMENT_FILE;
    segment->fd = fd;
    segment->offset = offset;
    segment->len = len;
    segment->release = release;
    segment->arg = arg;
    out->pending += len;
    return true;
}

uint64_t output_pending(const struct output *out)
{
    return out->pending;
}

uint64_t output_blocked_since(const struct output *out)
{
    return out->blocked_since_ms;
}

uint64_t output_sent_since(const struct output *out)
{
    return out->sent_since;
}

void output_mark_blocked(struct output *out, uint64_t now_ms)
{
    if (out->blocked_since_ms == 0) {
        out->blocked_since_ms = now_ms;
        out->sent_since = 0;
    }
}

/* Takes `sent` bytes off the front. */
static void advance(struct output *out, uint64_t sent)
{
    out->pending -= sent;
    out->sent_since += sent;
    while (out->first < out->count) {
        struct segment *segment = &out->segments[out->first];
        if (segment->len > sent) {
            segment->len -= sent;
            segment->data += segment->kind == SEGMENT_BYTES ? sent : 0;
            segment->offset += segment->kind == SEGMENT_FILE ? (off_t)sent : 0;
            return;
        }
        sent -= segment->len;
        out->first++;
        if (segment->release != NULL) {
            /* A release function may write to this very queue: nothing is read after it. */
            void (*release)(void *) = segment->release;
            void *arg = segment->arg;
            segment->release = NULL;
            if (arg == out->fill_chunk) {
                leave_chunk(out);
            }
            release(arg);
        }
    }
}

/* What ends a connection leaves in one packet with its end, which follows before anything else is done. */
static bool ends_with_it(const struct conn *conn)
{
    return conn->finishing != 0 && !conn->eof_seen;
}

/* The usual case: a short answer, taken whole. */
static enum output_result send_loose(struct output *out, struct conn *conn)
{
    const struct iovec all = {out->bytes, out->loose};
    ssize_t n;
    do {
        n = conn->transport->send(conn, &all, 1, ends_with_it(conn));
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? OUTPUT_BLOCKED : OUTPUT_FAILED;
    }
    metric_add(METRIC_BYTES_SENT, n);
    if ((size_t)n == out->loose) {
        out->loose = 0;
        out->pending = 0;
        out->fill = out->bytes;
        return OUTPUT_SENT;
    }
    settle(out);
    advance(out, (uint64_t)n);
    return OUTPUT_BLOCKED;
}

static ssize_t send_bytes(struct output *out, struct conn *conn, uint64_t *wanted)
{
    struct iovec vectors[MAX_VECTORS];
    int n = 0;
    uint32_t i = out->first;
    *wanted = 0;
    while (i < out->count && n < MAX_VECTORS && out->segments[i].kind == SEGMENT_BYTES) {
        if (out->segments[i].len > 0) {
            vectors[n++] = (struct iovec){(void *)(uintptr_t)out->segments[i].data, out->segments[i].len};
            *wanted += out->segments[i].len;
        }
        i++;
    }
    if (n == 0) {
        return 0;
    }
    return conn->transport->send(conn, vectors, n, ends_with_it(conn) || i < out->count);
}

static ssize_t send_file(struct output *out, struct conn *conn, uint64_t *wanted)
{
    const struct segment *segment = &out->segments[out->first];
    /* Bounded, so that one fast client does not hold the loop for a whole file. */
    *wanted = segment->len < ((uint64_t)1 << 21) ? segment->len : ((uint64_t)1 << 21);
    if (*wanted == 0) {
        return 0;
    }
    ssize_t n = conn->transport->send_file(conn, segment->fd, segment->offset, *wanted);
    if (n == 0) {
        errno = EIO; /* the file has become shorter than the head promised */
        return -1;
    }
    return n;
}

enum output_result output_send(struct output *out, struct conn *conn)
{
    uint64_t in_one_go = 0;
    if (out->failed) {
        return OUTPUT_FAILED;
    }
    if (out->loose > 0) {
        return send_loose(out, conn);
    }
    while (out->first < out->count) {
        bool is_file = out->segments[out->first].kind == SEGMENT_FILE;
        uint64_t wanted;
        ssize_t n = is_file ? send_file(out, conn, &wanted) : send_bytes(out, conn, &wanted);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno == EAGAIN || errno == EWOULDBLOCK ? OUTPUT_BLOCKED : OUTPUT_FAILED;
        }
        advance(out, (uint64_t)n);
        metric_add(METRIC_BYTES_SENT, n);
        in_one_go += (uint64_t)n;
        if (conn->closed) {
            return OUTPUT_FAILED; /* a release function did it */
        }
        if ((uint64_t)n < wanted && !is_file) {
            return OUTPUT_BLOCKED;
        }
        if (in_one_go >= ((uint64_t)4 << 20) && out->first < out->count && !out->failed) {
            return OUTPUT_YIELDED;
        }
    }
    if (out->failed) {
        return OUTPUT_FAILED; /* in a write by a release function */
    }
    return OUTPUT_SENT;
}
