/* Readers on other threads while the tree changes: every answer is the old one or the new one.
 * Worth most under ThreadSanitizer and AddressSanitizer. */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

enum { READERS = 3, FILES = 40, ROUNDS = 60 };

static _Atomic bool stop;
static _Atomic unsigned long lookups;

static void look(const char *url)
{
    const struct site_node *node = find(url);
    if (node == NULL) {
        return;
    }
    size_t length = strlen(url);
    if (node->url.len < length || memcmp(node->url.ptr, url, length) != 0 || node->file.ptr[node->file.len] != '\0') {
        fprintf(stderr, "%s leads to %s\n", url, node->file.ptr);
        abort();
    }
    if (node->kind == NODE_DIRECTORY) {
        const struct site_node *index = site_directory_index(node);
        if (index != NULL && !str_starts(index->url, node->url)) {
            abort();
        }
    }
    if (node->kind == NODE_FILE) {
        struct stat st;
        int fd = site_open(node, &st);
        if (fd >= 0) {
            close(fd);
        }
    }
}

static void *read_on(void *arg)
{
    (void)arg;
    epoch_register();
    char url[64];
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        snprintf(url, sizeof url, "/d%u/f%u.html", i % 4, i % FILES);
        look(url);
        snprintf(url, sizeof url, "/d%u", i % 4);
        look(url);
        snprintf(url, sizeof url, "/e%u", i % 4);
        look(url);
        look("/current/f1.html");
        look("/always.html");
        if (find("/always.html") == NULL || find("/live/sub/in-both.html") == NULL) {
            abort();
        }
        atomic_fetch_add(&lookups, 1);
        epoch_quiet();
    }
    epoch_unregister();
    return NULL;
}

static void readers_see_old_or_new(void **state)
{
    (void)state;
    put("www/always.html", "x");
    make_dir("www/d0");
    make_link("d0", "www/current");
    put("www/r0/sub/in-both.html", "0");
    put("www/r1/sub/in-both.html", "1");
    make_link("r0", "www/live");
    start("{\"SiteDir\": \"www\"}");
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, NULL), 0);
    }
    char path[64];
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < FILES; i++) {
            snprintf(path, sizeof path, "www/d%u/f%u.html", i % 4, i);
            put(path, "text");
        }
        snprintf(path, sizeof path, "www/e%u._c", round % 4);
        put(path, "code");
        put("www/d1/index.html", "page");
        put("www/always.html", round % 2 == 0 ? "y" : "zz");
        snprintf(path, sizeof path, "d%u", round % 4);
        make_link(path, "www/next");
        move("www/next", "www/current");
        make_link(round % 2 == 0 ? "r1" : "r0", "www/next-live");
        move("www/next-live", "www/live");
        if (round % 3 == 0) {
            move("www/d2", "www/d9");
            settle();
            move("www/d9", "www/d2");
        }
        if (round % 5 == 0) {
            remove_tree(at("www/d3"));
        }
        if (round % 7 == 0) {
            site_index_rescan(STR(""));
        }
        for (unsigned i = 0; i < FILES; i += 3) {
            snprintf(path, sizeof path, "www/d%u/f%u.html", i % 4, i);
            unlink(at(path));
        }
        if (round % 10 == 0) {
            settle();
        }
    }
    settle();
    atomic_store(&stop, true);
    for (int i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(atomic_load(&lookups) > 0);
    assert_int_equal(served("/d1/index.html"), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ROUTE_TEST(readers_see_old_or_new)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
