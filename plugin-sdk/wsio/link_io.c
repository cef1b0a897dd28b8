/* Messages in and out of an open link. */
#include "wsio/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what waits to be sent ------------------------------------------------------------------------------ */

enum { KEEP_OUT = 262144, PIECE = 262144, DIRECT_FROM = 8192 };

/* Room for `more` bytes at the end; NULL: no memory. */
static uint8_t *out_room(struct link *link, size_t more)
{
    if (link->out.at > 0 && link->out.at + link->out.len + more > link->out.cap) {
        memmove(link->out.data, link->out.data + link->out.at, link->out.len);
        link->out.at = 0;
    }
    size_t need = link->out.at + link->out.len + more;
    if (need > link->out.cap) {
        size_t cap = link->out.cap * 2 > need ? link->out.cap * 2 : need + 1024;
        uint8_t *data = realloc(link->out.data, cap);
        if (data == NULL) {
            return NULL;
        }
        link->out.data = data;
        link->out.cap = cap;
    }
    return link->out.data + link->out.at + link->out.len;
}

bool wslink_queue(struct link *link, const void *data, size_t len)
{
    uint8_t *room = out_room(link, len);
    if (room == NULL) {
        return false;
    }
    memcpy(room, data, len);
    link->out.len += len;
    return true;
}

bool wslink_flush(struct link *link)
{
    while (link->out.len > 0) {
        struct iovec vector = {link->out.data + link->out.at, link->out.len};
        ssize_t n = carrier_write(&link->transport, &vector, 1);
        if (n == CARRIER_AGAIN) {
            link->stalled = true;
            return true;
        }
        if (n < 0) {
            wslink_broken(link, carrier_error(&link->transport));
            return false;
        }
        if (link->stalled) {
            link->stalled = false;
            link->heard_us = clock_us(); /* whoever takes what waits is there, though a ping may be far behind it */
            link->pinged = false;
        }
        link->out.at += (size_t)n;
        link->out.len -= (size_t)n;
    }
    link->out.at = 0;
    if (link->out.cap > KEEP_OUT) {
        free(link->out.data);
        memset(&link->out, 0, sizeof link->out);
    }
    return true;
}

/* ---- frames out ---------------------------------------------------------------------------------------------- */

/* Payload from `at` on, masked where it must be. PIECE is a multiple of 4, so a key turns by `at`. */
static void copy_payload(const struct ws_frame *frame, size_t at, uint8_t *to, size_t len)
{
    if (!frame->masked) {
        memcpy(to, frame->payload + at, len);
        return;
    }
    uint8_t key[4];
    memcpy(key, frame->key, 4);
    ws_mask_turn(key, at);
    ws_mask(to, frame->payload + at, len, key);
}

static bool queue_payload(struct link *link, const struct ws_frame *frame, size_t at)
{
    size_t len = frame->payload_len - at;
    uint8_t *room = len > 0 ? out_room(link, len) : NULL;
    if (len > 0 && room == NULL) {
        return false;
    }
    if (len > 0) {
        copy_payload(frame, at, room, len);
        link->out.len += len;
    }
    return true;
}

/* A server's large payload over plain TCP, from where it lies. */
static bool send_directly(struct link *link, const struct ws_frame *frame)
{
    struct iovec vectors[2] = {{(void *)(uintptr_t)frame->head, frame->head_len},
                               {(void *)(uintptr_t)frame->payload, frame->payload_len}};
    ssize_t n = carrier_write(&link->transport, vectors, 2);
    if (n == CARRIER_BROKEN) {
        return false;
    }
    size_t sent = n > 0 ? (size_t)n : 0;
    if (sent < frame->head_len) {
        return wslink_queue(link, frame->head + sent, frame->head_len - sent) && queue_payload(link, frame, 0);
    }
    return queue_payload(link, frame, sent - frame->head_len);
}

