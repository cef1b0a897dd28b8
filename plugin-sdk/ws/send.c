/* Messages become frames: heads, masks, compression, and the rules for what may follow what. */
#include "ws/ws.h"

#include <string.h>

enum { FIN = 0x80, RSV1 = 0x40, MASKED = 0x80 };

static size_t put_head(uint8_t *head, unsigned first, size_t len)
{
    head[0] = (uint8_t)first;
    if (len < 126) {
        head[1] = (uint8_t)len;
        return 2;
    }
    if (len < 65536) {
        head[1] = 126;
        head[2] = (uint8_t)(len >> 8);
        head[3] = (uint8_t)len;
        return 4;
    }
    head[1] = 127;
    for (unsigned i = 0; i < 8; i++) {
        head[2 + i] = (uint8_t)((uint64_t)len >> (56 - 8 * i));
    }
    return 10;
}

static void set_frame(struct ws_frame *frame, bool client, unsigned first, const void *data, size_t len, bool borrowed)
{
    frame->payload = data;
    frame->payload_len = len;
    frame->borrowed = borrowed;
    frame->masked = client;
    size_t size = put_head(frame->head, first, len);
    if (client) {
        ws_mask_key(frame->key);
        frame->head[1] |= MASKED;
        memcpy(frame->head + size, frame->key, 4);
        size += 4;
    }
    frame->head_len = (uint8_t)size;
}

void ws_frame_copy(const struct ws_frame *frame, uint8_t *to)
{
    memcpy(to, frame->head, frame->head_len);
    to += frame->head_len;
    if (frame->masked) {
        ws_mask(to, frame->payload, frame->payload_len, frame->key);
    } else if (frame->payload_len > 0) {
        memcpy(to, frame->payload, frame->payload_len);
    }
}

/* ---- compression ------------------------------------------------------------------------------------- */

/* A context for a message that begins. NULL: send it as it is. */
static struct ws_context *begin_deflating(struct ws *ws)
{
    if (ws->deflater == NULL && ws->keep_out) {
        ws->deflater = ws_deflater_take(ws->pool, ws->bits_out, true);
    }
    if (ws->deflater == NULL) {
        ws->deflater = ws_deflater_take(ws->pool, ws->bits_out, false);
        ws->out_borrowed = ws->deflater != NULL;
    }
    return ws->deflater;
}

/* `dirty`: the peer will not see what the context has just compressed. */
static void end_deflating(struct ws *ws, bool dirty)
{
    if (ws->deflater != NULL && (ws->out_borrowed || dirty)) {
        ws_context_give(ws->deflater);
        ws->deflater = NULL;
        ws->out_borrowed = false;
    }
}

/* ---- data --------------------------------------------------------------------------------------------- */

static enum ws_result make_data(struct ws *ws, struct ws_frame *frame, enum ws_opcode opcode, const void *data,
                                size_t len)
{
    unsigned first = FIN | (unsigned)opcode;
    if (ws->pool != NULL && len >= ws->settings->compress_from && len > 0 && begin_deflating(ws) != NULL) {
        const uint8_t *out;
        size_t out_len;
        bool made = ws_deflate_bytes(ws->deflater, data, len, true, &out, &out_len);
        bool pays = made && out_len < len;
        end_deflating(ws, !pays);
        if (pays) {
            set_frame(frame, ws->client, first | RSV1, out, out_len, false);
            return WS_OK;
        }
    }
    set_frame(frame, ws->client, first, data, len, true);
    return WS_OK;
}

enum ws_result ws_frame_make(struct ws *ws, struct ws_frame *frame, enum ws_opcode opcode, const void *data, size_t len)
{
    if (ws->closing) {
        return WS_ERROR_CLOSED;
    }
    switch (opcode) {
    case WS_PING:
    case WS_PONG:
        if (len > WS_CONTROL_MAX) {
            return WS_ERROR_ARGUMENT;
        }
        set_frame(frame, ws->client, FIN | (unsigned)opcode, data, len, true);
        return WS_OK;
    case WS_TEXT:
        if (!ws->settings->any_text && !ws_utf8_is_valid(data, len)) {
            return WS_ERROR_TEXT;
        }
        break;
    case WS_BINARY: break;
    case WS_CONTINUATION:
    case WS_CLOSE:
    default: return WS_ERROR_ARGUMENT;
    }
    return ws->out_opcode != 0 ? WS_ERROR_ORDER : make_data(ws, frame, opcode, data, len);
}

