/* kiln.h: status, headers, cookies, body bytes. */
#include "base/format.h"
#include "endpoint/sdk.h"

#include "request/cookie.h"
#include "request/token.h"

#include <cjson/cJSON.h>
#include <stdio.h>

/* ---- head ----------------------------------------------------------------------------------- */

int kiln_status(kiln_context *ctx, int status)
{
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    if (status < 200 || status > 599) {
        return KILN_INVALID;
    }
    ctx->status = status;
    return KILN_OK;
}

static int put_header(kiln_context *ctx, const char *name, const char *value, bool replace)
{
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    struct str trimmed = str_trim(str_of(value));
    if (!token_is_valid(str_of(name)) || response_header_is_servers_own(str_of(name)) ||
        !field_value_is_valid(trimmed)) {
        return KILN_INVALID;
    }
    struct str name_copy = sdk_copy(ctx, name);
    struct str value_copy = arena_str(&ctx->req->arena, trimmed);
    if (name_copy.ptr == NULL || value_copy.ptr == NULL) {
        return KILN_NO_MEMORY;
    }
    bool ok = replace ? response_header_set(ctx->req, name_copy, value_copy)
                      : response_header_add(ctx->req, name_copy, value_copy);
    return ok ? KILN_OK : KILN_NO_MEMORY;
}

int kiln_header_set(kiln_context *ctx, const char *name, const char *value)
{
    return put_header(ctx, name, value, true);
}

int kiln_header_add(kiln_context *ctx, const char *name, const char *value)
{
    return put_header(ctx, name, value, false);
}

int kiln_header_remove(kiln_context *ctx, const char *name)
{
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    response_header_remove(ctx->req, str_of(name));
    return KILN_OK;
}

int kiln_trailer_add(kiln_context *ctx, const char *name, const char *value)
{
    if (context_check(ctx)->finished) {
        return KILN_LATE;
    }
    struct str name_copy = sdk_copy(ctx, name);
    struct str value_copy = arena_str(&ctx->req->arena, str_trim(str_of(value)));
    if (name_copy.ptr == NULL || value_copy.ptr == NULL) {
        return KILN_NO_MEMORY;
    }
    return !ctx->length_set && response_trailer_add(ctx->req, name_copy, value_copy) ? KILN_OK : KILN_INVALID;
}

const char *kiln_header_sent(const kiln_context *ctx, const char *name)
{
    struct str value = response_header_get(context_check(ctx)->req, str_of(name));
    return value.ptr != NULL ? sdk_text(context_check(ctx), &value) : sdk_null(context_check(ctx), KILN_NOT_FOUND);
}

/* The one header that nearly every answer sets: without the look-ups of put_header. */
int kiln_content_type(kiln_context *ctx, const char *type)
{
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    struct str value = str_trim(str_of(type));
    if (!field_value_is_valid(value)) {
        return KILN_INVALID;
    }
    value = arena_str(&ctx->req->arena, value);
    if (value.ptr == NULL) {
        return KILN_NO_MEMORY;
    }
    ctx->req->response.content_type = value;
    return KILN_OK;
}

int kiln_content_length(kiln_context *ctx, uint64_t length)
{
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    if (length < ctx->written || length == RESPONSE_LENGTH_UNKNOWN || ctx->req->response.trailer_count > 0) {
        return KILN_INVALID;
    }
    ctx->length = length;
    ctx->length_set = true;
    return KILN_OK;
}

/* ---- cookies ------------------------------------------------------------------------------------ */

static struct str optional(const char *text)
{
    return text != NULL ? str_of(text) : STR_NONE;
}

/* Takes away a Set-Cookie of the same name that was set before. */
static void drop_cookie(struct request *req, struct str name)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < req->response.header_count; i++) {
        struct response_header header = req->response.headers[i];
        bool same = str_eq_nocase(header.name, STR("Set-Cookie")) && str_starts(header.value, name) &&
                    header.value.len > name.len && header.value.ptr[name.len] == '=';
        if (!same) {
            req->response.headers[kept++] = header;
        }
    }
    req->response.header_count = (uint16_t)kept;
}

