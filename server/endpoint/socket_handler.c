/* DESIGN: the callback form of a WebSocket: no stack, no context, no request. Each callback is the endpoint's
 * code on the loop's own stack, under the crash guard of this thread and the watchdog. Nothing that a
 * callback may call enters another one: what ends a socket is told from the loop. After a crash no
 * callback of that socket runs again. */
#include "endpoint/context.h"
#include "endpoint/endpoint.h"
#include "endpoint/pace.h"
#include "endpoint/socket.h"
#include "endpoint/watchdog.h"

#define KILN_NO_STAMP
#include <kiln.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local struct crash_guard callback_guard;

struct call {
    struct kiln_ws *ws;
    const kiln_ws_handler *handler;
    const kiln_ws_message *message;
};

static int call_open(void *arg)
{
    const struct call *call = arg;
    call->handler->open(call->ws, call->ws->user);
    return 0;
}

static int call_message(void *arg)
{
    const struct call *call = arg;
    call->handler->message(call->ws, call->message, call->ws->user);
    return 0;
}

static int call_drain(void *arg)
{
    const struct call *call = arg;
    call->handler->drain(call->ws, call->ws->user);
    return 0;
}

static int call_close(void *arg)
{
    const struct call *call = arg;
    const struct kiln_ws *ws = call->ws;
    call->handler->close(call->ws, ws->close_code, ws->close_reason != NULL ? ws->close_reason : "", ws->user);
    return 0;
}

static void crashed(struct kiln_ws *ws)
{
    /* What context_crashed_late() looks at. */
    struct kiln_context ctx = {
        .magic = CONTEXT_MAGIC, .endpoint = module_endpoint(ws->module), .module = ws->module, .guard = callback_guard};
    context_crashed_late(&ctx, "in a callback of a WebSocket");
    ws->owner_state = NULL;
    websocket_close(ws, WS_CLOSE_INTERNAL, "", 0);
}

static void run(struct kiln_ws *ws, int (*fn)(void *), const kiln_ws_message *message)
{
    struct call call = {ws, ws->owner_state, message};
    struct endpoint *endpoint = module_endpoint(ws->module);
    uint64_t ms = endpoint_timeout_ms(endpoint);
    crash_guard_ready(&callback_guard);
    callback_guard.text = module_text(ws->module);
    watchdog_enter(endpoint, ms > 0 ? pace_ticks() + ms * pace_ticks_per_ms : WATCHDOG_NEVER);
    int returned = crash_run(&callback_guard, fn, &call);
    watchdog_leave();
    if (UNLIKELY(crash_is_child())) {
        _exit(EXIT_FAILURE);
    }
    if (UNLIKELY(returned == CRASH_CAUGHT)) {
        crashed(ws);
    }
}

static bool on_message(struct kiln_ws *ws, const struct ws_item *item)
{
    const kiln_ws_handler *handler = ws->owner_state;
    if (handler != NULL && handler->message != NULL) {
        const kiln_ws_message message = {.type = item->opcode, .data = (const char *)item->data, .length = item->len};
        run(ws, call_message, &message);
    }
    return true;
}

static void on_drained(struct kiln_ws *ws)
{
    const kiln_ws_handler *handler = ws->owner_state;
    if (handler != NULL && handler->drain != NULL) {
        run(ws, call_drain, NULL);
    }
}

static bool on_ending(struct kiln_ws *ws)
{
    (void)ws;
    return true;
}

/* Also told from within websocket_close() of a callback when the peer has gone: so not at once. */
static void close_now(struct task *task)
{
    struct kiln_ws *ws = CONTAINER_OF(task, struct kiln_ws, close_task);
    const kiln_ws_handler *handler = ws->owner_state;
    if (handler != NULL && handler->close != NULL) {
        run(ws, call_close, NULL);
    }
    socket_let_module_go(ws);
    websocket_release(ws);
}

static void on_closed(struct kiln_ws *ws)
{
    ws->close_task.run = close_now;
    loop_defer(ws->loop, &ws->close_task);
}

const struct ws_owner socket_handler_owner = {.name = "callbacks",
                                              .on_message = on_message,
                                              .on_drained = on_drained,
                                              .on_ending = on_ending,
                                              .on_closed = on_closed};

void handler_begin(struct kiln_ws *ws, const struct kiln_ws_handler *handler)
{
    ws->owner = &socket_handler_owner;
    ws->owner_state = (void *)(uintptr_t)handler;
    if (handler->open != NULL) {
        run(ws, call_open, NULL);
    }
    if (ws->close_code != 0) {
        on_closed(ws); /* it was closed while kiln_socket ran, when nobody could be told */
    } else {
        websocket_unpark(ws);
    }
}
