/* The steps from host and path to an answer, with a request made by hand and a protocol that
 * notes what it is told. */
#include "support.h"

#include "answer/answer.h"
#include "loop/config_hold.h"
#include "request/head.h"
#include "request/request.h"
#include "request/steps.h"

static struct request req;
static struct {
    unsigned status;
    bool taken;
} told;

static void send_head(struct request *r, uint64_t length)
{
    (void)length;
    told.status = r->response.status;
}

static void send_body(struct request *r, const void *data, size_t len)
{
    (void)r, (void)data, (void)len;
}

static void send_body_ref(struct request *r, const void *data, size_t len, void (*release)(void *), void *arg)
{
    (void)r, (void)data, (void)len;
    if (release != NULL) {
        release(arg);
    }
}

static void nothing(struct request *r)
{
    (void)r;
}

static const struct request_ops ops = {
    .send_head = send_head,
    .send_body = send_body,
    .send_body_ref = send_body_ref,
    .finish = nothing,
    .abort = nothing,
    .flush = nothing,
};

static void end_request(void)
{
    arena_reset(&req.arena);
}

/* Runs the steps up to the answer. */
static void ask_as(enum method method, const char *method_text, const char *host, const char *target)
{
    if (req.magic != 0) {
        end_request();
    }
    req = (struct request){.magic = REQUEST_MAGIC, .method = (uint8_t)method, .ops = &ops, .config = config};
    told.status = 0;
    told.taken = false;
    arena_init(&req.arena, 0);
    req.method_text = str_of(method_text);
    req.target = str_of(target);
    if (!request_host_set(&req, str_of(host))) {
        /* What no client can say leads nowhere all the same. */
        req.host = str_of(host);
        req.host_name_len = (uint32_t)req.host.len;
    }
    size_t mark = str_find(req.target, '?');
    req.raw_path = mark == SIZE_MAX ? req.target : str_first(req.target, mark);
    req.query = mark == SIZE_MAX ? STR_NONE : str_from(req.target, mark + 1);
    static enum step_result (*const steps[])(struct request *) = {step_limits, step_site, step_alias, step_route,
                                                                  step_access};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && !told.taken; i++) {
        told.taken = steps[i](&req) == STEP_TAKEN;
    }
}

static void ask(const char *host, const char *target)
{
    ask_as(METHOD_GET, "GET", host, target);
}

static const char *header(const char *name)
{
    struct str value = response_header_get(&req, str_of(name));
    return value.ptr != NULL ? value.ptr : "";
}

static const char *asked_file(void)
{
    return told.taken || req.node == NULL ? "" : req.node->file.ptr + strlen(base) + 1;
}

static void assert_leads(const char *host, const char *target, const char *file)
{
    ask(host, target);
    if (strcmp(asked_file(), file) != 0) {
        fail_msg("%s%s: expected %s, is %s (status %u)", host, target, file, asked_file(), told.status);
    }
}

static void assert_status(const char *host, const char *target, unsigned status)
{
    ask(host, target);
    if (told.status != status) {
        fail_msg("%s%s: expected %u, is %u (%s)", host, target, status, told.status, asked_file());
    }
}

static void assert_endpoint(const char *target, const char *file, const char *script, const char *info)
{
    assert_leads("h", target, file);
    assert_true(str_eq(req.script_name, str_of(script)));
    assert_true(str_eq(req.path_info, str_of(info)));
}

static int tear_down(void **state)
{
    if (req.magic != 0) {
        end_request();
        req.magic = 0;
    }
    return base_tear_down(state);
}

#define STEP_TEST(name) cmocka_unit_test_setup_teardown(name, base_set_up, tear_down)

/* ---- host --------------------------------------------------------------------------------------- */

