/* An echo peer around the core, and frames that the tests write and read by themselves, so that the
 * core is never its own judge. Frames are given as text, one after another with a blank between:
 *     81:Hello          first byte in hexadecimal, then the payload as it stands ('_' is a blank)
 *     88:x03e8          a payload in hexadecimal
 *     82:*70000         as many bytes of a pattern
 *     82~126:abc        the length written in the 16-bit form (127: in the 64-bit form)
 *     81^:abc           masked where it must not be, or the reverse */
#ifndef KILN_TESTS_WS_SUPPORT_H
#define KILN_TESTS_WS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ws/text.h"
#include "ws/ws.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum chop { CHOP_WHOLE, CHOP_FRAMES, CHOP_997, CHOP_7, CHOP_OCTETS, CHOP_COUNT };

struct wire {
    struct ws_buffer bytes;
    size_t ends[70000]; /* of frames */
    size_t count;
};

/* ---- writing frames ---------------------------------------------------------------------------------- */

static inline uint8_t pattern(size_t i)
{
    return (uint8_t)("abcdefghijklmnopqrstuvwxyz0123456789*+"[i % 38]);
}

static inline void put_frame(struct wire *wire, unsigned first, const void *payload, size_t len, bool masked,
                             unsigned form)
{
    static const uint8_t key[4] = {0x37, 0xfa, 0x21, 0x3d};
    const uint8_t *from = payload;
    uint8_t head[14] = {(uint8_t)first};
    size_t size = 2;
    if (form == 0) {
        form = len < 126 ? 1 : len < 65536 ? 126 : 127;
    }
    if (form == 1) {
        head[1] = (uint8_t)len;
    } else {
        size_t n = form == 126 ? 2 : 8;
        head[1] = (uint8_t)form;
        for (size_t i = 0; i < n; i++) {
            head[2 + i] = (uint8_t)((uint64_t)len >> (8 * (n - 1 - i)));
        }
        size += n;
    }
    if (masked) {
        head[1] |= 0x80;
        memcpy(head + size, key, 4);
        size += 4;
    }
    ws_buffer_add(&wire->bytes, head, size);
    uint8_t *copy = malloc(len + 1);
    for (size_t i = 0; i < len; i++) {
        copy[i] = masked ? from[i] ^ key[i % 4] : from[i];
    }
    ws_buffer_add(&wire->bytes, copy, len);
    free(copy);
    wire->ends[wire->count++] = wire->bytes.len;
}

static inline size_t read_payload(const char *spec, size_t len, uint8_t **payload)
{
    if (len > 1 && spec[0] == '*' && spec[1] >= '0' && spec[1] <= '9') {
        size_t n = strtoul(spec + 1, NULL, 10);
        *payload = malloc(n + 1);
        for (size_t i = 0; i < n; i++) {
            (*payload)[i] = pattern(i);
        }
        return n;
    }
    *payload = malloc(len + 1);
    if (len > 0 && spec[0] == 'x') {
        for (size_t i = 1; i + 1 < len; i += 2) {
            unsigned byte;
            assert_int_equal(sscanf(spec + i, "%2x", &byte), 1);
            (*payload)[i / 2] = (uint8_t)byte;
        }
        return (len - 1) / 2;
    }
    for (size_t i = 0; i < len; i++) {
        (*payload)[i] = spec[i] == '_' ? ' ' : (uint8_t)spec[i];
    }
    return len;
}

static inline void put_script(struct wire *wire, const char *script, bool masked)
{
    while (*script != '\0') {
        size_t len = strcspn(script, " ");
        const char *colon = memchr(script, ':', len);
        assert_non_null(colon);
        unsigned first = (unsigned)strtoul(script, NULL, 16);
        const char *form = memchr(script, '~', (size_t)(colon - script));
        bool flip = memchr(script, '^', (size_t)(colon - script)) != NULL;
        uint8_t *payload;
        size_t n = read_payload(colon + 1, len - (size_t)(colon + 1 - script), &payload);
        put_frame(wire, first, payload, n, masked != flip, form != NULL ? (unsigned)strtoul(form + 1, NULL, 10) : 0);
        free(payload);
        script += len;
        script += *script == ' ';
    }
}

/* ---- reading frames ------------------------------------------------------------------------------------ */

struct seen {
    uint8_t first;
    size_t len;
    uint8_t *payload; /* owned */
};

struct seen_list {
    struct seen *items;
    size_t count;
};

