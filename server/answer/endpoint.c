/* DESIGN: the answer that runs an endpoint: finds its current build (waits while one is being
 * made), runs kiln_run as a coroutine of this loop or on the pool, completes the response.
 * The context holds the request and the module until kiln_run has returned, whatever the
 * client does meanwhile. */
#include "answer/answer.h"
#include "config/config.h"
#include "endpoint/context.h"
#include "endpoint/home.h"
#include "endpoint/pace.h"
#include "endpoint/socket.h"
#include "endpoint/watchdog.h"
#include "loop/coroutine.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "route/site_index.h"

#include <kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void acquire_and_run(struct kiln_context *ctx);
static void answer_crash(struct kiln_context *ctx);

/* ---- running ------------------------------------------------------------------------------ */

/* kiln_run has returned; the request's last holder may be us. */
static void run_ended(struct kiln_context *ctx, int returned)
{
    struct request *req = ctx->req;
    if (UNLIKELY(req->arena.limited)) {
        metric_add(METRIC_REQUEST_MEMORY_LIMITS, 1);
        log_error("%s needed more memory than RequestMemoryLimit (%lld bytes) answering %.*s %.*s",
                  endpoint_file(ctx->endpoint).ptr, (long long)req->config->request_memory_limit,
                  STR_ARG(req->method_text), STR_ARG(req->target));
    }
    if (UNLIKELY(returned == CRASH_CAUGHT)) {
        answer_crash(ctx);
    } else {
        context_finish(ctx, returned);
    }
    context_close(ctx);
    req->on_gone = NULL;
    req->on_peer_eof = NULL;
    request_release(req);
}

/* Runs after everything that the endpoint deferred, whose code is in the module. */
static void let_module_go(void *arg)
{
    struct kiln_context *ctx = arg;
    module_release(ctx->module, loop_index(ctx->req->loop));
}

static int call_run(void *arg)
{
    struct kiln_context *ctx = arg;
    int returned = module_entry(ctx->module)->run(ctx, ctx->req->path.ptr);
    return returned == CRASH_CAUGHT ? KILN_FAILED : returned;
}

/* The endpoint's code, and what follows from how it ended on the same thread. */
static int run_guarded(struct kiln_context *ctx)
{
    crash_guard_ready(&ctx->guard);
    ctx->guard.text = module_text(ctx->module);
    ctx->guard.lost = context_lost;
    context_slice_begin(ctx, NULL);
    int returned = crash_run(&ctx->guard, call_run, ctx);
    context_slice_end(ctx);
    if (UNLIKELY(crash_is_child())) {
        _exit(EXIT_FAILURE); /* of a fork() in the endpoint: this is no server */
    }
    return returned;
}

COLD static void note_crash(struct kiln_context *ctx)
{
    char doing[512];
    snprintf(doing, sizeof doing, "answering %.*s %.*s", STR_ARG(ctx->req->method_text), STR_ARG(ctx->req->target));
    context_crashed(ctx, doing);
}

static void run_on_loop(void *arg)
{
    struct kiln_context *ctx = arg;
    int returned = run_guarded(ctx);
    if (UNLIKELY(returned == CRASH_CAUGHT)) {
        note_crash(ctx);
    }
    run_ended(ctx, returned);
}

static void finish_from_pool(struct task *task)
{
    struct kiln_context *ctx = CONTAINER_OF(task, struct kiln_context, finish_task);
    ctx->on_pool = false;
    ctx->pooled = false;
    timer_stop(ctx->req->loop, &ctx->timer);
    run_ended(ctx, ctx->returned);
}

static void run_on_pool(struct pool_job *job)
{
    struct kiln_context *ctx = CONTAINER_OF(job, struct kiln_context, job);
    if (atomic_load(&ctx->gone)) {
        ctx->returned = KILN_GONE; /* while it waited for a thread */
    } else {
        ctx->returned = run_guarded(ctx);
    }
    if (ctx->returned == CRASH_CAUGHT) {
        note_crash(ctx);
    }
    loop_post(ctx->req->loop, &ctx->finish_task);
}

void endpoint_start_here(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    if (!arena_defer(&req->arena, let_module_go, ctx)) {
        module_release(ctx->module, loop_index(req->loop));
        response_error(req, 503);
        return;
    }
    if (UNLIKELY(req->known[HEADER_UPGRADE] != 0 || req->tunnel) && module_entry(ctx->module)->socket != NULL &&
        socket_is_wanted(req)) {
        socket_run(ctx);
        return;
    }
    if (UNLIKELY(req->tunnel)) {
        response_error_text(req, 400, answer_no_websocket);
        return;
    }
    if (UNLIKELY(module_entry(ctx->module)->run == NULL)) {
        response_header_set(req, STR("Upgrade"), STR("websocket"));
        response_error_text(req, 426, "This address speaks WebSocket only.");
        return;
    }
    request_hold(req);
    req->on_gone = context_on_gone;
    req->on_peer_eof = context_on_peer_eof;
    ctx->pooled = endpoint_wants_pool(ctx->endpoint);
    context_time_start(ctx);
    if (ctx->pooled) {
        ctx->on_pool = true;
        metric_add(METRIC_REQUESTS_OFFLOADED, 1);
        ctx->job.run = run_on_pool;
        ctx->finish_task.run = finish_from_pool;
        pool_submit_endpoint(&ctx->job);
        return;
    }
    if (!coroutine_start(req->loop, run_on_loop, ctx)) {
        log_error("no memory for another coroutine stack; %.*s gets 503", STR_ARG(req->script_name));
        req->on_gone = NULL;
        req->on_peer_eof = NULL;
        response_error(req, 503);
        request_release(req);
    }
}

