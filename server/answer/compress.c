#include "answer/compress.h"

#include "base/check.h"

#include <brotli/encode.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

const struct coding_info coding_infos[CODING_COUNT] = {
    [CODING_BROTLI] = {STR("br"), STR(".br"), STR("-br")},
    [CODING_ZSTD] = {STR("zstd"), STR(".zst"), STR("-zst")},
    [CODING_GZIP] = {STR("gzip"), STR(".gz"), STR("-gz")},
    [CODING_IDENTITY] = {STR("identity"), STR(""), STR("")},
};

/* ---- Accept-Encoding -------------------------------------------------------------------- */

/* "0", "0.5", "1.000" in thousandths; -1 when it is no weight. */
static int parse_weight(struct str text)
{
    if (text.len == 0 || text.len > 5 || (text.ptr[0] != '0' && text.ptr[0] != '1')) {
        return -1;
    }
    int weight = (text.ptr[0] - '0') * 1000;
    if (text.len == 1) {
        return weight;
    }
    if (text.ptr[1] != '.') {
        return -1;
    }
    int unit = 100;
    for (size_t i = 2; i < text.len; i++, unit /= 10) {
        if (!ascii_is_digit(text.ptr[i])) {
            return -1;
        }
        weight += (text.ptr[i] - '0') * unit;
    }
    return weight <= 1000 ? weight : -1;
}

/* Weight of "gzip;q=0.5" with the parameters cut off *element; -1: malformed. */
static int take_weight(struct str *element)
{
    size_t at = str_find(*element, ';');
    if (at == SIZE_MAX) {
        return 1000;
    }
    struct str parameter = str_trim(str_from(*element, at + 1));
    *element = str_trim(str_first(*element, at));
    if (parameter.len < 2 || ascii_lower(parameter.ptr[0]) != 'q' || parameter.ptr[1] != '=') {
        return -1;
    }
    return parse_weight(str_from(parameter, 2));
}

static int find_coding(struct str name)
{
    for (int i = 0; i < CODING_COUNT; i++) {
        if (str_eq_nocase(name, coding_infos[i].name)) {
            return i;
        }
    }
    return str_eq_nocase(name, STR("x-gzip")) ? CODING_GZIP : -1;
}

/* Codings of weight above 0, heaviest first; equal ones stay in the order of the enum. */
static void rank(const int weights[CODING_COUNT], struct accepted_codings *out)
{
    out->count = 0;
    for (int i = 0; i < CODING_COUNT; i++) {
        if (weights[i] <= 0) {
            continue;
        }
        unsigned at = out->count++;
        for (; at > 0 && weights[out->order[at - 1]] < weights[i]; at--) {
            out->order[at] = out->order[at - 1];
        }
        out->order[at] = (uint8_t)i;
    }
}

void accept_encoding_parse(struct str value, struct accepted_codings *out)
{
    enum { UNSET = -1 };
    int weights[CODING_COUNT] = {UNSET, UNSET, UNSET, UNSET};
    int others = UNSET;
    struct str element;
    while (str_split_next(&value, ',', &element)) {
        int weight = take_weight(&element);
        if (weight < 0) {
            continue;
        }
        if (str_eq(element, STR("*"))) {
            others = weight;
            continue;
        }
        int coding = find_coding(element);
        if (coding >= 0) {
            weights[coding] = weight;
        }
    }
    for (int i = 0; i < CODING_COUNT; i++) {
        if (weights[i] != UNSET) {
            continue;
        }
        /* Identity needs no mention; unmentioned it is the last resort. */
        weights[i] = others != UNSET ? others : i == CODING_IDENTITY ? 1 : 0;
    }
    rank(weights, out);
}

enum { MEMO_VALUE = 64, MEMO_COUNT = 8 };

struct memo {
    uint8_t len;
    char value[MEMO_VALUE];
    struct accepted_codings accepted;
};

