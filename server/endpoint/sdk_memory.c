/* kiln.h: memory of the request, log, version, module. */
#include "endpoint/sdk.h"

#include "endpoint/watchdog.h"
#include "observe/log.h"

#include <stdlib.h>
#include <unistd.h>

const char *kiln_version(void)
{
    return KILN_VERSION;
}

unsigned kiln_sdk_version(void)
{
    return (unsigned)KILN_SDK_MAJOR << 16 | (unsigned)KILN_SDK_MINOR;
}

const char *kiln_module_file(const kiln_module *module)
{
    return module->file;
}

const char *kiln_module_directory(const kiln_module *module)
{
    return module->directory;
}

int kiln_last_result(const kiln_context *ctx)
{
    return context_check(ctx)->last_result;
}

/* ---- shared ------------------------------------------------------------------------------- */

const char *sdk_text(struct kiln_context *ctx, struct str *text)
{
    if (text->ptr == NULL) {
        return "";
    }
    if (text->ptr[text->len] != '\0') {
        struct str copy = arena_str(&ctx->req->arena, *text);
        if (copy.ptr == NULL) {
            return "";
        }
        *text = copy;
    }
    return text->ptr;
}

struct str sdk_copy(struct kiln_context *ctx, const char *text)
{
    return arena_str(&ctx->req->arena, str_of(text));
}

bool sdk_pairs_add(void *arg, struct str name, struct str value)
{
    struct sdk_pairs *pairs = arg;
    struct arena *arena = &pairs->req->arena;
    if (pairs->count == pairs->cap) {
        size_t cap = pairs->cap == 0 ? 8 : pairs->cap * 2;
        struct sdk_pair *items = arena_alloc(arena, cap * sizeof *items);
        if (items == NULL) {
            return false;
        }
        if (pairs->count > 0) {
            memcpy(items, pairs->items, pairs->count * sizeof *items);
        }
        pairs->items = items;
        pairs->cap = cap;
    }
    struct sdk_pair pair = {arena_str(arena, name), arena_str(arena, value)};
    if (pair.name.ptr == NULL || pair.value.ptr == NULL) {
        return false;
    }
    pairs->items[pairs->count++] = pair;
    return true;
}

const struct sdk_pair *sdk_pairs_find(const struct sdk_pairs *pairs, const char *name)
{
    struct str wanted = str_of(name);
    for (size_t i = 0; i < pairs->count; i++) {
        if (str_eq(pairs->items[i].name, wanted)) {
            return &pairs->items[i];
        }
    }
    return NULL;
}

int sdk_pairs_at(const struct sdk_pairs *pairs, size_t index, const char **name, const char **value, size_t *length)
{
    if (index >= pairs->count) {
        return 0;
    }
    const struct sdk_pair *pair = &pairs->items[index];
    if (name != NULL) {
        *name = pair->name.ptr;
    }
    if (value != NULL) {
        *value = pair->value.ptr;
    }
    if (length != NULL) {
        *length = pair->value.len;
    }
    return 1;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *kiln_alloc(kiln_context *ctx, size_t size)
{
    void *block = arena_alloc(&context_check(ctx)->req->arena, size);
    return block != NULL ? block : sdk_null(ctx, KILN_NO_MEMORY);
}

void *kiln_zalloc(kiln_context *ctx, size_t size)
{
    void *block = kiln_alloc(ctx, size);
    if (block != NULL) {
        memset(block, 0, size);
    }
    return block;
}

char *kiln_strdup(kiln_context *ctx, const char *text)
{
    return kiln_strndup(ctx, text, strlen(text));
}

char *kiln_strndup(kiln_context *ctx, const char *text, size_t length)
{
    length = strnlen(text, length);
    char *copy = length < SIZE_MAX ? kiln_alloc(ctx, length + 1) : NULL;
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

char *kiln_vsprintf(kiln_context *ctx, const char *format, va_list args)
{
    char *text = arena_vprintf(&context_check(ctx)->req->arena, format, args);
    return text != NULL ? text : sdk_null(ctx, KILN_NO_MEMORY);
}

char *kiln_sprintf(kiln_context *ctx, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = kiln_vsprintf(ctx, format, args);
    va_end(args);
    return text;
}

/* What the endpoint deferred is its code as well: guarded, and not run after a crash. */
struct deferral {
    struct kiln_context *ctx;
    void (*fn)(void *);
    void *arg;
};

static int deferral_call(void *arg)
{
    const struct deferral *deferral = arg;
    deferral->fn(deferral->arg);
    return 0;
}

static void deferral_run(void *arg)
{
    struct deferral *deferral = arg;
    struct kiln_context *ctx = deferral->ctx;
    if (ctx->crashed) {
        return;
    }
    crash_guard_ready(&ctx->guard);
    context_time_start(ctx);
    watchdog_enter(ctx->endpoint, ctx->deadline);
    int returned = crash_run(&ctx->guard, deferral_call, deferral);
    watchdog_leave();
    if (crash_is_child()) {
        _exit(EXIT_FAILURE);
    }
    if (returned == CRASH_CAUGHT) {
        context_crashed_late(ctx, "in a function that it gave to kiln_defer");
    }
}

int kiln_defer(kiln_context *ctx, void (*fn)(void *), void *arg)
{
    if (fn == NULL || context_check(ctx)->closed) {
        return fn == NULL ? KILN_INVALID : KILN_LATE;
    }
    struct arena *arena = &ctx->req->arena;
    struct deferral *deferral = arena_alloc(arena, sizeof *deferral);
    if (deferral == NULL) {
        return KILN_NO_MEMORY;
    }
    *deferral = (struct deferral){ctx, fn, arg};
    return arena_defer(arena, deferral_run, deferral) ? KILN_OK : KILN_NO_MEMORY;
}

/* ---- log --------------------------------------------------------------------------------------- */

void kiln_vlog(kiln_context *ctx, int level, const char *format, va_list args)
{
    enum log_level at = level < KILN_LOG_DEBUG ? LOG_DEBUG : level > KILN_LOG_ERROR ? LOG_ERROR : (enum log_level)level;
    if (!log_enabled(at)) {
        return;
    }
    struct buffer line = BUFFER_EMPTY;
    buffer_vprintf(&line, format, args);
    /* One line stays one line, whatever of the client's is in it. */
    for (size_t i = 0; i < line.len; i++) {
        unsigned char c = (unsigned char)line.data[i];
        if (c < ' ' || c == 0x7f) {
            line.data[i] = ' ';
        }
    }
    struct str from = ctx != NULL ? context_check(ctx)->req->script_name : STR("endpoint");
    log_write(at, "%.*s: %.*s", STR_ARG(from), STR_ARG(buffer_str(&line)));
    buffer_free(&line);
}

void kiln_log(kiln_context *ctx, int level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    kiln_vlog(ctx, level, format, args);
    va_end(args);
}
