/* DESIGN: two states, a head or a payload, and what is known of the message around them. A head that
 * lies whole in the input is read there; one in pieces is gathered. Each rule is checked at the first
 * byte that can break it, so a wrong first byte fails the connection before its length has come. */
#include "ws/ws.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIN = 0x80,
    RSV1 = 0x40,
    RSV = 0x70,
    MASKED = 0x80,
    LENGTH = 0x7f,
    LENGTH_16 = 126,
    LENGTH_64 = 127,
    SHORT_HEAD = 6, /* two bytes and the mask */
    PIECE = 65536, /* most that is inflated for one part */
    EAGER_CAP = 1 << 20, /* room that a long frame gets before its bytes have come */
    ROOM_MIN = 65536, /* shorter reads, past which nothing is read, cost more than the copy */
    ROOM_MAX = 262144, /* and longer ones have left the cache before they are unmasked */
};

/* ---- failing ---------------------------------------------------------------------------------------- */

static enum ws_event fail(struct ws *ws, struct ws_item *item, unsigned code, const char *why)
{
    ws->ended = true;
    *item = (struct ws_item){.data = (const uint8_t *)why, .len = strlen(why), .code = (uint16_t)code};
    return WS_EVENT_FAILED;
}

static enum ws_event fail_protocol(struct ws *ws, struct ws_item *item, const char *why)
{
    return fail(ws, item, WS_CLOSE_PROTOCOL, why);
}

static enum ws_event fail_too_big(struct ws *ws, struct ws_item *item)
{
    return fail(ws, item, WS_CLOSE_TOO_BIG, "message too big");
}

static enum ws_event fail_memory(struct ws *ws, struct ws_item *item)
{
    return fail(ws, item, WS_CLOSE_INTERNAL, "out of memory");
}

/* ---- heads ------------------------------------------------------------------------------------------ */

/* What is wrong with the first byte; NULL: nothing. */
static const char *first_byte_fault(const struct ws *ws, uint8_t byte)
{
    unsigned opcode = byte & 0x0f;
    bool control = opcode >= WS_CLOSE;
    if ((opcode > WS_BINARY && !control) || opcode > WS_PONG) {
        return "reserved opcode";
    }
    if (control && (byte & FIN) == 0) {
        return "fragmented control frame";
    }
    unsigned rsv = byte & RSV;
    if (rsv == RSV1 && (ws->pool == NULL || control || opcode == WS_CONTINUATION)) {
        return "unexpected compression bit";
    }
    if (rsv != 0 && rsv != RSV1) {
        return "reserved bit set";
    }
    if (opcode == WS_CONTINUATION && ws->message_opcode == 0) {
        return "continuation without a message";
    }
    if (!control && opcode != WS_CONTINUATION && ws->message_opcode != 0) {
        return "new message before the last one ended";
    }
    return NULL;
}

static const char *second_byte_fault(const struct ws *ws, uint8_t first, uint8_t second)
{
    bool masked = (second & MASKED) != 0;
    if (masked == ws->client) {
        return masked ? "masked frame from the server" : "unmasked frame from the client";
    }
    if ((first & 0x0f) >= WS_CLOSE && (second & LENGTH) > WS_CONTROL_MAX) {
        return "control frame too long";
    }
    if ((first & 0x0f) == WS_CLOSE && (second & LENGTH) == 1) {
        return "close frame with half a code";
    }
    return NULL;
}

static size_t head_size(uint8_t second)
{
    size_t length = second & LENGTH;
    return 2 + (size_t)(length == LENGTH_16 ? 2 : length == LENGTH_64 ? 8 : 0) + ((second & MASKED) != 0 ? 4 : 0);
}

