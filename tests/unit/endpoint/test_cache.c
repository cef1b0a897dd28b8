/* What outlives the server: builds that are found again, damaged ones, several servers, leftovers;
 * and the optimised build that follows. */
#include "endpoint_support.h"

#include "endpoint/build.h"

#include <sys/wait.h>

#define OPTIMIZED \
    STAMP "int kiln_run(kiln_context *ctx, const char *path)\n{\n#ifdef __TINYC__\n    return 1;\n#else\n    return " \
          "2;\n#endif\n}\n"

static unsigned count_objects(void)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/object", site.cache);
    return count_files(path);
}

static void restart(const char *options)
{
    server_stop();
    server_start(options);
}

static void with_compiler(void)
{
    unsetenv("KILN_OPTIMIZER");
}

static int cache_set_up(void **state)
{
    with_compiler();
    setenv("KILN_OPTIMIZER", "none", 1);
    return set_up(state);
}

static int cache_tear_down(void **state)
{
    int result = tear_down(state);
    with_compiler();
    return result;
}

static struct settings *settings(void)
{
    return settings_create(site.config);
}

static void wait_stored(unsigned objects)
{
    for (int i = 0; i < 6000 && count_objects() < objects; i++) {
        usleep(5000);
    }
    assert_int_equal(count_objects(), objects);
}

static bool is_cached(const char *name)
{
    struct settings *s = settings();
    struct cache *cache = cache_open(site.cache, site.root);
    assert_non_null(cache);
    struct build_result result = {0};
    char output[PATH_MAX];
    cache_private_path(cache, STR("probe"), ".so", output);
    bool found = cache_lookup(cache, at(name), s->tcc_fingerprint, output, &result);
    build_result_free(&result);
    cache_close(cache);
    settings_unref(s);
    return found;
}

static void a_build_is_found_after_a_restart(void **state)
{
    (void)state;
    put("part.h", "#define N 7\n");
    put("kept._c", STAMP "#include \"part.h\"\nint kiln_run(kiln_context *ctx, const char *path) { return N; }\n");
    struct endpoint *e = open_endpoint("kept._c");
    assert_int_equal(ask(e), 7);
    wait_stored(1);
    endpoint_close(e);
    server_stop();
    assert_true(is_cached("kept._c"));
    put("part.h", "#define N 8\n");
    assert_false(is_cached("kept._c"));
    put("part.h", "#define N 7\n");
    assert_true(is_cached("kept._c"));
    put("kept._c", STAMP "#include \"part.h\"\nint kiln_run(kiln_context *ctx, const char *path) { return N + 1; }\n");
    assert_false(is_cached("kept._c"));
    server_start("");
    e = open_endpoint("kept._c");
    assert_int_equal(ask(e), 8);
    endpoint_close(e);
}

static void a_header_that_appears_earlier_in_the_search_invalidates(void **state)
{
    (void)state;
    server_stop();
    char later[PATH_MAX + 8];
    snprintf(later, sizeof later, "%s/later", site.directory);
    mkdir(later, 0755);
    char header[PATH_MAX + 16];
    snprintf(header, sizeof header, "%s/n.h", later);
    assert_true(file_replace(header, "#define N 1\n", 12, 0644));
    char options[PATH_MAX + 64];
    snprintf(options, sizeof options, ", \"OptimizeEndpoints\": false, \"IncludePaths\": [\"%s\"]", later);
    server_start(options);
    put("search._c", STAMP "#include \"n.h\"\nint kiln_run(kiln_context *ctx, const char *path) { return N; }\n");
    struct endpoint *e = open_endpoint("search._c");
    assert_int_equal(ask(e), 1);
    put("n.h", "#define N 2\n");
    endpoints_include_changed(str_of(at("n.h")));
    ask_until(e, 2);
    endpoint_close(e);
}

static void a_damaged_object_is_built_again(void **state)
{
    (void)state;
    put("dam._c", RETURNS(4));
    struct endpoint *e = open_endpoint("dam._c");
    assert_int_equal(ask(e), 4);
    wait_stored(1);
    endpoint_close(e);
    server_stop();
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/object", site.cache);
    DIR *stream = opendir(path);
    struct dirent *entry;
    while ((entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] != '.') {
            int fd = openat(dirfd(stream), entry->d_name, O_WRONLY);
            assert_int_equal(pwrite(fd, "damaged", 7, 700), 7);
            close(fd);
        }
    }
    closedir(stream);
    assert_false(is_cached("dam._c"));
    server_start("");
    e = open_endpoint("dam._c");
    assert_int_equal(ask(e), 4);
    endpoint_close(e);
}

static void a_record_with_nonsense_is_a_miss(void **state)
{
    (void)state;
    put("rec._c", RETURNS(4));
    struct endpoint *e = open_endpoint("rec._c");
    assert_int_equal(ask(e), 4);
    wait_stored(1);
    endpoint_close(e);
    server_stop();
    assert_true(is_cached("rec._c"));
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/record", site.cache);
    DIR *stream = opendir(path);
    struct dirent *entry;
    while ((entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] != '.') {
            int fd = openat(dirfd(stream), entry->d_name, O_WRONLY | O_TRUNC);
            static const char text[] = "O zz\nF \nX\n";
            assert_int_equal(write(fd, text, sizeof text), sizeof text);
            close(fd);
        }
    }
    closedir(stream);
    assert_false(is_cached("rec._c"));
    server_start("");
    e = open_endpoint("rec._c");
    assert_int_equal(ask(e), 4);
    endpoint_close(e);
}

