/* The index and symbolic links: deployments that are swapped, loops, and ways out of the root. */
#include "support.h"

/* ---- links ------------------------------------------------------------------------------------------ */

static void a_link_is_swapped(void **state)
{
    (void)state;
    put("www/releases/1/index.html", "1");
    put("www/releases/1/old.html", "1");
    put("www/releases/1/sub/s.html", "1");
    put("www/releases/2/index.html", "22");
    put("www/releases/2/new.html", "22");
    put("www/releases/2/sub/s.html", "22");
    make_link("releases/1", "www/current");
    start(ONE_SITE);
    assert_int_equal(served("/current/index.html"), 1);
    assert_int_equal(served("/current/sub/s.html"), 1);
    make_link("releases/2", "www/next");
    move("www/next", "www/current");
    settle();
    assert_int_equal(served("/current/index.html"), 2);
    assert_int_equal(served("/current/new.html"), 2);
    assert_int_equal(served("/current/sub/s.html"), 2);
    assert_null(find("/current/old.html"));
    assert_null(find("/next"));
    /* A change in the target is seen under both names. */
    put("www/releases/2/sub/s.html", "changed");
    put("www/releases/2/sub/added.html", "x");
    settle();
    assert_int_equal(served("/current/sub/s.html"), 7);
    assert_int_equal(served("/releases/2/sub/s.html"), 7);
    assert_int_equal(served("/current/sub/added.html"), 1);
    put("www/releases/1/index.html", "not any more");
    settle();
    assert_int_equal(served("/current/index.html"), 2);
    assert_int_equal(unlink(at("www/current")), 0);
    settle();
    assert_null(find("/current"));
    assert_null(find("/current/index.html"));
    put("www/releases/2/index.html", "333");
    settle();
    assert_int_equal(served("/releases/2/index.html"), 3);
}

static void links_through_links_follow(void **state)
{
    (void)state;
    put("www/r/1/a.html", "1");
    put("www/r/2/a.html", "22");
    make_link("1", "www/r/live");
    make_link("r/live", "www/site");
    make_link("r/live/a.html", "www/page.html");
    make_link("later", "www/dangling");
    start(ONE_SITE);
    assert_int_equal(served("/site/a.html"), 1);
    assert_int_equal(served("/page.html"), 1);
    assert_int_equal(served("/dangling"), -1);
    make_link("2", "www/r/next");
    move("www/r/next", "www/r/live");
    settle();
    assert_int_equal(served("/site/a.html"), 2);
    assert_int_equal(served("/page.html"), 2);
    put("www/r/2/a.html", "edited");
    settle();
    assert_int_equal(served("/page.html"), 6);
    put("www/r/2/.tmp", "renamed over");
    move("www/r/2/.tmp", "www/r/2/a.html");
    settle();
    assert_int_equal(served("/page.html"), 12);
    put("www/later", "here");
    settle();
    assert_int_equal(served("/dangling"), 4);
    move("www/r/2", "www/r/3");
    settle();
    assert_null(find("/site/a.html"));
    assert_int_equal(served("/page.html"), -1);
}

/* How container volumes swap: everything goes through a directory named "..data". */
static void mounted_volumes_swap(void **state)
{
    (void)state;
    put("www/..2024_1/index.html", "1");
    put("www/..2024_2/index.html", "22");
    make_link("..2024_1", "www/..data");
    make_link("..data/index.html", "www/index.html");
    start(ONE_SITE);
    assert_int_equal(served("/index.html"), 1);
    make_link("..2024_2", "www/..data_tmp");
    move("www/..data_tmp", "www/..data");
    settle();
    assert_int_equal(served("/index.html"), 2);
    assert_null(find("/..data/index.html"));
}

static void loops_of_links_end(void **state)
{
    (void)state;
    put("www/a/f.html", "x");
    put("www/b/g.html", "x");
    make_link("..", "www/a/up");
    make_link(".", "www/a/self");
    make_link("../b", "www/a/b");
    make_link("../a", "www/b/a");
    make_link("ring2", "www/ring1");
    make_link("ring1", "www/ring2");
    start(ONE_SITE);
    assert_int_equal(served("/a/f.html"), 1);
    assert_int_equal(served("/a/b/g.html"), 1);
    assert_int_equal(served("/b/a/f.html"), 1);
    assert_null(find("/a/self/f.html"));
    assert_null(find("/a/up/a/f.html"));
    assert_null(find("/a/b/a/f.html"));
    assert_int_equal(served("/ring1"), -1);
    struct site_index_counts counts;
    site_index_counts(&counts);
    assert_true(counts.directories < 30);
}