const struct accepted_codings *accept_encoding_cached(struct str value)
{
    static const struct accepted_codings identity_only = {1, {CODING_IDENTITY}};
    static _Thread_local struct memo memos[MEMO_COUNT];
    static _Thread_local struct accepted_codings last;
    if (value.len == 0) {
        return &identity_only;
    }
    if (value.len > MEMO_VALUE) {
        accept_encoding_parse(value, &last);
        return &last;
    }
    struct memo *memo = &memos[value.len % MEMO_COUNT];
    if (memo->len != value.len || memcmp(memo->value, value.ptr, value.len) != 0) {
        memo->len = (uint8_t)value.len;
        memcpy(memo->value, value.ptr, value.len);
        accept_encoding_parse(value, &memo->accepted);
    }
    return &memo->accepted;
}

bool coding_is_accepted(const struct accepted_codings *accepted, enum coding coding)
{
    for (unsigned i = 0; i < accepted->count; i++) {
        if (accepted->order[i] == coding) {
            return true;
        }
    }
    return false;
}

/* ---- compressors --------------------------------------------------------------------------
 * A variant is made once and sent often, so "Optimal" tries harder than a server that
 * compresses every answer would; what is large gets less, to bound the time. */

enum { LARGE = 1 << 20 };

struct effort {
    int gzip;
    int brotli;
    int brotli_large;
    int zstd;
    int zstd_large;
};

static const struct effort efforts[] = {
    [COMPRESSION_OPTIMAL] = {6, 7, 5, 12, 7},
    [COMPRESSION_FASTEST] = {1, 1, 1, 1, 1},
    [COMPRESSION_SMALLEST] = {9, 11, 9, 19, 15},
};

static bool compress_gzip(int level, const uint8_t *data, size_t len, char *to, size_t *size)
{
    if (len > UINT32_MAX) {
        return false;
    }
    z_stream z = {
        .next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)len, .next_out = (Bytef *)to, .avail_out = (uInt)*size};
    if (deflateInit2(&z, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        return false;
    }
    int result = deflate(&z, Z_FINISH);
    *size = z.total_out;
    deflateEnd(&z);
    return result == Z_STREAM_END;
}

static bool compress_brotli(int quality, bool text, const uint8_t *data, size_t len, char *to, size_t *size)
{
    int window = BROTLI_MIN_WINDOW_BITS;
    while (window < BROTLI_DEFAULT_WINDOW && ((size_t)1 << window) < len) {
        window++;
    }
    return BrotliEncoderCompress(quality, window, text ? BROTLI_MODE_TEXT : BROTLI_MODE_GENERIC, len, data, size,
                                 (uint8_t *)to) == BROTLI_TRUE;
}

static bool compress_zstd(int level, const uint8_t *data, size_t len, char *to, size_t *size)
{
    enum { BROWSERS_WINDOW = 23 }; /* RFC 8878: no decoder of HTTP needs to take more than 8 MB */
    ZSTD_CCtx *context = ZSTD_createCCtx();
    if (context == NULL) {
        return false;
    }
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    if (len > (size_t)1 << BROWSERS_WINDOW) {
        ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, BROWSERS_WINDOW);
    }
    size_t result = ZSTD_compress2(context, to, *size, data, len);
    ZSTD_freeCCtx(context);
    *size = result;
    return !ZSTD_isError(result);
}

bool compress_bytes(enum coding coding, enum compression_level level, bool text, const uint8_t *data, size_t len,
                    struct buffer *out)
{
    CHECK(out->len == 0);
    if (len < 2 || level == COMPRESSION_NONE || (size_t)level >= ARRAY_LEN(efforts)) {
        return false;
    }
    const struct effort *effort = &efforts[level];
    size_t size = len - 1;
    char *to = buffer_reserve(out, size);
    if (to == NULL) {
        return false;
    }
    bool made = false;
    switch (coding) {
    case CODING_GZIP: made = compress_gzip(effort->gzip, data, len, to, &size); break;
    case CODING_BROTLI:
        made = compress_brotli(len > LARGE ? effort->brotli_large : effort->brotli, text, data, len, to, &size);
        break;
    case CODING_ZSTD:
        made = compress_zstd(len > LARGE ? effort->zstd_large : effort->zstd, data, len, to, &size);
        break;
    case CODING_IDENTITY:
    case CODING_COUNT: break;
    }
    if (!made) {
        buffer_free(out);
        return false;
    }
    out->len = size;
    char *exact = realloc(out->data, size);
    if (exact != NULL) {
        out->data = exact;
        out->cap = size;
    }
    return true;
}
