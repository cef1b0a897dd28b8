/* kiln.h: WebSockets. In the blocking form what touches the connection is carried to the loop's thread
 * (context_on_loop, a plain call when it runs there); callbacks are on it anyway. */
#include "endpoint/sdk_ws_client.h"

#include "config/config.h"
#include "endpoint/socket_private.h"
#include "loop/config_hold.h"
#include "observe/log.h"
#include "protocol/rooms.h"

#include <stdio.h>
#include <stdlib.h>

static struct kiln_ws *ws_check(const struct kiln_ws *ws)
{
    return MAGIC_CAST(struct kiln_ws, (void *)(uintptr_t)ws, WEBSOCKET_MAGIC);
}

static struct inbox *inbox_of(const struct kiln_ws *ws)
{
    if (ws_client_of(ws) != NULL) {
        return NULL; /* what belongs to the server's side is KILN_LATE for a client */
    }
    return ws_check(ws)->owner == &socket_inbox_owner ? ws->owner_state : NULL;
}

/* The blocking form before kiln_ws_handle, its handshake accepted; else NULL with *result. */
static struct inbox *open_inbox(const struct kiln_ws *ws, int *result)
{
    struct inbox *inbox = inbox_of(ws);
    if (inbox == NULL || inbox->ctx->closed || inbox->ctx->socket->handler != NULL) {
        *result = KILN_LATE;
        return NULL;
    }
    *result = socket_accept(inbox->ctx);
    return *result == KILN_OK ? inbox : NULL;
}

static int result_of(enum ws_result result)
{
    switch (result) {
    case WS_OK: return KILN_OK;
    case WS_ERROR_ARGUMENT:
    case WS_ERROR_TEXT: return KILN_INVALID;
    case WS_ERROR_CLOSED: return KILN_GONE;
    case WS_ERROR_ORDER: return KILN_LATE;
    case WS_ERROR_MEMORY: return KILN_NO_MEMORY;
    }
    return KILN_FAILED;
}

/* ---- the handshake ------------------------------------------------------------------------------ */

kiln_context *kiln_ws_context(kiln_ws *ws)
{
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_context(client);
    }
    struct inbox *inbox = inbox_of(ws);
    return inbox != NULL ? inbox->ctx : NULL;
}

int kiln_ws_offers(kiln_ws *ws, const char *protocol)
{
    struct inbox *inbox = inbox_of(ws);
    return inbox != NULL && ws_protocol_is_offered(socket_headers(inbox->ctx->req), ws_text(protocol));
}

int kiln_ws_accept(kiln_ws *ws, const char *protocol)
{
    struct inbox *inbox = inbox_of(ws);
    if (inbox == NULL || inbox->ctx->socket->accepted != 1) {
        return KILN_LATE;
    }
    if (protocol != NULL) {
        if (!kiln_ws_offers(ws, protocol)) {
            return KILN_INVALID;
        }
        struct str copy = sdk_copy(inbox->ctx, protocol);
        if (copy.ptr == NULL) {
            return KILN_NO_MEMORY;
        }
        inbox->ctx->socket->protocol = copy.ptr;
    }
    return socket_accept(inbox->ctx);
}

int kiln_ws_refuse(kiln_ws *ws, int status, const char *detail)
{
    struct inbox *inbox = inbox_of(ws);
    if (inbox == NULL || inbox->ctx->socket->accepted != 1) {
        return KILN_LATE;
    }
    if (status < 400 || status > 599) {
        return KILN_INVALID;
    }
    struct context_socket *socket = inbox->ctx->socket;
    socket->detail = detail != NULL ? sdk_copy(inbox->ctx, detail).ptr : NULL;
    socket->refusal = status;
    socket->refused = true;
    return KILN_OK;
}

/* ---- receiving ------------------------------------------------------------------------------------ */

static int receive(kiln_ws *ws, kiln_ws_message *message, int64_t timeout_ms)
{
    *message = (kiln_ws_message){.data = ""};
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_receive(client, message, timeout_ms);
    }
    int result;
    struct inbox *inbox = open_inbox(ws, &result);
    if (inbox == NULL) {
        return result;
    }
    result = inbox_receive(inbox, timeout_ms);
    if (result > 0) {
        message->type = inbox->current.opcode;
        message->data = (const char *)inbox->current.data;
        message->length = inbox->current.len;
    }
    return result;
}

int kiln_ws_recv(kiln_ws *ws, kiln_ws_message *message)
{
    return receive(ws, message, -1);
}

int kiln_ws_recv_timeout(kiln_ws *ws, kiln_ws_message *message, unsigned milliseconds)
{
    return receive(ws, message, milliseconds);
}

ssize_t kiln_ws_read(kiln_ws *ws, void *buffer, size_t size)
{
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_read(client, buffer, size);
    }
    int result;
    struct inbox *inbox = open_inbox(ws, &result);
    if (inbox == NULL || size == 0) {
        return inbox == NULL ? result : KILN_INVALID;
    }
    while (inbox->read_at == inbox->current.len) { /* empty messages are no end */
        result = inbox_receive(inbox, -1);
        if (result <= 0) {
            return result;
        }
    }
    size_t n = inbox->current.len - inbox->read_at;
    n = n < size ? n : size;
    memcpy(buffer, inbox->current.data + inbox->read_at, n);
    inbox->read_at += n;
    return (ssize_t)n;
}

