/* Sources that crash, hang or bloat a compiler: each gets its error within the limits, and leaves
 * nothing behind. Those of tests/plugins/hostile/, and some that are made here. */
#include "endpoint_support.h"

static void repeat(FILE *file, const char *text, int times)
{
    for (int i = 0; i < times; i++) {
        fputs(text, file);
    }
}

static FILE *begin(const char *name, const char *expected)
{
    FILE *file = fopen(at(name), "w");
    assert_non_null(file);
    fprintf(file, "/* expect: %s */\n", expected);
    return file;
}

static void make_more(void)
{
    FILE *file = begin("deep_parentheses._c", "error");
    fputs("int x = ", file);
    repeat(file, "(", 300000);
    fputs("1", file);
    repeat(file, ")", 300000);
    fputs(";\n", file);
    fclose(file);
    file = begin("deep_braces._c", "error");
    fputs("int kiln_run(void *c, const char *p) ", file);
    repeat(file, "{", 300000);
    fclose(file);
    file = begin("deep_pointers._c", "error");
    fputs("int ", file);
    repeat(file, "*", 1000000);
    fputs("x;;\n]", file);
    fclose(file);
    file = begin("bytes._c", "error");
    for (int i = 0; i < 100000; i++) {
        fputc((i * 7919) >> 3 & 255, file);
    }
    fclose(file);
    file = begin("huge.h", "");
    repeat(file, "                                                               \n", 17 * 1024 * 1024 / 64);
    fclose(file);
    assert_int_equal(mkfifo(at("fifo.h"), 0644), 0);
    assert_int_equal(mkfifo(at("fifo._c"), 0644), 0);
}

static void copy_sources(void)
{
    DIR *stream = opendir("tests/plugins/hostile");
    assert_non_null(stream);
    struct dirent *entry;
    while ((entry = readdir(stream)) != NULL) {
        char from[PATH_MAX];
        snprintf(from, sizeof from, "tests/plugins/hostile/%s", entry->d_name);
        struct buffer text = BUFFER_EMPTY;
        if (entry->d_name[0] != '.' && file_read(from, 1 << 20, &text)) {
            assert_true(file_replace(at(entry->d_name), text.data, text.len, 0644));
        }
        buffer_free(&text);
    }
    closedir(stream);
}

/* The first line of a source says what its error must contain. */
static void expected_of(const char *name, char expected[256])
{
    snprintf(expected, 256, "is not a regular file"); /* of fifo._c, which cannot be opened */
    struct stat st;
    FILE *file = stat(at(name), &st) == 0 && S_ISREG(st.st_mode) ? fopen(at(name), "r") : NULL;
    if (file != NULL) {
        assert_int_equal(fscanf(file, "/* expect: %255[^*]", expected), 1);
        fclose(file);
        expected[strcspn(expected, "*")] = '\0';
        while (expected[0] != '\0' && expected[strlen(expected) - 1] == ' ') {
            expected[strlen(expected) - 1] = '\0';
        }
    }
}

static void each_gets_its_error_and_leaves_nothing(void **state)
{
    (void)state;
    copy_sources();
    make_more();
    put("fine._c", RETURNS(3));
    enum { MOST = 100 };
    static struct client clients[MOST];
    static char names[MOST][256];
    size_t count = 0;
    DIR *stream = opendir(site.root);
    struct dirent *entry;
    while ((entry = readdir(stream)) != NULL && count < MOST) {
        if (endpoint_name_matches(str_of(entry->d_name)) && strcmp(entry->d_name, "fine._c") != 0) {
            snprintf(names[count], sizeof names[0], "%s", entry->d_name);
            client_begin(&clients[count], open_endpoint(names[count]), (unsigned)count % LOOPS);
            count++;
        }
    }
    closedir(stream);
    assert_true(count >= 18);
    for (size_t i = 0; i < count; i++) {
        char expected[256];
        client_end(&clients[i]);
        if (clients[i].status != ENDPOINT_FAILED) {
            fail_msg("%s was built", names[i]);
        }
        expected_of(names[i], expected);
        assert_contains(error_text(clients[i].endpoint), expected);
        struct buffer page = BUFFER_EMPTY;
        endpoint_error_page(clients[i].endpoint, &page);
        assert_true(!page.failed && page.len > 0);
        buffer_free(&page);
        endpoint_close(clients[i].endpoint);
    }
    wait_private(0); /* the compilers' temporary files would be there as well */
    struct endpoint *fine = open_endpoint("fine._c");
    assert_int_equal(ask(fine), 3);
    endpoint_close(fine);
}

/* A stop in the middle of builds that would take their whole time. */
static void stopping_does_not_wait_for_endless_builds(void **state)
{
    (void)state;
    server_stop();
    server_start(", \"CompilerTimeout\": 3600, \"CompilerMemory\": 68719476736");
    copy_sources();
    struct endpoint *e = open_endpoint("macro_bomb._c");
    endpoint_prepare(e);
    struct endpoint *fine = open_endpoint("fine._c");
    put("fine._c", RETURNS(3));
    assert_int_equal(ask(fine), 3); /* another builder is free */
    endpoint_close(fine);
    endpoint_close(e);
}

static int limited_set_up(void **state)
{
    (void)state;
    site_make();
    server_start(", \"CompilerTimeout\": 2");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_gets_its_error_and_leaves_nothing, limited_set_up, tear_down),
        cmocka_unit_test_setup_teardown(stopping_does_not_wait_for_endless_builds, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
