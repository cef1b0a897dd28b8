#include "endpoint/context.h"

#include "endpoint/crash_report.h"
#include "endpoint/pace.h"
#include "endpoint/sdk.h"
#include "endpoint/watchdog.h"
#include "config/config.h"
#include "loop/coroutine.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "supervisor/worker_loops.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct kiln_context *context_check(const struct kiln_context *ctx)
{
    return MAGIC_CAST(struct kiln_context, (void *)(uintptr_t)ctx, CONTEXT_MAGIC);
}

struct kiln_context *context_current(void)
{
    struct crash_guard *guard = crash_guard_now;
    if (guard == NULL) {
        return NULL;
    }
    return guard->lost == context_lost ? CONTAINER_OF(guard, struct kiln_context, guard) : sdk_offload_context(guard);
}

/* ---- crossing to the loop ------------------------------------------------------------------- */

struct crossing {
    struct task task;
    struct kiln_context *ctx;
    void (*fn)(struct kiln_context *ctx, void *arg);
    void *arg;
    struct waiter waiter;
};

static void crossing_run(struct task *task)
{
    struct crossing *crossing = CONTAINER_OF(task, struct crossing, task);
    crossing->fn(crossing->ctx, crossing->arg);
    waiter_wake(&crossing->waiter);
}

/* In a child that an endpoint forked: the loop is its parent's. */
static void leave_child(void)
{
    if (UNLIKELY(crash_is_child())) {
        _exit(EXIT_FAILURE);
    }
}

void context_on_loop(struct kiln_context *ctx, void (*fn)(struct kiln_context *, void *), void *arg)
{
    leave_child();
    crash_leave_overdue();
    /* Inside the server's own bookkeeping a fault is the server's. */
    struct crash_guard *guard = crash_guard_now;
    crash_guard_now = NULL;
    if (!ctx->on_pool) {
        fn(ctx, arg);
    } else {
        struct crossing crossing = {.task.run = crossing_run, .ctx = ctx, .fn = fn, .arg = arg};
        waiter_init(&crossing.waiter, ctx->req->loop);
        loop_post(ctx->req->loop, &crossing.task);
        waiter_wait(&crossing.waiter);
    }
    crash_guard_now = guard;
    /* Code that is in here nearly all its time is never met by the watchdog's signal outside. */
    if (guard != NULL && watchdog_is_over()) {
        guard->overdue = true;
    }
}

static uint64_t context_ms_left(const struct kiln_context *ctx)
{
    uint64_t now = pace_ticks();
    return ctx->deadline > now ? (ctx->deadline - now) / pace_ticks_per_ms + 1 : 0;
}

struct wait_start {
    struct task task;
    struct kiln_context *ctx;
    void (*start)(struct kiln_context *ctx, void *arg);
    void (*cancel)(struct kiln_context *ctx);
    void *arg;
    struct waiter waiter;
};

static void wait_begin(struct task *task)
{
    struct wait_start *wait = CONTAINER_OF(task, struct wait_start, task);
    struct kiln_context *ctx = wait->ctx;
    CHECK(ctx->waiting == NULL);
    ctx->waiting = &wait->waiter;
    if (wait->cancel != NULL && (atomic_load(&ctx->gone) || atomic_load(&ctx->expired))) {
        context_wake(ctx);
        return;
    }
    ctx->cancel = wait->cancel;
    if (wait->cancel != NULL && ctx->deadline != WATCHDOG_NEVER && !ctx->upgraded && !timer_is_running(&ctx->timer)) {
        timer_start(ctx->req->loop, &ctx->timer, context_ms_left(ctx));
    }
    wait->start(ctx, wait->arg);
}

void context_wait(struct kiln_context *ctx, void (*start)(struct kiln_context *, void *),
                  void (*cancel)(struct kiln_context *), void *arg)
{
    struct wait_start wait = {.task.run = wait_begin, .ctx = ctx, .start = start, .cancel = cancel, .arg = arg};
    crash_leave_overdue();
    waiter_init(&wait.waiter, ctx->req->loop);
    struct crash_guard *guard = context_slice_end(ctx);
    if (ctx->on_pool) {
        loop_post(ctx->req->loop, &wait.task);
    } else {
        wait_begin(&wait.task);
    }
    waiter_wait(&wait.waiter);
    context_slice_begin(ctx, guard);
}

