#include "endpoint/socket.h"

#include "config/config.h"
#include "endpoint/endpoint.h"
#include "endpoint/sdk.h"
#include "endpoint/socket_private.h"
#include "loop/coroutine.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- the request ------------------------------------------------------------------------------ */

static bool header_at(const void *from, size_t i, struct ws_header *header)
{
    const struct request *req = from;
    if (i >= req->header_count) {
        return false;
    }
    const struct header *h = &req->headers[i];
    *header = (struct ws_header){{h->name.ptr, h->name.len}, {h->value.ptr, h->value.len}};
    return true;
}

struct ws_headers socket_headers(const struct request *req)
{
    return (struct ws_headers){.at = header_at, .from = req};
}

bool socket_is_wanted(const struct request *req)
{
    if (req->tunnel) {
        return true;
    }
    return req->known[HEADER_UPGRADE] != 0 && req->http_major == 1 && req->http_minor >= 1 &&
           req->method == METHOD_GET && req->ops->upgrade != NULL && ws_server_is_upgrade(socket_headers(req));
}

static bool origin_is_allowed(const struct kiln_context *ctx)
{
    enum { MANY = 64 };
    const struct request *req = ctx->req;
    const struct config *config = req->config;
    const char *allowed[MANY];
    size_t count = 0;
    for (size_t i = 0; i < config->web_socket_origins.count && count < MANY; i++) {
        allowed[count++] = config->web_socket_origins.items[i].ptr;
    }
    struct ws_text origin = ws_header_find(socket_headers(req), WS_TEXT_OF("origin"), NULL);
    return ws_origin_is_allowed(origin, (struct ws_text){req->host.ptr, req->host.len}, ctx->secure, allowed, count);
}

static void refuse(struct kiln_context *ctx, int status, const char *detail)
{
    struct request *req = ctx->req;
    metric_add(METRIC_WEBSOCKETS_REFUSED, 1);
    if (status == 426) {
        response_header_set(req, STR("Sec-WebSocket-Version"), STR("13"));
    }
    if (status == 503) {
        response_header_set(req, STR("Retry-After"), STR("5"));
        req->response.close_after = true;
    }
    response_error_text(req, status, detail);
}

/* 0: it may go on. */
static int check(struct kiln_context *ctx, const char **detail)
{
    struct request *req = ctx->req;
    int status = req->tunnel ? ws_server_check_http2(socket_headers(req))
                             : ws_server_check(socket_headers(req), &ctx->socket->key);
    *detail = status == 426 ? "WebSockets of version 13 are spoken here." : "This is no WebSocket handshake.";
    if (status != 0 || (req->body.present && !req->tunnel)) {
        return status != 0 ? status : 400;
    }
    *detail = "WebSockets of pages from other hosts are not accepted (WebSocketOrigins).";
    if (!origin_is_allowed(ctx)) {
        return 403;
    }
    *detail = "The server is about to stop.";
    if (conn_loop_is_shutting_down(req->loop)) {
        return 503;
    }
    *detail = "There are as many WebSockets as are allowed.";
    return websocket_count_take(ctx->socket->ws, req->config) ? 0 : 503;
}

/* ---- accepting ----------------------------------------------------------------------------------- */

static void agree_on_compression(struct kiln_context *ctx, struct ws_deflate *agreed)
{
    struct request *req = ctx->req;
    struct ws_pool *pool = websocket_pool(req->loop);
    bool room = ws_pool_has_room(pool, 15);
    const struct ws_deflate_policy policy = {
        .on = req->config->web_socket_compression, .server_takeover = room, .client_takeover = room};
    char answer[WS_EXTENSION_MAX];
    if (ws_deflate_accept(socket_headers(req), &policy, agreed, answer)) {
        response_header_set(req, STR("Sec-WebSocket-Extensions"), arena_str(&req->arena, str_of(answer)));
    }
}

/* On the loop's thread. The request ends here; its memory stays with the context. */
static void accept_on_loop(struct kiln_context *ctx, void *arg)
{
    (void)arg;
    struct request *req = ctx->req;
    struct context_socket *socket = ctx->socket;
    if (atomic_load(&ctx->gone) || req->gone) {
        socket->accepted = KILN_GONE;
        return;
    }
    struct conn *conn = req->ops->upgrade_conn(req);
    if (conn == NULL) {
        socket->accepted = KILN_NO_MEMORY;
        socket->refusal = 503;
        return;
    }
    struct ws_deflate agreed;
    agree_on_compression(ctx, &agreed);
    if (!req->tunnel) {
        char key[WS_ACCEPT_LENGTH + 1];
        ws_accept_key(socket->key, key);
        response_header_set(req, STR("Upgrade"), STR("websocket"));
        response_header_set(req, STR("Sec-WebSocket-Accept"), arena_str(&req->arena, str_of(key)));
    }
    if (socket->protocol != NULL) {
        response_header_set(req, STR("Sec-WebSocket-Protocol"), str_of(socket->protocol));
    }
    sdk_session_head(ctx);
    req->response.status = req->tunnel ? 200 : 101;
    response_begin(req, req->tunnel ? RESPONSE_LENGTH_UNKNOWN : 0);
    websocket_open(socket->ws, conn, &agreed, socket->handler == NULL);
    if (socket->handler != NULL) {
        websocket_park(socket->ws);
    }
    ctx->finished = true;
    ctx->streaming = true;
    ctx->upgraded = true;
    atomic_store(&ctx->expired, false);
    socket->accepted = KILN_OK;
    req->on_gone = NULL;
    req->on_peer_eof = NULL;
    req->ops->upgrade(req, &protocol_websocket, socket->ws);
}