/* `piece` has room for the head and PIECE bytes, or for the whole frame when that is less. */
static bool send_pieces(struct link *link, const struct ws_frame *frame, uint8_t *piece)
{
    size_t at = 0;
    size_t head = frame->head_len;
    memcpy(piece, frame->head, head);
    do {
        size_t left = frame->payload_len - at;
        size_t len = left < PIECE ? left : PIECE;
        copy_payload(frame, at, piece + head, len);
        at += len;
        struct iovec vector = {piece, head + len};
        ssize_t n = carrier_write(&link->transport, &vector, 1);
        if (n == CARRIER_BROKEN) {
            return false;
        }
        size_t sent = n > 0 ? (size_t)n : 0;
        if (sent < head + len) {
            return wslink_queue(link, piece + sent, head + len - sent) && queue_payload(link, frame, at);
        }
        head = 0;
    } while (at < frame->payload_len);
    return true;
}

/* In pieces through a buffer that stays in the cache; once the kernel takes no more, the rest is queued. The buffer is
 * no variable of the thread: those lie on the stack of each, and an endpoint's own threads may have small ones. */
static bool send_in_pieces(struct link *link, const struct ws_frame *frame)
{
    uint8_t *piece = malloc(frame->head_len + (frame->payload_len < PIECE ? frame->payload_len : PIECE));
    bool ok = piece != NULL && send_pieces(link, frame, piece);
    free(piece);
    return ok;
}

static int send_frame(struct link *link, const struct ws_frame *frame)
{
    bool ok;
    if (link->out.len > 0 || (link->corked && frame->payload_len < DIRECT_FROM)) {
        uint8_t *room = out_room(link, ws_frame_size(frame));
        ok = room != NULL;
        if (ok) {
            ws_frame_copy(frame, room);
            link->out.len += ws_frame_size(frame);
        }
    } else if (!frame->masked && !link->transport.ops->copies && frame->payload_len >= DIRECT_FROM) {
        ok = send_directly(link, frame);
    } else {
        ok = send_in_pieces(link, frame);
    }
    if (!ok) {
        /* Part of a frame may be out: nothing can follow it. */
        wslink_broken(link, link->transport.error != 0 || link->transport.text[0] != '\0'
                                ? carrier_error(&link->transport)
                                : "no memory for what is to be sent");
        return KILN_GONE;
    }
    return KILN_OK;
}

static int result_of(enum ws_result result)
{
    static const int results[] = {
        [WS_OK] = KILN_OK,
        [WS_ERROR_ARGUMENT] = KILN_INVALID,
        [WS_ERROR_TEXT] = KILN_INVALID,
        [WS_ERROR_CLOSED] = KILN_GONE,
        [WS_ERROR_ORDER] = KILN_LATE,
        [WS_ERROR_MEMORY] = KILN_NO_MEMORY,
    };
    return results[result];
}

/* Sends what is gathered, if more waits than may. False: still more, or the connection has broken. */
static bool make_room(struct link *link)
{
    const uint64_t most = link->limits.send_queue;
    return link->out.len <= most || (!link->stalled && wslink_flush(link) && link->out.len <= most);
}

/* May something be sent now? */
static int may_send(struct link *link)
{
    switch (link->state) {
    case WSLINK_OPEN: return make_room(link) ? KILN_OK : link->state == WSLINK_OPEN ? KILN_TOO_LARGE : KILN_GONE;
    case WSLINK_ENDING:
    case WSLINK_CLOSED: return KILN_GONE;
    case WSLINK_DIALING:
    case WSLINK_PAUSED:
    case WSLINK_GREETING:
    case WSLINK_ASKED: break;
    }
    return KILN_LATE;
}

static bool is_type(int type)
{
    return type == KILN_WS_TEXT || type == KILN_WS_BINARY;
}

int wslink_send(struct link *link, int type, const void *data, size_t len)
{
    struct ws_frame frame;
    int result = is_type(type) ? may_send(link) : KILN_INVALID;
    if (result == KILN_OK) {
        result = result_of(ws_frame_make(&link->core, &frame, (enum ws_opcode)type, data, len));
    }
    return result == KILN_OK ? send_frame(link, &frame) : result;
}

int wslink_send_part(struct link *link, int type, const void *data, size_t len, bool final)
{
    struct ws_frame frame;
    int result = is_type(type) ? may_send(link) : KILN_INVALID;
    if (result == KILN_OK) {
        result = result_of(ws_fragment_make(&link->core, &frame, (enum ws_opcode)type, data, len, final));
    }
    return result == KILN_OK ? send_frame(link, &frame) : result;
}