/* The head is whole: enters the frame. NULL or a fault. */
static const char *enter_frame(struct ws *ws, const uint8_t *head, size_t size)
{
    uint64_t length = head[1] & LENGTH;
    if (length == LENGTH_16) {
        length = (uint64_t)head[2] << 8 | head[3];
        if (length < LENGTH_16) {
            return "length not in its shortest form";
        }
    } else if (length == LENGTH_64) {
        length = 0;
        for (unsigned i = 2; i < 10; i++) {
            length = length << 8 | head[i];
        }
        if (length >> 63 != 0) {
            return "length out of range";
        }
        if (length < 65536) {
            return "length not in its shortest form";
        }
    }
    if (!ws->client) {
        memcpy(ws->key, head + size - 4, 4);
    }
    ws->opcode = head[0] & 0x0f;
    ws->fin = (head[0] & FIN) != 0;
    ws->frame_left = length;
    ws->in_frame = true;
    ws->head_len = 0;
    if (ws->opcode == WS_TEXT || ws->opcode == WS_BINARY) {
        ws->message_opcode = ws->opcode;
        ws->compressed = (head[0] & RSV1) != 0;
        ws->message_len = 0;
        ws->message_total = 0;
        ws->part_begun = false;
        ws->text_in = (struct ws_utf8){0};
    }
    return NULL;
}

static void use(struct ws_input *input, size_t n)
{
    input->data += n;
    input->len -= n;
}

/* Takes what is there of a head. NULL or a fault; ws->in_frame when it was whole. */
static const char *read_head(struct ws *ws, struct ws_input *input)
{
    const uint8_t *head = input->data;
    size_t have = input->len;
    if (ws->head_len > 0) {
        /* Byte by byte: a head is short. */
        ws->head[ws->head_len++] = input->data[0];
        use(input, 1);
        head = ws->head;
        have = ws->head_len;
    }
    const char *fault = first_byte_fault(ws, head[0]);
    if (fault == NULL && have >= 2) {
        fault = second_byte_fault(ws, head[0], head[1]);
    }
    if (fault != NULL) {
        return fault;
    }
    size_t size = have >= 2 ? head_size(head[1]) : 2;
    if (have >= size && have >= 2) {
        bool gathered = head == ws->head;
        fault = enter_frame(ws, head, size);
        if (!gathered) {
            use(input, size);
        }
        return fault;
    }
    if (head != ws->head) {
        memcpy(ws->head, head, have);
        ws->head_len = (uint8_t)have;
        use(input, have);
    }
    return NULL;
}

/* ---- control frames ----------------------------------------------------------------------------------- */

static enum ws_event read_close(struct ws *ws, struct ws_item *item, const uint8_t *data, size_t len)
{
    unsigned code = WS_CLOSE_NO_CODE;
    if (len >= 2) {
        code = (unsigned)data[0] << 8 | data[1];
        if (!ws_close_code_is_valid(code)) {
            return fail_protocol(ws, item, "close code that may not be sent");
        }
        data += 2;
        len -= 2;
        if (!ws_utf8_is_valid(data, len)) {
            return fail(ws, item, WS_CLOSE_INVALID_DATA, "close reason is not UTF-8");
        }
    }
    ws->ended = true;
    *item = (struct ws_item){.data = data, .len = len, .code = (uint16_t)code, .opcode = WS_CLOSE};
    return WS_EVENT_CLOSE;
}

static void unmask(struct ws *ws, uint8_t *to, const uint8_t *from, size_t len)
{
    if (ws->client) {
        if (to != from) {
            memcpy(to, from, len);
        }
        return;
    }
    ws_mask(to, from, len, ws->key);
    ws_mask_turn(ws->key, len);
}

static enum ws_event take_control(struct ws *ws, struct ws_input *input, struct ws_item *item)
{
    size_t n = input->len < ws->frame_left ? input->len : (size_t)ws->frame_left;
    uint8_t *data = input->data;
    size_t len = n;
    if (n == ws->frame_left && ws->control_len == 0) {
        unmask(ws, data, data, n);
    } else {
        if (ws->control == NULL && (ws->control = calloc(1, WS_CONTROL_MAX)) == NULL) {
            return fail_memory(ws, item);
        }
        unmask(ws, ws->control + ws->control_len, data, n);
        ws->control_len = (uint8_t)(ws->control_len + n);
        data = ws->control;
        len = ws->control_len;
    }
    use(input, n);
    ws->frame_left -= n;
    if (ws->frame_left > 0) {
        return WS_EVENT_NONE;
    }
    ws->in_frame = false;
    ws->control_len = 0;
    if (ws->opcode == WS_CLOSE) {
        return read_close(ws, item, data, len);
    }
    *item = (struct ws_item){.data = data, .len = len, .opcode = ws->opcode};
    return ws->opcode == WS_PING ? WS_EVENT_PING : WS_EVENT_PONG;
}

