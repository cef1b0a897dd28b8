#include "ws/deflate.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    BITS_MIN = 9, /* zlib's least for raw deflate */
    BITS_MAX = 15,
    KEEP_FREE = 2, /* unused contexts of a kind that stay */
    SCRATCH_KEEP = 65536,
    INFLATER_COST = 7400, /* what zlib needs beside the window */
    CHUNK_MAX = 1 << 30, /* zlib counts in 32 bits */
};

struct ws_context {
    z_stream stream;
    struct ws_pool *pool;
    struct ws_context *next;
    uint8_t bits;
    bool inflates;
    bool ended; /* a final block has been read to its end */
};

struct free_list {
    struct ws_context *first;
    unsigned count;
};

struct ws_pool {
    size_t budget;
    size_t used;
    size_t promised;
    int level;
    int memory;
    struct free_list inflaters;
    struct free_list deflaters[BITS_MAX + 1];
    uint8_t *scratch;
    size_t scratch_cap;
};

/* ---- memory, counted --------------------------------------------------------------------------- */

enum { COUNT_HEADER = 16 }; /* keeps the alignment of malloc */

static voidpf count_alloc(voidpf opaque, uInt items, uInt size)
{
    struct ws_pool *pool = opaque;
    size_t bytes = (size_t)items * size + COUNT_HEADER;
    uint8_t *block = malloc(bytes);
    if (block == NULL) {
        return NULL;
    }
    memcpy(block, &bytes, sizeof bytes);
    pool->used += bytes;
    return block + COUNT_HEADER;
}

static void count_free(voidpf opaque, voidpf address)
{
    struct ws_pool *pool = opaque;
    uint8_t *block = (uint8_t *)address - COUNT_HEADER;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    pool->used -= bytes;
    free(block);
}

/* ---- the pool ----------------------------------------------------------------------------------- */

struct ws_pool *ws_pool_create(const struct ws_pool_options *options)
{
    struct ws_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    pool->budget = options->budget;
    pool->level = options->level != 0 ? options->level : 6;
    pool->memory = options->memory != 0 ? options->memory : 8;
    return pool;
}

static void destroy(struct ws_context *context)
{
    if (context->inflates) {
        inflateEnd(&context->stream);
    } else {
        deflateEnd(&context->stream);
    }
    free(context);
}

static void destroy_list(struct free_list *list)
{
    while (list->first != NULL) {
        struct ws_context *context = list->first;
        list->first = context->next;
        destroy(context);
    }
}

void ws_pool_free(struct ws_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    destroy_list(&pool->inflaters);
    for (unsigned bits = 0; bits <= BITS_MAX; bits++) {
        destroy_list(&pool->deflaters[bits]);
    }
    free(pool->scratch);
    free(pool);
}

static size_t promise_cost(unsigned bits)
{
    return INFLATER_COST + ((size_t)1 << bits);
}

void ws_pool_budget(struct ws_pool *pool, size_t budget)
{
    pool->budget = budget;
}

bool ws_pool_has_room(const struct ws_pool *pool, unsigned bits)
{
    return pool->promised + promise_cost(bits) <= pool->budget;
}

void ws_pool_promise(struct ws_pool *pool, unsigned bits, bool made)
{
    if (made) {
        pool->promised += promise_cost(bits);
    } else {
        pool->promised -= promise_cost(bits);
    }
}

size_t ws_pool_used(const struct ws_pool *pool)
{
    return pool->used;
}

void ws_context_give(struct ws_context *context)
{
    struct ws_pool *pool = context->pool;
    struct free_list *list = context->inflates ? &pool->inflaters : &pool->deflaters[context->bits];
    if (list->count >= KEEP_FREE) {
        destroy(context);
        return;
    }
    context->next = list->first;
    list->first = context;
    list->count++;
}

static struct ws_context *take_free(struct free_list *list)
{
    struct ws_context *context = list->first;
    if (context != NULL) {
        list->first = context->next;
        list->count--;
    }
    return context;
}

static struct ws_context *create(struct ws_pool *pool, unsigned bits, bool inflates)
{
    struct ws_context *context = calloc(1, sizeof *context);
    if (context == NULL) {
        return NULL;
    }
    context->pool = pool;
    context->bits = (uint8_t)bits;
    context->inflates = inflates;
    context->stream.zalloc = count_alloc;
    context->stream.zfree = count_free;
    context->stream.opaque = pool;
    int result = inflates ? inflateInit2(&context->stream, -(int)bits)
                          : deflateInit2(&context->stream, pool->level, Z_DEFLATED, -(int)bits, pool->memory,
                                         Z_DEFAULT_STRATEGY);
    if (result != Z_OK) {
        free(context);
        return NULL;
    }
    return context;
}

/* ---- inflating ------------------------------------------------------------------------------------- */