struct crash_guard *context_slice_end(struct kiln_context *ctx)
{
    leave_child();
    struct crash_guard *guard = crash_guard_now;
    crash_guard_now = NULL;
    watchdog_leave();
    if (!ctx->on_pool) {
        pace_end(ctx->endpoint, ctx->slice_began, loop_now_ms(ctx->req->loop));
    } else if (ctx->on_trial) {
        pace_trial_end(ctx->endpoint, ctx->slice_began, ctx->run_delay);
    }
    return guard;
}

void context_slice_begin(struct kiln_context *ctx, struct crash_guard *guard)
{
    ctx->slice_began = pace_ticks();
    if (ctx->upgraded && ctx->deadline != WATCHDOG_NEVER) {
        ctx->deadline = ctx->slice_began + endpoint_timeout_ms(ctx->endpoint) * pace_ticks_per_ms;
    }
    if (ctx->on_pool) {
        ctx->on_trial = endpoint_is_on_trial(ctx->endpoint);
        ctx->run_delay = ctx->on_trial ? pace_run_delay() : 0;
    }
    watchdog_enter(ctx->endpoint, ctx->deadline);
    crash_guard_now = guard;
}

void context_wake(struct kiln_context *ctx)
{
    struct waiter *waiter = ctx->waiting;
    CHECK(waiter != NULL);
    ctx->waiting = NULL;
    ctx->cancel = NULL;
    if (!ctx->pooled) {
        timer_stop(ctx->req->loop, &ctx->timer);
    }
    waiter_wake(waiter);
}

/* ---- crashes ---------------------------------------------------------------------------------------- */

/* Finding the words for a crash, on a thread that may be slow. */
struct explanation {
    struct pool_job job;
    struct crash_report report;
    struct crash_scene scene;
    struct buffer *page; /* NULL: none is wanted */
    struct waiter *waiter; /* NULL: nobody waits */
    char doing[];
};

static void explain(struct explanation *x)
{
    crash_explain(&x->scene, x->page, NULL);
    crash_report_done(&x->report);
    endpoint_unref(x->scene.endpoint);
    free(x);
}

static void explain_on_pool(struct pool_job *job)
{
    struct explanation *x = CONTAINER_OF(job, struct explanation, job);
    struct waiter *waiter = x->waiter;
    explain(x);
    if (waiter != NULL) {
        waiter_wake_remote(waiter);
    }
}

static struct explanation *explanation_create(struct kiln_context *ctx, const char *doing)
{
    size_t len = strlen(doing);
    struct explanation *x = calloc(1, sizeof *x + len + 1);
    if (x == NULL) {
        crash_report_done(&ctx->guard.report);
        return NULL;
    }
    memcpy(x->doing, doing, len + 1);
    x->report = ctx->guard.report;
    x->scene = (struct crash_scene){ctx->endpoint, &x->report, module_path(ctx->module), x->doing};
    x->job.run = explain_on_pool;
    endpoint_ref(ctx->endpoint);
    return x;
}

static void note_crash(struct kiln_context *ctx)
{
    if (crash_is_timeout(&ctx->guard.report)) {
        metric_add(METRIC_ENDPOINT_TIMEOUTS, 1);
        endpoint_timed_out(ctx->endpoint);
        return; /* it was in its own code, or in a call of the SDK: the worker is as good as before */
    }
    ctx->crashed = true;
    module_crashed(ctx->module);
}

void context_crashed(struct kiln_context *ctx, const char *doing)
{
    note_crash(ctx);
    struct explanation *x = explanation_create(ctx, doing);
    if (x == NULL) {
        return;
    }
    bool wanted = ctx->req->config->debug_pages && !ctx->streaming && !ctx->finished;
    x->page = wanted ? &ctx->crash_page : NULL;
    if (coroutine_self() == NULL) {
        explain(x);
        return;
    }
    struct waiter waiter;
    waiter_init(&waiter, ctx->req->loop);
    x->waiter = &waiter;
    pool_submit(&x->job);
    waiter_wait(&waiter);
}

void context_crashed_late(struct kiln_context *ctx, const char *doing)
{
    note_crash(ctx);
    struct explanation *x = explanation_create(ctx, doing);
    if (x != NULL) {
        pool_submit(&x->job);
    }
}

/* ---- the client leaves ----------------------------------------------------------------------------- */

static void drain_cancel(struct kiln_context *ctx)
{
    context_wake(ctx);
}

static void cancel_wait(struct kiln_context *ctx)
{
    void (*cancel)(struct kiln_context *) = ctx->cancel;
    if (ctx->waiting != NULL && cancel != NULL) {
        ctx->cancel = NULL;
        cancel(ctx);
    }
}