static void hosts_lead_to_sites(void **state)
{
    (void)state;
    static const char *const sites[] = {"example.com", "filtered", "port-alias", "127.0.0.1", "[::1]", "exact"};
    char path[64];
    for (size_t i = 0; i < sizeof sites / sizeof sites[0]; i++) {
        snprintf(path, sizeof path, "hosts/%s/a.html", sites[i]);
        put(path, "x");
    }
    start(
        "{\"BackendDir\": \"hosts\", \"DomainAlias\": {\"www.example.com\": \"example.com\", \"Upper.COM\": "
        "\"example.com\", \"any.com:8080\": \"port-alias\", \"any.com\": \"example.com\", \"to.port\": \"exact:99\"}}");
    assert_leads("example.com", "/a.html", "hosts/example.com/a.html");
    assert_leads("example.com:8080", "/a.html", "hosts/example.com/a.html");
    assert_leads("example.com.", "/a.html", "hosts/example.com/a.html");
    assert_leads("example.com.:80", "/a.html", "hosts/example.com/a.html");
    assert_leads("www.example.com", "/a.html", "hosts/example.com/a.html");
    assert_leads("www.example.com:8443", "/a.html", "hosts/example.com/a.html");
    assert_leads("upper.com", "/a.html", "hosts/example.com/a.html");
    assert_leads("any.com:8080", "/a.html", "hosts/port-alias/a.html"); /* the port counts when the key has one */
    assert_leads("any.com:80", "/a.html", "hosts/example.com/a.html");
    assert_leads("to.port", "/a.html", "hosts/exact/a.html");
    assert_leads("127.0.0.1:21300", "/a.html", "hosts/127.0.0.1/a.html");
    assert_leads("[::1]:80", "/a.html", "hosts/[::1]/a.html");
    assert_leads("[::1]", "/a.html", "hosts/[::1]/a.html");
    assert_status("unknown.com", "/a.html", 404);
    assert_status("", "/a.html", 404);
    assert_status("..", "/a.html", 404);
    assert_status(".", "/a.html", 404);
    assert_status("example.com/a.html", "/", 404);
}

static void filter_replaces_in_the_host(void **state)
{
    (void)state;
    put("hosts/examplecom/a.html", "x");
    put("hosts/wwwexamplecom/a.html", "x");
    put("hosts/aliasedcom/a.html", "x");
    start("{\"BackendDir\": \"hosts\", \"FilterFromDomain\": \".\", \"DomainFilterTo\": \"\", "
          "\"DomainAlias\": {\"x.com\": \"aliased.com\"}}");
    assert_leads("example.com", "/a.html", "hosts/examplecom/a.html");
    assert_leads("www.example.com:80", "/a.html", "hosts/wwwexamplecom/a.html");
    assert_leads("x.com", "/a.html", "hosts/aliasedcom/a.html"); /* the alias comes first */
}

static void filter_may_insert(void **state)
{
    (void)state;
    put("hosts/a--b--c/a.html", "x");
    start("{\"BackendDir\": \"hosts\", \"FilterFromDomain\": \".\", \"DomainFilterTo\": \"--\"}");
    assert_leads("a.b.c", "/a.html", "hosts/a--b--c/a.html");
}

/* ---- path ----------------------------------------------------------------------------------------- */

static void url_alias_replaces_the_path(void **state)
{
    (void)state;
    put("hosts/a.com/new.html", "x");
    put("hosts/a.com/old.html", "x");
    put("hosts/a.com/d/index.html", "x");
    put("hosts/b.com/old.html", "x");
    put("hosts/a.com/.env", "secret");
    start("{\"BackendDir\": \"hosts\", \"DomainAlias\": {\"www.a.com\": \"a.com\"}, \"UrlAlias\": {\"a.com/old.html\": "
          "\"/new.html\", \"a.com/nowhere\": \"/d\", \"a.com/dot\": \"/.env\", \"a.com/up\": \"/../b.com/old.html\"}}");
    assert_leads("a.com", "/old.html", "hosts/a.com/new.html");
    assert_leads("www.a.com:80", "/old.html?q=1", "hosts/a.com/new.html");
    assert_true(str_eq(req.query, STR("q=1")));
    assert_leads("a.com", "/%6fld.html", "hosts/a.com/new.html");
    assert_leads("b.com", "/old.html", "hosts/b.com/old.html");
    assert_status("a.com", "/nowhere?x", 301);
    assert_string_equal(header("Location"), "/d/?x");
    assert_status("a.com", "/dot", 404);
    assert_status("a.com", "/up", 404);
}

static void paths_are_decoded_and_refused(void **state)
{
    (void)state;
    put("www/a b/c.html", "x");
    put("www/x/y.html", "x");
    put("www/100%.html", "x");
    put("www/.env", "secret");
    put("www/index.html", "x");
    put("secret.html", "secret");
    start("{\"SiteDir\": \"www\", \"MaxFilePathLength\": 64, \"MaxDirDepth\": 4}");
    assert_leads("h", "/a%20b/c.html", "www/a b/c.html");
    assert_leads("h", "//x///y.html", "www/x/y.html");
    assert_leads("h", "/x/./../x/y.html", "www/x/y.html");
    assert_leads("h", "/x%2Fy.html", "www/x/y.html");
    assert_leads("h", "/100%25.html", "www/100%.html");
    assert_leads("h", "/?x=/../..", "www/index.html");
    assert_status("h", "/100%.html", 400);
    assert_status("h", "/../secret.html", 400);
    assert_status("h", "/x/../../secret.html", 400);
    assert_status("h", "/%2e%2e/secret.html", 400);
    assert_status("h", "/..%2fsecret.html", 400);
    assert_status("h", "/%252e%252e/secret.html", 404);
    assert_status("h", "/..\\secret.html", 404);
    assert_status("h", "/x/y.html%00.jpg", 400);
    assert_status("h", "/.env", 404);
    assert_status("h", "/%2eenv", 404);
    assert_status("h", "/x/y.html/", 404);
    assert_status("h", "/x/y.html/z", 404);
    assert_status("h", "/X/y.html", 404);
    assert_status("h", "/1/2/3/4/5", 404);
    assert_status("h", "*", 400);
    assert_status("h", "x", 400);
    char target[128] = "/";
    memset(target + 1, 'a', 64);
    assert_status("h", target, 414);
    target[64] = '\0';
    assert_status("h", target, 404);
}

