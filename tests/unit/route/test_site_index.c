/* The index against real directories: what is found, what is hidden, who answers, for one site and for many. */
#include "support.h"

/* ---- the first scan ------------------------------------------------------------------------ */

static void finds_files_and_directories(void **state)
{
    (void)state;
    put("www/index.html", "home");
    put("www/a/b/deep.txt", "12345");
    put("www/a/empty.css", "");
    make_dir("www/nothing");
    start(ONE_SITE);
    assert_int_equal(served("/index.html"), 4);
    assert_int_equal(served("/a/b/deep.txt"), 5);
    assert_int_equal(served("/a/empty.css"), 0);
    assert_null(find("/missing"));
    assert_null(find("/a/b/deep.tx"));
    assert_null(find("/A/b/deep.txt"));
    assert_int_equal(find("")->kind, NODE_DIRECTORY);
    assert_int_equal(find("/nothing")->kind, NODE_DIRECTORY);
    assert_string_equal(index_of(""), "index.html");
    assert_string_equal(index_of("/nothing"), "");
    const struct site_node *node = find("/a/b/deep.txt");
    assert_string_equal(node->file.ptr, at("www/a/b/deep.txt"));
    struct site_index_counts counts;
    site_index_counts(&counts);
    assert_int_equal(counts.files, 3);
    assert_int_equal(counts.directories, 4);
    assert_int_equal(counts.watches, 4);
    assert_false(counts.degraded);
}

static void refuses_a_root_that_is_none(void **state)
{
    (void)state;
    config = parse_config("{\"SiteDir\": \"missing\"}");
    assert_false(site_index_start(config, true));
    config_unref(config);
    config = parse_config("{\"SiteDir\": \"/\"}");
    assert_false(site_index_start(config, true));
    config_unref(config);
    put("file", "x");
    config = parse_config("{\"SiteDir\": \"file\"}");
    assert_false(site_index_start(config, true));
    config_unref(config);
    config = NULL;
}

static void hides_what_must_not_be_served(void **state)
{
    (void)state;
    static const char *const names[] = {
        "index._c~",  "index._c.bak", "index._c.swp", "index._c.orig", "#index._c#", "lib.so.1",
        "old.so.bak", "index.php",    "index.php~",   "page.phtml",    "x._cs",      "x._csdll",
        "x._wasm",    "x._cpp",       "INDEX.PHP",    "index._c-old",  "a.so.new",   "util.h",
        "util.c",     "util.cpp",     "util.h.orig",  "util.c~",
    };
    static const char *const plain[] = {"a.song", "my.sober.txt", "page.phpx", "a.txt~", "c",
                                        "h",      "x.cc.txt",     "README"};
    char path[128];
    put("www/hello._c", "int x;");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "www/%s", names[i]);
        put(path, "secret");
    }
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        snprintf(path, sizeof path, "www/%s", plain[i]);
        put(path, "fine");
    }
    put("www/.htaccess", "secret");
    put("www/.git/config", "secret");
    put("www/a/.env", "secret");
    put("www/a/.well-known/x", "secret");
    put("www/.well-known/acme/token", "fine");
    assert_int_equal(mkfifo(at("www/pipe"), 0644), 0);
    start(ONE_SITE);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "/%s", names[i]);
        if (served(path) != -1) {
            fail_msg("%s is served", path);
        }
    }
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        snprintf(path, sizeof path, "/%s", plain[i]);
        if (served(path) != 4) {
            fail_msg("%s is not served", path);
        }
    }
    assert_int_equal(served("/.htaccess"), -1);
    assert_int_equal(served("/.git/config"), -1);
    assert_int_equal(served("/a/.env"), -1);
    assert_int_equal(served("/a/.well-known/x"), -1);
    assert_int_equal(served("/.well-known/acme/token"), 4);
    assert_null(find("/pipe"));
    assert_int_equal(served("/hello._c"), -1);
    assert_int_equal(find("/hello._c")->kind, NODE_ENDPOINT);
}

static void shows_c_files_of_a_site_without_endpoints(void **state)
{
    (void)state;
    put("www/src/main.c", "code");
    put("www/src/main.h", "code");
    start(ONE_SITE);
    assert_int_equal(served("/src/main.c"), 4);
    put("www/api._c", "x");
    settle();
    assert_int_equal(served("/src/main.c"), -1);
    assert_int_equal(served("/src/main.h"), -1);
    assert_int_equal(unlink(at("www/api._c")), 0);
    settle();
    assert_int_equal(served("/src/main.c"), 4);
}

