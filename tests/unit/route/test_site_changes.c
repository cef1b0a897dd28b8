/* The index against real directories that change: it stays true, and is never wrong on the way. */
#include "support.h"

/* ---- changes -------------------------------------------------------------------------------------- */

static void files_come_change_and_go(void **state)
{
    (void)state;
    put("www/a.html", "1");
    start(ONE_SITE);
    const struct site_node *before = find("/a.html");
    put("www/new.html", "22");
    put("www/a.html", "2"); /* the same size, perhaps the same time */
    settle();
    assert_int_equal(served("/new.html"), 2);
    assert_ptr_not_equal(find("/a.html"), before);
    assert_int_equal(unlink(at("www/new.html")), 0);
    settle();
    assert_null(find("/new.html"));
    move("www/a.html", "www/b.html");
    settle();
    assert_null(find("/a.html"));
    assert_int_equal(served("/b.html"), 1);
    assert_int_equal(link(at("www/b.html"), at("www/hard.html")), 0);
    settle();
    assert_int_equal(served("/hard.html"), 1);
    put("www/.b.html.swp", "editor");
    put("www/.tmp", "written and renamed");
    move("www/.tmp", "www/b.html");
    settle();
    assert_int_equal(served("/b.html"), 19);
}

static void directories_come_move_and_go(void **state)
{
    (void)state;
    put("www/keep.html", "1");
    put("outside/deep/er/x.html", "x");
    start(ONE_SITE);
    make_dir("www/d1");
    put("www/d1/d2/d3/f.html", "abc");
    settle();
    assert_int_equal(served("/d1/d2/d3/f.html"), 3);
    move("www/d1", "www/e1");
    settle();
    assert_null(find("/d1"));
    assert_null(find("/d1/d2/d3/f.html"));
    assert_int_equal(served("/e1/d2/d3/f.html"), 3);
    put("www/e1/d2/d3/f.html", "in the moved one");
    settle();
    assert_int_equal(served("/e1/d2/d3/f.html"), 16);
    move("www/e1/d2", "www/f2"); /* into another directory */
    put("www/f2/d3/f.html", "12");
    settle();
    assert_null(find("/e1/d2"));
    assert_int_equal(served("/f2/d3/f.html"), 2);
    move("outside/deep", "www/deep"); /* from outside the root */
    settle();
    assert_int_equal(served("/deep/er/x.html"), 1);
    move("www/deep", "outside/deep");
    settle();
    assert_null(find("/deep"));
    assert_null(find("/deep/er/x.html"));
    remove_tree(at("www/f2"));
    settle();
    assert_null(find("/f2"));
    struct site_index_counts counts;
    site_index_counts(&counts);
    assert_int_equal(counts.files, 1);
    assert_int_equal(counts.directories, 2);
    assert_int_equal(counts.watches, 2);
}

/* Who looks sees the old name, the new one, or both. */
static void a_moved_directory_is_never_nowhere(void **state)
{
    (void)state;
    char from[32];
    char to[32];
    put("www/d0/f.html", "x");
    for (int i = 0; i < 1000; i++) {
        snprintf(to, sizeof to, "www/d0/other%d", i);
        put(to, "");
    }
    start(ONE_SITE);
    for (int i = 0; i < 5; i++) {
        snprintf(from, sizeof from, "www/d%d", i);
        snprintf(to, sizeof to, "www/d%d", i + 1);
        move(from, to);
        snprintf(from, sizeof from, "/d%d/f.html", i);
        snprintf(to, sizeof to, "/d%d/f.html", i + 1);
        while (find(from) != NULL) {
            epoch_quiet();
        }
        assert_int_equal(served(to), 1);
    }
}

static void file_and_directory_change_places(void **state)
{
    (void)state;
    put("www/x", "file");
    put("www/y/in.html", "z");
    start(ONE_SITE);
    assert_int_equal(unlink(at("www/x")), 0);
    put("www/x/in.html", "12");
    move("www/y", "outside");
    put("www/y", "file");
    settle();
    assert_int_equal(served("/x/in.html"), 2);
    assert_int_equal(served("/y"), 4);
    assert_null(find("/y/in.html"));
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The watcher waits for 50 ms of quiet. A busy machine may stop this test for longer than
 * that between two lines; then it has no right to expect anything. */
enum { SURELY_NOT_QUIET_MS = 40, SURELY_NOT_TOO_LONG_MS = 900 };

/* Written but not closed: not taken while it grows, taken when it has been quiet. */
static void half_written_files_are_not_taken(void **state)
{
    (void)state;
    make_dir("www");
    start(ONE_SITE);
    uint64_t begun = now_ms();
    uint64_t last = begun;
    bool expected = true;
    int fd = open(at("www/grow.html"), O_CREAT | O_WRONLY, 0644);
    assert_true(fd >= 0);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(write(fd, "x", 1), 1);
        bool taken = find("/grow.html") != NULL;
        uint64_t now = now_ms();
        expected = expected && now - last < SURELY_NOT_QUIET_MS && now - begun < SURELY_NOT_TOO_LONG_MS;
        assert_false(expected && taken);
        last = now;
    }
    settle();
    assert_int_equal(served("/grow.html"), 200); /* quiet, though still open */
    close(fd);
}