/* ---- data ----------------------------------------------------------------------------------------------- */

static bool is_over(const struct ws *ws, uint64_t total)
{
    return ws->settings->max_message != 0 && total > ws->settings->max_message;
}

/* Room for `more` bytes; a frame whose length is known gets room for all of it unless that is much. */
static bool reserve(struct ws *ws, size_t more)
{
    size_t needed = ws->message_len + more;
    if (needed <= ws->message_cap) {
        return true;
    }
    size_t cap = needed + needed / 2 + 64;
    if (!ws->compressed && ws->fin) {
        uint64_t all = ws->message_len + ws->frame_left;
        size_t eager = needed * 2 > EAGER_CAP ? needed * 2 : EAGER_CAP;
        cap = all < eager ? (size_t)all : eager;
    }
    uint8_t *message = realloc(ws->message, cap + 1); /* ws_take_message() promises one more */
    if (message == NULL) {
        return false;
    }
    ws->message = message;
    ws->message_cap = cap;
    return true;
}

static bool text_is_wrong(struct ws *ws, const uint8_t *data, size_t len)
{
    return ws->message_opcode == WS_TEXT && !ws->settings->any_text && !ws_utf8_check(&ws->text_in, data, len);
}

static enum ws_event fail_text(struct ws *ws, struct ws_item *item)
{
    return fail(ws, item, WS_CLOSE_INVALID_DATA, "text is not UTF-8");
}

/* Hands out `data`. */
static enum ws_event deliver(struct ws *ws, struct ws_item *item, const uint8_t *data, size_t len, bool final)
{
    if (final && ws->message_opcode == WS_TEXT && !ws->settings->any_text && !ws_utf8_is_whole(&ws->text_in)) {
        return fail_text(ws, item);
    }
    *item = (struct ws_item){
        .data = data, .len = len, .opcode = ws->message_opcode, .first = !ws->part_begun, .final = final};
    ws->part_begun = true;
    ws->delivered = true;
    if (final) {
        ws->message_opcode = 0;
    }
    return WS_EVENT_DATA;
}

static enum ws_event take_plain(struct ws *ws, struct ws_input *input, struct ws_item *item)
{
    const struct ws_settings *settings = ws->settings;
    if (is_over(ws, ws->message_total + ws->frame_left)) {
        return fail_too_big(ws, item);
    }
    size_t n = input->len < ws->frame_left ? input->len : (size_t)ws->frame_left;
    bool last = ws->fin && n == ws->frame_left;
    bool in_place = settings->parts || (!settings->own_messages && last && ws->message_total == 0);
    uint8_t *data = input->data;
    if (in_place) {
        unmask(ws, data, data, n);
    } else {
        if (n > 0 && !reserve(ws, n)) {
            return fail_memory(ws, item);
        }
        data = n > 0 ? ws->message + ws->message_len : ws->message;
        if (n > 0) {
            unmask(ws, data, input->data, n);
        }
        ws->message_len += n;
    }
    use(input, n);
    ws->frame_left -= n;
    ws->message_total += n;
    if (ws->frame_left == 0) {
        ws->in_frame = false;
    }
    if (text_is_wrong(ws, data, n)) {
        return fail_text(ws, item);
    }
    if (last) {
        return in_place ? deliver(ws, item, data, n, true) : deliver(ws, item, ws->message, ws->message_len, true);
    }
    return settings->parts && n > 0 ? deliver(ws, item, data, n, false) : WS_EVENT_NONE;
}

/* ---- compressed data -------------------------------------------------------------------------------------- */

/* Inflates what `piece` holds into the message, which grows. Stops early beyond the limit and, with
 * `by_parts`, where a part is long enough (ws->inflate_more then says whether output is left inside). */