int kiln_cookie_set(kiln_context *ctx, const char *name, const char *value, const kiln_cookie_options *options)
{
    static const kiln_cookie_options defaults = {0};
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    const kiln_cookie_options *o = options != NULL ? options : &defaults;
    if (o->same_site < KILN_SAME_SITE_LAX || o->same_site > KILN_SAME_SITE_NONE) {
        return KILN_INVALID;
    }
    struct set_cookie cookie = {
        .name = str_of(name),
        .value = str_of(value),
        .path = optional(o->path),
        .domain = optional(o->domain),
        .max_age = o->max_age,
        .same_site = (enum cookie_same_site)o->same_site,
        .secure = o->secure > 0 || (o->secure == 0 && (ctx->secure || o->same_site == KILN_SAME_SITE_NONE)),
        .http_only = o->visible_to_script == 0,
    };
    struct buffer text = BUFFER_EMPTY;
    enum cookie_result result = set_cookie_format(&text, &cookie);
    struct str line = STR_NONE;
    if (result == COOKIE_OK) {
        drop_cookie(ctx->req, cookie.name);
        line = arena_str(&ctx->req->arena, buffer_str(&text));
    }
    buffer_free(&text);
    if (result != COOKIE_OK && result != COOKIE_NO_MEMORY) {
        return KILN_INVALID;
    }
    bool ok = line.ptr != NULL && response_header_add(ctx->req, STR("Set-Cookie"), line);
    return ok ? KILN_OK : KILN_NO_MEMORY;
}

/* ---- body ------------------------------------------------------------------------------------------ */

int kiln_write(kiln_context *ctx, const void *data, size_t length)
{
    context_check(ctx);
    /* A -1 of read() that was passed on: it would send whatever lies in memory behind data. */
    return length <= PTRDIFF_MAX ? context_write(ctx, data, length) : KILN_INVALID;
}

int kiln_puts(kiln_context *ctx, const char *text)
{
    return context_write(context_check(ctx), text, strlen(text));
}

/* Text that the gathering buffer did not have room for at once. */
static int print_large(kiln_context *ctx, const char *format, va_list args)
{
    struct buffer text = BUFFER_EMPTY;
    buffer_vprintf(&text, format, args);
    int result = text.failed ? KILN_NO_MEMORY : context_write(ctx, text.data, text.len);
    buffer_free(&text);
    return result;
}

int kiln_vprintf(kiln_context *ctx, const char *format, va_list args)
{
    enum { USUAL = 256 };
    context_check(ctx);
    if (ctx->finished) {
        return KILN_LATE;
    }
    char *to = ctx->length_set ? NULL : context_reserve(ctx, USUAL);
    if (to == NULL) {
        return print_large(ctx, format, args);
    }
    size_t room = ctx->out.cap - ctx->out.len;
    long plain = format_plain(to, room, format, args);
    if (plain >= 0) {
        return context_added(ctx, (size_t)plain);
    }
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(to, room, format, args);
    int result = KILN_INVALID;
    if (length >= 0 && (size_t)length < room) {
        result = context_added(ctx, (size_t)length);
    } else if (length >= 0) {
        result = print_large(ctx, format, again);
    }
    va_end(again);
    return result;
}

int kiln_printf(kiln_context *ctx, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int result = kiln_vprintf(ctx, format, args);
    va_end(args);
    return result;
}

int kiln_puts_html(kiln_context *ctx, const char *text)
{
    struct buffer escaped = BUFFER_EMPTY;
    buffer_append_html(&escaped, str_of(text));
    int result = escaped.failed ? KILN_NO_MEMORY : context_write(context_check(ctx), escaped.data, escaped.len);
    buffer_free(&escaped);
    return result;
}

int kiln_flush(kiln_context *ctx)
{
    return context_flush(context_check(ctx));
}

uint64_t kiln_written(const kiln_context *ctx)
{
    return context_check(ctx)->written;
}

int kiln_redirect(kiln_context *ctx, int status, const char *location)
{
    if (status != 301 && status != 302 && status != 303 && status != 307 && status != 308) {
        return KILN_INVALID;
    }
    int result = kiln_header_set(ctx, "Location", location);
    return result == KILN_OK ? kiln_status(ctx, status) : result;
}

int kiln_json_send(kiln_context *ctx, const struct cJSON *json)
{
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    char *text = cJSON_PrintUnformatted(json);
    if (text == NULL) {
        return json == NULL ? KILN_INVALID : KILN_NO_MEMORY;
    }
    int result = kiln_content_type(ctx, "application/json");
    if (result == KILN_OK) {
        result = kiln_puts(ctx, text);
    }
    cJSON_free(text);
    return result;
}

struct error_page {
    int status;
    const char *detail;
};

static void send_error_page(struct kiln_context *ctx, void *arg)
{
    const struct error_page *page = arg;
    if (!ctx->req->gone) {
        response_error_text(ctx->req, page->status, page->detail);
    }
}

int kiln_error(kiln_context *ctx, int status, const char *detail)
{
    if (!sdk_head_is_open(context_check(ctx))) {
        return KILN_LATE;
    }
    if (status < 400 || status > 599) {
        return KILN_INVALID;
    }
    struct error_page page = {status, detail != NULL ? kiln_strdup(ctx, detail) : NULL};
    ctx->out.len = 0;
    sdk_session_head(ctx);
    ctx->finished = true;
    context_on_loop(ctx, send_error_page, &page);
    return sdk_is_gone(ctx) ? KILN_GONE : KILN_OK;
}