static void ext_types_publish_companions(void **state)
{
    (void)state;
    put("www/main.c", "code");
    put("www/main.h", "code");
    put("www/api._c", "x");
    start("{\"SiteDir\": \"www\", \"ExtTypes\": {\"c\": [\"Content-Type: text/plain\"]}}");
    assert_int_equal(served("/main.c"), 4);
    assert_int_equal(served("/main.h"), -1);
}

static void static_only_runs_and_shows_no_source(void **state)
{
    (void)state;
    put("www/index._c", "code");
    put("www/index.html", "page");
    put("www/api.so", "code");
    put("www/util.h", "code");
    start("{\"WWWdir\": \"www\"}");
    assert_string_equal(index_of(""), "index.html");
    assert_string_equal(endpoint_at("/api"), "");
    assert_int_equal(served("/index._c"), -1);
    assert_int_equal(served("/api.so"), -1);
    assert_int_equal(served("/util.h"), -1);
}

static void a_kind_switched_off_is_hidden(void **state)
{
    (void)state;
    put("www/index._c", "code");
    put("www/index.html", "page");
    put("www/api._c", "code");
    put("www/api.so", "code");
    start("{\"SiteDir\": \"www\", \"Enable_C\": false}");
    assert_string_equal(index_of(""), "index.html");
    assert_string_equal(endpoint_at("/api"), "api.so");
    assert_int_equal(served("/api._c"), -1);
    assert_string_equal(endpoint_at("/api._c"), "");
}

static void own_files_in_the_root_are_hidden(void **state)
{
    (void)state;
    make_dir("www");
    put("kiln.json", "{}");
    put("kiln.pid", "1");
    put("index.html", "page");
    put("sess/data.mdb", "secret");
    put("www/kiln.pid", "someone else's");
    put("logs/error.log", "secret");
    make_link("sess", "sessions");
    make_link("kiln.pid", "pid.txt");
    start("{\"SiteDir\": \".\", \"ErrorLog\": \"logs/error.log\"}");
    assert_int_equal(served("/index.html"), 4);
    assert_int_equal(served("/kiln.json"), -1);
    assert_int_equal(served("/kiln.pid"), -1);
    assert_int_equal(served("/pid.txt"), -1);
    assert_int_equal(served("/logs/error.log"), -1);
    assert_int_equal(served("/sess/data.mdb"), -1);
    assert_int_equal(served("/sessions/data.mdb"), -1);
    assert_int_equal(served("/www/kiln.pid"), 14);
    put("sess/lock.mdb", "secret");
    settle();
    assert_null(find("/sess/lock.mdb"));
}

static void depth_and_length_are_limited(void **state)
{
    (void)state;
    put("www/1/2/at-limit.html", "ok");
    put("www/1/2/3/too-deep.html", "no");
    put("www/short.html", "ok");
    put("www/a-name-that-is-too-long.html", "no");
    start("{\"SiteDir\": \"www\", \"MaxDirDepth\": 3, \"MaxFilePathLength\": 24}");
    assert_int_equal(served("/1/2/at-limit.html"), 2);
    assert_null(find("/1/2/3/too-deep.html"));
    assert_int_equal(served("/short.html"), 2);
    assert_null(find("/a-name-that-is-too-long.html"));
}

/* ---- who answers ------------------------------------------------------------------------------ */

static void index_follows_its_priority(void **state)
{
    (void)state;
    put("www/index.html", "page");
    start("{\"SiteDir\": \"www\", \"indexPriority\": [\"index._c\", \"first.html\", \"index.html\"]}");
    assert_string_equal(index_of(""), "index.html");
    put("www/first.html", "page");
    settle();
    assert_string_equal(index_of(""), "first.html");
    put("www/index._c", "code");
    settle();
    assert_string_equal(index_of(""), "index._c");
    assert_int_equal(unlink(at("www/index._c")), 0);
    settle();
    assert_string_equal(index_of(""), "first.html");
    move("www/first.html", "www/other.html");
    settle();
    assert_string_equal(index_of(""), "index.html");
    put("www/index.html", "changed page");
    settle();
    assert_int_equal(site_directory_index(find(""))->size, 12);
    assert_int_equal(unlink(at("www/index.html")), 0);
    settle();
    assert_string_equal(index_of(""), "");
}