static void directories_get_their_slash(void **state)
{
    (void)state;
    put("www/d/index.html", "x");
    put("www/sp ace\\/index.html", "x");
    put("www/evil.com/index.html", "x");
    put("www/empty/a.html", "x");
    start("{\"SiteDir\": \"www\"}");
    assert_leads("h", "/d/", "www/d/index.html");
    assert_status("h", "/d", 301);
    assert_string_equal(header("Location"), "/d/");
    assert_status("h", "/d?a=b&c=%20/", 301);
    assert_string_equal(header("Location"), "/d/?a=b&c=%20/");
    assert_status("h", "/d?", 301);
    assert_string_equal(header("Location"), "/d/?");
    assert_status("h", "/sp%20ace%5C", 301);
    assert_string_equal(header("Location"), "/sp%20ace%5C/");
    /* Never another host: one slash, whatever came. */
    assert_status("h", "//evil.com", 301);
    assert_string_equal(header("Location"), "/evil.com/");
    assert_status("h", "/%2Fevil.com", 301);
    assert_string_equal(header("Location"), "/evil.com/");
    assert_status("h", "/%5Cevil.com/..//evil.com", 301);
    assert_string_equal(header("Location"), "/evil.com/");
    ask_as(METHOD_POST, "POST", "h", "/d");
    assert_int_equal(told.status, 308);
    assert_status("h", "/empty", 404);
    assert_status("h", "/empty/", 404);
}

static void listings_when_allowed(void **state)
{
    (void)state;
    put("www/empty/a.html", "x");
    put("www/full/index.html", "x");
    put("www/.git/a", "x");
    start("{\"SiteDir\": \"www\", \"DirectoryListing\": true}");
    assert_leads("h", "/empty/", "www/empty");
    assert_ptr_equal(req.answer, &answer_listing);
    assert_status("h", "/empty", 301);
    assert_leads("h", "/full/", "www/full/index.html");
    assert_status("h", "/.git/", 404);
}

/* ---- endpoints ---------------------------------------------------------------------------------------- */

static void endpoints_take_what_is_below(void **state)
{
    (void)state;
    put("www/hello._c", "x");
    put("www/sub/index._c", "x");
    put("www/sub/page.html", "x");
    put("www/built.so", "x");
    put("www/real/a.html", "x");
    put("www/real._c", "x");
    put("www/full/index.html", "x");
    put("www/full._c", "x");
    start("{\"SiteDir\": \"www\"}");
    assert_endpoint("/hello", "www/hello._c", "/hello", "");
    assert_ptr_equal(req.answer, &answer_endpoint);
    assert_endpoint("/hello/", "www/hello._c", "/hello", "/");
    assert_endpoint("/hello/a/b?q", "www/hello._c", "/hello", "/a/b");
    assert_endpoint("/hello/a/b/", "www/hello._c", "/hello", "/a/b/");
    assert_endpoint("/hello._c", "www/hello._c", "/hello._c", "");
    assert_endpoint("/hello._c/x", "www/hello._c", "/hello._c", "/x");
    assert_endpoint("/built", "www/built.so", "/built", "");
    assert_endpoint("/built._c/x", "www/built.so", "/built._c", "/x");
    assert_endpoint("/built.so/x", "www/built.so", "/built.so", "/x");
    assert_endpoint("/sub/", "www/sub/index._c", "/sub/", "");
    assert_endpoint("/sub/index", "www/sub/index._c", "/sub/index", "");
    assert_endpoint("/sub/index/x", "www/sub/index._c", "/sub/index", "/x");
    assert_status("h", "/sub/missing", 404);
    assert_status("h", "/sub/page.html/x", 404);
    assert_status("h", "/hello/.env", 404);
    assert_status("h", "/hellox", 404);
    /* A directory with an index stands before the endpoint's short name... */
    assert_leads("h", "/full/", "www/full/index.html");
    assert_status("h", "/full", 301);
    assert_status("h", "/full/missing", 404);
    assert_endpoint("/full._c/missing", "www/full._c", "/full._c", "/missing");
    /* ... one without lets it have what is not in it. */
    assert_leads("h", "/real/a.html", "www/real/a.html");
    assert_endpoint("/real", "www/real._c", "/real", "");
    assert_endpoint("/real/", "www/real._c", "/real", "/");
    assert_endpoint("/real/missing/x", "www/real._c", "/real", "/missing/x");
    ask_as(METHOD_OTHER, "PROPFIND", "h", "/hello");
    assert_string_equal(asked_file(), "www/hello._c");
}

