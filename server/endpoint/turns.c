/* DESIGN: a coroutine that sends is suspended when its client does not keep up. When the client does, or when what is sent
 * shrinks (zeros, compressed, are a thousandth), nothing would ever suspend it, and the others of its loop, their
 * handshakes and pings and closes, would wait for as long as it likes to send. So the calls that send let them have
 * their turn once a slice has lasted half of BlockingThreshold, which is before it counts as one that blocks. */
#include "endpoint/context.h"
#include "endpoint/pace.h"
#include "loop/coroutine.h"

struct turn {
    struct task task;
    struct kiln_context *ctx;
};

static void turn_comes(struct task *task)
{
    context_wake(CONTAINER_OF(task, struct turn, task)->ctx);
}

/* Through the mailbox: what is ready on other connections comes first. */
static void turn_ends(struct kiln_context *ctx, void *arg)
{
    struct turn *turn = arg;
    loop_post(ctx->req->loop, &turn->task);
}

void context_take_turns(struct kiln_context *ctx)
{
    bool long_enough = pace_ticks() - ctx->slice_began > pace_threshold_ticks / 2;
    if (UNLIKELY(long_enough) && !ctx->on_pool && !ctx->closed && coroutine_self() != NULL) {
        struct turn turn = {.task.run = turn_comes, .ctx = ctx};
        context_wait(ctx, turn_ends, NULL, &turn);
    }
}
