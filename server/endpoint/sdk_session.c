/* kiln.h: sessions, over sessions/session.h. The values are JSON there; here a text is a JSON string
 * and a number a JSON number. */
#include "endpoint/sdk.h"
#include "endpoint/session_access.h"

#include "observe/log.h"
#include "sessions/json_text.h"
#include "supervisor/worker.h"

#include <cjson/cJSON.h>
#include <time.h>

/* ---- how the calls travel ----------------------------------------------------------------- */

struct context_session {
    struct session session;
};

/* The values of all Cookie headers as one. */
static struct str cookie_line(struct request *req)
{
    struct str line = STR_NONE;
    for (unsigned i = 0; i < req->header_count; i++) {
        if (!str_eq_nocase(req->headers[i].name, STR("Cookie"))) {
            continue;
        }
        struct str value = req->headers[i].value;
        if (line.ptr == NULL) {
            line = value;
            continue;
        }
        char *joined = arena_printf(&req->arena, "%.*s; %.*s", STR_ARG(line), STR_ARG(value));
        line = joined != NULL ? str_of(joined) : line;
    }
    return line;
}

bool session_of_request(struct session *session, struct sessions *service, struct request *req, bool secure)
{
    if (service == NULL) {
        return false;
    }
    session_init(session, service, cookie_line(req), secure, time(NULL));
    return true;
}

void session_head(struct session *session, struct request *req)
{
    struct buffer cookie = BUFFER_EMPTY;
    if (session_cookie(session, &cookie)) {
        struct str line = arena_str(&req->arena, buffer_str(&cookie));
        /* A response that hands out a session belongs to one browser. */
        bool ok = line.ptr != NULL && response_header_add(req, STR("Set-Cookie"), line) &&
                  response_header_set(req, STR("Cache-Control"), STR("no-store"));
        if (!ok) {
            log_error("%.*s: no memory for the session's cookie", STR_ARG(req->script_name));
        }
    }
    buffer_free(&cookie);
}

static enum session_result run_id(struct session *session, struct session_call *call)
{
    const char *id = "";
    enum session_result result = session_id(session, &id);
    if (result == SESSION_OK && id[0] == '\0') {
        return SESSION_NONE;
    }
    buffer_append_z(&call->text, id);
    return result;
}

enum session_result session_call_run(struct session *session, struct session_call *call)
{
    switch (call->op) {
    case SESSION_OP_GET: return session_get(session, call->key, &call->text);
    case SESSION_OP_GET_ALL: return session_get_all(session, &call->text);
    case SESSION_OP_ID: return run_id(session, call);
    case SESSION_OP_SET: return session_set(session, call->key, call->value);
    case SESSION_OP_REMOVE: return session_remove(session, call->key);
    case SESSION_OP_INCREMENT: return session_increment(session, call->key, call->number, &call->number);
    case SESSION_OP_RENEW: return session_renew(session);
    case SESSION_OP_DESTROY: return session_destroy(session);
    case SESSION_OP_COUNT: break;
    }
    return SESSION_INVALID;
}

/* In a worker. The time asleep is not the endpoint's; a fault inside is the server's: what the endpoint
 * passed was looked at before. */
static enum session_result call_here(struct kiln_context *ctx, struct session_call *call)
{
    if (ctx->session == NULL) {
        struct context_session *made = arena_alloc(&ctx->req->arena, sizeof *made);
        if (made == NULL) {
            return SESSION_FULL;
        }
        if (!session_of_request(&made->session, worker_sessions(), ctx->req, ctx->secure)) {
            return SESSION_FAILED;
        }
        ctx->session = made;
    }
    struct session *session = &ctx->session->session;
    session->head_sent = !sdk_head_is_open(ctx);
    struct crash_guard *guard = context_slice_end(ctx);
    enum session_result result = session_call_run(session, call);
    context_slice_begin(ctx, guard);
    return result;
}

static void head_here(struct kiln_context *ctx)
{
    if (ctx->session != NULL) {
        session_head(&ctx->session->session, ctx->req);
    }
}

static const struct session_access access_here = {.call = call_here, .head = head_here};
const struct session_access *session_access = &access_here;

void sdk_session_head(struct kiln_context *ctx)
{
    session_access->head(ctx);
}

static int result_of(enum session_result result)
{
    switch (result) {
    case SESSION_OK: return KILN_OK;
    case SESSION_NONE:
    case SESSION_GONE: return KILN_NOT_FOUND;
    case SESSION_CONFLICT:
    case SESSION_INVALID: return KILN_INVALID;
    case SESSION_TOO_LARGE: return KILN_TOO_LARGE;
    case SESSION_FULL: return KILN_NO_MEMORY;
    case SESSION_LATE: return KILN_LATE;
    case SESSION_FAILED: break;
    }
    return KILN_FAILED;
}

/* A kiln_result. */
static int run(struct kiln_context *ctx, struct session_call *call)
{
    return context_check(ctx)->closed ? KILN_LATE : result_of(session_access->call(ctx, call));
}

/* ---- reading -------------------------------------------------------------------------------- */

/* The JSON text of a value, or of all, in *json, which the caller frees; a kiln_result. */
static int get_json(struct kiln_context *ctx, enum session_op op, const char *key, struct buffer *json)
{
    struct session_call call = {.op = op, .key = key != NULL ? str_of(key) : STR_NONE};
    int result = run(ctx, &call);
    *json = call.text;
    if (result == KILN_OK && !buffer_append_char(json, '\0')) {
        return KILN_NO_MEMORY;
    }
    return result;
}

