/* kiln.h: waiting for time, descriptors and pool threads. */
#include "endpoint/sdk.h"
#include "endpoint/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { WOKEN_BEFORE = 1 << 30 }; /* no result of a wait: it never started */

static bool is_leaving(struct kiln_context *ctx)
{
    return atomic_load(&ctx->gone) || atomic_load(&ctx->leaving);
}

int kiln_is_gone(const kiln_context *ctx)
{
    return is_leaving(context_check(ctx));
}

/* A wait for time or a descriptor; on the stack of whoever waits, used on the loop's thread. */
struct wait {
    struct kiln_context *ctx;
    struct timer timer;
    struct watch watch;
    int64_t timeout_ms; /* negative: none */
    bool watching;
    int result;
};

static void wait_end(struct wait *wait, int result)
{
    struct kiln_context *ctx = wait->ctx;
    wait->result = result;
    if (timer_is_running(&wait->timer)) {
        timer_stop(ctx->req->loop, &wait->timer);
    }
    if (wait->watching) {
        wait->watching = false;
        loop_watch_remove(ctx->req->loop, &wait->watch);
    }
    ctx->wait_state = NULL;
    context_wake(ctx);
}

static void wait_fired(struct timer *timer)
{
    struct wait *wait = CONTAINER_OF(timer, struct wait, timer);
    wait_end(wait, KILN_TIMEOUT);
}

static void wait_ready(struct watch *watch, uint32_t ready)
{
    struct wait *wait = CONTAINER_OF(watch, struct wait, watch);
    int events = (int)(ready & (LOOP_READ | LOOP_WRITE));
    if (ready & LOOP_ERROR) {
        /* Whoever waits for one of them finds the error by reading or writing. */
        events |= KILN_HANGUP | (int)wait->watch.wanted;
    }
    wait_end(wait, events);
}

static void wait_cancel(struct kiln_context *ctx)
{
    wait_end(ctx->wait_state, context_interrupted(ctx));
}

static void wait_start(struct kiln_context *ctx, void *arg)
{
    struct wait *wait = arg;
    ctx->wait_state = wait;
    if (wait->watch.fd >= 0) {
        if (!loop_watch_add(ctx->req->loop, &wait->watch)) {
            wait_end(wait, errno == ENOMEM || errno == ENOSPC ? KILN_NO_MEMORY : KILN_INVALID);
            return;
        }
        wait->watching = true;
    }
    if (wait->timeout_ms >= 0) {
        timer_start(ctx->req->loop, &wait->timer, (uint64_t)wait->timeout_ms);
    }
}

static int wait_for(struct kiln_context *ctx, int fd, uint32_t events, int64_t timeout_ms)
{
    if (is_leaving(ctx)) {
        crash_leave_overdue();
        return KILN_GONE;
    }
    struct wait wait = {
        .ctx = ctx,
        .timer.fire = wait_fired,
        .watch = {.fd = fd, .wanted = events, .on_ready = wait_ready},
        .timeout_ms = timeout_ms,
        .result = WOKEN_BEFORE,
    };
    context_wait(ctx, wait_start, wait_cancel, &wait);
    return wait.result == WOKEN_BEFORE ? context_interrupted(ctx) : wait.result;
}

int kiln_sleep(kiln_context *ctx, unsigned milliseconds)
{
    int result = wait_for(context_check(ctx), -1, 0, milliseconds);
    return result == KILN_TIMEOUT && !atomic_load(&ctx->expired) ? KILN_OK : result;
}

int kiln_wait_fd(kiln_context *ctx, int fd, int events, int timeout_ms)
{
    context_check(ctx);
    if (fd < 0 || events == 0 || (events & ~(KILN_READ | KILN_WRITE)) != 0) {
        return KILN_INVALID;
    }
    return wait_for(ctx, fd, (uint32_t)events, timeout_ms);
}

/* ---- the pool ------------------------------------------------------------------------------- */

struct offload {
    struct pool_job job;
    struct kiln_context *ctx;
    void (*fn)(void *);
    void *arg;
    struct crash_guard guard; /* on the pool's thread */
    bool crashed;
    struct waiter waiter;
};

static int offload_call(void *arg)
{
    const struct offload *offload = arg;
    offload->fn(offload->arg);
    return 0;
}

/* The run that waits for it ends as if it had crashed itself. */
static void offload_lost(struct crash_guard *guard)
{
    struct offload *offload = CONTAINER_OF(guard, struct offload, guard);
    offload->crashed = true;
    offload->ctx->on_pool = false;
    waiter_wake_remote(&offload->waiter);
}

struct kiln_context *sdk_offload_context(struct crash_guard *guard)
{
    return guard->lost == offload_lost ? CONTAINER_OF(guard, struct offload, guard)->ctx : NULL;
}

static void offload_run(struct pool_job *job)
{
    struct offload *offload = CONTAINER_OF(job, struct offload, job);
    /* The coroutine sleeps: while fn runs the context belongs to this thread. */
    offload->ctx->on_pool = true;
    crash_guard_ready(&offload->guard);
    offload->guard.text = module_text(offload->ctx->module);
    offload->guard.lost = offload_lost;
    watchdog_enter(offload->ctx->endpoint, offload->ctx->deadline);
    offload->crashed = crash_run(&offload->guard, offload_call, offload) == CRASH_CAUGHT;
    if (crash_is_child()) {
        _exit(EXIT_FAILURE);
    }
    watchdog_leave();
    offload->ctx->on_pool = false;
    waiter_wake_remote(&offload->waiter);
}

int kiln_offload(kiln_context *ctx, void (*fn)(void *), void *arg)
{
    if (context_check(ctx)->closed) {
        return KILN_LATE;
    }
    if (ctx->on_pool) {
        fn(arg);
        return KILN_OK;
    }
    struct offload offload = {.job.run = offload_run, .ctx = ctx, .fn = fn, .arg = arg};
    waiter_init(&offload.waiter, ctx->req->loop);
    struct crash_guard *guard = context_slice_end(ctx);
    pool_submit_endpoint(&offload.job);
    waiter_wait(&offload.waiter);
    context_slice_begin(ctx, guard);
    if (offload.crashed && guard != NULL) {
        /* What it did on the pool, it did for this run. */
        guard->report = offload.guard.report;
        crash_land(guard);
    }
    return KILN_OK;
}
