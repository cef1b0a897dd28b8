/* kiln.h: what the request says. Nothing here waits. */
#include "endpoint/sdk.h"

#include "request/cookie.h"
#include "request/form.h"

static struct request *request_of(const kiln_context *ctx)
{
    return context_check(ctx)->req;
}

static const char *text(const kiln_context *ctx, struct str *member)
{
    return sdk_text(context_check(ctx), member);
}

const char *kiln_method(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->method_text);
}

int kiln_method_is(const kiln_context *ctx, const char *method)
{
    return str_eq(request_of(ctx)->method_text, str_of(method));
}

const char *kiln_path(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->path);
}

const char *kiln_script_name(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->script_name);
}

const char *kiln_path_info(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->path_info);
}

const char *kiln_target(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->target);
}

const char *kiln_query(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->query);
}

const char *kiln_host(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->host);
}

const char *kiln_hostname(const kiln_context *ctx)
{
    return text(ctx, &request_of(ctx)->hostname);
}

/* ---- query ------------------------------------------------------------------------------------ */

static struct sdk_pairs *new_pairs(kiln_context *ctx)
{
    struct sdk_pairs *pairs = arena_zalloc(&ctx->req->arena, sizeof *pairs);
    if (pairs != NULL) {
        pairs->req = ctx->req;
    }
    return pairs;
}

/* Parsed at the first call; NULL with kiln_last_result when out of memory. */
static struct sdk_pairs *query_pairs(kiln_context *ctx)
{
    if (ctx->query != NULL) {
        return ctx->query;
    }
    struct sdk_pairs *pairs = new_pairs(ctx);
    if (pairs == NULL) {
        return sdk_null(ctx, KILN_NO_MEMORY);
    }
    struct str query = ctx->req->query;
    struct form form;
    form_init(&form, SDK_FIELDS_MAX, SDK_FIELD_SIZE, sdk_pairs_add, pairs);
    form_feed(&form, query.ptr, query.len);
    enum form_result result = form_finish(&form);
    form_free(&form);
    if (result != FORM_OK) {
        return sdk_null(ctx, result == FORM_NO_MEMORY ? KILN_NO_MEMORY : KILN_TOO_LARGE);
    }
    ctx->query = pairs;
    return pairs;
}

const char *kiln_query_get(kiln_context *ctx, const char *name)
{
    const struct sdk_pairs *pairs = query_pairs(context_check(ctx));
    if (pairs == NULL) {
        return NULL;
    }
    const struct sdk_pair *pair = sdk_pairs_find(pairs, name);
    return pair != NULL ? pair->value.ptr : sdk_null(ctx, KILN_NOT_FOUND);
}

int kiln_query_at(kiln_context *ctx, size_t index, const char **name, const char **value, size_t *length)
{
    const struct sdk_pairs *pairs = query_pairs(context_check(ctx));
    return pairs != NULL ? sdk_pairs_at(pairs, index, name, value, length) : 0;
}

/* ---- headers and cookies ---------------------------------------------------------------------- */

static const char *find_header(const struct header *headers, size_t count, const char *name)
{
    struct str wanted = str_of(name);
    for (size_t i = 0; i < count; i++) {
        if (str_eq_nocase(headers[i].name, wanted)) {
            return headers[i].value.ptr;
        }
    }
    return NULL;
}

const char *kiln_header(const kiln_context *ctx, const char *name)
{
    const struct request *req = request_of(ctx);
    const char *value = find_header(req->headers, req->header_count, name);
    return value != NULL ? value : sdk_null(context_check(ctx), KILN_NOT_FOUND);
}

int kiln_header_at(const kiln_context *ctx, size_t index, const char **name, const char **value)
{
    const struct request *req = request_of(ctx);
    if (index >= req->header_count) {
        return 0;
    }
    if (name != NULL) {
        *name = req->headers[index].name.ptr;
    }
    if (value != NULL) {
        *value = req->headers[index].value.ptr;
    }
    return 1;
}

const char *kiln_trailer(const kiln_context *ctx, const char *name)
{
    const struct request *req = request_of(ctx);
    const char *value = req->body.complete ? find_header(req->trailers, req->trailer_count, name) : NULL;
    return value != NULL ? value : sdk_null(context_check(ctx), KILN_NOT_FOUND);
}

static struct sdk_pairs *cookie_pairs(kiln_context *ctx)
{
    if (ctx->cookies != NULL) {
        return ctx->cookies;
    }
    struct sdk_pairs *pairs = new_pairs(ctx);
    if (pairs == NULL) {
        return sdk_null(ctx, KILN_NO_MEMORY);
    }
    const struct request *req = ctx->req;
    for (unsigned i = 0; i < req->header_count; i++) {
        if (!str_eq_nocase(req->headers[i].name, STR("Cookie"))) {
            continue;
        }
        struct str rest = req->headers[i].value;
        struct str name;
        struct str value;
        while (cookie_next(&rest, &name, &value)) {
            if (!sdk_pairs_add(pairs, name, value)) {
                return sdk_null(ctx, KILN_NO_MEMORY);
            }
        }
    }
    ctx->cookies = pairs;
    return pairs;
}

const char *kiln_cookie(kiln_context *ctx, const char *name)
{
    const struct sdk_pairs *pairs = cookie_pairs(context_check(ctx));
    if (pairs == NULL) {
        return NULL;
    }
    const struct sdk_pair *pair = sdk_pairs_find(pairs, name);
    return pair != NULL ? pair->value.ptr : sdk_null(ctx, KILN_NOT_FOUND);
}

int kiln_cookie_at(kiln_context *ctx, size_t index, const char **name, const char **value)
{
    const struct sdk_pairs *pairs = cookie_pairs(context_check(ctx));
    return pairs != NULL ? sdk_pairs_at(pairs, index, name, value, NULL) : 0;
}

/* ---- connection ------------------------------------------------------------------------------ */

const char *kiln_remote_address(kiln_context *ctx)
{
    char address[ADDRESS_TEXT];
    size_t len = address_text(&request_of(ctx)->client, address);
    char *copy = kiln_strndup(ctx, address, len);
    return copy != NULL ? copy : "";
}

unsigned kiln_remote_port(const kiln_context *ctx)
{
    return request_of(ctx)->client.port;
}

int kiln_is_secure(const kiln_context *ctx)
{
    return context_check(ctx)->secure;
}

const char *kiln_client_subject(const kiln_context *ctx)
{
    return request_of(ctx)->client_subject.ptr;
}

const char *kiln_client_fingerprint(const kiln_context *ctx)
{
    return request_of(ctx)->client_fingerprint.ptr;
}

const char *kiln_protocol(const kiln_context *ctx)
{
    const struct request *req = request_of(ctx);
    if (req->http_major != 1) {
        return "HTTP/2";
    }
    return req->http_minor == 0 ? "HTTP/1.0" : "HTTP/1.1";
}

const char *kiln_directory(const kiln_context *cctx)
{
    struct kiln_context *ctx = context_check(cctx);
    if (ctx->directory == NULL) {
        struct str file = endpoint_file(ctx->endpoint);
        size_t slash = str_find_last(file, '/');
        ctx->directory = kiln_strndup(ctx, file.ptr, slash == SIZE_MAX ? 0 : slash);
    }
    return ctx->directory != NULL ? ctx->directory : "";
}