static char *simple_text(struct kiln_context *ctx, const char *json)
{
    if (json[0] != '"') {
        /* Numbers, true and false are their own text. */
        return json[0] == '{' || json[0] == '[' || json[0] == 'n' ? NULL : kiln_strdup(ctx, json);
    }
    cJSON *tree = cJSON_Parse(json);
    const char *text = cJSON_GetStringValue(tree);
    char *copy = text != NULL ? kiln_strdup(ctx, text) : NULL;
    cJSON_Delete(tree);
    return copy;
}

const char *kiln_session_get(kiln_context *ctx, const char *key)
{
    struct buffer json = BUFFER_EMPTY;
    int result = get_json(ctx, SESSION_OP_GET, key, &json);
    char *text = NULL;
    if (result == KILN_OK) {
        ctx->last_result = KILN_NOT_FOUND;
        text = simple_text(ctx, json.data);
        result = ctx->last_result;
    }
    buffer_free(&json);
    return text != NULL ? text : sdk_null(ctx, result);
}

int64_t kiln_session_get_int(kiln_context *ctx, const char *key, int64_t fallback)
{
    struct buffer json = BUFFER_EMPTY;
    int64_t number = fallback;
    if (get_json(ctx, SESSION_OP_GET, key, &json) != KILN_OK ||
        !json_text_integer((struct str){json.data, json.len - 1}, &number)) {
        number = fallback;
    }
    buffer_free(&json);
    return number;
}

static void delete_tree(void *arg)
{
    cJSON_Delete(arg);
}

/* Parses and frees the text; the tree goes with the request. */
static cJSON *take_tree(struct kiln_context *ctx, int result, struct buffer *json)
{
    cJSON *tree = NULL;
    if (result == KILN_OK) {
        tree = cJSON_Parse(json->data);
        result = KILN_NO_MEMORY;
        if (tree != NULL && kiln_defer(ctx, delete_tree, tree) != KILN_OK) {
            cJSON_Delete(tree);
            tree = NULL;
        }
    }
    buffer_free(json);
    return tree != NULL ? tree : sdk_null(ctx, result);
}

struct cJSON *kiln_session_get_json(kiln_context *ctx, const char *key)
{
    struct buffer json = BUFFER_EMPTY;
    int result = get_json(ctx, SESSION_OP_GET, key, &json);
    return take_tree(ctx, result, &json);
}

struct cJSON *kiln_session_get_all(kiln_context *ctx)
{
    struct buffer json = BUFFER_EMPTY;
    int result = get_json(ctx, SESSION_OP_GET_ALL, NULL, &json);
    return take_tree(ctx, result, &json);
}

const char *kiln_session_id(kiln_context *ctx)
{
    struct session_call call = {.op = SESSION_OP_ID};
    int result = run(ctx, &call);
    char *id = NULL;
    if (result == KILN_OK) {
        id = kiln_strndup(ctx, call.text.data, call.text.len);
        result = KILN_NO_MEMORY;
    }
    buffer_free(&call.text);
    return id != NULL ? id : sdk_null(ctx, result);
}

/* ---- writing ---------------------------------------------------------------------------------- */

static int set(struct kiln_context *ctx, const char *key, struct str json)
{
    struct session_call call = {.op = SESSION_OP_SET, .key = str_of(key), .value = json};
    return run(ctx, &call);
}

int kiln_session_set(kiln_context *ctx, const char *key, const char *text)
{
    struct buffer json = BUFFER_EMPTY;
    int result = buffer_append_json(&json, str_of(text)) ? set(ctx, key, buffer_str(&json)) : KILN_NO_MEMORY;
    buffer_free(&json);
    return result;
}

int kiln_session_set_int(kiln_context *ctx, const char *key, int64_t value)
{
    struct buffer json = BUFFER_EMPTY;
    int result = buffer_printf(&json, "%lld", (long long)value) ? set(ctx, key, buffer_str(&json)) : KILN_NO_MEMORY;
    buffer_free(&json);
    return result;
}

int kiln_session_set_json(kiln_context *ctx, const char *key, const struct cJSON *value)
{
    char *json = cJSON_PrintUnformatted(value);
    if (json == NULL) {
        return value == NULL ? KILN_INVALID : KILN_NO_MEMORY;
    }
    int result = set(ctx, key, str_of(json));
    cJSON_free(json);
    return result;
}

int kiln_session_remove(kiln_context *ctx, const char *key)
{
    struct session_call call = {.op = SESSION_OP_REMOVE, .key = str_of(key)};
    return run(ctx, &call);
}

int kiln_session_increment(kiln_context *ctx, const char *key, int64_t by, int64_t *result)
{
    struct session_call call = {.op = SESSION_OP_INCREMENT, .key = str_of(key), .number = by};
    int outcome = run(ctx, &call);
    if (outcome == KILN_OK && result != NULL) {
        *result = call.number;
    }
    return outcome;
}

int kiln_session_renew(kiln_context *ctx)
{
    struct session_call call = {.op = SESSION_OP_RENEW};
    return run(ctx, &call);
}

int kiln_session_destroy(kiln_context *ctx)
{
    struct session_call call = {.op = SESSION_OP_DESTROY};
    return run(ctx, &call);
}
