/* The WebSocket core under any bytes, in one role. The first four bytes choose settings, the rest is what
 * the peer sends. Held against it: the bytes are given whole and in pieces and must mean the same;
 * memory stays within the limit; each message that came out is sent back and must be read
 * by a core of the other role as it was. */
#ifndef KILN_TESTS_FUZZ_WS_H
#define KILN_TESTS_FUZZ_WS_H

#include "base/check.h"
#include "ws/ws.h"

#include <stdlib.h>
#include <string.h>

struct fuzz_side {
    struct ws ws;
    struct ws peer; /* reads what is sent back */
    struct ws_pool *pool;
    struct ws_pool *peer_pool;
    uint64_t digest; /* of all events */
    uint64_t before; /* the digest at the start of the message that comes in parts */
    bool parts;
    bool in_parts;
    bool compressed;
};

static inline void fuzz_mix(struct fuzz_side *side, const void *data, size_t len)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < len; i++) {
        side->digest = (side->digest ^ bytes[i]) * 1099511628211u;
    }
}

static inline void fuzz_mix_number(struct fuzz_side *side, uint64_t number)
{
    fuzz_mix(side, &number, sizeof number);
}

static inline void fuzz_send_back(struct fuzz_side *side, const struct ws_item *item)
{
    struct ws_frame frame;
    uint8_t *copy = malloc(item->len + 1);
    if (item->len > 0) {
        memcpy(copy, item->data, item->len);
    }
    if (ws_frame_make(&side->ws, &frame, item->opcode, copy, item->len) == WS_OK) {
        uint8_t *bytes = malloc(ws_frame_size(&frame));
        ws_frame_copy(&frame, bytes);
        struct ws_input input = {bytes, ws_frame_size(&frame)};
        struct ws_item back;
        enum ws_event event = ws_receive(&side->peer, &input, &back);
        CHECK(event == (item->opcode >= WS_CLOSE ? WS_EVENT_PING : WS_EVENT_DATA));
        CHECK(back.opcode == item->opcode && back.len == item->len && input.len == 0);
        CHECK(item->len == 0 || memcmp(back.data, copy, item->len) == 0);
        free(bytes);
    }
    free(copy);
}

/* Where parts end depends on the pieces; what they are together does not. */
static inline void fuzz_part(struct fuzz_side *side, const struct ws_item *item)
{
    if (item->first) {
        side->in_parts = true;
        side->before = side->digest;
    }
    fuzz_mix(side, item->data, item->len);
    if (item->final) {
        side->in_parts = false;
        fuzz_mix_number(side, item->opcode);
    }
}

static inline void fuzz_event(struct fuzz_side *side, enum ws_event event, const struct ws_item *item)
{
    if (event == WS_EVENT_DATA && side->parts) {
        fuzz_part(side, item);
        return;
    }
    if (event == WS_EVENT_FAILED) {
        /* How much of a last message was handed out, and which of two faults shows first behind
         * compression, depend on the pieces. */
        side->digest = side->in_parts ? side->before : side->digest;
        fuzz_mix_number(side, side->compressed ? 1 : item->code);
        return;
    }
    fuzz_mix_number(side, event);
    fuzz_mix_number(side, item->code);
    fuzz_mix_number(side, item->opcode);
    fuzz_mix_number(side, item->len);
    if (item->len > 0) {
        fuzz_mix(side, item->data, item->len);
    }
    if (event == WS_EVENT_DATA) {
        CHECK(item->opcode != WS_TEXT || ws_utf8_is_valid(item->data, item->len));
        fuzz_send_back(side, item);
    } else if (event == WS_EVENT_PING) {
        CHECK(item->len <= WS_CONTROL_MAX);
        fuzz_send_back(side, item);
    }
}

static inline uint64_t fuzz_run(enum ws_role role, const uint8_t *data, size_t size, size_t piece)
{
    static const size_t limits[] = {0, 1, 200, 70000};
    const struct ws_settings settings = {
        .max_message = limits[data[0] & 3] != 0 ? limits[data[0] & 3] : 1 << 20,
        .own_messages = (data[0] & 4) != 0,
        .parts = (data[0] & 8) != 0,
        .compress_from = data[1] & 0x3f,
    };
    const struct ws_settings peer_settings = {0};
    const struct ws_pool_options options = {.budget = (data[0] & 16) != 0 ? 1 << 20 : 0, .level = 1};
    const struct ws_deflate agreed = {
        .on = (data[0] & 32) != 0,
        .server_no_takeover = (data[0] & 64) != 0,
        .client_no_takeover = (data[0] & 128) != 0,
        .server_bits = (uint8_t)(8 + (data[2] & 7)),
        .client_bits = (uint8_t)(8 + (data[2] >> 3 & 7)),
    };
    struct fuzz_side side = {.parts = settings.parts, .compressed = agreed.on, .digest = 14695981039346656037u};
    side.pool = ws_pool_create(&options);
    side.peer_pool = ws_pool_create(&options);
    ws_init(&side.ws, role, &settings);
    ws_use_deflate(&side.ws, side.pool, &agreed);
    ws_init(&side.peer, role == WS_SERVER ? WS_CLIENT : WS_SERVER, &peer_settings);
    ws_use_deflate(&side.peer, side.peer_pool, &agreed);
    for (size_t at = 4; at < size;) {
        size_t n = size - at < piece ? size - at : piece;
        uint8_t *copy = malloc(n);
        memcpy(copy, data + at, n);
        struct ws_input input = {copy, n};
        struct ws_item item = {0};
        enum ws_event event;
        while ((event = ws_receive(&side.ws, &input, &item)) != WS_EVENT_NONE) {
            fuzz_event(&side, event, &item);
        }
        CHECK(input.len == 0);
        CHECK(side.ws.message_cap <= 2 * settings.max_message + (2 << 20));
        free(copy);
        at += n;
    }
    fuzz_mix_number(&side, side.ws.ended);
    ws_trim(&side.ws);
    ws_free(&side.ws);
    ws_free(&side.peer);
    ws_pool_free(side.pool);
    ws_pool_free(side.peer_pool);
    return side.digest;
}

static inline int fuzz_ws(enum ws_role role, const uint8_t *data, size_t size)
{
    if (size < 4) {
        return 0;
    }
    uint64_t whole = fuzz_run(role, data, size, size);
    uint64_t pieces = fuzz_run(role, data, size, 1 + data[3] % 16);
    /* A distance beyond a small window is found out or not, depending on the pieces (deflate.h). */
    unsigned window = role == WS_CLIENT ? data[2] & 7 : data[2] >> 3 & 7;
    CHECK(whole == pieces || ((data[0] & 32) != 0 && window < 7));
    return 0;
}

#endif