static void links_out_of_the_root(void **state)
{
    (void)state;
    put("outside/secret.html", "secret");
    put("outside/dir/x.html", "secret");
    make_dir("www");
    make_link("../outside/secret.html", "www/file.html");
    make_link("../outside/dir", "www/dir");
    make_link("/etc/passwd", "www/passwd");
    put("www/in.html", "in");
    make_link("in.html", "www/relative.html");
    make_link(at("www/in.html"), "www/absolute.html");
    start(ONE_SITE);
    assert_true(find("/file.html")->symlink_out);
    assert_true(find("/dir")->symlink_out);
    assert_true(find("/passwd")->symlink_out);
    assert_null(find("/dir/x.html"));
    assert_int_equal(served("/relative.html"), 2);
    assert_int_equal(served("/absolute.html"), 2);
    struct stat st;
    int fd = site_open(find("/absolute.html"), &st);
    assert_true(fd >= 0);
    assert_int_equal(st.st_size, 2);
    close(fd);
    epoch_quiet();
    site_index_stop();
    config_unref(config);
    start("{\"SiteDir\": \"www\", \"SymlinksOutside\": true}");
    assert_int_equal(served("/file.html"), 6);
    assert_int_equal(served("/dir/x.html"), 6);
    fd = site_open(find("/dir/x.html"), &st);
    assert_true(fd >= 0);
    close(fd);
    put("outside/dir/y.html", "1");
    settle();
    assert_int_equal(served("/dir/y.html"), 1);
}

static void links_to_sources_show_nothing(void **state)
{
    (void)state;
    put("www/api._c", "code");
    put("www/lib/util.h", "code");
    put("www/.env", "secret");
    put("www/.git/config", "secret");
    make_link("api._c", "www/api.txt");
    make_link("lib/util.h", "www/util.txt");
    make_link(".env", "www/env.txt");
    make_link(".git", "www/git");
    make_link("api._c", "www/other._c");
    start(ONE_SITE);
    assert_int_equal(served("/api.txt"), -1);
    assert_int_equal(served("/util.txt"), -1);
    assert_int_equal(served("/env.txt"), -1);
    assert_int_equal(served("/git/config"), -1);
    assert_string_equal(endpoint_at("/other"), "other._c");
}

/* Between the look of the index and the open, anything on the way may be swapped. */
static void open_is_safe_against_swaps(void **state)
{
    (void)state;
    put("outside/page.html", "secret");
    put("www/d/page.html", "page");
    put("www/api._c", "code");
    put("www/.env", "secret");
    put("www/x.html", "x");
    start(ONE_SITE);
    const struct site_node *page = find("/d/page.html");
    const struct site_node *x = find("/x.html");
    struct stat st;
    move("www/d", "www/.d");
    make_link("../outside", "www/d");
    assert_int_equal(site_open(page, &st), -1);
    assert_int_equal(errno, EACCES);
    static const char *const targets[] = {"../outside/page.html", "api._c", ".env", "/etc/passwd",
                                          "/proc/self/environ"};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        unlink(at("www/x.html"));
        make_link(targets[i], "www/x.html");
        assert_int_equal(site_open(x, &st), -1);
    }
    unlink(at("www/x.html"));
    assert_int_equal(mkfifo(at("www/x.html"), 0644), 0);
    assert_int_equal(site_open(x, &st), -1); /* and does not wait for a writer */
    unlink(at("www/x.html"));
    assert_int_equal(site_open(x, &st), -1);
    assert_int_equal(errno, ENOENT);
    put("www/x.html", "written anew");
    int fd = site_open(x, &st);
    assert_true(fd >= 0);
    assert_int_equal(st.st_size, 12);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROUTE_TEST(a_link_is_swapped),          ROUTE_TEST(links_through_links_follow),
        ROUTE_TEST(mounted_volumes_swap),       ROUTE_TEST(loops_of_links_end),
        ROUTE_TEST(links_out_of_the_root),      ROUTE_TEST(links_to_sources_show_nothing),
        ROUTE_TEST(open_is_safe_against_swaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