static void short_names_of_endpoints(void **state)
{
    (void)state;
    put("www/hello._c", "code");
    put("www/sub/api.so", "code");
    start(ONE_SITE);
    assert_string_equal(endpoint_at("/hello"), "hello._c");
    assert_string_equal(endpoint_at("/hello._c"), "hello._c");
    assert_string_equal(endpoint_at("/sub/api"), "api.so");
    assert_string_equal(endpoint_at("/sub/api.so"), "api.so");
    assert_string_equal(endpoint_at("/sub/api._c"), "api.so");
    assert_string_equal(endpoint_at("/hello.so"), "");
}

static void precedence_of_names(void **state)
{
    (void)state;
    put("www/x._c", "code");
    start(ONE_SITE);
    assert_string_equal(endpoint_at("/x"), "x._c");
    put("www/x.so", "code"); /* built beats source */
    settle();
    assert_string_equal(endpoint_at("/x"), "x.so");
    assert_string_equal(endpoint_at("/x._c"), "x._c"); /* the file of that very name */
    put("www/x", "file"); /* a real file beats both */
    settle();
    assert_int_equal(served("/x"), 4);
    assert_int_equal(unlink(at("www/x")), 0);
    settle();
    assert_string_equal(endpoint_at("/x"), "x.so");
    make_dir("www/x"); /* and so does a directory */
    settle();
    assert_int_equal(find("/x")->kind, NODE_DIRECTORY);
    assert_int_equal(rmdir(at("www/x")), 0);
    settle();
    assert_string_equal(endpoint_at("/x"), "x.so");
    assert_int_equal(unlink(at("www/x.so")), 0);
    settle();
    assert_string_equal(endpoint_at("/x"), "x._c");
    assert_int_equal(unlink(at("www/x._c")), 0);
    settle();
    assert_null(find("/x"));
    assert_null(find("/x._c"));
}

static void endpoint_keeps_its_identity(void **state)
{
    (void)state;
    put("www/x._c", "one");
    start(ONE_SITE);
    struct endpoint *endpoint = find("/x")->endpoint;
    assert_non_null(endpoint);
    put("www/x._c", "another");
    settle();
    assert_int_equal(find("/x")->size, 7);
    assert_ptr_equal(find("/x")->endpoint, endpoint);
    put("www/.x.tmp", "by rename");
    move("www/.x.tmp", "www/x._c");
    settle();
    assert_int_equal(find("/x")->size, 9);
    assert_ptr_equal(find("/x")->endpoint, endpoint);
}

/* ---- many sites ------------------------------------------------------------------------------------------ */

static void one_site_per_host(void **state)
{
    (void)state;
    put("hosts/example.com/index.html", "1");
    put("hosts/Example.ORG/index.html", "22");
    put("hosts/loose.html", "no site");
    put("hosts/.hidden/index.html", "no");
    make_link("example.com", "hosts/www.example.com");
    start("{\"BackendDir\": \"hosts\"}");
    assert_int_equal(find_at("example.com", "/index.html")->size, 1);
    assert_int_equal(find_at("www.example.com", "/index.html")->size, 1);
    assert_int_equal(find_at("example.org", "/index.html")->size, 2);
    assert_null(site_find(STR("loose.html")));
    assert_null(site_find(STR(".hidden")));
    assert_null(site_find(STR("")));
    assert_null(site_find(STR("unknown.com")));
    put("hosts/new.com/index.html", "333");
    settle();
    assert_int_equal(find_at("new.com", "/index.html")->size, 3);
    move("hosts/new.com", "hosts/newer.com");
    settle();
    assert_null(site_find(STR("new.com")));
    assert_int_equal(find_at("newer.com", "/index.html")->size, 3);
    remove_tree(at("hosts/newer.com"));
    settle();
    assert_null(site_find(STR("newer.com")));
    put("hosts/newer.com/x.html", "4444");
    settle();
    assert_int_equal(find_at("newer.com", "/x.html")->size, 4);
    put("hosts/default/index.html", "55555");
    settle();
    assert_int_equal(find_at("unknown.com", "/index.html")->size, 5);
    assert_true(str_eq(site_name(site_find(STR("unknown.com"))), STR("default")));
}