static enum ws_inflate inflate_piece(struct ws *ws, struct ws_piece *piece, bool by_parts)
{
    const uint64_t limit = ws->settings->max_message;
    for (;;) {
        size_t want = piece->in_len * 4 < 1024 ? 1024 : piece->in_len * 4;
        if (want > PIECE) {
            want = PIECE;
        }
        if (limit != 0 && want > limit - ws->message_total + 1) {
            want = (size_t)(limit - ws->message_total + 1); /* the one more shows that it is too big */
        }
        if (!reserve(ws, want)) {
            return WS_INFLATE_MEMORY;
        }
        piece->out = ws->message + ws->message_len;
        piece->out_len = want;
        enum ws_inflate result = ws_inflate(ws->inflater, piece);
        size_t made = want - piece->out_len;
        ws->message_len += made;
        ws->message_total += made;
        ws->inflate_more = result == WS_INFLATE_FULL;
        bool stop = is_over(ws, ws->message_total) || (by_parts && ws->message_len >= PIECE);
        if (result == WS_INFLATE_BAD || result == WS_INFLATE_MEMORY || stop) {
            return result;
        }
        if (piece->in_len == 0 && !ws->inflate_more) {
            return WS_INFLATE_MORE;
        }
    }
}

/* The frame's payload that is in the input. What is not used of it stays there as it came. */
static enum ws_inflate inflate_input(struct ws *ws, struct ws_input *input)
{
    size_t n = input->len < ws->frame_left ? input->len : (size_t)ws->frame_left;
    if (n == 0 && !ws->inflate_more) {
        return WS_INFLATE_MORE;
    }
    if (!ws->client) {
        ws_mask(input->data, input->data, n, ws->key);
    }
    struct ws_piece piece = {.in = input->data, .in_len = n};
    enum ws_inflate result = inflate_piece(ws, &piece, ws->settings->parts);
    size_t used = n - piece.in_len;
    if (!ws->client) {
        ws_mask_turn(ws->key, used);
        ws_mask(input->data + used, input->data + used, n - used, ws->key);
    }
    use(input, used);
    ws->frame_left -= used;
    return result;
}

/* The end of a message: gives the inflater the four bytes that senders leave off. */
static enum ws_inflate inflate_tail(struct ws *ws)
{
    static const uint8_t tail[] = {0x00, 0x00, 0xff, 0xff};
    if (ws_inflate_has_ended(ws->inflater)) {
        return WS_INFLATE_MORE; /* a final block closed the stream: there is nothing to complete */
    }
    struct ws_piece piece = {.in = tail, .in_len = sizeof tail};
    enum ws_inflate result = inflate_piece(ws, &piece, false);
    if (result == WS_INFLATE_MORE && !is_over(ws, ws->message_total) && !ws_inflate_is_whole(ws->inflater)) {
        return WS_INFLATE_BAD;
    }
    return result;
}

static enum ws_event take_compressed(struct ws *ws, struct ws_input *input, struct ws_item *item)
{
    if (ws->inflater == NULL && (ws->inflater = ws_inflater_take(ws->pool, ws->bits_in)) == NULL) {
        return fail_memory(ws, item);
    }
    size_t before = ws->message_len;
    enum ws_inflate result = inflate_input(ws, input);
    bool frame_done = ws->frame_left == 0 && !ws->inflate_more;
    bool last = frame_done && ws->fin;
    if (last && result == WS_INFLATE_MORE && !is_over(ws, ws->message_total)) {
        result = inflate_tail(ws);
    }
    if (is_over(ws, ws->message_total)) {
        return fail_too_big(ws, item);
    }
    if (result == WS_INFLATE_MEMORY) {
        return fail_memory(ws, item);
    }
    if (result == WS_INFLATE_BAD) {
        return fail(ws, item, WS_CLOSE_INVALID_DATA, "bad compressed data");
    }
    if (ws->message_len > before && text_is_wrong(ws, ws->message + before, ws->message_len - before)) {
        return fail_text(ws, item);
    }
    if (frame_done) {
        ws->in_frame = false;
    }
    if (!last) {
        bool part = ws->settings->parts && ws->message_len > 0;
        return part ? deliver(ws, item, ws->message, ws->message_len, false) : WS_EVENT_NONE;
    }
    if (!ws->keep_in) {
        ws_context_give(ws->inflater);
        ws->inflater = NULL;
    }
    return deliver(ws, item, ws->message, ws->message_len, true);
}