int kiln_ws_deadline(kiln_ws *ws, int64_t milliseconds)
{
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_deadline(client, milliseconds);
    }
    struct inbox *inbox = inbox_of(ws);
    if (inbox == NULL) {
        return KILN_LATE;
    }
    inbox->deadline_ms = milliseconds < 0 ? 0 : loop_now_ms(inbox->ws->loop) + (uint64_t)milliseconds + 1;
    return KILN_OK;
}

/* ---- sending ----------------------------------------------------------------------------------------- */

struct sending {
    struct kiln_ws *ws;
    enum ws_opcode opcode;
    const void *data;
    size_t len;
    bool part;
    bool final;
    enum ws_result result;
    bool high; /* more than enough waits now; only the loop may look */
};

static void send_on_loop(struct kiln_context *ctx, void *arg)
{
    (void)ctx;
    struct sending *s = arg;
    s->result = s->part ? websocket_send_fragment(s->ws, s->opcode, s->data, s->len, s->final)
                        : websocket_send(s->ws, s->opcode, s->data, s->len);
    s->high = websocket_pending(s->ws) > CONTEXT_OUTPUT_HIGH;
}

/* In a callback: never waits, so it is bounded here. The watchdog may never meet it outside of here. */
static bool is_over_queue(struct kiln_ws *ws)
{
    crash_leave_overdue();
    size_t pending = websocket_pending(ws);
    if (pending == 0 || pending <= (size_t)config_hold_current(ws->loop)->web_socket_send_queue) {
        return false;
    }
    websocket_notify_drained(ws);
    return true;
}

static int send_from_callback(struct sending *s)
{
    if (is_over_queue(s->ws)) {
        return KILN_TOO_LARGE;
    }
    send_on_loop(NULL, s);
    return result_of(s->result);
}

static int send_it(struct sending *s)
{
    int result;
    if (ws_check(s->ws)->owner == &socket_handler_owner) {
        return send_from_callback(s);
    }
    struct inbox *inbox = open_inbox(s->ws, &result);
    if (inbox == NULL) {
        return result;
    }
    context_on_loop(inbox->ctx, send_on_loop, s);
    result = result_of(s->result);
    if (result == KILN_OK && s->high) {
        return inbox_drain(inbox);
    }
    context_take_turns(inbox->ctx);
    return result;
}

static bool is_type(int type)
{
    return type == KILN_WS_TEXT || type == KILN_WS_BINARY;
}

int kiln_ws_send(kiln_ws *ws, int type, const void *data, size_t length)
{
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_send(client, type, data, length);
    }
    if (!is_type(type)) {
        return KILN_INVALID;
    }
    if (ws_check(ws)->owner == &socket_handler_owner) { /* of all calls the most frequent */
        return is_over_queue(ws) ? KILN_TOO_LARGE : result_of(websocket_send(ws, (enum ws_opcode)type, data, length));
    }
    struct sending s = {.ws = ws, .opcode = (enum ws_opcode)type, .data = data, .len = length};
    return send_it(&s);
}

int kiln_ws_send_text(kiln_ws *ws, const char *text)
{
    return kiln_ws_send(ws, KILN_WS_TEXT, text, strlen(text));
}

int kiln_ws_write(kiln_ws *ws, const void *data, size_t length)
{
    return kiln_ws_send(ws, KILN_WS_BINARY, data, length);
}

int kiln_ws_send_part(kiln_ws *ws, int type, const void *data, size_t length, int final)
{
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_send_part(client, type, data, length, final != 0);
    }
    struct sending s = {
        .ws = ws, .opcode = (enum ws_opcode)type, .data = data, .len = length, .part = true, .final = final != 0};
    return is_type(type) ? send_it(&s) : KILN_INVALID;
}

int kiln_ws_ping(kiln_ws *ws, const void *data, size_t length)
{
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_ping(client, data, length);
    }
    struct sending s = {.ws = ws, .opcode = WS_PING, .data = data, .len = length};
    return send_it(&s);
}

int kiln_ws_printf(kiln_ws *ws, const char *format, ...)
{
    char small[1024];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (len < 0) {
        return KILN_INVALID;
    }
    if ((size_t)len < sizeof small) {
        return kiln_ws_send(ws, KILN_WS_TEXT, small, (size_t)len);
    }
    char *text = malloc((size_t)len + 1);
    if (text == NULL) {
        return KILN_NO_MEMORY;
    }
    va_start(args, format);
    vsnprintf(text, (size_t)len + 1, format, args);
    va_end(args);
    int result = kiln_ws_send(ws, KILN_WS_TEXT, text, (size_t)len);
    free(text);
    return result;
}