static void another_include_path_is_another_build(void **state)
{
    (void)state;
    put("inc._c", RETURNS(4));
    struct endpoint *e = open_endpoint("inc._c");
    assert_int_equal(ask(e), 4);
    wait_stored(1);
    endpoint_close(e);
    restart(", \"IncludePaths\": [\"/opt/some\"]");
    assert_false(is_cached("inc._c"));
}

static void private_copies_of_dead_processes_are_removed(void **state)
{
    (void)state;
    char dead[PATH_MAX + 64];
    char file[PATH_MAX + 80];
    snprintf(dead, sizeof dead, "%s/run/1-1", site.cache);
    snprintf(file, sizeof file, "%s/000001-x.so", dead);
    assert_int_equal(mkdir(dead, 0700), 0);
    assert_true(file_replace(file, "x", 1, 0600));
    put("live._c", RETURNS(4));
    struct endpoint *e = open_endpoint("live._c");
    assert_int_equal(ask(e), 4);
    struct cache *second = cache_open(site.cache, site.root); /* of another server, say */
    assert_non_null(second);
    assert_int_not_equal(access(dead, F_OK), 0);
    wait_private(1); /* that of the living one stays */
    cache_close(second);
    assert_int_equal(ask(e), 4);
    endpoint_close(e);
}

/* Each looks for the dead when it opens, and may take one that is about to begin for one of them. */
static void processes_that_begin_at_once_keep_their_directories(void **state)
{
    (void)state;
    enum { PROCESSES = 6, TIMES = 200 };
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        assert_int_not_equal(children[i], -1);
        for (int n = 0; children[i] == 0 && n < TIMES; n++) {
            char path[PATH_MAX];
            struct cache *cache = cache_open(site.cache, site.root);
            if (cache == NULL) {
                _exit(1);
            }
            cache_private_path(cache, STR("x"), "", path);
            if (!file_replace(path, "x", 1, 0600)) {
                _exit(2);
            }
            cache_close(cache);
        }
        if (children[i] == 0) {
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_private(), 0);
}

static void the_directory_is_ours_alone_and_outside_the_site(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(stat(site.cache, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    char inside[PATH_MAX + 16];
    snprintf(inside, sizeof inside, "%s/cache", site.root);
    assert_null(cache_open(inside, site.root));
    assert_int_not_equal(access(inside, F_OK), 0);
    assert_null(cache_open(site.root, site.root));
    assert_null(cache_open("/dev/null/x", site.root));
    char loose[PATH_MAX + 16];
    snprintf(loose, sizeof loose, "%s/loose", site.directory);
    mkdir(loose, 0777);
    struct cache *cache = cache_open(loose, site.root);
    assert_non_null(cache);
    assert_int_equal(stat(loose, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    cache_close(cache);
}

/* ---- the optimised build ----------------------------------------------------------------------- */

static int optimize_set_up(void **state)
{
    (void)state;
    with_compiler();
    site_make();
    server_start("");
    return 0;
}

static void a_build_without_state_is_replaced_by_the_optimised_one(void **state)
{
    (void)state;
    put("fast._c", OPTIMIZED);
    struct endpoint *e = open_endpoint("fast._c");
    int first = ask(e);
    assert_true(first == 1 || first == 2);
    ask_until(e, 2);
    wait_private(1);
    endpoint_close(e);
    restart("");
    e = open_endpoint("fast._c");
    assert_int_equal(ask(e), 2); /* from the cache at once */
    endpoint_close(e);
}

static void a_build_with_state_is_left_alone_until_a_restart(void **state)
{
    (void)state;
    put("state._c", STAMP "static int count;\nint kiln_run(kiln_context *ctx, const char *path)\n{\n#ifdef __TINYC__\n"
                          "    return ++count;\n#else\n    return ++count + 1000;\n#endif\n}\n");
    struct endpoint *e = open_endpoint("state._c");
    assert_int_equal(ask(e), 1);
    wait_stored(2); /* libtcc's and gcc's */
    put("other._c", OPTIMIZED);
    struct endpoint *other = open_endpoint("other._c");
    ask_until(other, 2); /* the optimiser has long finished with the first */
    assert_int_equal(ask(e), 2);
    endpoint_close(other);
    endpoint_close(e);
    restart("");
    e = open_endpoint("state._c");
    assert_int_equal(ask(e), 1001);
    endpoint_close(e);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, cache_set_up, cache_tear_down)
#define O(name) cmocka_unit_test_setup_teardown(name, optimize_set_up, cache_tear_down)
    const struct CMUnitTest tests[] = {
        T(a_build_is_found_after_a_restart),
        T(a_header_that_appears_earlier_in_the_search_invalidates),
        T(a_damaged_object_is_built_again),
        T(a_record_with_nonsense_is_a_miss),
        T(another_include_path_is_another_build),
        T(private_copies_of_dead_processes_are_removed),
        T(processes_that_begin_at_once_keep_their_directories),
        T(the_directory_is_ours_alone_and_outside_the_site),
        O(a_build_without_state_is_replaced_by_the_optimised_one),
        O(a_build_with_state_is_left_alone_until_a_restart),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
