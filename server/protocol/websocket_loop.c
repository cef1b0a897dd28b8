/* What is done for all WebSockets of a loop together: the compression contexts, the limits, and one
 * timer that looks at the longest silent of them; see websocket.h. */
#include "config/config.h"
#include "endpoint/loader.h"
#include "loop/config_hold.h"
#include "protocol/rooms.h"
#include "protocol/websocket_private.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    TICK_MS = 1000,
    DRAIN_GRACE_MS = 2000, /* for close frames to be exchanged before the time to drain is over */
};

struct loop_sockets {
    struct loop *loop;
    struct list sockets; /* longest silent first */
    struct timer tick;
    struct ws_pool *pool;
    struct ws_settings in_place; /* for callbacks */
    struct ws_settings own; /* for coroutines */
};

static _Atomic uint64_t drain_until_ms; /* 0: no drain */
static _Atomic unsigned drain_code;

/* ---- of a loop ------------------------------------------------------------------------------- */

static void tick(struct timer *timer);

static struct loop_sockets *sockets_of(struct loop *loop)
{
    struct loop_sockets *sockets = loop_slot(loop, LOOP_SLOT_WEBSOCKETS);
    if (sockets == NULL) {
        const struct ws_pool_options options = {.level = 4}; /* the budget: websocket_pool() */
        sockets = calloc(1, sizeof *sockets);
        CHECK(sockets != NULL);
        sockets->loop = loop;
        list_init(&sockets->sockets);
        sockets->tick.fire = tick;
        sockets->pool = ws_pool_create(&options);
        CHECK(sockets->pool != NULL);
        loop_slot_set(loop, LOOP_SLOT_WEBSOCKETS, sockets);
    }
    return sockets;
}

struct ws_pool *websocket_pool(struct loop *loop)
{
    struct ws_pool *pool = sockets_of(loop)->pool;
    ws_pool_budget(pool, (size_t)config_hold_current(loop)->web_socket_compression_memory);
    return pool;
}

void websocket_loop_free(struct loop *loop)
{
    struct loop_sockets *sockets = loop_slot(loop, LOOP_SLOT_WEBSOCKETS);
    if (sockets != NULL) {
        timer_stop(loop, &sockets->tick);
        rooms_loop_free(loop);
        ws_pool_free(sockets->pool);
        free(sockets);
        loop_slot_set(loop, LOOP_SLOT_WEBSOCKETS, NULL);
    }
}

void websocket_each(struct loop *loop, void (*fn)(struct kiln_ws *, void *), void *arg)
{
    LIST_EACH(node, &sockets_of(loop)->sockets) {
        fn(LIST_ENTRY(node, struct kiln_ws, node), arg);
    }
}

/* The limits of the newest config hold for all sockets of the loop. */
const struct ws_settings *websocket_settings(struct loop *loop, bool own_messages)
{
    struct loop_sockets *sockets = sockets_of(loop);
    const struct config *config = config_hold_current(loop);
    sockets->in_place.max_message = (uint64_t)config->web_socket_max_message;
    sockets->in_place.compress_from = (size_t)config->web_socket_compress_min;
    sockets->own = sockets->in_place;
    sockets->own.own_messages = true;
    return own_messages ? &sockets->own : &sockets->in_place;
}

void websocket_watch(struct kiln_ws *ws)
{
    struct loop_sockets *sockets = sockets_of(ws->loop);
    ws->active_s = websocket_now_s(ws);
    list_append(&sockets->sockets, &ws->node);
    if (!timer_is_running(&sockets->tick)) {
        timer_start(ws->loop, &sockets->tick, TICK_MS);
    }
}

/* ---- silence ---------------------------------------------------------------------------------- */

void websocket_end_if_idle(struct kiln_ws *ws)
{
    static const char why[] = "no message for too long";
    double limit = config_hold_current(ws->loop)->web_socket_timeout;
    if (limit > 0 && websocket_now_s(ws) - ws->message_s >= limit) {
        websocket_close(ws, WS_CLOSE_GOING_AWAY, why, sizeof why - 1);
    }
}

static void ping(struct kiln_ws *ws)
{
    struct ws_frame frame;
    ws->pinged = true;
    if (ws_frame_make(&ws->core, &frame, WS_PING, "", 0) == WS_OK) {
        websocket_put(ws, &frame);
    }
}

/* Half of WebSocketEndpointTimeout has passed without a byte of it. */
static void look_at_silent(struct kiln_ws *ws, bool too_long)
{
    if (!ws->pinged) {
        ping(ws);
    } else if (too_long && conn_pending(ws->conn) > 0) {
        websocket_abort(ws); /* it neither sends nor takes what it is sent */
    } else if (too_long && !ws->conn->read_paused) {
        static const char why[] = "no sign of life";
        if (websocket_close(ws, WS_CLOSE_GOING_AWAY, why, sizeof why - 1) == WS_OK) {
            conn_deadline_set(ws->conn, loop_now_ms(ws->loop) + 1);
        }
    }
}

/* True: it has been silent for less than would be noticed, and so have all behind it. */
static bool is_lively(struct kiln_ws *ws, uint32_t now)
{
    const struct config *config = config_hold_current(ws->loop);
    double limit = config->web_socket_endpoint_timeout;
    double idle = config->web_socket_timeout;
    double notice = limit > 0 ? limit / 2 : idle;
    double silent = now - ws->active_s;
    if (idle > 0 && silent >= idle) {
        websocket_end_if_idle(ws);
    } else if (notice <= 0 || silent < notice) {
        return true;
    }
    if (limit > 0 && silent >= notice) {
        look_at_silent(ws, silent >= limit);
    }
    return false;
}

/* ---- the end of an endpoint, of the server -------------------------------------------------------- */

static void drain_socket(struct kiln_ws *ws, void *arg)
{
    (void)arg;
    unsigned code = atomic_load(&drain_code);
    const char *why = code == WS_CLOSE_RESTART ? "the server restarts" : "the server stops";
    websocket_close(ws, code, why, strlen(why));
}

static void close_if_replaced(struct kiln_ws *ws, void *arg)
{
    (void)arg;
    if (ws->module != NULL && module_is_replaced(ws->module)) {
        static const char why[] = "the endpoint has changed";
        websocket_close(ws, WS_CLOSE_RESTART, why, sizeof why - 1);
    }
}

static void tick(struct timer *timer)
{
    struct loop_sockets *sockets = CONTAINER_OF(timer, struct loop_sockets, tick);
    struct loop *loop = sockets->loop;
    uint64_t now = loop_now_ms(loop);
    uint64_t until = atomic_load(&drain_until_ms);
    if (until != 0 && now + DRAIN_GRACE_MS >= until) {
        websocket_each(loop, drain_socket, NULL);
    }
    if (config_hold_current(loop)->web_socket_close_on_change) {
        websocket_each(loop, close_if_replaced, NULL);
    }
    LIST_EACH(node, &sockets->sockets) {
        if (is_lively(LIST_ENTRY(node, struct kiln_ws, node), (uint32_t)(now / 1000))) {
            break;
        }
    }
    if (!list_is_empty(&sockets->sockets)) {
        timer_start(loop, timer, TICK_MS);
    }
}

void websocket_drain(uint64_t until_ms, unsigned code)
{
    atomic_store(&drain_code, code);
    atomic_store(&drain_until_ms, until_ms);
}

void websocket_drain_if_due(struct kiln_ws *ws)
{
    if (loop_now_ms(ws->loop) + DRAIN_GRACE_MS >= atomic_load(&drain_until_ms)) {
        drain_socket(ws, NULL);
    }
}
