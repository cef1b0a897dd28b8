/* kiln.h: server-sent events. */
#include "endpoint/sdk.h"

#include "request/sse.h"

int kiln_sse_begin(kiln_context *ctx)
{
    int result = kiln_content_type(ctx, "text/event-stream");
    if (result == KILN_OK) {
        result = kiln_header_set(ctx, "Cache-Control", "no-store");
    }
    if (result == KILN_OK) {
        result = kiln_header_set(ctx, "X-Accel-Buffering", "no"); /* of proxies that gather */
    }
    return result == KILN_OK ? kiln_flush(ctx) : result;
}

/* Sends and frees the text. */
static int send_now(kiln_context *ctx, struct buffer *text)
{
    int result = text->failed ? KILN_NO_MEMORY : kiln_write(ctx, text->data, text->len);
    buffer_free(text);
    return result == KILN_OK ? kiln_flush(ctx) : result;
}

int kiln_sse_send(kiln_context *ctx, const char *event, const char *id, const char *data)
{
    struct buffer text = BUFFER_EMPTY;
    context_check(ctx);
    if (!sse_append_event(&text, str_of(event), str_of(id), str_of(data)) && !text.failed) {
        buffer_free(&text);
        return KILN_INVALID;
    }
    return send_now(ctx, &text);
}

int kiln_sse_ping(kiln_context *ctx)
{
    struct buffer text = BUFFER_EMPTY;
    context_check(ctx);
    sse_append_ping(&text);
    return send_now(ctx, &text);
}

int kiln_sse_retry(kiln_context *ctx, unsigned milliseconds)
{
    struct buffer text = BUFFER_EMPTY;
    context_check(ctx);
    sse_append_retry(&text, milliseconds);
    return send_now(ctx, &text);
}

const char *kiln_sse_last_id(const kiln_context *ctx)
{
    return kiln_header(ctx, "Last-Event-ID");
}
