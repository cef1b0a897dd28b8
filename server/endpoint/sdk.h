/* Shared by the sdk_*.c files, which hold the functions of kiln.h. Each of them begins by checking
 * the context's magic, so that a pointer that is no context (or no longer one) stops at
 * the call and not somewhere later. */
#ifndef KILN_ENDPOINT_SDK_H
#define KILN_ENDPOINT_SDK_H

#define KILN_NO_STAMP
#include "endpoint/context.h"

#include <kiln.h>

/* Sets kiln_last_result; for `return sdk_null(ctx, KILN_...)`. */
static inline void *sdk_null(struct kiln_context *ctx, int result)
{
    ctx->last_result = result;
    return NULL;
}

static inline bool sdk_is_gone(const struct kiln_context *ctx)
{
    return atomic_load_explicit(&ctx->gone, memory_order_relaxed);
}

/* True while status and headers may still be changed. */
static inline bool sdk_head_is_open(const struct kiln_context *ctx)
{
    return !ctx->streaming && !ctx->finished;
}

/* The bytes as a C string: themselves when a NUL follows, else copied once and *text pointed at the
 * copy. "" when absent or out of memory. Only for bytes that lie in the arena or are static. */
const char *sdk_text(struct kiln_context *ctx, struct str *text);
/* A NUL-terminated copy; ptr NULL when out of memory. */
struct str sdk_copy(struct kiln_context *ctx, const char *text);

/* Names with values, in the request's arena; NUL-terminated. */
struct sdk_pair {
    struct str name;
    struct str value;
};

struct sdk_pairs {
    struct request *req;
    struct sdk_pair *items;
    size_t count;
    size_t cap;
};

/* Copies; also the on_pair of a struct form, with the list as its argument. False when out of memory. */
bool sdk_pairs_add(void *pairs, struct str name, struct str value);
const struct sdk_pair *sdk_pairs_find(const struct sdk_pairs *pairs, const char *name);
/* The common part of kiln_*_at. */
int sdk_pairs_at(const struct sdk_pairs *pairs, size_t index, const char **name, const char **value, size_t *length);

/* sdk_body.c: what is read from the client. All return a kiln_result or a count. */

/* Takes the body as one piece, once: KILN_LATE when it is being streamed. */
int sdk_body_whole(struct kiln_context *ctx, struct str *body);
/* At least one byte, 0 at the end. `upload` says which of the two streams asks. */
ssize_t sdk_body_stream(struct kiln_context *ctx, bool upload, void *buffer, size_t size);
/* sdk_form.c and sdk_part.c keep what they made of it here. */
struct sdk_form;
struct sdk_parts;
struct sdk_upload;
struct sdk_form **sdk_body_form(struct kiln_context *ctx);
struct sdk_parts **sdk_body_parts(struct kiln_context *ctx);
struct sdk_upload **sdk_body_upload(struct kiln_context *ctx);

/* sdk_part.c: every part of a multipart body without a file name. */
int sdk_parts_fields(struct kiln_context *ctx, struct sdk_pairs *fields);

/* sdk_wait.c: whose kiln_offload this guard is of; NULL: of none. */
struct kiln_context *sdk_offload_context(struct crash_guard *guard);

/* sdk_session.c: before the head is sent, adds the session's Set-Cookie when there is one. */
void sdk_session_head(struct kiln_context *ctx);

enum {
    SDK_FIELDS_MAX = 10000, /* of a form or a query */
    SDK_FIELD_SIZE = 1048576, /* of one, name and value */
    SDK_JSON_DEPTH = 200, /* cJSON recurses, and a coroutine's stack is small */
};

#endif