static void loop_find_walks_up_to_an_index(void **state)
{
    (void)state;
    put("www/index.html", "x");
    put("www/a/index._c", "x");
    put("www/a/b/page.html", "x");
    put("www/a/api._c", "x");
    start("{\"SiteDir\": \"www\", \"LoopFindEndpoint\": true}");
    assert_endpoint("/a/b/missing/x", "www/a/index._c", "/a", "/b/missing/x");
    assert_endpoint("/a/missing", "www/a/index._c", "/a", "/missing");
    assert_endpoint("/a/b/", "www/a/index._c", "/a", "/b/");
    assert_endpoint("/a/b", "www/a/index._c", "/a", "/b");
    assert_endpoint("/a/api/x", "www/a/api._c", "/a/api", "/x");
    assert_endpoint("/a/b/page.html", "www/a/b/page.html", "/a/b/page.html", "");
    assert_endpoint("/a/b/page.html/x", "www/a/index._c", "/a", "/b/page.html/x");
    assert_endpoint("/missing/deep/down", "www/index.html", "", "/missing/deep/down");
    assert_status("h", "/.env", 404);
    assert_status("h", "/a/.git/x", 404);
}

static void sources_are_not_found(void **state)
{
    (void)state;
    static const char *const names[] = {"/index._c~", "/api._c.bak", "/lib.so.1", "/a.php", "/util.h"};
    put("www/api._c", "x");
    char path[64];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "www%s", names[i]);
        put(path, "secret");
    }
    put("outside.html", "secret");
    make_link("../outside.html", "www/out.html");
    make_link("..", "www/out");
    start("{\"SiteDir\": \"www\"}");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_status("h", names[i], 404);
    }
    assert_status("h", "/out.html", 403);
    assert_status("h", "/out", 403);
    assert_status("h", "/out/", 403);
    assert_status("h", "/out/outside.html", 404);
}

static void methods(void **state)
{
    (void)state;
    put("www/a.html", "x");
    start("{\"SiteDir\": \"www\", \"MaxRequestBodySize\": 100}");
    ask_as(METHOD_HEAD, "HEAD", "h", "/a.html");
    assert_string_equal(asked_file(), "www/a.html");
    ask_as(METHOD_POST, "POST", "h", "/a.html");
    assert_int_equal(told.status, 405);
    assert_non_null(strstr(header("Allow"), "GET, HEAD"));
    ask_as(METHOD_OTHER, "BREW", "h", "/a.html");
    assert_int_equal(told.status, 405);
    ask_as(METHOD_OPTIONS, "OPTIONS", "h", "/a.html");
    assert_int_equal(told.status, 204);
    assert_non_null(strstr(header("Allow"), "GET, HEAD"));
    ask_as(METHOD_OPTIONS, "OPTIONS", "h", "*");
    assert_int_equal(told.status, 204);
    assert_non_null(strstr(header("Allow"), "POST"));
    ask_as(METHOD_TRACE, "TRACE", "h", "/a.html");
    assert_int_equal(told.status, 405);
    ask_as(METHOD_CONNECT, "CONNECT", "h", "h:80");
    assert_int_equal(told.status, 405);
    ask_as(METHOD_POST, "POST", "h", "/missing");
    assert_int_equal(told.status, 404);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STEP_TEST(hosts_lead_to_sites),
        STEP_TEST(filter_replaces_in_the_host),
        STEP_TEST(filter_may_insert),
        STEP_TEST(url_alias_replaces_the_path),
        STEP_TEST(paths_are_decoded_and_refused),
        STEP_TEST(directories_get_their_slash),
        STEP_TEST(listings_when_allowed),
        STEP_TEST(endpoints_take_what_is_below),
        STEP_TEST(loop_find_walks_up_to_an_index),
        STEP_TEST(sources_are_not_found),
        STEP_TEST(methods),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