int socket_accept(struct kiln_context *ctx)
{
    struct context_socket *socket = ctx->socket;
    if (socket->refused) {
        return KILN_LATE;
    }
    if (socket->accepted == 1) {
        context_on_loop(ctx, accept_on_loop, NULL);
    }
    return socket->accepted;
}

int socket_accept_for(struct kiln_context *ctx, const struct kiln_ws_handler *handler)
{
    struct context_socket *socket = ctx->socket;
    if (socket->refused) {
        return KILN_LATE;
    }
    if (socket->accepted == KILN_OK && socket->inbox->count > 0) {
        return KILN_LATE;
    }
    socket->handler = handler;
    int result = socket_accept(ctx);
    if (result != KILN_OK) {
        socket->handler = NULL;
    }
    return result;
}

/* ---- running ---------------------------------------------------------------------------------------- */

void socket_let_module_go(struct kiln_ws *ws)
{
    struct module *module = ws->module;
    if (module != NULL) {
        ws->module = NULL;
        module_release(module, loop_index(ws->loop));
    }
}

static int call_socket(void *arg)
{
    struct kiln_context *ctx = arg;
    module_entry(ctx->module)->socket(ctx->socket->ws, ctx->req->path.ptr);
    return 0;
}

static int run_guarded(struct kiln_context *ctx)
{
    crash_guard_ready(&ctx->guard);
    ctx->guard.text = module_text(ctx->module);
    ctx->guard.lost = context_lost;
    context_slice_begin(ctx, NULL);
    int returned = crash_run(&ctx->guard, call_socket, ctx);
    context_slice_end(ctx);
    if (UNLIKELY(crash_is_child())) {
        _exit(EXIT_FAILURE);
    }
    return returned;
}

/* The answer to a handshake that was not accepted. */
static void answer_refusal(struct kiln_context *ctx, bool crashed)
{
    struct request *req = ctx->req;
    struct context_socket *socket = ctx->socket;
    if (req->gone || req->ended) {
        return;
    }
    int status = crashed ? (crash_is_timeout(&ctx->guard.report) ? 504 : 500) : socket->refusal;
    sdk_session_head(ctx);
    refuse(ctx, status, crashed ? NULL : socket->detail);
}

/* kiln_socket has returned, whatever has become of the socket. On the loop's thread. */
static void ended(struct kiln_context *ctx, bool crashed)
{
    struct request *req = ctx->req;
    struct context_socket *socket = ctx->socket;
    struct kiln_ws *ws = socket->ws;
    if (!crashed && !socket->refused && socket->accepted == 1) {
        socket_accept(ctx); /* it has said nothing: an empty conversation */
    }
    if (socket->accepted != KILN_OK) {
        answer_refusal(ctx, crashed);
    } else if (crashed) {
        websocket_close(ws, WS_CLOSE_INTERNAL, "", 0);
    } else if (socket->handler == NULL) {
        websocket_close(ws, WS_CLOSE_NORMAL, "", 0);
    }
    bool goes_on = !crashed && socket->accepted == KILN_OK && socket->handler != NULL;
    inbox_free(socket->inbox);
    ws->owner = NULL;
    ws->owner_state = NULL;
    if (goes_on) {
        handler_begin(ws, socket->handler);
    } else {
        socket_let_module_go(ws);
        websocket_release(ws);
    }
    context_close(ctx);
    if (!ctx->upgraded) {
        req->on_gone = NULL;
        req->on_peer_eof = NULL;
    }
    buffer_free(&ctx->crash_page);
    request_release(req);
}

static void run_on_loop(void *arg)
{
    struct kiln_context *ctx = arg;
    bool crashed = run_guarded(ctx) == CRASH_CAUGHT;
    if (UNLIKELY(crashed)) {
        char doing[512];
        snprintf(doing, sizeof doing, "in the WebSocket %.*s", STR_ARG(ctx->req->target));
        context_crashed(ctx, doing);
    }
    ended(ctx, crashed);
}

static bool prepare(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    struct context_socket *socket = arena_zalloc(&req->arena, sizeof *socket);
    struct kiln_ws *ws = socket != NULL ? websocket_create(req->loop) : NULL;
    if (ws == NULL) {
        return false;
    }
    socket->ws = ws;
    socket->accepted = 1;
    ctx->socket = socket;
    socket->inbox = inbox_create(ctx, ws);
    if (socket->inbox == NULL) {
        websocket_release(ws);
        return false;
    }
    ws->owner = &socket_inbox_owner;
    ws->owner_state = socket->inbox;
    return true;
}

void socket_run(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    const char *detail = NULL;
    if (!prepare(ctx)) {
        response_error(req, 503);
        return;
    }
    struct kiln_ws *ws = ctx->socket->ws;
    int status = check(ctx, &detail);
    if (status != 0) {
        websocket_release(ws);
        refuse(ctx, status, detail);
        return;
    }
    request_hold(req);
    req->on_gone = context_on_gone;
    req->on_peer_eof = context_on_peer_eof;
    ws->module = ctx->module;
    module_use(ctx->module, loop_index(req->loop)); /* beside the request's own hold: it outlives that */
    context_time_start(ctx);
    if (!coroutine_start(req->loop, run_on_loop, ctx)) {
        log_error("no memory for another coroutine stack; a WebSocket of %.*s gets 503", STR_ARG(req->script_name));
        ctx->socket->refused = true;
        ctx->socket->refusal = 503;
        ended(ctx, false);
    }
}
