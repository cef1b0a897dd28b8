/* DESIGN: from host and path to a node of the site index, in this order:
 *   host   DomainAlias (with the port, then without) -> port cut off -> FilterFromDomain
 *          replaced -> directory of that name; in BackendDir/default/ when there is none
 *   path   decoded and normalised (path.h) -> UrlAlias of "host/path"
 *   file   the exact entry -> an endpoint further up, with the rest as path info ->
 *          with LoopFindEndpoint the index of the nearest directory above
 * Where "todo._c" lies beside "todo/": files in todo/ come first; if todo/ has an index (or a
 * listing) the endpoint is only there as "/todo._c", else it takes all the rest.
 * A file or directory is what its URL says: "/file/" is not "/file", and "/dir" is sent to
 * "/dir/" so that relative links in its page work. What is in req->node at the end may
 * still be hidden: access.c decides. */
#include "answer/answer.h"
#include "base/check.h"
#include "config/config.h"
#include "request/steps.h"
#include "route/names.h"
#include "route/path.h"
#include "route/site_index.h"

#include <limits.h>

/* ---- host ----------------------------------------------------------------------------------- */

/* "example.com." is the same host, spelled out. */
static struct str without_dot(struct str name)
{
    name.len -= name.len > 1 && name.ptr[name.len - 1] == '.' ? 1 : 0;
    return name;
}

static struct str without_port(struct str host)
{
    size_t from = host.len > 0 && host.ptr[0] == '[' ? str_find(host, ']') : 0;
    if (from == SIZE_MAX) {
        return host;
    }
    size_t colon = str_find(str_from(host, from), ':');
    return without_dot(colon == SIZE_MAX ? host : str_first(host, from + colon));
}

/* Every `from` in the text as `to`; ptr NULL when out of memory. */
static struct str replace_all(struct arena *arena, struct str text, struct str from, struct str to)
{
    size_t most = (text.len / from.len + 1) * to.len + text.len;
    char *out = arena_alloc(arena, most + 1);
    if (out == NULL) {
        return STR_NONE;
    }
    size_t len = 0;
    for (size_t i = 0; i < text.len;) {
        if (str_starts(str_from(text, i), from)) {
            memcpy(out + len, to.ptr, to.len);
            len += to.len;
            i += from.len;
        } else {
            out[len++] = text.ptr[i++];
        }
    }
    out[len] = '\0';
    return (struct str){out, len};
}

static struct str effective_host(struct request *req)
{
    const struct config *config = req->config;
    struct str name = without_dot(str_first(req->host, req->host_name_len));
    if (config->domain_alias.count > 0) {
        const struct str *alias = map_get(&config->domain_alias, req->host);
        if (alias == NULL) {
            alias = map_get(&config->domain_alias, name);
        }
        if (alias != NULL) {
            name = without_port(*alias);
        }
    }
    if (config->filter_from_domain.len > 0) {
        name = replace_all(&req->arena, name, config->filter_from_domain, config->domain_filter_to);
    }
    return name;
}

enum step_result step_site(struct request *req)
{
    req->hostname = effective_host(req);
    if (req->hostname.ptr == NULL) {
        response_error(req, 500);
        return STEP_TAKEN;
    }
    req->site = site_find(req->hostname);
    return STEP_NEXT;
}

/* ---- path ------------------------------------------------------------------------------------- */

static enum step_result refuse(struct request *req, int status)
{
    /* Who sends what no client makes by mistake gets no second try on this connection. */
    req->response.close_after = req->response.close_after || status == 400;
    response_error(req, status);
    return STEP_TAKEN;
}

static enum step_result apply_alias(struct request *req)
{
    char key[1024];
    size_t length = req->hostname.len + req->path.len;
    if (length > sizeof key) {
        return STEP_NEXT;
    }
    memcpy(key, req->hostname.ptr, req->hostname.len);
    memcpy(key + req->hostname.len, req->path.ptr, req->path.len);
    const struct str *alias = map_get(&req->config->url_alias, (struct str){key, length});
    if (alias != NULL) {
        req->path = *alias; /* lives in the config, which the request holds */
    }
    return STEP_NEXT;
}

enum step_result step_alias(struct request *req)
{
    const struct config *config = req->config;
    struct path_scan scan = path_scan(req->raw_path);
    unsigned slashes = scan.slashes;
    req->path = req->raw_path;
    if (UNLIKELY(!scan.clean)) {
        char *copy = arena_alloc(&req->arena, req->raw_path.len + 1);
        if (copy == NULL) {
            return refuse(req, 500);
        }
        struct path_result result = path_normalise(req->raw_path, copy);
        if (!result.ok) {
            return refuse(req, 400);
        }
        if (result.dotted) {
            return refuse(req, 404);
        }
        req->path = result.path;
        slashes = result.slashes;
    }
    if (slashes > (unsigned)config->max_dir_depth) {
        return refuse(req, 404);
    }
    return config->url_alias.count > 0 ? apply_alias(req) : STEP_NEXT;
}

/* ---- node --------------------------------------------------------------------------------------- */

/* "/dir" -> "/dir/", with the query as it came. The path begins with exactly one slash, so
 * it can never be taken for another host. */