/* Takes what the core wrote apart, checking masks and minimal lengths. */
static inline struct seen_list read_frames(const struct ws_buffer *out, bool masked)
{
    struct seen_list list = {0};
    const uint8_t *p = (const uint8_t *)out->data;
    size_t left = out->len;
    while (left > 0) {
        assert_true(left >= 2);
        struct seen seen = {.first = p[0], .len = p[1] & 0x7f};
        assert_int_equal((p[1] & 0x80) != 0, masked);
        size_t at = 2;
        size_t n = seen.len == 126 ? 2 : seen.len == 127 ? 8 : 0;
        if (n > 0) {
            seen.len = 0;
            for (size_t i = 0; i < n; i++) {
                seen.len = seen.len << 8 | p[at++];
            }
            assert_true(seen.len >= (n == 2 ? 126u : 65536u));
        }
        const uint8_t *key = p + at;
        at += masked ? 4 : 0;
        assert_true(left >= at + seen.len);
        seen.payload = malloc(seen.len + 1);
        for (size_t i = 0; i < seen.len; i++) {
            seen.payload[i] = masked ? p[at + i] ^ key[i % 4] : p[at + i];
        }
        list.items = realloc(list.items, (list.count + 1) * sizeof *list.items);
        list.items[list.count++] = seen;
        p += at + seen.len;
        left -= at + seen.len;
    }
    return list;
}

static inline void free_frames(struct seen_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->items[i].payload);
    }
    free(list->items);
    *list = (struct seen_list){0};
}

/* ---- the echo peer --------------------------------------------------------------------------------------- */

struct echo {
    struct ws ws;
    struct ws_buffer out;
    struct ws_buffer parts; /* gathered when the settings ask for parts */
    bool in_parts;
    bool ended;
    unsigned failure; /* close code of it */
    const char *why;
};

static inline void echo_send(struct echo *e, const struct ws_frame *frame)
{
    size_t size = ws_frame_size(frame);
    uint8_t *bytes = malloc(size);
    ws_frame_copy(frame, bytes);
    ws_buffer_add(&e->out, bytes, size);
    free(bytes);
}

static inline void echo_data(struct echo *e, const struct ws_item *item)
{
    struct ws_frame frame;
    if (e->ws.settings->parts) {
        assert_int_equal(item->first, !e->in_parts);
        e->in_parts = !item->final;
        ws_buffer_add(&e->parts, item->data, item->len);
        if (!item->final) {
            return;
        }
        assert_int_equal(ws_frame_make(&e->ws, &frame, item->opcode, e->parts.data, e->parts.len), WS_OK);
        echo_send(e, &frame);
        e->parts.len = 0;
        return;
    }
    assert_true(item->first && item->final);
    /* Bytes past the end of a buffer must not be read: exact copies show it under the sanitizer. */
    uint8_t *copy = malloc(item->len);
    if (item->len > 0) {
        memcpy(copy, item->data, item->len);
    }
    assert_int_equal(ws_frame_make(&e->ws, &frame, item->opcode, copy, item->len), WS_OK);
    echo_send(e, &frame);
    free(copy);
}

static inline void echo_event(struct echo *e, enum ws_event event, const struct ws_item *item)
{
    struct ws_frame frame;
    uint8_t space[WS_CONTROL_MAX];
    switch (event) {
    case WS_EVENT_NONE: break;
    case WS_EVENT_DATA: echo_data(e, item); break;
    case WS_EVENT_PING:
        if (ws_frame_make(&e->ws, &frame, WS_PONG, item->data, item->len) == WS_OK) {
            echo_send(e, &frame);
        }
        break;
    case WS_EVENT_PONG: break;
    case WS_EVENT_CLOSE:
        e->ended = true;
        if (ws_close_answer(&e->ws, &frame, space, item) == WS_OK) {
            echo_send(e, &frame);
        }
        break;
    case WS_EVENT_FAILED:
        e->ended = true;
        e->failure = item->code;
        e->why = (const char *)item->data;
        if (ws_close_make(&e->ws, &frame, space, item->code, e->why, item->len) == WS_OK) {
            echo_send(e, &frame);
        }
        break;
    }
}

/* Gives it a piece, in memory of exactly that size. */
static inline void echo_feed(struct echo *e, const void *data, size_t len)
{
    uint8_t *copy = malloc(len);
    memcpy(copy, data, len);
    struct ws_input input = {copy, len};
    struct ws_item item;
    for (;;) {
        enum ws_event event = ws_receive(&e->ws, &input, &item);
        if (event == WS_EVENT_NONE) {
            break;
        }
        echo_event(e, event, &item);
    }
    assert_int_equal(input.len, 0);
    free(copy);
}

static inline void echo_feed_wire(struct echo *e, const struct wire *wire, enum chop chop)
{
    size_t at = 0;
    for (size_t frame = 0; at < wire->bytes.len;) {
        size_t end = wire->bytes.len;
        switch (chop) {
        case CHOP_WHOLE:
        case CHOP_COUNT: break;
        case CHOP_FRAMES: end = wire->ends[frame++]; break;
        case CHOP_997: end = at + 997; break;
        case CHOP_7: end = at + 7; break; /* a head that is whole, a payload that is not */
        case CHOP_OCTETS: end = at + 1; break;
        }
        if (end > wire->bytes.len) {
            end = wire->bytes.len;
        }
        echo_feed(e, wire->bytes.data + at, end - at);
        at = end;
    }
}

static inline void echo_free(struct echo *e)
{
    ws_free(&e->ws);
    ws_buffer_free(&e->out);
    ws_buffer_free(&e->parts);
}

#endif