void context_on_gone(struct request *req)
{
    struct kiln_context *ctx = context_check(req->answer_state);
    atomic_store(&ctx->gone, true);
    atomic_store(&ctx->leaving, true);
    cancel_wait(ctx);
}

void context_on_peer_eof(struct request *req)
{
    struct kiln_context *ctx = context_check(req->answer_state);
    atomic_store(&ctx->leaving, true);
    if (ctx->cancel != drain_cancel) {
        cancel_wait(ctx);
    }
}

/* ---- RequestTimeout ------------------------------------------------------------------------------------- */

/* Whoever is told by KILN_TIMEOUT may still clean up; past it the watchdog acts, and a client whose
 * request runs on the pool gets its answer at once. */
enum { TIME_GRACE_MS = 1000, POOL_GRACE_MS = 500 };

int context_interrupted(const struct kiln_context *ctx)
{
    bool leaves = atomic_load(&ctx->gone) || atomic_load(&ctx->leaving);
    return !leaves && atomic_load(&ctx->expired) ? KILN_TIMEOUT : KILN_GONE;
}

/* Answers for a pool thread that may be anywhere in kiln_run, so nothing of the context but its atomics
 * and nothing of the arena is used. What the thread does later finds a client that is gone. */
static void answer_instead(struct kiln_context *ctx, bool timeout)
{
    static const char texts[2][42] = {"500: the endpoint crashed\n", "504: the endpoint did not answer in time\n"};
    static const struct response_header type = {{"Content-Type", 12}, {"text/plain; charset=utf-8", 25}};
    static const struct ready_head heads[2] = {
        {.status = 500,
         .header_count = 1,
         .block = {"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 26\r\n", 61},
         .headers = &type},
        {.status = 504,
         .header_count = 1,
         .block = {"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 41\r\n", 61},
         .headers = &type},
    };
    struct request *req = ctx->req;
    ctx->abandoned = true;
    atomic_store(&ctx->gone, true);
    atomic_store(&ctx->leaving, true);
    req->on_gone = NULL;
    req->on_peer_eof = NULL;
    if (req->response.head_sent) {
        req->ops->abort(req);
    } else {
        response_send_ready(req, &heads[timeout], texts[timeout], strlen(texts[timeout]), NULL, NULL);
    }
    req->gone = true;
}

static void abandon(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    if (req->ended || req->gone) {
        return;
    }
    metric_add(METRIC_ENDPOINT_TIMEOUTS, 1);
    endpoint_timed_out(ctx->endpoint);
    log_error("%s did not return within RequestTimeout answering %.*s %.*s: the client got 504, a pool thread is "
              "still busy with it",
              endpoint_file(ctx->endpoint).ptr, STR_ARG(req->method_text), STR_ARG(req->target));
    answer_instead(ctx, true);
}

static void time_over(struct timer *timer)
{
    struct kiln_context *ctx = CONTAINER_OF(timer, struct kiln_context, timer);
    bool first = !atomic_exchange(&ctx->expired, true);
    if (first && ctx->waiting != NULL && ctx->cancel != NULL) {
        struct request *req = ctx->req;
        log_warning("%s waits longer than RequestTimeout answering %.*s %.*s: its waits end with KILN_TIMEOUT",
                    endpoint_file(ctx->endpoint).ptr, STR_ARG(req->method_text), STR_ARG(req->target));
        ctx->deadline += TIME_GRACE_MS * pace_ticks_per_ms;
        if (ctx->pooled) {
            timer_start(req->loop, timer, TIME_GRACE_MS + POOL_GRACE_MS);
        }
        cancel_wait(ctx);
    } else if (ctx->pooled) {
        abandon(ctx);
    }
}

void context_time_start(struct kiln_context *ctx)
{
    uint64_t ms = endpoint_timeout_ms(ctx->endpoint);
    ctx->timer.fire = time_over;
    ctx->deadline = ms > 0 ? pace_ticks() + ms * pace_ticks_per_ms : WATCHDOG_NEVER;
    if (ctx->pooled && ms > 0) {
        timer_start(ctx->req->loop, &ctx->timer, ms + POOL_GRACE_MS);
    }
}

/* ---- a thread that is given up (lost_thread.h) ----------------------------------------------------------- */

