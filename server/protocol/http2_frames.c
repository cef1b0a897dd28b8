/* DESIGN: a look at the header of every frame before nghttp2 sees it, for what nghttp2 leaves to its
 * user: frames on streams that the client itself has ended or skipped (RFC 9113 5.1, 5.1.1; nghttp2
 * forgets closed streams and ignores what comes on them), frames too small for their padding, and
 * the budgets of frames (http2_limits.c). What is known here comes from the client's bytes alone, so that
 * it does not depend on what the server has sent meanwhile: frames of a stream that the server has
 * reset are never an error. Of streams below the last WINDOW ones nothing is known, and nothing said. */
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http2_private.h"

enum { FRAME_HEAD = 9, WINDOW = HTTP2_FRAME_WINDOW, PREFACE = 24, SMALL_PADDED = 256 };

void http2_frames_start(struct http2_frames *f)
{
    f->skip = PREFACE;
}

/* ---- streams as the client has used them ------------------------------------------------- */

static bool bit(const uint64_t *bits, uint32_t number)
{
    return (bits[number % WINDOW / 64] >> (number % 64) & 1) != 0;
}

static inline void set_bit(uint64_t *bits, uint32_t number)
{
    bits[number % WINDOW / 64] |= (uint64_t)1 << (number % 64);
}

static inline void clear_bit(uint64_t *bits, uint32_t number)
{
    bits[number % WINDOW / 64] &= ~((uint64_t)1 << (number % 64));
}

/* The client opens a stream above all others: those between are skipped for ever (5.1.1). */
static void open_stream(struct http2_frames *f, uint32_t number)
{
    uint32_t first = number - f->top > WINDOW ? number - WINDOW + 1 : f->top + 1;
    for (uint32_t i = first; i < number; i++) {
        clear_bit(f->used, i);
        clear_bit(f->ended, i);
    }
    set_bit(f->used, number);
    clear_bit(f->ended, number);
    f->top = number;
}

/* HEADERS and DATA. Streams are counted 1, 2, 3 for 1, 3, 5. */
static uint32_t check_stream(struct http2_frames *f, const nghttp2_frame_hd *hd)
{
    uint32_t number = ((uint32_t)hd->stream_id + 1) / 2;
    if (hd->stream_id % 2 == 0) {
        return NGHTTP2_NO_ERROR; /* nghttp2 knows what to say */
    }
    if (number > f->top && hd->type == NGHTTP2_HEADERS) {
        open_stream(f, number);
    } else if (number > f->top || f->top - number >= WINDOW) {
        return NGHTTP2_NO_ERROR;
    } else if (!bit(f->used, number)) {
        return NGHTTP2_PROTOCOL_ERROR;
    } else if (bit(f->ended, number)) {
        return NGHTTP2_STREAM_CLOSED;
    }
    if ((hd->flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        set_bit(f->ended, number);
    }
    return NGHTTP2_NO_ERROR;
}

static void note_reset(struct http2_frames *f, const nghttp2_frame_hd *hd)
{
    uint32_t number = ((uint32_t)hd->stream_id + 1) / 2;
    if (hd->stream_id % 2 == 1 && number <= f->top && f->top - number < WINDOW) {
        set_bit(f->ended, number);
    }
}

/* ---- one frame ----------------------------------------------------------------------------- */

static uint32_t count(struct http2 *h)
{
    return http2_count_frame(h) ? NGHTTP2_NO_ERROR : NGHTTP2_ENHANCE_YOUR_CALM;
}

static uint32_t check_data(struct http2 *h, const nghttp2_frame_hd *hd)
{
    bool padded = (hd->flags & NGHTTP2_FLAG_PADDED) != 0;
    uint32_t error = padded && hd->length == 0 ? NGHTTP2_FRAME_SIZE_ERROR : check_stream(&h->frames_seen, hd);
    if (error != NGHTTP2_NO_ERROR) {
        return error;
    }
    /* Nothing in it, or perhaps nothing but padding. */
    bool idle =
        (hd->flags & NGHTTP2_FLAG_END_STREAM) == 0 && (hd->length == 0 || (padded && hd->length <= SMALL_PADDED));
    return idle ? count(h) : NGHTTP2_NO_ERROR;
}

static uint32_t check_headers(struct http2 *h, const nghttp2_frame_hd *hd)
{
    bool padded = (hd->flags & NGHTTP2_FLAG_PADDED) != 0;
    h->continuations = 0;
    return padded && hd->length == 0 ? NGHTTP2_FRAME_SIZE_ERROR : check_stream(&h->frames_seen, hd);
}

static uint32_t check_frame(struct http2 *h, const nghttp2_frame_hd *hd)
{
    if (h->frames_seen.in_block && hd->type != NGHTTP2_CONTINUATION) {
        return NGHTTP2_NO_ERROR; /* nghttp2 refuses it */
    }
    if (hd->type == NGHTTP2_HEADERS || hd->type == NGHTTP2_CONTINUATION) {
        h->frames_seen.in_block = (hd->flags & NGHTTP2_FLAG_END_HEADERS) == 0;
    }
    switch (hd->type) {
    case NGHTTP2_DATA: return check_data(h, hd);
    case NGHTTP2_HEADERS: return check_headers(h, hd);
    case NGHTTP2_CONTINUATION: {
        int64_t most = config_hold_current(h->conn->loop)->http2_max_continuations;
        return ++h->continuations > most ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_NO_ERROR;
    }
    case NGHTTP2_RST_STREAM: note_reset(&h->frames_seen, hd); return NGHTTP2_NO_ERROR; /* counted when a stream ends */
    case NGHTTP2_PRIORITY: return hd->stream_id == 0 ? NGHTTP2_PROTOCOL_ERROR : count(h);
    default: return count(h);
    }
}

/* ---- the walk -------------------------------------------------------------------------------- */

static nghttp2_frame_hd parse_head(const uint8_t *head)
{
    return (nghttp2_frame_hd){
        .length = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2],
        .type = head[3],
        .flags = head[4],
        .stream_id =
            (int32_t)((uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8]),
    };
}

size_t http2_frames_check(struct http2 *h, const uint8_t *data, size_t len, uint32_t *error)
{
    struct http2_frames *f = &h->frames_seen;
    size_t at = 0;
    *error = NGHTTP2_NO_ERROR;
    while (at < len) {
        if (f->skip > 0) {
            size_t n = f->skip < len - at ? f->skip : len - at;
            f->skip -= (uint32_t)n;
            at += n;
            continue;
        }
        const uint8_t *head = data + at;
        size_t begins = at;
        if (f->have > 0 || len - at < FRAME_HEAD) {
            size_t n = (size_t)FRAME_HEAD - f->have < len - at ? (size_t)FRAME_HEAD - f->have : len - at;
            memcpy(f->head + f->have, head, n);
            f->have = (uint8_t)(f->have + n);
            at += n;
            if (f->have < FRAME_HEAD) {
                break;
            }
            f->have = 0;
            head = f->head;
        } else {
            at += FRAME_HEAD;
        }
        nghttp2_frame_hd hd = parse_head(head);
        *error = check_frame(h, &hd);
        if (*error != NGHTTP2_NO_ERROR) {
            return begins;
        }
        f->skip = (uint32_t)hd.length;
    }
    return len;
}
