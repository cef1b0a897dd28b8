/* The cache over a real tree and index; requests stop short of a protocol. */
#include "../route/support.h"

#include "answer/cached_file.h"
#include "answer/file_cache.h"
#include "loop/pool.h"

static struct request request;
static struct loop *loop;

static void open_site(const char *json)
{
    start(json);
    config_set_current(config_ref(config));
    loop = loop_create(0);
    request = (struct request){.magic = REQUEST_MAGIC, .loop = loop, .config = config};
    arena_init(&request.arena, 0);
}

static void close_site(void)
{
    file_cache_stop();
    arena_reset(&request.arena);
    loop_destroy(loop);
    config_set_current(NULL);
    epoch_quiet();
    epoch_reclaim();
    struct file_cache_counts counts;
    file_cache_counts(&counts);
    assert_int_equal(counts.files, 0);
    assert_int_equal(counts.bytes, 0);
    assert_int_equal(counts.descriptors, 0);
}

/* Loads as a request would and gives the reference back: what stays is the cache's. */
static struct cached_file *load(const char *path)
{
    const struct site_node *node = find(path);
    assert_non_null(node);
    struct file_waiter waiter = {.req = &request};
    struct cached_file *file = NULL;
    assert_int_equal(file_load(node, &waiter, &file), FILE_LOADED);
    cached_file_unref(file);
    return file;
}

static struct cached_file *cached(const char *path)
{
    const struct site_node *node = find(path);
    return node != NULL ? file_cache_find(&request, node) : NULL;
}

static const struct file_form *form_of(const struct cached_file *file, enum coding coding)
{
    return atomic_load(&file->forms[coding]);
}

static void put_bytes(const char *path, size_t size)
{
    put(path, "");
    assert_int_equal(truncate(at(path), (off_t)size), 0);
}

static void small_file_is_kept_with_ready_heads(void **state)
{
    (void)state;
    put("www/a.html", "hello");
    open_site("{\"SiteDir\": \"www\"}");
    assert_null(cached("/a.html"));
    struct cached_file *file = load("/a.html");
    assert_ptr_equal(cached("/a.html"), file);
    const struct file_form *form = form_of(file, CODING_IDENTITY);
    assert_int_equal(form->fd, -1);
    assert_memory_equal(form->body, "hello", 5);
    struct str block = form->full.block;
    assert_non_null(memmem(block.ptr, block.len, "Content-Length: 5\r\n", 19));
    assert_non_null(memmem(block.ptr, block.len, "Server: Kiln\r\n", 14));
    assert_null(memmem(block.ptr, block.len, "\r\n\r\n", 4));
    block = form->not_modified.block;
    assert_non_null(memmem(block.ptr, block.len, "ETag: ", 6));
    assert_null(memmem(block.ptr, block.len, "Content-", 8));
    close_site();
}

static void large_file_is_kept_as_a_descriptor(void **state)
{
    (void)state;
    put_bytes("www/big.bin", 1000000);
    open_site("{\"SiteDir\": \"www\"}");
    const struct file_form *form = form_of(load("/big.bin"), CODING_IDENTITY);
    assert_true(form->fd >= 0);
    assert_null(form->body);
    struct file_cache_counts counts;
    file_cache_counts(&counts);
    assert_int_equal(counts.descriptors, 1);
    assert_true(counts.bytes < 10000);
    close_site();
}

static void cache_stays_within_its_size_and_keeps_what_is_used(void **state)
{
    (void)state;
    char path[32];
    put_bytes("www/hot.bin", 8000);
    for (int i = 0; i < 40; i++) {
        snprintf(path, sizeof path, "www/f%d.bin", i);
        put_bytes(path, 8000);
    }
    open_site("{\"SiteDir\": \"www\", \"FileCacheSize\": 100000}");
    load("/hot.bin");
    for (int i = 0; i < 40; i++) {
        snprintf(path, sizeof path, "/f%d.bin", i);
        load(path);
        assert_non_null(cached("/hot.bin")); /* and thereby used */
        struct file_cache_counts counts;
        file_cache_counts(&counts);
        assert_true(counts.bytes <= 100000);
        assert_true(counts.files < 12);
    }
    assert_null(cached("/f0.bin"));
    assert_non_null(cached("/f39.bin"));
    close_site();
}