static int send_ping(struct link *link, const void *data, size_t len)
{
    struct ws_frame frame;
    int result = may_send(link);
    if (result == KILN_OK) {
        result = result_of(ws_frame_make(&link->core, &frame, WS_PING, data, len));
    }
    return result == KILN_OK ? send_frame(link, &frame) : result;
}

int wslink_ping(struct link *link, const void *data, size_t len)
{
    uint64_t now = clock_us();
    int result = send_ping(link, data, len);
    link->ping_sent_us = result == KILN_OK ? now : link->ping_sent_us;
    return result;
}

int wslink_ping_alive(struct link *link)
{
    return send_ping(link, "", 0);
}

int wslink_close(struct link *link, int code, const char *reason)
{
    uint8_t space[WS_CONTROL_MAX];
    struct ws_frame frame;
    if (code <= 0 || !ws_close_code_is_valid((unsigned)code)) {
        return KILN_INVALID;
    }
    link->user_closed = true;
    if (link->state == WSLINK_DIALING || link->state == WSLINK_PAUSED) {
        wslink_broken(link, "closed while it was connecting");
        return KILN_OK;
    }
    if (link->state != WSLINK_OPEN) {
        return may_send(link);
    }
    reason = reason != NULL ? reason : "";
    int result = result_of(ws_close_make(&link->core, &frame, space, (unsigned)code, reason, strlen(reason)));
    if (result != KILN_OK) {
        return result;
    }
    link->end_by_us = clock_us() + link->limits.close_us;
    return send_frame(link, &frame);
}

/* ---- events of the core ------------------------------------------------------------------------------------------ */

static void answer_ping(struct link *link, const struct ws_item *item)
{
    struct ws_frame frame;
    if (link->out.len < LINK_PONGS && ws_frame_make(&link->core, &frame, WS_PONG, item->data, item->len) == WS_OK) {
        send_frame(link, &frame);
    }
}

static void took_pong(struct link *link, const struct ws_item *item)
{
    link->pongs++;
    if (link->ping_sent_us != 0) {
        link->ping_took_us = (int64_t)(clock_us() - link->ping_sent_us);
        link->ping_sent_us = 0;
    }
    if (link->on_pong != NULL) {
        link->on_pong(link, item);
    }
}

static void peer_closed(struct link *link, const struct ws_item *item)
{
    uint8_t space[WS_CONTROL_MAX];
    struct ws_frame frame;
    link->close_code = item->code;
    size_t len = item->len < sizeof link->close_reason - 1 ? item->len : sizeof link->close_reason - 1;
    memcpy(link->close_reason, item->data != NULL ? (const char *)item->data : "", item->data != NULL ? len : 0);
    link->close_reason[item->data != NULL ? len : 0] = '\0';
    if (!link->core.closing && ws_close_answer(&link->core, &frame, space, item) == WS_OK &&
        send_frame(link, &frame) != KILN_OK) {
        return;
    }
    link->end_by_us = 0;
    wslink_end(link);
}

static void peer_failed(struct link *link, const struct ws_item *item)
{
    uint8_t space[WS_CONTROL_MAX];
    struct ws_frame frame;
    link->close_code = item->code;
    snprintf(link->error, sizeof link->error, "the peer broke the protocol: %.*s",
             (int)(item->len < 200 ? item->len : 200), (const char *)item->data);
    if (ws_close_make(&link->core, &frame, space, item->code, (const char *)item->data, item->len) == WS_OK &&
        send_frame(link, &frame) != KILN_OK) {
        return;
    }
    link->end_by_us = 0;
    wslink_end(link);
}

/* ---- receiving ------------------------------------------------------------------------------------------------------ */

static void return_space(struct link *link)
{
    if (link->in_borrowed) {
        link->in = NULL;
        link->in_borrowed = false;
    }
}

