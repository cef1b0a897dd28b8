/* DESIGN: the blocking form of a WebSocket: between the loop, where messages arrive, and the coroutine
 * that takes them, stands a small ring of whole messages. A full ring stops the reading of the
 * connection, and TCP the client. Control frames are answered on the loop whatever the coroutine does.
 *
 * Each message is memory of its own (mostly what the core gathered it in, without a copy), freed when
 * the next one is taken. */
#include "endpoint/socket.h"

#include "config/config.h"
#include "endpoint/sdk.h"
#include "endpoint/socket_private.h"

#include <stdlib.h>

/* Of this length it is answered while it is in the cache, and freed before the next connection's is gathered. */
enum { LONG_MESSAGE = 65536 };

struct kiln_context *inbox_context(const struct kiln_ws *ws)
{
    return ws->owner == &socket_inbox_owner ? ((struct inbox *)ws->owner_state)->ctx : NULL;
}

static void timed_out(struct timer *timer)
{
    struct inbox *inbox = CONTAINER_OF(timer, struct inbox, timer);
    inbox->timed_out = true;
    inbox_wake(inbox);
}

struct inbox *inbox_create(struct kiln_context *ctx, struct kiln_ws *ws)
{
    struct inbox *inbox = arena_zalloc(&ctx->req->arena, sizeof *inbox);
    if (inbox != NULL) {
        *inbox = (struct inbox){.ctx = ctx, .ws = ws, .timer.fire = timed_out};
    }
    return inbox;
}

void inbox_free(struct inbox *inbox)
{
    while (inbox->count > 0) {
        free(inbox->ring[inbox->first].data);
        inbox->first = (inbox->first + 1) % INBOX_SLOTS;
        inbox->count--;
    }
    free(inbox->current.data);
    inbox->current.data = NULL;
    timer_stop(inbox->ws->loop, &inbox->timer);
}

void inbox_wake(struct inbox *inbox)
{
    if (inbox->waiting != INBOX_RUNS) {
        inbox->waiting = INBOX_RUNS;
        timer_stop(inbox->ws->loop, &inbox->timer);
        context_wake(inbox->ctx);
    }
}

/* ---- from the loop ----------------------------------------------------------------------------- */

static bool on_message(struct kiln_ws *ws, const struct ws_item *item)
{
    struct inbox *inbox = ws->owner_state;
    uint8_t *data = websocket_keep(ws, item);
    if (data == NULL) {
        websocket_close(ws, WS_CLOSE_INTERNAL, "out of memory", 13);
        return true;
    }
    CHECK(inbox->count < INBOX_SLOTS);
    unsigned at = (inbox->first + inbox->count) % INBOX_SLOTS;
    inbox->ring[at] = (struct inbox_message){data, item->len, item->opcode};
    inbox->count++;
    inbox->bytes += item->len;
    if (inbox->waiting == INBOX_RECEIVES) {
        inbox_wake(inbox);
        if (item->len >= LONG_MESSAGE) {
            loop_hurry(ws->loop);
        }
    }
    return inbox->count < INBOX_SLOTS && inbox->bytes < INBOX_BYTES;
}

static void on_drained(struct kiln_ws *ws)
{
    struct inbox *inbox = ws->owner_state;
    if (inbox->waiting == INBOX_SENDS) {
        inbox_wake(inbox);
    }
}

/* What the endpoint has received it may still answer. */
static bool on_ending(struct kiln_ws *ws)
{
    struct inbox *inbox = ws->owner_state;
    inbox->ending = true;
    if (inbox->waiting == INBOX_RECEIVES && inbox->count == 0) {
        return true;
    }
    context_on_peer_eof(inbox->ctx->req); /* other waits than for the client itself */
    return false;
}

static void on_closed(struct kiln_ws *ws)
{
    struct inbox *inbox = ws->owner_state;
    if (inbox->waiting != INBOX_RUNS) {
        inbox_wake(inbox);
    }
    context_on_gone(inbox->ctx->req); /* whatever else the endpoint waits for */
}