/* ---- waiting for a build -------------------------------------------------------------------- */

static void wait_over(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    struct endpoint *endpoint = ctx->endpoint;
    req->on_gone = NULL;
    if (!req->gone) {
        acquire_and_run(ctx);
    }
    request_release(req);
    endpoint_unref(endpoint);
}

static void on_built(struct task *task)
{
    struct endpoint_waiter *waiter = CONTAINER_OF(task, struct endpoint_waiter, task);
    wait_over(CONTAINER_OF(waiter, struct kiln_context, build_waiter));
}

static void gone_while_building(struct request *req)
{
    struct kiln_context *ctx = context_check(req->answer_state);
    if (endpoint_wait_cancel(ctx->endpoint, &ctx->build_waiter)) {
        wait_over(ctx);
    }
}

/* ---- errors ------------------------------------------------------------------------------------ */

static void send_page(struct request *req, int status, const struct buffer *html)
{
    req->response.status = (uint16_t)status;
    req->response.header_count = 0; /* what the endpoint had set is not meant for this page */
    req->response.content_type = STR("text/html; charset=utf-8");
    response_header_set(req, STR("Cache-Control"), STR("no-store"));
    response_send(req, html->data, html->len);
}

COLD static void answer_build_error(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    if (!req->config->debug_pages) {
        response_error(req, 500);
        return;
    }
    struct buffer html = BUFFER_EMPTY;
    endpoint_error_page(ctx->endpoint, &html);
    if (html.failed || html.len == 0) {
        response_error(req, 500);
    } else {
        send_page(req, 500, &html);
    }
    buffer_free(&html);
}

/* The request gets its 500, or its connection an end when the head has left. */
COLD static void answer_crash(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    struct buffer *page = &ctx->crash_page;
    int status = crash_is_timeout(&ctx->guard.report) ? 504 : 500;
    if (!req->gone && !ctx->finished) {
        if (ctx->streaming || page->failed || page->len == 0) {
            req->response.header_count = 0;
            response_error(req, status);
        } else {
            send_page(req, status, page);
        }
    }
    buffer_free(page);
}

/* ---- the answer ----------------------------------------------------------------------------------- */

/* Not run for a while; a build error of its new version is what its author wants to see. */
COLD static void answer_quarantine(struct kiln_context *ctx, unsigned seconds)
{
    struct request *req = ctx->req;
    metric_add(METRIC_REQUESTS_QUARANTINED, 1);
    endpoint_refused(ctx->endpoint);
    if (req->config->debug_pages && endpoint_has_failed(ctx->endpoint)) {
        answer_build_error(ctx);
        return;
    }
    const char *text = arena_printf(&req->arena, "%u", seconds);
    if (text != NULL) {
        response_header_set(req, STR("Retry-After"), str_of(text));
    }
    response_error_text(req, 503, "It crashed repeatedly and is not run for a while.");
}

static void acquire_and_run(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    unsigned quarantined = endpoint_quarantined(ctx->endpoint);
    if (UNLIKELY(quarantined > 0)) {
        answer_quarantine(ctx, quarantined);
        return;
    }
    switch (endpoint_acquire(ctx->endpoint, loop_index(req->loop), &ctx->module, &ctx->build_waiter)) {
    case ENDPOINT_READY: module_entry(ctx->module)->home->start(ctx); break;
    case ENDPOINT_BUILDING:
        endpoint_ref(ctx->endpoint);
        request_hold(req);
        req->on_gone = gone_while_building;
        break;
    case ENDPOINT_FAILED: answer_build_error(ctx); break;
    }
}

static void start(struct request *req)
{
    struct kiln_context *ctx = arena_zalloc(&req->arena, sizeof *ctx);
    /* Endpoints get C strings; a path with a query behind it does not end with NUL. */
    if (ctx != NULL && req->path.ptr[req->path.len] != '\0') {
        req->path = arena_str(&req->arena, req->path);
    }
    if (ctx == NULL || req->path.ptr == NULL) {
        response_error(req, 503);
        return;
    }
    ctx->magic = CONTEXT_MAGIC;
    ctx->req = req;
    ctx->endpoint = req->node->endpoint;
    ctx->status = 200;
    ctx->secure = req->conn->transport->secure;
    ctx->build_waiter.task.run = on_built;
    ctx->build_waiter.loop = req->loop;
    req->answer_state = ctx;
    acquire_and_run(ctx);
}

const struct answer answer_endpoint = {.name = "endpoint", .allow = NULL, .tunnels = true, .start = start};
