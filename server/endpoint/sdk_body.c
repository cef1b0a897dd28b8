/* DESIGN: the request body as an endpoint reads it, in one of three ways that exclude each other:
 * whole (gathered in a spill), streamed raw, streamed as multipart. Nothing is received before
 * it is asked for. While an endpoint does not wait for body bytes the protocol is paused, so the
 * loop touches this state only while the endpoint sleeps in context_wait(): no lock, on whatever thread
 * kiln_run runs. Bytes of a streamed body go straight into the reader's buffer; what does not fit (at
 * most one receive) is kept. */
#include "endpoint/sdk.h"

#include "config/config.h"
#include "request/spill.h"
#include "sessions/json_text.h"

#include <cjson/cJSON.h>
#include <limits.h>

enum body_way { BODY_UNREAD, BODY_WHOLE, BODY_STREAM, BODY_UPLOAD };

struct context_body {
    enum body_way way;
    bool ended;
    bool waiting; /* in context_wait; the loop may touch what follows */
    int error; /* kiln_result; stays */
    struct spill spill;
    char *dest; /* the stream's reader */
    size_t dest_size;
    size_t dest_len;
    struct buffer left; /* bytes beyond the reader's buffer, from left_used on */
    size_t left_used;
    struct sdk_form *form;
    struct sdk_parts *parts;
    struct sdk_upload *upload;
    cJSON *json;
    bool json_tried;
};

/* ---- the loop's side -------------------------------------------------------------------- */

static void wake(struct kiln_context *ctx)
{
    if (ctx->body->waiting) {
        ctx->body->waiting = false;
        context_wake(ctx);
    }
}

static void fail(struct kiln_context *ctx, int error)
{
    ctx->body->error = error;
    wake(ctx);
}

/* What fits goes to the reader, the rest is kept; then the protocol waits until it is asked again. */
static bool take_stream(struct request *req, struct context_body *body, const uint8_t *data, size_t len)
{
    size_t room = body->dest_size - body->dest_len;
    size_t n = len < room ? len : room;
    memcpy(body->dest + body->dest_len, data, n);
    body->dest_len += n;
    req->ops->body_pause(req);
    return buffer_append(&body->left, data + n, len - n);
}

static bool on_bytes(struct request *req, const uint8_t *data, size_t len)
{
    struct kiln_context *ctx = context_check(req->body.sink_arg);
    struct context_body *body = ctx->body;
    if (body->way == BODY_WHOLE) {
        if (spill_append(&body->spill, data, len) == SPILL_OK) {
            return true;
        }
        req->ops->body_pause(req);
        fail(ctx, KILN_NO_MEMORY);
        return false;
    }
    if (!take_stream(req, body, data, len)) {
        fail(ctx, KILN_NO_MEMORY);
        return false;
    }
    wake(ctx);
    return true;
}

static void on_end(struct request *req)
{
    struct kiln_context *ctx = context_check(req->body.sink_arg);
    ctx->body->ended = true;
    wake(ctx);
}

static void on_error(struct request *req, int status)
{
    struct kiln_context *ctx = context_check(req->body.sink_arg);
    switch (status) {
    case 0:
        /* Told here before it is told to the context: whoever wakes must know. */
        atomic_store(&ctx->gone, true);
        atomic_store(&ctx->leaving, true);
        fail(ctx, KILN_GONE);
        break;
    case 408: fail(ctx, KILN_TIMEOUT); break;
    case 413: fail(ctx, KILN_TOO_LARGE); break;
    default: fail(ctx, KILN_INVALID);
    }
}

static const struct body_sink body_sink = {.on_bytes = on_bytes, .on_end = on_end, .on_error = on_error};

static void start_receiving(struct kiln_context *ctx, void *arg)
{
    (void)arg;
    struct request *req = ctx->req;
    struct context_body *body = ctx->body;
    body->waiting = true;
    if (req->gone || req->body.failed) {
        fail(ctx, body->error != 0 ? body->error : KILN_GONE);
        return;
    }
    if (req->body.complete) {
        on_end(req);
        return;
    }
    req->body.sink_arg = ctx;
    req->body.sink = &body_sink;
    req->ops->body_resume(req);
}

static void stop_receiving(struct kiln_context *ctx)
{
    fail(ctx, context_interrupted(ctx));
}

/* ---- the endpoint's side ------------------------------------------------------------------- */

static void free_body(void *arg)
{
    struct context_body *body = arg;
    spill_free(&body->spill);
    buffer_free(&body->left);
    cJSON_Delete(body->json);
}

static struct context_body *body_of(struct kiln_context *ctx)
{
    if (ctx->body != NULL) {
        return ctx->body;
    }
    struct request *req = ctx->req;
    struct context_body *body = arena_zalloc(&req->arena, sizeof *body);
    if (body == NULL || !arena_defer(&req->arena, free_body, body)) {
        return NULL;
    }
    spill_init(&body->spill, (size_t)req->config->body_memory_limit, req->config->temp_dir.ptr);
    body->ended = !req->body.present;
    ctx->body = body;
    return body;
}