/* An input for the next read: where a long message goes on, or the buffer. NULL: no memory. */
static uint8_t *input_room(struct link *link, uint8_t *space, size_t *room)
{
    uint8_t *place = ws_receive_room(&link->core, room);
    if (place != NULL) {
        return place;
    }
    if (space != NULL && !link->in_borrowed) {
        free(link->in); /* of the handshake: used up */
        link->in = NULL;
    }
    if (link->in == NULL) {
        link->in = space != NULL ? space : malloc(LINK_INPUT + 1);
        link->in_borrowed = space != NULL;
    }
    *room = LINK_INPUT;
    return link->in;
}

/* Bytes from the socket into an empty input. True: there are some. */
static bool fill(struct link *link, uint8_t *space)
{
    size_t room;
    uint8_t *place = input_room(link, space, &room);
    if (place == NULL) {
        wslink_broken(link, "no memory for what comes");
        return false;
    }
    ssize_t n = carrier_read(&link->transport, place, room);
    link->read_write = n == CARRIER_AGAIN && link->transport.wants == KILN_WRITE;
    if (n > 0) {
        link->input = (struct ws_input){place, (size_t)n};
        link->reads = link->transport.more && link->reads > 0 ? link->reads - 1 : 0;
        link->heard_us = clock_us();
        link->pinged = false;
        if (link->core.closing && link->heard_us >= link->end_by_us) {
            wslink_broken(link, "the peer sends on and does not answer the close frame");
            return false;
        }
        return true;
    }
    return_space(link);
    if (n != CARRIER_AGAIN) {
        wslink_broken(link, n == 0 ? "the connection ended without a close frame" : carrier_error(&link->transport));
    }
    return false;
}

/* Where the message's end lies in the input, the byte behind it is another frame's: it comes back. */
static void put_nul(struct link *link, const struct ws_item *item)
{
    uint8_t *end = (uint8_t *)(uintptr_t)item->data + item->len;
    bool inside = link->in != NULL && end >= link->in && end <= link->in + LINK_INPUT;
    if (inside || item->len > 0) {
        link->nul_at = inside ? end : NULL;
        link->nul_was = *end; /* what the core gathers has a spare byte */
        *end = '\0';
    }
}

static void take_nul_back(struct link *link)
{
    if (link->nul_at != NULL) {
        *link->nul_at = link->nul_was;
        link->nul_at = NULL;
    }
}

/* True: *item is a message. */
static bool next_event(struct link *link, struct ws_item *item)
{
    switch (ws_receive(&link->core, &link->input, item)) {
    case WS_EVENT_NONE: break;
    case WS_EVENT_DATA:
        if (link->core.closing) {
            break; /* we have closed: nothing is received any more */
        }
        put_nul(link, item);
        return true;
    case WS_EVENT_PING: answer_ping(link, item); break;
    case WS_EVENT_PONG: took_pong(link, item); break;
    case WS_EVENT_CLOSE: peer_closed(link, item); break;
    case WS_EVENT_FAILED: peer_failed(link, item); break;
    }
    return false;
}

enum wslink_event wslink_receive(struct link *link, struct ws_item *item, uint8_t *space)
{
    enum { ROUNDS = 64 }; /* a flood of pings is no reason to forget others */
    take_nul_back(link);
    wslink_forget(link);
    if (link->state == WSLINK_OPEN || link->state == WSLINK_ENDING) {
        wslink_step(link);
    }
    unsigned rounds = 0;
    link->more = false;
    while (link->state == WSLINK_OPEN) {
        if ((link->input.len > 0 || link->core.inflate_more) && next_event(link, item)) {
            return WSLINK_MESSAGE;
        }
        if (link->state != WSLINK_OPEN || link->input.len > 0 || link->core.inflate_more) {
            continue;
        }
        if (link->reads == 0 && space != NULL) {
            link->more = link->transport.more;
            return_space(link);
            break;
        }
        if (++rounds > ROUNDS || !fill(link, space)) {
            link->more = rounds > ROUNDS;
            break;
        }
    }
    if (link->state == WSLINK_ENDING) {
        wslink_step(link); /* the answer to a close goes out at once */
    }
    return link->state == WSLINK_ENDING || link->state == WSLINK_CLOSED ? WSLINK_OVER : WSLINK_NOTHING;
}