/* Text may be cut anywhere between fragments, but not end within a character. */
static bool fragment_text_is_valid(struct ws *ws, const void *data, size_t len, bool final)
{
    struct ws_utf8 state = ws->text_out;
    if (!ws_utf8_check(&state, data, len) || (final && !ws_utf8_is_whole(&state))) {
        return false;
    }
    ws->text_out = state;
    return true;
}

enum ws_result ws_fragment_make(struct ws *ws, struct ws_frame *frame, enum ws_opcode opcode, const void *data,
                                size_t len, bool final)
{
    if (ws->closing) {
        return WS_ERROR_CLOSED;
    }
    if (opcode != WS_TEXT && opcode != WS_BINARY) {
        return WS_ERROR_ARGUMENT;
    }
    bool begins = ws->out_opcode == 0;
    if (!begins && ws->out_opcode != opcode) {
        return WS_ERROR_ORDER;
    }
    if (begins && final) {
        return ws_frame_make(ws, frame, opcode, data, len);
    }
    if (begins) {
        ws->text_out = (struct ws_utf8){0};
    }
    if (opcode == WS_TEXT && !ws->settings->any_text && !fragment_text_is_valid(ws, data, len, final)) {
        return WS_ERROR_TEXT;
    }
    if (begins) {
        ws->out_compressed = ws->pool != NULL && begin_deflating(ws) != NULL;
    }
    const void *payload = data;
    size_t payload_len = len;
    if (ws->out_compressed) {
        const uint8_t *out;
        if (!ws_deflate_bytes(ws->deflater, data, len, final, &out, &payload_len)) {
            return WS_ERROR_MEMORY;
        }
        payload = out;
    }
    unsigned first = begins ? (unsigned)opcode | (ws->out_compressed ? RSV1 : 0) : WS_CONTINUATION;
    set_frame(frame, ws->client, first | (final ? FIN : 0), payload, payload_len, !ws->out_compressed);
    ws->out_opcode = final ? 0 : (uint8_t)opcode;
    if (final && ws->out_compressed) {
        end_deflating(ws, false);
    }
    return WS_OK;
}

/* ---- closing -------------------------------------------------------------------------------------------- */

/* The longest beginning of `reason` that fits and ends between characters. */
static size_t reason_fit(const char *reason, size_t len)
{
    if (len <= WS_REASON_MAX) {
        return len;
    }
    len = WS_REASON_MAX;
    while (len > 0 && ((unsigned char)reason[len] & 0xc0) == 0x80) {
        len--;
    }
    return len;
}

enum ws_result ws_close_make(struct ws *ws, struct ws_frame *frame, uint8_t space[WS_CONTROL_MAX], unsigned code,
                             const char *reason, size_t reason_len)
{
    if (ws->closing) {
        return WS_ERROR_CLOSED;
    }
    size_t len = 0;
    if (code != WS_CLOSE_NO_CODE) {
        if (!ws_close_code_is_valid(code)) {
            return WS_ERROR_ARGUMENT;
        }
        reason_len = reason_fit(reason, reason_len);
        if (!ws_utf8_is_valid(reason, reason_len)) {
            return WS_ERROR_TEXT;
        }
        space[0] = (uint8_t)(code >> 8);
        space[1] = (uint8_t)code;
        if (reason_len > 0) {
            memcpy(space + 2, reason, reason_len);
        }
        len = 2 + reason_len;
    }
    set_frame(frame, ws->client, FIN | WS_CLOSE, space, len, true);
    ws->closing = true;
    return WS_OK;
}

enum ws_result ws_close_answer(struct ws *ws, struct ws_frame *frame, uint8_t space[WS_CONTROL_MAX],
                               const struct ws_item *close)
{
    return ws_close_make(ws, frame, space, close->code, "", 0);
}

/* ---- one frame for many ----------------------------------------------------------------------------------- */

void ws_plain_make(struct ws_frame *frame, enum ws_opcode opcode, const void *data, size_t len)
{
    set_frame(frame, false, FIN | (unsigned)opcode, data, len, true);
}

bool ws_shared_make(struct ws_pool *pool, unsigned bits, struct ws_frame *frame, enum ws_opcode opcode,
                    const void *data, size_t len)
{
    struct ws_context *context = ws_deflater_take(pool, bits, false);
    if (context == NULL) {
        return false;
    }
    const uint8_t *out;
    size_t out_len;
    bool pays = ws_deflate_bytes(context, data, len, true, &out, &out_len) && out_len < len;
    ws_context_give(context);
    if (pays) {
        set_frame(frame, false, FIN | RSV1 | (unsigned)opcode, out, out_len, false);
    }
    return pays;
}

void ws_shared_sent(struct ws *ws)
{
    end_deflating(ws, true);
}