static void editors_that_move_away_leave_no_gap(void **state)
{
    (void)state;
    put("www/a.html", "old");
    start(ONE_SITE);
    for (int i = 0; i < 20; i++) {
        uint64_t begun = now_ms();
        move("www/a.html", "www/a.html~");
        bool there = served("/a.html") != -1;
        put("www/a.html", "brand new");
        there = there && served("/a.html") != -1;
        assert_true(there || now_ms() - begun >= SURELY_NOT_QUIET_MS);
        assert_int_equal(unlink(at("www/a.html~")), 0);
        settle();
    }
    assert_int_equal(served("/a.html"), 9);
    assert_null(find("/a.html~"));
}

static void burst_of_ten_thousand(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    make_dir("www");
    start(ONE_SITE);
    char path[64];
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "www/d%d/f%d.html", i % 50, i);
        if (i < 50) {
            put(path, "x");
        } else {
            FILE *f = fopen(at(path), "w");
            fputs("xy", f);
            fclose(f);
        }
    }
    settle();
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "/d%d/f%d.html", i % 50, i);
        assert_int_equal(served(path), i < 50 ? 1 : 2);
    }
    for (int i = 0; i < 50; i += 2) {
        char to[64];
        snprintf(path, sizeof path, "www/d%d", i);
        snprintf(to, sizeof to, "www/moved%d", i);
        move(path, to);
    }
    for (int i = 1; i < COUNT; i += 2) {
        snprintf(path, sizeof path, "www/d%d/f%d.html", i % 50, i);
        unlink(at(path));
    }
    settle();
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "/d%d/f%d.html", i % 50, i);
        assert_null(find(path));
        if (i % 2 == 0) {
            snprintf(path, sizeof path, "/moved%d/f%d.html", i % 50, i);
            assert_non_null(find(path));
        }
    }
    struct site_index_counts counts;
    site_index_counts(&counts);
    assert_int_equal(counts.files, COUNT / 2);
    assert_int_equal(counts.directories, 51);
}

static long queue_limit(void)
{
    FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
    long limit = 0;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &limit), 1);
    fclose(f);
    return limit;
}

/* Under the index's lock, so that the watcher cannot keep up. */
static void change_more_than_the_queue_holds(const struct site_node *node, void *arg)
{
    (void)node;
    char path[64];
    long count = queue_limit() / 2 + 100; /* each makes two events at least */
    for (long i = 0; i < count; i++) {
        snprintf(path, sizeof path, "www/d%ld/f%ld", i % 10, i);
        put(path, "");
    }
    unlink(at("www/gone.html"));
    put("www/last.html", "last");
    *(long *)arg = count;
}

static void a_lost_event_is_made_up_for(void **state)
{
    (void)state;
    if (queue_limit() > 200000) {
        skip();
    }
    put("www/gone.html", "");
    char path[64];
    for (int i = 0; i < 10; i++) {
        snprintf(path, sizeof path, "www/d%d/one", i);
        put(path, "");
    }
    start(ONE_SITE);
    long count = 0;
    site_index_each(STR("/d0/one"), change_more_than_the_queue_holds, &count);
    assert_true(count > 0);
    settle();
    assert_int_equal(served("/last.html"), 4);
    assert_null(find("/gone.html"));
    for (long i = 0; i < count; i++) {
        snprintf(path, sizeof path, "/d%ld/f%ld", i % 10, i);
        assert_int_equal(served(path), 0);
    }
}

/* ---- the root ----------------------------------------------------------------------------------------- */

static void wait_until(bool (*condition)(void))
{
    for (int i = 0; i < 2000 && !condition(); i++) {
        usleep(5000);
        settle();
    }
    assert_true(condition());
}

static bool is_empty(void)
{
    return find("/a.html") == NULL;
}

static bool is_back(void)
{
    return served("/a.html") == 3;
}

static bool five(void)
{
    return served("/a.html") == 5;
}

static void root_goes_and_comes_back(void **state)
{
    (void)state;
    put("www/a.html", "1");
    start(ONE_SITE);
    move("www", "away");
    wait_until(is_empty);
    put("www/a.html", "333");
    wait_until(is_back);
    put("new/a.html", "55555");
    move("www", "old");
    move("new", "www");
    wait_until(five);
    put("www/b.html", "b");
    settle();
    assert_int_equal(served("/b.html"), 1);
}

static void root_is_a_link(void **state)
{
    (void)state;
    put("r1/a.html", "1");
    put("r2/a.html", "55555");
    put("r2/api._c", "code");
    make_link("r1", "www");
    start(ONE_SITE);
    assert_int_equal(served("/a.html"), 1);
    make_link("r2", "next");
    move("next", "www");
    settle();
    wait_until(five);
    assert_string_equal(endpoint_at("/api"), "api._c");
    struct stat st;
    int fd = site_open(find("/a.html"), &st);
    assert_true(fd >= 0);
    assert_int_equal(st.st_size, 5);
    close(fd);
    put("r2/c.html", "c");
    settle();
    assert_int_equal(served("/c.html"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROUTE_TEST(files_come_change_and_go),
        ROUTE_TEST(directories_come_move_and_go),
        ROUTE_TEST(a_moved_directory_is_never_nowhere),
        ROUTE_TEST(file_and_directory_change_places),
        ROUTE_TEST(half_written_files_are_not_taken),
        ROUTE_TEST(editors_that_move_away_leave_no_gap),
        ROUTE_TEST(burst_of_ten_thousand),
        ROUTE_TEST(a_lost_event_is_made_up_for),
        ROUTE_TEST(root_goes_and_comes_back),
        ROUTE_TEST(root_is_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