uint8_t *ws_receive_room(struct ws *ws, size_t *room)
{
    bool gathers = ws->in_frame && ws->opcode < WS_CLOSE && !ws->compressed && !ws->settings->parts && !ws->ended;
    size_t left = ws->message_cap - ws->message_len;
    if (!gathers || ws->delivered || left < ROOM_MIN || ws->frame_left < ROOM_MIN) {
        return NULL;
    }
    size_t most = left < ROOM_MAX ? left : ROOM_MAX;
    *room = ws->frame_left < most ? (size_t)ws->frame_left : most;
    return ws->message + ws->message_len;
}

uint8_t *ws_take_message(struct ws *ws, const struct ws_item *item)
{
    if (ws->message == NULL || item->data != ws->message || !item->final) {
        return NULL;
    }
    uint8_t *taken = ws->message;
    ws->message = NULL;
    ws->message_cap = 0;
    ws->message_len = 0;
    return taken;
}

/* ---- the walk ------------------------------------------------------------------------------------------------ */

static enum ws_event take_payload(struct ws *ws, struct ws_input *input, struct ws_item *item)
{
    if (ws->opcode >= WS_CLOSE) {
        return take_control(ws, input, item);
    }
    return ws->compressed ? take_compressed(ws, input, item) : take_plain(ws, input, item);
}

/* Most messages are short and lie whole in the input: nothing of such a one needs to be remembered, so the server's side
 * takes it in one step. Whatever else comes, faults included, takes the walk. */
static bool short_message_is_here(const struct ws *ws, const struct ws_input *input)
{
    bool between = !ws->in_frame && ws->head_len == 0 && ws->message_opcode == 0 && !ws->ended;
    if (!between || ws->client || input->len < SHORT_HEAD) {
        return false;
    }
    unsigned opcode = input->data[0] ^ FIN;
    unsigned len = input->data[1] ^ MASKED;
    return (opcode == WS_TEXT || opcode == WS_BINARY) && len < LENGTH_16 && len <= input->len - SHORT_HEAD &&
           !is_over(ws, len);
}

/* With own_messages; NULL: no memory. */
static uint8_t *own_short_message(struct ws *ws, size_t len)
{
    if (ws->message == NULL || ws->message_cap < len) {
        uint8_t *message = realloc(ws->message, len + 1); /* ws_take_message() promises one more */
        if (message == NULL) {
            return NULL;
        }
        ws->message = message;
        ws->message_cap = len;
    }
    ws->message_len = len;
    ws->delivered = true;
    return ws->message;
}

static enum ws_event take_short_message(struct ws *ws, struct ws_input *input, struct ws_item *item)
{
    uint8_t *from = input->data + SHORT_HEAD;
    size_t len = input->data[1] ^ MASKED;
    uint8_t opcode = input->data[0] ^ FIN;
    bool own = ws->settings->own_messages && !ws->settings->parts;
    uint8_t *data = own ? own_short_message(ws, len) : from;
    if (data == NULL) {
        return fail_memory(ws, item);
    }
    ws_mask(data, from, len, input->data + 2);
    use(input, SHORT_HEAD + len);
    if (opcode == WS_TEXT && !ws->settings->any_text && !ws_utf8_is_valid(data, len)) {
        return fail_text(ws, item);
    }
    *item = (struct ws_item){.data = data, .len = len, .opcode = opcode, .first = true, .final = true};
    return WS_EVENT_DATA;
}

enum ws_event ws_receive(struct ws *ws, struct ws_input *input, struct ws_item *item)
{
    if (ws->delivered) {
        ws->delivered = false;
        ws->message_len = 0;
    }
    if (short_message_is_here(ws, input)) {
        return take_short_message(ws, input, item);
    }
    while (!ws->ended) {
        if (!ws->in_frame) {
            if (input->len == 0) {
                return WS_EVENT_NONE;
            }
            const char *fault = read_head(ws, input);
            if (fault != NULL) {
                return fail_protocol(ws, item, fault);
            }
            continue;
        }
        if (input->len == 0 && ws->frame_left > 0 && !ws->inflate_more) {
            /* The limit is known before the bytes come. */
            return !ws->compressed && ws->opcode < WS_CLOSE && is_over(ws, ws->message_total + ws->frame_left)
                       ? fail_too_big(ws, item)
                       : WS_EVENT_NONE;
        }
        enum ws_event event = take_payload(ws, input, item);
        if (event != WS_EVENT_NONE) {
            return event;
        }
    }
    use(input, input->len);
    return WS_EVENT_NONE;
}