static void error_pages_of_a_site(void **state)
{
    (void)state;
    put("www/error404.html", "gone");
    start(ONE_SITE);
    assert_int_equal(site_error_page(site_find(STR("x")), 404)->size, 4);
    assert_null(site_error_page(site_find(STR("x")), 500));
    assert_int_equal(unlink(at("www/error404.html")), 0);
    settle();
    assert_null(site_error_page(site_find(STR("x")), 404));
}

/* ---- the console and a new config ---------------------------------------------------------------------------- */

static void count_one(const struct site_node *node, void *arg)
{
    (void)node;
    ++*(int *)arg;
}

static int count_below(const char *prefix)
{
    int count = 0;
    site_index_each(str_of(prefix), count_one, &count);
    return count;
}

static void lists_below_a_prefix(void **state)
{
    (void)state;
    put("hosts/a.com/x/1", "");
    put("hosts/a.com/x/y/2", "");
    put("hosts/a.com/3", "");
    put("hosts/b.com/4", "");
    start("{\"BackendDir\": \"hosts\"}");
    assert_int_equal(count_below(""), 4);
    assert_int_equal(count_below("a.com"), 3);
    assert_int_equal(count_below("a.com/"), 3);
    assert_int_equal(count_below("a.com/x"), 2);
    assert_int_equal(count_below("/a.com/x/y/2"), 1);
    assert_int_equal(count_below("a.com/nothing"), 0);
    assert_int_equal(count_below("c.com"), 0);
}

static void rescan_finds_what_nobody_told(void **state)
{
    (void)state;
    put("www/a.html", "1");
    config = parse_config(ONE_SITE);
    assert_true(site_index_start(config, false));
    put("www/sub/b.html", "22");
    put("www/a.html", "changed");
    assert_null(find("/sub/b.html"));
    site_index_rescan(STR(""));
    assert_int_equal(served("/sub/b.html"), 2);
    assert_int_equal(served("/a.html"), 7);
    put("www/sub/c/d.html", "22");
    put("www/e.html", "1");
    site_index_rescan(STR("/sub"));
    assert_int_equal(served("/sub/c/d.html"), 2);
    assert_null(find("/e.html"));
}

static void a_new_config_is_followed(void **state)
{
    (void)state;
    put("www/index.html", "1");
    put("www/start.html", "22");
    put("www/api._c", "code");
    start(ONE_SITE);
    assert_string_equal(index_of(""), "index.html");
    struct config *fresh =
        parse_config("{\"SiteDir\": \"www\", \"indexPriority\": [\"start.html\"], \"Enable_C\": false}");
    site_index_config_changed(fresh);
    config_unref(fresh);
    settle();
    assert_string_equal(index_of(""), "start.html");
    assert_string_equal(endpoint_at("/api"), "");
    assert_int_equal(served("/api._c"), -1);
    site_index_config_changed(config);
    settle();
    assert_string_equal(endpoint_at("/api"), "api._c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROUTE_TEST(finds_files_and_directories),   ROUTE_TEST(refuses_a_root_that_is_none),
        ROUTE_TEST(hides_what_must_not_be_served), ROUTE_TEST(shows_c_files_of_a_site_without_endpoints),
        ROUTE_TEST(ext_types_publish_companions),  ROUTE_TEST(static_only_runs_and_shows_no_source),
        ROUTE_TEST(a_kind_switched_off_is_hidden), ROUTE_TEST(own_files_in_the_root_are_hidden),
        ROUTE_TEST(depth_and_length_are_limited),  ROUTE_TEST(index_follows_its_priority),
        ROUTE_TEST(short_names_of_endpoints),      ROUTE_TEST(precedence_of_names),
        ROUTE_TEST(endpoint_keeps_its_identity),   ROUTE_TEST(one_site_per_host),
        ROUTE_TEST(error_pages_of_a_site),         ROUTE_TEST(lists_below_a_prefix),
        ROUTE_TEST(rescan_finds_what_nobody_told), ROUTE_TEST(a_new_config_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