/* The thread keeps the context for good. */
static void lost_by_pool(struct task *task)
{
    struct kiln_context *ctx = CONTAINER_OF(task, struct kiln_context, finish_task);
    timer_stop(ctx->req->loop, &ctx->timer);
    if (!ctx->req->ended && !ctx->req->gone) {
        answer_instead(ctx, false);
    }
    metric_add(METRIC_REQUESTS_ACTIVE, -1);
}

void context_lost(struct crash_guard *guard)
{
    struct kiln_context *ctx = CONTAINER_OF(guard, struct kiln_context, guard);
    struct request *req = ctx->req;
    char doing[512];
    snprintf(doing, sizeof doing, "answering %.*s %.*s", STR_ARG(req->method_text), STR_ARG(req->target));
    note_crash(ctx);
    struct explanation *x = explanation_create(ctx, doing);
    if (ctx->on_pool) {
        ctx->finish_task.run = lost_by_pool;
        loop_post(req->loop, &ctx->finish_task);
    } else {
        if (!req->gone && !req->ended && req->ops->lost != NULL) {
            req->ops->lost(req);
        }
        worker_loops_lose(req->loop);
    }
    if (x != NULL) {
        explain(x);
    }
}

/* ---- output ---------------------------------------------------------------------------------------------- */

char *context_reserve(struct kiln_context *ctx, size_t len)
{
    if (len <= ctx->out.cap - ctx->out.len) {
        return ctx->out.data + ctx->out.len;
    }
    if (len > SIZE_MAX / 4) {
        return NULL;
    }
    size_t cap = ctx->out.cap == 0 ? 512 : ctx->out.cap * 2;
    while (cap < ctx->out.len + len) {
        cap *= 2;
    }
    char *data = arena_alloc(&ctx->req->arena, cap);
    if (data == NULL) {
        return NULL;
    }
    if (ctx->out.len > 0) {
        memcpy(data, ctx->out.data, ctx->out.len);
    }
    ctx->out.data = data;
    ctx->out.cap = cap;
    return data + ctx->out.len;
}

/* Head and gathered body to the protocol; on the loop's thread. */
static void send_gathered(struct kiln_context *ctx, void *arg)
{
    (void)arg;
    struct request *req = ctx->req;
    if (atomic_load(&ctx->gone)) {
        return;
    }
    if (!ctx->streaming) {
        sdk_session_head(ctx);
        ctx->streaming = true;
        req->response.status = (uint16_t)ctx->status;
        response_begin(req, ctx->length_set ? ctx->length : RESPONSE_LENGTH_UNKNOWN);
    }
    if (ctx->out.len > 0) {
        response_write(req, ctx->out.data, ctx->out.len);
        ctx->out.len = 0;
    }
    if (!req->gone) {
        req->ops->flush(req);
    }
}

static bool is_high(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    return !req->gone && req->ops->pending(req) > CONTEXT_OUTPUT_HIGH;
}

static void on_drained(struct request *req)
{
    struct kiln_context *ctx = context_check(req->answer_state);
    if (ctx->waiting != NULL && ctx->cancel == drain_cancel) {
        context_wake(ctx);
    }
}

static void drain_start(struct kiln_context *ctx, void *arg)
{
    (void)arg;
    if (!is_high(ctx)) {
        context_wake(ctx);
        return;
    }
    ctx->req->on_drained = on_drained;
    ctx->req->ops->notify_drained(ctx->req);
}

static void ask_high(struct kiln_context *ctx, void *arg)
{
    *(bool *)arg = is_high(ctx);
}

static void default_content_type(struct kiln_context *ctx)
{
    if (ctx->req->response.content_type.ptr == NULL && ctx->status != 204 && ctx->status != 304) {
        ctx->req->response.content_type = STR("text/html; charset=utf-8");
    }
}

int context_flush(struct kiln_context *ctx)
{
    if (ctx->finished) {
        return KILN_LATE;
    }
    if (!ctx->streaming && ctx->out.len > 0) {
        default_content_type(ctx);
    }
    context_on_loop(ctx, send_gathered, NULL);
    bool high = false;
    context_on_loop(ctx, ask_high, &high);
    if (high) {
        context_wait(ctx, drain_start, drain_cancel, NULL);
        if (atomic_load(&ctx->expired)) {
            return context_interrupted(ctx);
        }
    } else {
        context_take_turns(ctx);
    }
    return atomic_load(&ctx->gone) ? KILN_GONE : KILN_OK;
}