static enum step_result redirect_to_directory(struct request *req, struct str path)
{
    char *location = arena_alloc(&req->arena, path.len * 3 + 2 + req->query.len + 1);
    if (location == NULL) {
        return refuse(req, 500);
    }
    size_t len = path_encode(location, path);
    location[len++] = '/';
    if (req->query.ptr != NULL) {
        location[len++] = '?';
        memcpy(location + len, req->query.ptr, req->query.len);
        len += req->query.len;
    }
    location[len] = '\0';
    if (!response_header_set(req, STR("Location"), (struct str){location, len})) {
        return refuse(req, 400);
    }
    bool reads = req->method == METHOD_GET || req->method == METHOD_HEAD;
    req->response.status = reads ? 301 : 308; /* 308 keeps the method and the body */
    response_send(req, "", 0);
    return STEP_TAKEN;
}

static void lead_to(struct request *req, const struct site_node *node, struct str script_name, struct str path_info)
{
    req->node = node;
    req->script_name = script_name;
    req->path_info = path_info;
}

/* What answers "directory/": its index, or its listing where that is allowed. */
static const struct site_node *directory_answer(const struct request *req, const struct site_node *node)
{
    if (node->hidden || node->symlink_out) {
        return NULL;
    }
    const struct site_node *index = site_directory_index(node);
    return index != NULL || !req->config->directory_listing ? index : node;
}

/* The endpoint whose short name a directory hides: "todo._c" beside "todo/". */
static const struct site_node *endpoint_beside(struct request *req, struct str path)
{
    char url[PATH_MAX];
    for (size_t i = 0; i < NAME_ENDPOINT_SUFFIXES; i++) {
        struct str suffix = name_endpoint_suffixes[i];
        if (path.len == 0 || path.len + suffix.len > sizeof url) {
            continue;
        }
        memcpy(url, path.ptr, path.len);
        memcpy(url + path.len, suffix.ptr, suffix.len);
        const struct site_node *node = site_lookup(req->site, (struct str){url, path.len + suffix.len});
        if (node != NULL && node->kind == NODE_ENDPOINT && !node->hidden) {
            return node;
        }
    }
    return NULL;
}

/* Who takes what is not there below the directory: an index when LoopFindEndpoint says so; the
 * endpoint of the directory's name when the directory itself has nothing to say. */
static const struct site_node *taker_in(struct request *req, const struct site_node *directory, struct str path)
{
    const struct site_node *answer = directory_answer(req, directory);
    if (answer == NULL) {
        return endpoint_beside(req, path);
    }
    return req->config->loop_find_endpoint && answer != directory ? answer : NULL;
}

/* The nearest thing above the path that takes it, with the rest as path info. */
static void find_above(struct request *req, struct str path)
{
    struct str prefix = path;
    for (;;) {
        size_t slash = str_find_last(prefix, '/');
        if (slash == SIZE_MAX) {
            return;
        }
        prefix = str_first(prefix, slash);
        const struct site_node *node = site_lookup(req->site, prefix);
        if (node == NULL) {
            continue;
        }
        const struct site_node *taker = NULL;
        if (node->kind == NODE_ENDPOINT) {
            taker = node;
        } else if (node->kind == NODE_DIRECTORY) {
            taker = taker_in(req, node, prefix);
        }
        if (taker != NULL) {
            lead_to(req, taker, prefix, str_from(req->path, prefix.len));
            return;
        }
        if (!req->config->loop_find_endpoint) {
            return; /* a real directory or file stands there */
        }
    }
}

/* STEP_WAIT: nothing in or beside the directory answers. */
static enum step_result enter_directory(struct request *req, const struct site_node *node, struct str path, bool slash)
{
    if (node->symlink_out) {
        req->node = node;
        return STEP_NEXT;
    }
    const struct site_node *answer = directory_answer(req, node);
    if (answer != NULL && !slash) {
        return redirect_to_directory(req, path);
    }
    if (answer != NULL) {
        lead_to(req, answer, req->path, STR(""));
        return STEP_NEXT;
    }
    answer = endpoint_beside(req, path);
    if (answer != NULL) {
        lead_to(req, answer, path, str_from(req->path, path.len));
        return STEP_NEXT;
    }
    return STEP_WAIT;
}

/* No file has so long a path, but what is too long may be the path info of an endpoint above. */
static enum step_result route_long_path(struct request *req)
{
    struct str path = str_first(req->path, (size_t)req->config->max_file_path_length);
    find_above(req, path);
    return req->node != NULL ? STEP_NEXT : refuse(req, 414);
}

enum step_result step_route(struct request *req)
{
    if (req->site == NULL) {
        return STEP_NEXT; /* no such host: access.c says 404 */
    }
    if (UNLIKELY(req->path.len > (size_t)req->config->max_file_path_length)) {
        return route_long_path(req);
    }
    struct str path = req->path;
    bool slash = path.len > 0 && path.ptr[path.len - 1] == '/';
    path.len -= slash ? 1 : 0;
    const struct site_node *node = site_lookup(req->site, path);
    if (node != NULL && node->kind == NODE_DIRECTORY) {
        enum step_result result = enter_directory(req, node, path, slash);
        if (result != STEP_WAIT) {
            return result;
        }
    } else if (node != NULL && (node->kind == NODE_ENDPOINT || !slash)) {
        lead_to(req, node, path, str_from(req->path, path.len));
        return STEP_NEXT;
    }
    find_above(req, path);
    return STEP_NEXT;
}

enum step_result step_answer(struct request *req)
{
    if (UNLIKELY(req->tunnel) && !req->answer->tunnels) {
        response_error_text(req, 400, answer_no_websocket); /* a 200 would grant it */
        return STEP_TAKEN;
    }
    req->answer->start(req);
    return STEP_TAKEN;
}