size_t kiln_ws_pending(const kiln_ws *ws)
{
    const struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_pending(client);
    }
    return websocket_pending(ws_check(ws));
}

/* ---- closing -------------------------------------------------------------------------------------------- */

struct closing {
    struct kiln_ws *ws;
    unsigned code;
    const char *reason;
    enum ws_result result;
};

static void close_on_loop(struct kiln_context *ctx, void *arg)
{
    (void)ctx;
    struct closing *c = arg;
    c->result = websocket_close(c->ws, c->code, c->reason, strlen(c->reason));
}

int kiln_ws_close(kiln_ws *ws, int code, const char *reason)
{
    struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_close(client, code, reason);
    }
    int result;
    struct closing c = {.ws = ws, .code = (unsigned)code, .reason = reason != NULL ? reason : ""};
    if (code <= 0 || !ws_close_code_is_valid((unsigned)code)) {
        return KILN_INVALID;
    }
    if (ws_check(ws)->owner == &socket_handler_owner) {
        close_on_loop(NULL, &c);
        return result_of(c.result);
    }
    struct inbox *inbox = open_inbox(ws, &result);
    if (inbox == NULL) {
        return result;
    }
    context_on_loop(inbox->ctx, close_on_loop, &c);
    return result_of(c.result);
}

int kiln_ws_close_code(const kiln_ws *ws)
{
    const struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_close_code(client);
    }
    return ws_check(ws)->close_code;
}

const char *kiln_ws_close_reason(const kiln_ws *ws)
{
    const struct ws_client *client = ws_client_of(ws);
    if (client != NULL) {
        return ws_client_close_reason(client);
    }
    return ws_check(ws)->close_reason != NULL ? ws->close_reason : "";
}

/* ---- callbacks -------------------------------------------------------------------------------------------- */

static void park_on_loop(struct kiln_context *ctx, void *arg)
{
    (void)ctx;
    websocket_park(arg);
}

int kiln_ws_handle(kiln_ws *ws, const kiln_ws_handler *handler, void *user)
{
    struct inbox *inbox = inbox_of(ws);
    if (inbox == NULL || handler == NULL || inbox->ctx->socket->refused) {
        return handler == NULL ? KILN_INVALID : KILN_LATE;
    }
    struct context_socket *socket = inbox->ctx->socket;
    if (socket->handler != NULL) {
        return KILN_LATE;
    }
    int result = socket_accept_for(inbox->ctx, handler);
    if (result == KILN_OK) {
        ws->user = user;
        context_on_loop(inbox->ctx, park_on_loop, ws);
    }
    return result;
}

/* ---- rooms --------------------------------------------------------------------------------------------------- */

struct joining {
    struct kiln_ws *ws;
    struct str room;
    bool leave;
    enum room_result result;
};

static void join_on_loop(struct kiln_context *ctx, void *arg)
{
    (void)ctx;
    struct joining *j = arg;
    j->result = j->leave ? rooms_leave(j->ws, j->room) : rooms_join(j->ws, j->room);
}

static int room_result_of(enum room_result result)
{
    switch (result) {
    case ROOM_OK: return KILN_OK;
    case ROOM_MEMORY: return KILN_NO_MEMORY;
    case ROOM_INVALID: return KILN_INVALID;
    case ROOM_ABSENT: return KILN_NOT_FOUND;
    case ROOM_ELSEWHERE:
        log_error("an isolated endpoint cannot publish to rooms: their WebSockets are in the server's own process; "
                  "do it from an endpoint that Isolate does not name");
        return KILN_FAILED;
    }
    return KILN_FAILED;
}

static int join(kiln_ws *ws, const char *room, bool leave)
{
    if (ws_client_of(ws) != NULL) {
        return KILN_LATE;
    }
    struct joining j = {.ws = ws, .room = str_of(room), .leave = leave};
    struct inbox *inbox = inbox_of(ws);
    if (inbox != NULL) {
        int result = socket_accept(inbox->ctx);
        if (result != KILN_OK) {
            return result;
        }
    }
    if (ws->close_code != 0) {
        return KILN_GONE;
    }
    if (inbox != NULL) {
        context_on_loop(inbox->ctx, join_on_loop, &j);
    } else {
        join_on_loop(NULL, &j);
    }
    return room_result_of(j.result);
}

int kiln_ws_subscribe(kiln_ws *ws, const char *room)
{
    return join(ws, room, false);
}

int kiln_ws_unsubscribe(kiln_ws *ws, const char *room)
{
    return join(ws, room, true);
}

int kiln_ws_publish(kiln_ws *ws, const char *room, int type, const void *data, size_t length)
{
    if (ws_client_of(ws) != NULL) {
        return KILN_LATE;
    }
    crash_leave_overdue();
    return room_result_of(rooms_publish(str_of(room), (enum ws_opcode)type, data, length, ws_check(ws)->id));
}

int kiln_publish(const char *room, int type, const void *data, size_t length)
{
    crash_leave_overdue();
    return room_result_of(rooms_publish(str_of(room), (enum ws_opcode)type, data, length, 0));
}