/* The promise of kiln_content_length is kept whatever the endpoint does. */
static bool fits_length(struct kiln_context *ctx, size_t len)
{
    return !ctx->length_set || len <= ctx->length - ctx->written;
}

int context_added(struct kiln_context *ctx, size_t len)
{
    crash_leave_overdue();
    ctx->out.len += len;
    ctx->written += len;
    if (ctx->out.len >= CONTEXT_GATHER) {
        return context_flush(ctx);
    }
    return atomic_load_explicit(&ctx->gone, memory_order_relaxed) ? KILN_GONE : KILN_OK;
}

int context_write(struct kiln_context *ctx, const void *data, size_t len)
{
    if (ctx->finished) {
        return KILN_LATE;
    }
    if (!fits_length(ctx, len)) {
        return KILN_TOO_LARGE;
    }
    const char *from = data;
    while (len > 0) {
        size_t n = len < CONTEXT_GATHER ? len : CONTEXT_GATHER;
        char *to = context_reserve(ctx, n);
        if (to == NULL) {
            return KILN_NO_MEMORY;
        }
        memcpy(to, from, n);
        int result = context_added(ctx, n);
        if (result != KILN_OK) {
            return result;
        }
        from += n;
        len -= n;
    }
    return atomic_load_explicit(&ctx->gone, memory_order_relaxed) ? KILN_GONE : KILN_OK;
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

/* What a negative kiln_result that kiln_run returned means to the client. */
static int status_of(int returned)
{
    switch (returned) {
    case KILN_INVALID: return 400;
    case KILN_NOT_FOUND: return 404;
    case KILN_TIMEOUT: return 408;
    case KILN_TOO_LARGE: return 413;
    case KILN_NO_MEMORY: return 503;
    case KILN_GONE:
    case KILN_LATE:
    case KILN_FAILED: return 500;
    default: return returned;
    }
}

static void finish_streamed(struct kiln_context *ctx, int returned)
{
    struct request *req = ctx->req;
    if (returned < 0 || returned >= 400) {
        if (returned != KILN_GONE) {
            log_warning("%.*s: returned %d after its answer had begun: the connection is cut so that the client "
                        "notices",
                        STR_ARG(req->script_name), returned);
        }
        req->ops->abort(req);
        return;
    }
    if (ctx->out.len > 0) {
        response_write(req, ctx->out.data, ctx->out.len);
    }
    response_end(req);
}

static void finish_with_error(struct kiln_context *ctx, int status)
{
    sdk_session_head(ctx);
    response_error(ctx->req, status);
}

static void finish_whole(struct kiln_context *ctx, int status)
{
    struct request *req = ctx->req;
    if (status != 0) {
        ctx->status = status;
    }
    if (ctx->length_set && ctx->length != ctx->out.len && !req->response.no_body) {
        log_error("%.*s: kiln_content_length promised %llu bytes, %zu were written", STR_ARG(req->script_name),
                  (unsigned long long)ctx->length, ctx->out.len);
        finish_with_error(ctx, 500);
        return;
    }
    if (ctx->out.len > 0) {
        default_content_type(ctx);
    }
    sdk_session_head(ctx);
    req->response.status = (uint16_t)ctx->status;
    response_send(req, ctx->out.data, ctx->length_set ? (size_t)ctx->length : ctx->out.len);
}

void context_finish(struct kiln_context *ctx, int returned)
{
    struct request *req = ctx->req;
    if (req->gone || ctx->finished) {
        return;
    }
    if (ctx->streaming) {
        finish_streamed(ctx, returned);
        return;
    }
    int status = status_of(returned);
    if (returned == KILN_TIMEOUT && atomic_load(&ctx->expired)) {
        status = 504;
    } else if (returned == KILN_NO_MEMORY && req->arena.limited) {
        status = 500; /* trying again does not help */
    }
    if (returned == KILN_GONE) {
        req->ops->abort(req);
    } else if (status != 0 && (status < 200 || status > 599)) {
        log_error("%.*s: kiln_run returned %d, which is no HTTP status", STR_ARG(req->script_name), returned);
        finish_with_error(ctx, 500);
    } else if (returned < 0 || (status >= 400 && ctx->out.len == 0)) {
        finish_with_error(ctx, status);
    } else {
        finish_whole(ctx, status);
    }
}

void context_close(struct kiln_context *ctx)
{
    ctx->closed = true;
    ctx->finished = true;
    atomic_store_explicit(&ctx->gone, true, memory_order_release); /* no barrier: this is the last of every request */
}
