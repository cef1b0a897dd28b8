/* What all stores share: checks before an operation, and waiting for its end. */
#include "sessions/store.h"

#include "loop/waiter.h"
#include "sessions/json_text.h"

#include <stdatomic.h>
#include <stddef.h>

enum store_result store_check(const struct store_op *op, size_t max_value)
{
    if (op->kind == STORE_SWEEP) {
        return STORE_OK;
    }
    if (op->id.len == 0 || op->id.len > STORE_ID_MAX || op->now < 0 || op->expires < 0) {
        return STORE_INVALID;
    }
    bool has_key = op->kind == STORE_GET || op->kind == STORE_REMOVE || op->kind == STORE_INCREMENT;
    bool has_value = op->kind == STORE_SET || (op->kind == STORE_CREATE && op->key.len > 0);
    if ((has_key || has_value) && (op->key.len == 0 || op->key.len > STORE_KEY_MAX)) {
        return STORE_INVALID;
    }
    if (op->kind == STORE_RENAME &&
        (op->new_id.len == 0 || op->new_id.len > STORE_ID_MAX || str_eq(op->id, op->new_id))) {
        return STORE_INVALID;
    }
    if (!has_value) {
        return STORE_OK;
    }
    if (op->json.len > max_value) {
        return STORE_TOO_LARGE;
    }
    return json_text_is_valid(op->json) ? STORE_OK : STORE_INVALID;
}

/* The answer may come before anyone waits (then nobody needs to be woken), or later. */
enum { RUN_PENDING, RUN_WAITING, RUN_DONE };

struct run {
    struct store_op op;
    struct waiter waiter;
    _Atomic int state;
};

static void run_done(struct store_op *op)
{
    struct run *run = CONTAINER_OF(op, struct run, op);
    /* Once RUN_DONE is seen without RUN_WAITING before, `run` may be gone. */
    if (atomic_exchange(&run->state, RUN_DONE) == RUN_WAITING) {
        waiter_wake_remote(&run->waiter);
    }
}

enum store_result store_run(const struct store_ops *ops, struct store *store, struct store_op *op)
{
    struct run run = {.op = *op};
    atomic_init(&run.state, RUN_PENDING);
    run.op.done = run_done;
    ops->submit(store, &run.op);
    if (atomic_load(&run.state) != RUN_DONE) {
        waiter_init(&run.waiter, loop_self());
        int expected = RUN_PENDING;
        if (atomic_compare_exchange_strong(&run.state, &expected, RUN_WAITING)) {
            waiter_wait(&run.waiter);
        }
    }
    *op = run.op;
    return op->result;
}