static void file_above_its_share_is_served_and_not_kept(void **state)
{
    (void)state;
    put_bytes("www/a.bin", 30000);
    open_site("{\"SiteDir\": \"www\", \"FileCacheSize\": 100000}");
    load("/a.bin");
    assert_null(cached("/a.bin"));
    close_site();
}

static void file_in_use_outlives_its_node(void **state)
{
    (void)state;
    put("www/a.txt", "first");
    open_site("{\"SiteDir\": \"www\"}");
    struct cached_file *file = load("/a.txt");
    cached_file_ref(file); /* as queued output does */
    put("www/a.txt", "second");
    settle();
    epoch_quiet();
    epoch_reclaim();
    assert_null(cached("/a.txt"));
    assert_memory_equal(form_of(file, CODING_IDENTITY)->body, "first", 5);
    cached_file_unref(file);
    assert_memory_equal(form_of(load("/a.txt"), CODING_IDENTITY)->body, "second", 6);
    close_site();
}

static void sibling_changes_drop_the_original(void **state)
{
    (void)state;
    put("www/a.js", "some text that is longer than the sibling");
    open_site("{\"SiteDir\": \"www\"}");
    load("/a.js");
    assert_int_equal(cached("/a.js")->siblings[CODING_GZIP].size, 0);
    put("www/a.js.gz", "short");
    settle();
    assert_null(cached("/a.js"));
    struct cached_file *file = load("/a.js");
    assert_int_equal(file->siblings[CODING_GZIP].size, 5);
    assert_memory_equal(form_of(file, CODING_GZIP)->body, "short", 5);
    assert_int_equal(unlink(at("www/a.js.gz")), 0);
    settle();
    assert_null(cached("/a.js"));
    close_site();
}

static void new_config_makes_new_heads(void **state)
{
    (void)state;
    put("www/a.txt", "x");
    put("www/b.txt", "x");
    open_site("{\"SiteDir\": \"www\"}");
    load("/a.txt");
    load("/b.txt");
    struct config *second = parse_config("{\"SiteDir\": \"www\", \"ExtTypes\": {\"txt\": [\"X-New: 1\"]}}");
    config_set_current(config_ref(second));
    const struct config *first = request.config;
    request.config = second;
    assert_null(cached("/a.txt"));
    struct str block = form_of(load("/a.txt"), CODING_IDENTITY)->full.block;
    assert_non_null(memmem(block.ptr, block.len, "X-New: 1\r\n", 10));
    struct file_cache_counts counts;
    file_cache_counts(&counts);
    assert_int_equal(counts.files, 1); /* what the first config made is gone */
    request.config = first; /* a request of before the reload */
    assert_null(cached("/a.txt"));
    load("/a.txt");
    file_cache_counts(&counts);
    assert_int_equal(counts.files, 1);
    close_site();
    config_unref(second);
}

static void file_that_changes_unseen_is_noticed_within_a_second(void **state)
{
    (void)state;
    put("www/a.txt", "first");
    config = parse_config("{\"SiteDir\": \"www\"}");
    assert_true(site_index_start(config, false)); /* nobody watches */
    config_set_current(config_ref(config));
    loop = loop_create(0);
    request = (struct request){.magic = REQUEST_MAGIC, .loop = loop, .config = config};
    struct cached_file *file = load("/a.txt");
    put("www/a.txt", "other text");
    atomic_store(&file->checked_second, 0); /* a second has passed */
    assert_null(cached("/a.txt"));
    close_site();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROUTE_TEST(small_file_is_kept_with_ready_heads),
        ROUTE_TEST(large_file_is_kept_as_a_descriptor),
        ROUTE_TEST(cache_stays_within_its_size_and_keeps_what_is_used),
        ROUTE_TEST(file_above_its_share_is_served_and_not_kept),
        ROUTE_TEST(file_in_use_outlives_its_node),
        ROUTE_TEST(sibling_changes_drop_the_original),
        ROUTE_TEST(new_config_makes_new_heads),
        ROUTE_TEST(file_that_changes_unseen_is_noticed_within_a_second),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_pool_drain();
    return failed;
}
