/* DESIGN: a request of an isolated endpoint, on its loop, between the client and a host. The request is held,
 * and the module with it, until the host has completed the answer, the client is gone or the host is
 * lost; no coroutine waits meanwhile. Nothing that comes from the host is believed: frames are taken only in
 * the state in which they may come, lengths are counted here, header fields pass heads.c, and what the
 * client has not taken yet is bounded by FRAME_WINDOW. Whoever breaks a rule is killed.
 *
 * Ids: the low half is the slot in the channel's table, the high half counts up, so that a frame about a
 * request that has ended finds nobody and is dropped. */
#include "answer/answer.h"
#include "base/check.h"
#include "isolate/heads.h"
#include "isolate/isolate_private.h"
#include "isolate/relay.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <stdlib.h>
#include <unistd.h>

enum {
    SLOTS_FIRST = 64,
    FAILURES_MOST = 3, /* of hosts in a row, then requests do not wait any longer */
    OVERDUE_MS = 2500, /* beyond RequestTimeout: what the host itself does about it comes first */
};

/* ---- slots ------------------------------------------------------------------------------------ */

static bool more_slots(struct channel *channel)
{
    uint32_t count = channel->slot_count == 0 ? SLOTS_FIRST : channel->slot_count * 2;
    struct slot *slots = realloc(channel->slots, count * sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    for (uint32_t i = channel->slot_count; i < count; i++) {
        slots[i] = (struct slot){.next_free = i + 1 < count ? i + 1 : UINT32_MAX};
    }
    channel->free_slot = channel->slot_count;
    channel->slots = slots;
    channel->slot_count = count;
    return true;
}

static bool take_slot(struct channel *channel, struct relay *relay)
{
    if (channel->free_slot == UINT32_MAX && !more_slots(channel)) {
        return false;
    }
    uint32_t i = channel->free_slot;
    channel->free_slot = channel->slots[i].next_free;
    channel->slots[i].relay = relay;
    channel->slots[i].generation++;
    relay->id = (uint64_t)channel->slots[i].generation << 32 | i;
    return true;
}

static void free_slot(struct channel *channel, uint64_t id)
{
    uint32_t i = (uint32_t)id;
    channel->slots[i].relay = NULL;
    channel->slots[i].next_free = channel->free_slot;
    channel->free_slot = i;
}

static struct relay *find_relay(const struct channel *channel, uint64_t id)
{
    uint32_t i = (uint32_t)id;
    bool known = i < channel->slot_count && channel->slots[i].generation == (uint32_t)(id >> 32);
    return known ? channel->slots[i].relay : NULL;
}

/* ---- the end of a relay ---------------------------------------------------------------------- */

/* Off its channel or its berth. */
void relay_detach(struct relay *relay)
{
    list_remove(&relay->node);
    struct channel *channel = relay->channel;
    if (channel == NULL) {
        return;
    }
    relay->channel = NULL;
    free_slot(channel, relay->id);
    struct host *host = channel->host;
    if (host != NULL && atomic_fetch_sub(&host->live, 1) == 1 && atomic_load(&host->left)) {
        isolate_ask(relay->isolate, ASK_LOOK);
    }
}

void relay_end(struct relay *relay)
{
    struct request *req = relay->req;
    relay_detach(relay);
    relay->state = RELAY_ENDED;
    timer_stop(req->loop, &relay->timer);
    req->on_gone = NULL;
    req->on_peer_eof = NULL;
    req->on_drained = NULL;
    context_close(relay->ctx);
    request_release(req); /* the relay is in its arena */
}

/* Before what completes or cuts the answer, which may end the connection and tell us of it. */
void relay_quiet(struct relay *relay)
{
    struct request *req = relay->req;
    req->on_gone = NULL;
    req->on_peer_eof = NULL;
    req->on_drained = NULL;
    if (!req->gone && req->body.flowing) {
        req->ops->body_pause(req);
    }
}

/* What was written before still arrives. */
void relay_cut(struct request *req)
{
    if (!req->gone) {
        req->ops->flush(req);
    }
    if (!req->gone && !req->ended) {
        req->ops->abort(req);
    }
}

void relay_fail(struct relay *relay, int status, const char *detail)
{
    struct request *req = relay->req;
    relay_quiet(relay);
    if (!req->gone) {
        if (req->response.head_sent) {
            relay_cut(req);
        } else {
            req->response.header_count = 0;
            response_error_text(req, status, detail);
        }
    }
    relay_end(relay);
}

/* ---- the client leaves, time passes ----------------------------------------------------------- */

static void on_gone(struct request *req)
{
    struct relay *relay = context_check(req->answer_state)->away;
    if (relay->channel != NULL) {
        wire_send(&relay->channel->wire, FRAME_GONE, relay->id, NULL, 0);
    }
    relay_end(relay);
}

static void on_peer_eof(struct request *req)
{
    struct relay *relay = context_check(req->answer_state)->away;
    if (relay->channel != NULL) {
        wire_send(&relay->channel->wire, FRAME_LEAVING, relay->id, NULL, 0);
    }
}

/* The host's own watchdog has not helped. */
static void on_overdue(struct timer *timer)
{
    struct relay *relay = CONTAINER_OF(timer, struct relay, timer);
    struct request *req = relay->req;
    metric_add(METRIC_ENDPOINT_TIMEOUTS, 1);
    endpoint_timed_out(relay->ctx->endpoint);
    if (relay->channel != NULL) {
        struct host *host = relay->channel->host;
        log_error("%s did not answer within RequestTimeout, %.*s %.*s: the client got 504, and its process %d is ended",
                  endpoint_file(relay->ctx->endpoint).ptr, STR_ARG(req->method_text), STR_ARG(req->target),
                  (int)host->pid);
        wire_send(&relay->channel->wire, FRAME_GONE, relay->id, NULL, 0);
        atomic_store(&host->overdue, true);
        atomic_store(&host->left, true);
        isolate_ask(relay->isolate, ASK_OVERDUE);
    } else {
        log_error("%s: no process was ready for it within RequestTimeout, %.*s %.*s",
                  endpoint_file(relay->ctx->endpoint).ptr, STR_ARG(req->method_text), STR_ARG(req->target));
    }
    relay_fail(relay, 504, "The endpoint did not answer in time.");
}

static bool on_frame(struct wire *wire, const struct frame *frame, const uint8_t *payload)
{
    struct channel *channel = CONTAINER_OF(wire, struct channel, wire);
    int fd = frame->kind == FRAME_FILE ? wire_take_fd(wire) : -1;
    struct relay *relay = find_relay(channel, frame->id);
    if (relay != NULL) {
        return relay_take_frame(relay, fd, frame, payload);
    }
    if (fd >= 0) {
        close(fd);
    }
    return true; /* about a request that has ended here */
}

/* ---- channels --------------------------------------------------------------------------------------------- */

static void free_channel(struct task *task)
{
    struct channel *channel = CONTAINER_OF(task, struct channel, free_task);
    list_remove(&channel->node);
    buffer_free(&channel->fields);
    free(channel->slots);
    free(channel);
}

/* The berth must not be used any more once this is the last that holds the isolate. */
static void channel_end(struct channel *channel)
{
    struct host *host = channel->host;
    if (channel->berth->channel == channel) {
        channel->berth->channel = NULL;
    }
    loop_defer(channel->wire.loop, &channel->free_task);
    host_unref(host);
}

static void lose_relays(struct channel *channel, uint64_t begun)
{
    struct list again = {&again, &again};
    while (!list_is_empty(&channel->live)) {
        struct relay *relay = LIST_ENTRY(channel->live.next, struct relay, node);
        if (relay->number > begun && relay->state == RELAY_SENT) {
            relay_detach(relay);
            list_append(&again, &relay->node);
            continue;
        }
        relay_fail(relay, 502, "The process of this endpoint ended before it had answered.");
    }
    while (!list_is_empty(&again)) {
        struct relay *relay = LIST_ENTRY(again.next, struct relay, node);
        list_remove(&relay->node);
        relay_wait(relay);
    }
}

static void on_end(struct wire *wire, const char *why)
{
    struct channel *channel = CONTAINER_OF(wire, struct channel, wire);
    struct host *host = channel->host;
    struct isolate *isolate = host->isolate;
    isolate_ref(isolate);
    host_lost(host, why);
    if (channel->berth->channel == channel) {
        channel->berth->channel = NULL;
    }
    /* One that broke the rules is asked nothing, not even that. */
    uint64_t begun = why == NULL ? atomic_load(&host->begun[channel->index].number) : UINT64_MAX;
    lose_relays(channel, begun);
    channel_end(channel);
    isolate_unref(isolate);
}

static const struct wire_calls wire_calls = {.on_frame = on_frame, .on_end = on_end};

void channel_init(struct channel *channel, struct host *host, struct berth *berth, unsigned index)
{
    *channel = (struct channel){.host = host, .berth = berth, .index = index, .free_slot = UINT32_MAX};
    channel->free_task.run = free_channel;
    list_init(&channel->live);
    list_init(&channel->node);
}

const struct wire_calls *channel_calls(void)
{
    return &wire_calls;
}

/* The channels of a loop; NULL when out of memory. */
static struct list *channels_of(struct loop *loop)
{
    struct list *channels = loop_slot(loop, LOOP_SLOT_ISOLATION);
    if (channels == NULL && (channels = malloc(sizeof *channels)) != NULL) {
        list_init(channels);
        loop_slot_set(loop, LOOP_SLOT_ISOLATION, channels);
    }
    return channels;
}

void isolation_loop_end(struct loop *loop)
{
    struct list *channels = loop_slot(loop, LOOP_SLOT_ISOLATION);
    wire_thread_end();
    manager_forget_loop(loop);
    if (channels == NULL) {
        return;
    }
    LIST_EACH(node, channels) {
        struct channel *channel = LIST_ENTRY(node, struct channel, node);
        struct host *host = channel->host;
        bool ended = channel->wire.ended; /* then the host is not ours any more */
        wire_close(&channel->wire);
        if (!ended && channel->berth->channel == channel) {
            channel->berth->channel = NULL;
        }
        free_channel(&channel->free_task);
        if (!ended) {
            host_unref(host);
        }
    }
    loop_slot_set(loop, LOOP_SLOT_ISOLATION, NULL);
    free(channels);
}

/* Takes the caller's reference of the host. */
static struct channel *open_channel(struct isolate *isolate, struct host *host, struct loop *loop, int fd)
{
    unsigned index = loop_index(loop);
    struct list *channels = channels_of(loop);
    struct channel *channel = channels != NULL ? malloc(sizeof *channel) : NULL;
    if (channel == NULL) {
        close(fd);
        host_unref(host);
        return NULL;
    }
    channel_init(channel, host, &isolate->berths[index], index);
    if (!wire_open(&channel->wire, loop, fd, &wire_calls)) {
        free(channel);
        host_unref(host);
        return NULL;
    }
    channel->wire.bounded = true;
    list_append(channels, &channel->node);
    return channel;
}

/* The channel for a new request, NULL when there is none now. */
static struct channel *current_channel(struct isolate *isolate, struct loop *loop)
{
    struct berth *berth = &isolate->berths[loop_index(loop)];
    if (berth->channel != NULL && atomic_load_explicit(&berth->channel->host->left, memory_order_relaxed)) {
        berth->channel = NULL; /* it ends when its host does */
    }
    if (berth->channel == NULL) {
        int fd = -1;
        struct host *host = isolate_take_host(isolate, loop_index(loop), &fd);
        if (host != NULL) {
            berth->channel = open_channel(isolate, host, loop, fd);
        }
    }
    return berth->channel;
}

/* ---- the beginning ------------------------------------------------------------------------------------------ */

static bool relay_send(struct relay *relay, struct channel *channel)
{
    struct request *req = relay->req;
    struct host *host = channel->host;
    atomic_fetch_add(&host->live, 1);
    bool left = atomic_load(&host->left);
    if (left || !take_slot(channel, relay)) {
        if (atomic_fetch_sub(&host->live, 1) == 1 && left) {
            isolate_ask(relay->isolate, ASK_LOOK);
        }
        return false;
    }
    relay->number = ++channel->number;
    struct buffer *fields = &channel->fields;
    fields->len = 0;
    request_head_put(fields, req, relay->number, relay->ctx->secure);
    relay->channel = channel;
    relay->state = RELAY_SENT;
    list_append(&channel->live, &relay->node);
    if (!wire_send_fields(&channel->wire, FRAME_REQUEST, relay->id, fields)) {
        buffer_free(fields);
        relay_fail(relay, 503, NULL);
    }
    return true;
}

/* Until a host is ready. */
void relay_wait(struct relay *relay)
{
    struct berth *berth = &relay->isolate->berths[loop_index(relay->req->loop)];
    relay->state = RELAY_WAITING;
    atomic_store(&berth->loop, relay->req->loop);
    list_append(&berth->waiting, &relay->node);
    isolate_ask(relay->isolate, ASK_START);
}

static void wake(struct task *task)
{
    struct berth *berth = CONTAINER_OF(task, struct berth, wake_task);
    struct isolate *isolate = berth->isolate;
    atomic_store(&berth->wake_posted, false);
    struct list waiting = {&waiting, &waiting};
    while (!list_is_empty(&berth->waiting)) {
        struct list *node = berth->waiting.next;
        list_remove(node);
        list_append(&waiting, node);
    }
    while (!list_is_empty(&waiting)) {
        struct relay *relay = LIST_ENTRY(waiting.next, struct relay, node);
        struct channel *channel = current_channel(isolate, atomic_load(&berth->loop));
        list_remove(&relay->node);
        if (channel == NULL && atomic_load(&isolate->failures) >= FAILURES_MOST) {
            relay_fail(relay, 503, "The process of this endpoint cannot be started.");
        } else if (channel == NULL || !relay_send(relay, channel)) {
            relay_wait(relay);
        }
    }
    isolate_unref(isolate);
}

void relay_berth_init(struct berth *berth, struct isolate *isolate)
{
    list_init(&berth->waiting);
    berth->isolate = isolate;
    berth->wake_task.run = wake;
}

void relay_wake(struct isolate *isolate, unsigned index)
{
    struct berth *berth = &isolate->berths[index];
    struct loop *loop = atomic_load(&berth->loop);
    if (loop != NULL && !atomic_exchange(&berth->wake_posted, true)) {
        isolate_ref(isolate);
        loop_post(loop, &berth->wake_task);
    }
}

static void let_module_go(void *arg)
{
    struct kiln_context *ctx = arg;
    module_release(ctx->module, loop_index(ctx->req->loop));
}

void relay_start(struct kiln_context *ctx)
{
    struct request *req = ctx->req;
    struct relay *relay = arena_zalloc(&req->arena, sizeof *relay);
    if (UNLIKELY(req->tunnel)) {
        module_release(ctx->module, loop_index(req->loop));
        response_error_text(req, 400, answer_no_websocket);
        return;
    }
    if (relay == NULL || !arena_defer(&req->arena, let_module_go, ctx)) {
        module_release(ctx->module, loop_index(req->loop));
        response_error(req, 503);
        return;
    }
    relay->ctx = ctx;
    relay->req = req;
    relay->isolate = isolate_of(ctx->module);
    relay->timer.fire = on_overdue;
    list_init(&relay->node);
    ctx->away = relay;
    request_hold(req);
    req->on_gone = on_gone;
    req->on_peer_eof = on_peer_eof;
    atomic_store_explicit(&relay->isolate->last_use_ms, loop_now_ms(req->loop), memory_order_relaxed);
    uint64_t limit = endpoint_timeout_ms(ctx->endpoint);
    if (limit > 0) {
        timer_start(req->loop, &relay->timer, limit + OVERDUE_MS);
    }
    struct channel *channel = current_channel(relay->isolate, req->loop);
    if (channel == NULL || !relay_send(relay, channel)) {
        relay_wait(relay);
    }
}