/* The way is chosen by the first call that reads. */
static int choose_way(struct kiln_context *ctx, enum body_way way)
{
    if (ctx->closed) {
        return KILN_LATE;
    }
    struct context_body *body = body_of(ctx);
    if (body == NULL) {
        return KILN_NO_MEMORY;
    }
    if (body->way == BODY_UNREAD) {
        body->way = way;
    }
    return body->way == way ? KILN_OK : KILN_LATE;
}

int sdk_body_whole(struct kiln_context *ctx, struct str *whole)
{
    int result = choose_way(ctx, BODY_WHOLE);
    if (result != KILN_OK) {
        return result;
    }
    struct context_body *body = ctx->body;
    if (!body->ended && body->error == 0) {
        context_wait(ctx, start_receiving, stop_receiving, NULL);
    }
    if (body->error != 0) {
        return body->error;
    }
    if (!body->ended) {
        return context_interrupted(ctx);
    }
    const char *data = spill_data(&body->spill);
    *whole = (struct str){data, (size_t)body->spill.size};
    return data != NULL ? KILN_OK : KILN_NO_MEMORY;
}

/* Bytes that were received and not read yet. */
static size_t take_left(struct context_body *body, void *buffer, size_t size)
{
    size_t have = body->left.len - body->left_used;
    size_t n = have < size ? have : size;
    memcpy(buffer, body->left.data + body->left_used, n);
    body->left_used += n;
    if (body->left_used == body->left.len) {
        body->left.len = 0;
        body->left_used = 0;
    }
    return n;
}

ssize_t sdk_body_stream(struct kiln_context *ctx, bool upload, void *buffer, size_t size)
{
    int result = choose_way(ctx, upload ? BODY_UPLOAD : BODY_STREAM);
    if (result != KILN_OK) {
        return result;
    }
    struct context_body *body = ctx->body;
    size = size < SSIZE_MAX ? size : SSIZE_MAX;
    if (size == 0) {
        return 0;
    }
    if (body->left.len > 0) {
        return (ssize_t)take_left(body, buffer, size);
    }
    if (body->ended || body->error != 0) {
        return body->error;
    }
    body->dest = buffer;
    body->dest_size = size;
    body->dest_len = 0;
    context_wait(ctx, start_receiving, stop_receiving, NULL);
    body->dest = NULL;
    body->dest_size = 0;
    if (body->dest_len > 0) {
        return (ssize_t)body->dest_len;
    }
    return body->error != 0 ? body->error : body->ended ? 0 : context_interrupted(ctx);
}

struct sdk_form **sdk_body_form(struct kiln_context *ctx)
{
    struct context_body *body = body_of(ctx);
    return body != NULL ? &body->form : NULL;
}

struct sdk_parts **sdk_body_parts(struct kiln_context *ctx)
{
    struct context_body *body = body_of(ctx);
    return body != NULL ? &body->parts : NULL;
}

struct sdk_upload **sdk_body_upload(struct kiln_context *ctx)
{
    struct context_body *body = body_of(ctx);
    return body != NULL ? &body->upload : NULL;
}

/* ---- kiln.h ---------------------------------------------------------------------------------- */

int64_t kiln_body_length(const kiln_context *ctx)
{
    const struct request *req = context_check(ctx)->req;
    if (!req->body.present) {
        return 0;
    }
    return req->body.length == RESPONSE_LENGTH_UNKNOWN ? -1 : (int64_t)req->body.length;
}

const char *kiln_body(kiln_context *ctx, size_t *length)
{
    struct str body = STR_NONE;
    int result = sdk_body_whole(context_check(ctx), &body);
    if (result != KILN_OK) {
        return sdk_null(ctx, result);
    }
    if (length != NULL) {
        *length = body.len;
    }
    return body.ptr;
}

ssize_t kiln_body_read(kiln_context *ctx, void *buffer, size_t size)
{
    return sdk_body_stream(context_check(ctx), false, buffer, size);
}

/* Deepest nesting of arrays and objects; brackets in strings do not count. */
static unsigned json_depth(struct str text)
{
    unsigned depth = 0;
    unsigned deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            depth++;
            deepest = depth > deepest ? depth : deepest;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return deepest;
}

/* cJSON alone would take much that is no JSON: text that is not UTF-8, NUL, leading zeros. */
static cJSON *parse_json(struct str text)
{
    if (json_depth(text) > SDK_JSON_DEPTH || !json_text_is_valid(text)) {
        return NULL;
    }
    return cJSON_ParseWithLength(text.ptr, text.len);
}

struct cJSON *kiln_json(kiln_context *ctx)
{
    struct str text = STR_NONE;
    int result = sdk_body_whole(context_check(ctx), &text);
    if (result != KILN_OK) {
        return sdk_null(ctx, result);
    }
    struct context_body *body = ctx->body;
    if (!body->json_tried) {
        body->json_tried = true;
        body->json = parse_json(text);
    }
    return body->json != NULL ? body->json : sdk_null(ctx, KILN_INVALID);
}