const struct ws_owner socket_inbox_owner = {.name = "blocking",
                                            .on_message = on_message,
                                            .on_drained = on_drained,
                                            .on_ending = on_ending,
                                            .on_closed = on_closed};

/* ---- from the coroutine ---------------------------------------------------------------------------- */

void inbox_take(struct kiln_context *ctx, void *arg)
{
    struct inbox *inbox = arg;
    (void)ctx;
    free(inbox->current.data);
    inbox->current = (struct inbox_message){0};
    inbox->read_at = 0;
    if (inbox->count == 0) {
        return;
    }
    inbox->current = inbox->ring[inbox->first];
    inbox->first = (inbox->first + 1) % INBOX_SLOTS;
    inbox->count--;
    inbox->bytes -= inbox->current.len;
    if (inbox->count == 0) {
        websocket_resume(inbox->ws);
    }
}

static void cancel(struct kiln_context *ctx)
{
    inbox_wake(ctx->socket->inbox);
}

static void begin_wait(struct inbox *inbox, enum inbox_wait what)
{
    inbox->waiting = what;
    if (inbox->wait_ms >= 0) {
        timer_start(inbox->ws->loop, &inbox->timer, (uint64_t)inbox->wait_ms);
    }
}

static void start_receiving(struct kiln_context *ctx, void *arg)
{
    struct inbox *inbox = arg;
    if (inbox->count > 0 || inbox->ending || inbox->ws->close_code != 0) {
        context_wake(ctx);
        return;
    }
    begin_wait(inbox, INBOX_RECEIVES);
}

static void start_draining(struct kiln_context *ctx, void *arg)
{
    struct inbox *inbox = arg;
    if (websocket_pending(inbox->ws) <= CONTEXT_OUTPUT_HIGH) {
        context_wake(ctx);
        return;
    }
    begin_wait(inbox, INBOX_SENDS);
    websocket_notify_drained(inbox->ws);
}

/* How long the next wait may last: the least of what was asked for and the socket's deadline. */
static void set_wait(struct inbox *inbox, int64_t timeout_ms)
{
    int64_t wait = timeout_ms < 0 ? -1 : timeout_ms;
    if (inbox->deadline_ms != 0) {
        int64_t left = (int64_t)(inbox->deadline_ms - loop_now_ms(inbox->ws->loop));
        left = left > 0 ? left : 0;
        wait = wait < 0 || left < wait ? left : wait;
    }
    inbox->wait_ms = wait;
    inbox->timed_out = false;
}

static void end_on_loop(struct kiln_context *ctx, void *arg)
{
    (void)ctx;
    websocket_end(((struct inbox *)arg)->ws);
}

int inbox_receive(struct inbox *inbox, int64_t timeout_ms)
{
    struct kiln_context *ctx = inbox->ctx;
    for (;;) {
        context_on_loop(ctx, inbox_take, inbox);
        if (inbox->current.data != NULL) {
            return 1;
        }
        if (inbox->ending) {
            context_on_loop(ctx, end_on_loop, inbox);
        }
        if (inbox->ws->close_code != 0) {
            return 0;
        }
        set_wait(inbox, timeout_ms);
        context_wait(ctx, start_receiving, cancel, inbox);
        if (inbox->timed_out && inbox->count == 0) {
            return KILN_TIMEOUT;
        }
        if (inbox->count == 0 && inbox->ws->close_code == 0 && atomic_load(&ctx->gone)) {
            return KILN_GONE;
        }
    }
}

int inbox_drain(struct inbox *inbox)
{
    struct kiln_context *ctx = inbox->ctx;
    set_wait(inbox, -1);
    context_wait(ctx, start_draining, cancel, inbox);
    if (inbox->timed_out) {
        return KILN_TIMEOUT;
    }
    return inbox->ws->close_code != 0 ? KILN_GONE : KILN_OK;
}
