/* The kernel refuses more watches: requests check the disk instead. In a user namespace of its
 * own, whose limit this test may set. */
#include "support.h"

#include <sched.h>

enum { WATCHES = 4 };

static bool is_degraded(void)
{
    struct site_index_counts counts;
    site_index_counts(&counts);
    return counts.degraded;
}

static void changes_are_found_on_request(void **state)
{
    (void)state;
    put("www/a/1/f.html", "1");
    put("www/b/2/f.html", "1");
    put("www/c/3/f.html", "1");
    put("www/c/3/index.html", "1");
    put("www/c/3/api._c", "1");
    start("{\"SiteDir\": \"www\"}");
    assert_true(is_degraded());
    static const char *const directories[] = {"a/1", "b/2", "c/3"};
    char path[64];
    for (size_t i = 0; i < 3; i++) {
        const char *d = directories[i];
        snprintf(path, sizeof path, "www/%s/f.html", d);
        put(path, "changed");
        assert_int_equal(served(path + 3), 7);
        put(path, "changes"); /* as long as before */
        snprintf(path, sizeof path, "www/%s/new.html", d);
        assert_null(find(path + 3));
        put(path, "22");
        assert_int_equal(served(path + 3), 2);
        unlink(at(path));
        assert_int_equal(served(path + 3), -1);
        snprintf(path, sizeof path, "www/%s/deep/er/g.html", d);
        put(path, "333");
        assert_int_equal(served(path + 3), 3);
        snprintf(path, sizeof path, "www/%s/deep", d);
        remove_tree(at(path));
        snprintf(path, sizeof path, "www/%s/deep/er/g.html", d);
        assert_null(find(path + 3));
    }
    put("www/c/3/index.html", "22");
    assert_int_equal(site_directory_index(find("/c/3"))->size, 2);
    put("www/c/3/index._c", "code");
    assert_string_equal(index_of("/c/3"), "index._c");
    unlink(at("www/c/3/index._c"));
    assert_string_equal(index_of("/c/3"), "index.html");
    assert_string_equal(endpoint_at("/c/3/api"), "api._c");
    put("www/c/3/api.so", "code");
    assert_string_equal(endpoint_at("/c/3/api"), "api.so");
    put("www/c/3/api", "a real file");
    assert_int_equal(served("/c/3/api"), 11);
    move("www/c", "www/moved");
    assert_int_equal(served("/c/3/f.html"), -1);
    assert_int_equal(served("/moved/3/f.html"), 7);
}

static void all_is_watched_again_when_there_is_room(void **state)
{
    (void)state;
    put("www/a/1/f.html", "1");
    put("www/b/2/f.html", "1");
    start("{\"SiteDir\": \"www\"}");
    assert_true(is_degraded());
    remove_tree(at("www/a"));
    assert_int_equal(served("/a/1/f.html"), -1);
    site_index_config_changed(config); /* scans everything, as the watcher does each minute */
    settle();
    assert_false(is_degraded());
    put("www/b/2/f.html", "22");
    settle();
    assert_int_equal(served("/b/2/f.html"), 2);
}

static bool set_limit(const char *name, int limit)
{
    char text[64];
    snprintf(text, sizeof text, "/proc/sys/user/%s", name);
    int fd = open(text, O_WRONLY | O_CLOEXEC);
    int length = snprintf(text, sizeof text, "%d", limit);
    bool ok = fd >= 0 && write(fd, text, (size_t)length) == length;
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

static void no_inotify_at_all(void **state)
{
    (void)state;
    put("www/a/f.html", "1");
    assert_true(set_limit("max_inotify_instances", 0));
    start("{\"SiteDir\": \"www\"}");
    assert_true(set_limit("max_inotify_instances", 100));
    assert_true(is_degraded());
    put("www/a/f.html", "22");
    put("www/new/g.html", "333");
    assert_int_equal(served("/a/f.html"), 2);
    assert_int_equal(served("/new/g.html"), 3);
    site_index_config_changed(config);
    settle();
    assert_true(is_degraded());
}

int main(void)
{
    if (unshare(CLONE_NEWUSER) != 0 || !set_limit("max_inotify_watches", WATCHES)) {
        puts("skipped: user namespaces are not allowed here");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        ROUTE_TEST(changes_are_found_on_request),
        ROUTE_TEST(all_is_watched_again_when_there_is_room),
        ROUTE_TEST(no_inotify_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