struct ws_context *ws_inflater_take(struct ws_pool *pool, unsigned bits)
{
    struct ws_context *context = take_free(&pool->inflaters);
    if (context == NULL) {
        return create(pool, bits, true);
    }
    context->bits = (uint8_t)bits;
    context->ended = false;
    if (inflateReset2(&context->stream, -(int)bits) != Z_OK) {
        destroy(context);
        return NULL;
    }
    return context;
}

enum ws_inflate ws_inflate(struct ws_context *context, struct ws_piece *piece)
{
    z_stream *stream = &context->stream;
    size_t in_now = piece->in_len < CHUNK_MAX ? piece->in_len : CHUNK_MAX;
    size_t out_now = piece->out_len < CHUNK_MAX ? piece->out_len : CHUNK_MAX;
    if (context->ended && in_now > 0) {
        inflateResetKeep(stream); /* another stream follows, which may refer to the history */
        context->ended = false;
    }
    stream->next_in = (Bytef *)(uintptr_t)piece->in;
    stream->avail_in = (uInt)in_now;
    stream->next_out = piece->out;
    stream->avail_out = (uInt)out_now;
    int result = inflate(stream, Z_SYNC_FLUSH);
    piece->in += in_now - stream->avail_in;
    piece->in_len -= in_now - stream->avail_in;
    piece->out += out_now - stream->avail_out;
    piece->out_len -= out_now - stream->avail_out;
    switch (result) {
    case Z_STREAM_END: context->ended = true; break;
    case Z_OK:
    case Z_BUF_ERROR: break;
    case Z_MEM_ERROR: return WS_INFLATE_MEMORY;
    default: return WS_INFLATE_BAD;
    }
    return stream->avail_out == 0 ? WS_INFLATE_FULL : WS_INFLATE_MORE;
}

bool ws_inflate_is_whole(const struct ws_context *context)
{
    enum { BITS_LEFT = 63, AT_BLOCK = 128 };
    return context->ended || (context->stream.data_type & (AT_BLOCK | BITS_LEFT)) == AT_BLOCK;
}

bool ws_inflate_has_ended(const struct ws_context *context)
{
    return context->ended;
}

/* ---- deflating ------------------------------------------------------------------------------------- */

/* What zlib's own documentation says a deflater needs. */
static size_t deflater_cost(const struct ws_pool *pool, unsigned bits)
{
    return ((size_t)1 << (bits + 2)) + ((size_t)1 << (pool->memory + 9)) + 6144;
}

struct ws_context *ws_deflater_take(struct ws_pool *pool, unsigned bits, bool own)
{
    if (bits < BITS_MIN) {
        bits = BITS_MIN;
    }
    if (own && pool->used + deflater_cost(pool, bits) > pool->budget) {
        return NULL;
    }
    struct ws_context *context = take_free(&pool->deflaters[bits]);
    if (context == NULL) {
        return create(pool, bits, false);
    }
    deflateReset(&context->stream);
    return context;
}

static bool make_scratch(struct ws_pool *pool, size_t cap)
{
    if (cap <= pool->scratch_cap && pool->scratch_cap <= SCRATCH_KEEP + cap) {
        return true;
    }
    uint8_t *scratch = realloc(pool->scratch, cap);
    if (scratch == NULL) {
        return false;
    }
    pool->scratch = scratch;
    pool->scratch_cap = cap;
    return true;
}

/* Room for more behind the `len` bytes that are there. */
static bool grow_scratch(struct ws_pool *pool, size_t len)
{
    return make_scratch(pool, len + len / 2 + 1024);
}

bool ws_deflate_bytes(struct ws_context *context, const void *data, size_t len, bool final, const uint8_t **out,
                      size_t *out_len)
{
    static const uint8_t nothing = 0;
    enum { TAIL = 4 };
    struct ws_pool *pool = context->pool;
    z_stream *stream = &context->stream;
    size_t made = 0;
    size_t left = len;
    if (!make_scratch(pool, deflateBound(stream, len) + 64)) {
        return false;
    }
    stream->next_in = len > 0 ? (Bytef *)(uintptr_t)data : (Bytef *)(uintptr_t)&nothing;
    do {
        uInt now = left < CHUNK_MAX ? (uInt)left : CHUNK_MAX;
        stream->avail_in = now;
        left -= now;
        do {
            if (pool->scratch_cap - made < 16 && !grow_scratch(pool, made)) {
                return false;
            }
            size_t room = pool->scratch_cap - made < CHUNK_MAX ? pool->scratch_cap - made : CHUNK_MAX;
            stream->next_out = pool->scratch + made;
            stream->avail_out = (uInt)room;
            if (deflate(stream, left == 0 ? Z_SYNC_FLUSH : Z_NO_FLUSH) == Z_STREAM_ERROR) {
                return false;
            }
            made += room - stream->avail_out;
        } while (stream->avail_out == 0);
    } while (left > 0);
    if (final && made >= TAIL) {
        made -= TAIL;
    }
    if (final && made == 0) {
        /* Nothing was left to flush: an empty block, of which the tail is the rest. */
        pool->scratch[0] = 0;
        made = 1;
    }
    *out = pool->scratch;
    *out_len = made;
    return true;
}
