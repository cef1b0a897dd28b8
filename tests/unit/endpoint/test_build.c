/* Building, running, editing, failing, recovering: the life of a C endpoint and of a .so. */
#include "endpoint_support.h"

#include "endpoint/endpoint.h"

static void an_unbuilt_source_is_built_by_the_first_request(void **state)
{
    (void)state;
    put("hello._c", RETURNS(42));
    struct endpoint *e = open_endpoint("hello._c");
    struct client c = {0};
    client_begin(&c, e, 0);
    client_end(&c);
    assert_int_equal(c.status, ENDPOINT_READY);
    assert_int_equal(c.returned, 42);
    assert_int_equal(c.waits, 1);
    client_begin(&c, e, 1);
    client_end(&c);
    assert_int_equal(c.waits, 0);
    endpoint_close(e);
}

static void the_same_file_is_the_same_endpoint(void **state)
{
    (void)state;
    put("hello._c", RETURNS(1));
    struct endpoint *a = open_endpoint("hello._c");
    struct endpoint *b = open_endpoint("hello._c");
    assert_ptr_equal(a, b);
    endpoint_close(a);
    assert_int_equal(ask(b), 1);
    endpoint_close(b);
}

static void names_of_endpoints(void **state)
{
    (void)state;
    assert_true(endpoint_name_matches(STR("x._c")));
    assert_true(endpoint_name_matches(STR("x.so")));
    assert_false(endpoint_name_matches(STR("._c")));
    assert_false(endpoint_name_matches(STR("/srv/.so")));
    assert_false(endpoint_name_matches(STR("x.c")));
    assert_false(endpoint_name_matches(STR("x.so.1")));
}

static void many_waiting_requests_cause_one_build(void **state)
{
    (void)state;
    char marks[PATH_MAX + 16];
    snprintf(marks, sizeof marks, "%s/marks", site.directory);
    struct buffer text = BUFFER_EMPTY;
    buffer_printf(
        &text,
        STAMP "#include <stdio.h>\n"
              "int kiln_load(kiln_module *m) { FILE *f = fopen(\"%s\", \"a\"); fputc('x', f); fclose(f); return 0; }\n"
              "int kiln_run(kiln_context *ctx, const char *path) { return 7; }\n",
        marks);
    buffer_append_char(&text, '\0');
    put("busy._c", text.data);
    buffer_free(&text);
    struct endpoint *e = open_endpoint("busy._c");
    enum { CLIENTS = 200 };
    struct client *clients = calloc(CLIENTS, sizeof *clients);
    for (unsigned i = 0; i < CLIENTS; i++) {
        client_begin(&clients[i], e, i % LOOPS);
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        client_end(&clients[i]);
        assert_int_equal(clients[i].status, ENDPOINT_READY);
        assert_int_equal(clients[i].returned, 7);
    }
    free(clients);
    struct buffer loads = BUFFER_EMPTY;
    assert_true(file_read(marks, 100, &loads));
    assert_int_equal(loads.len, 1);
    buffer_free(&loads);
    endpoint_close(e);
}

static void statics_count_all_requests(void **state)
{
    (void)state;
    put("count._c", STAMP "static int count; int kiln_run(kiln_context *ctx, const char *path) { return ++count; }\n");
    struct endpoint *e = open_endpoint("count._c");
    for (int i = 1; i <= 20; i++) {
        assert_int_equal(ask(e), i);
    }
    endpoint_close(e);
}

static void an_edit_is_built_and_the_old_build_unloaded(void **state)
{
    (void)state;
    put("edit._c", RETURNS(1));
    struct endpoint *e = open_endpoint("edit._c");
    assert_int_equal(ask(e), 1);
    for (int i = 2; i < 6; i++) {
        char text[200];
        snprintf(text, sizeof text, STAMP "int kiln_run(kiln_context *ctx, const char *path) { return %d; }\n", i);
        put("edit._c", text);
        endpoint_file_changed(e);
        ask_until(e, i);
    }
    wait_private(1);
    endpoint_close(e);
}

static void a_touched_file_keeps_its_statics(void **state)
{
    (void)state;
    put("touch._c", STAMP "static int count; int kiln_run(kiln_context *ctx, const char *path) { return ++count; }\n");
    struct endpoint *e = open_endpoint("touch._c");
    assert_int_equal(ask(e), 1);
    put("touch._c", STAMP "static int count; int kiln_run(kiln_context *ctx, const char *path) { return ++count; }\n");
    endpoint_file_changed(e);
    /* A second endpoint's build comes after it in the queue of each builder. */
    put("other._c", RETURNS(5));
    struct endpoint *other = open_endpoint("other._c");
    assert_int_equal(ask(other), 5);
    assert_int_equal(ask(e), 2);
    endpoint_close(other);
    endpoint_close(e);
}

static void equal_sources_do_not_share_statics(void **state)
{
    (void)state;
    const char *text =
        STAMP "static int count; int kiln_run(kiln_context *ctx, const char *path) { return ++count; }\n";
    put("one._c", text);
    put("two._c", text);
    struct endpoint *one = open_endpoint("one._c");
    struct endpoint *two = open_endpoint("two._c");
    assert_int_equal(ask(one), 1);
    assert_int_equal(ask(one), 2);
    assert_int_equal(ask(two), 1);
    endpoint_close(one);
    endpoint_close(two);
}

static void going_back_to_an_older_text_starts_afresh(void **state)
{
    (void)state;
    const char *first =
        STAMP "static int count; int kiln_run(kiln_context *ctx, const char *path) { return ++count; }\n";
    put("back._c", first);
    struct endpoint *e = open_endpoint("back._c");
    struct client held = {.keep = true};
    client_begin(&held, e, 0); /* the old build stays in use all along */
    client_end(&held);
    put("back._c", RETURNS(100));
    endpoint_file_changed(e);
    ask_until(e, 100);
    put("back._c", first);
    endpoint_file_changed(e);
    ask_until(e, 1);
    client_let_go(&held);
    endpoint_close(e);
}

static void the_last_good_build_serves_while_a_new_one_fails(void **state)
{
    (void)state;
    put("good._c", RETURNS(1));
    struct endpoint *e = open_endpoint("good._c");
    assert_int_equal(ask(e), 1);
    put("good._c", STAMP "int kiln_run(kiln_context *ctx, const char *path)\n{\n    return 2\n}\n");
    endpoint_file_changed(e);
    for (int i = 0; i < 6000 && strstr(error_text(e), "good._c:") == NULL; i++) {
        usleep(5000);
    }
    assert_contains(error_text(e), "good._c:");
    assert_int_equal(ask(e), 1);
    put("good._c", RETURNS(3));
    endpoint_file_changed(e);
    ask_until(e, 3);
    endpoint_close(e);
}

static void without_a_good_build_requests_fail_until_it_is_mended(void **state)
{
    (void)state;
    put("bad._c", STAMP "\nint kiln_run(kiln_context *ctx, const char *path)\n{\n    return nothing;\n}\n");
    struct endpoint *e = open_endpoint("bad._c");
    assert_error(e, "bad._c:5: error: ");
    assert_contains(error_text(e), "nothing");
    struct buffer page = BUFFER_EMPTY;
    endpoint_error_page(e, &page);
    buffer_append_char(&page, '\0');
    assert_contains(page.data, "<span class=here><i>5</i>    return nothing;</span>");
    assert_contains(page.data, "bad._c:5");
    buffer_free(&page);
    put("bad._c", RETURNS(9));
    endpoint_file_changed(e);
    ask_until(e, 9);
    endpoint_close(e);
}

static void includes_are_dependencies(void **state)
{
    (void)state;
    mkdir(at("lib"), 0755);
    put("lib/number.h", "#define NUMBER 1\n");
    put("lib/part.c",
        "#define FILE_NAME \"number.h\"\n#include FILE_NAME\nstatic int number(void) { return NUMBER; }\n");
    put("inc._c",
        STAMP "#include \"lib/part.c\"\nint kiln_run(kiln_context *ctx, const char *path) { return number(); }\n");
    struct endpoint *e = open_endpoint("inc._c");
    assert_int_equal(ask(e), 1);
    put("lib/number.h", "#define NUMBER 2\n");
    endpoints_include_changed(str_of(at("lib/number.h")));
    ask_until(e, 2);
    endpoint_close(e);
}

static void a_missing_include_that_appears_mends_the_build(void **state)
{
    (void)state;
    put("want._c", STAMP "#include \"late.h\"\nint kiln_run(kiln_context *ctx, const char *path) { return LATE; }\n");
    struct endpoint *e = open_endpoint("want._c");
    assert_error(e, "late.h");
    put("late.h", "#define LATE 11\n");
    endpoints_include_changed(str_of(at("late.h")));
    ask_until(e, 11);
    endpoint_close(e);
}

static void an_include_outside_the_site_is_looked_at_by_requests(void **state)
{
    (void)state;
    char header[PATH_MAX + 16];
    snprintf(header, sizeof header, "%s/outside.h", site.directory);
    assert_true(file_replace(header, "#define NUMBER 1\n", 17, 0644));
    put("out._c",
        STAMP "#include \"../outside.h\"\nint kiln_run(kiln_context *ctx, const char *path) { return NUMBER; }\n");
    struct endpoint *e = open_endpoint("out._c");
    assert_int_equal(ask(e), 1);
    assert_true(file_replace(header, "#define NUMBER 2\n", 17, 0644));
    ask_until(e, 2); /* nobody told */
    endpoint_close(e);
}

static void without_an_index_requests_look_at_the_files_first(void **state)
{
    (void)state;
    put("part.h", "#define NUMBER 1\n");
    put("deg._c", STAMP "#include \"part.h\"\nint kiln_run(kiln_context *ctx, const char *path) { return NUMBER; }\n");
    struct endpoint *e = open_endpoint("deg._c");
    assert_int_equal(ask(e), 1);
    for (int i = 2; i < 5; i++) {
        char text[40];
        snprintf(text, sizeof text, "#define NUMBER %d\n", i);
        put("part.h", text);
        registry_tick(true); /* as the janitor does it once a second while the index is degraded */
        struct client c = {0};
        client_begin(&c, e, 0);
        client_end(&c);
        assert_int_equal(c.waits, 1);
        assert_int_equal(c.returned, i);
    }
    put("part.h", "#error broken\n");
    registry_tick(true);
    assert_int_equal(ask(e), 4);
    assert_contains(error_text(e), "broken");
    endpoint_close(e);
}

static void odd_names_are_no_trouble(void **state)
{
    (void)state;
    static const char *const names[] = {"with blank._c", "quo'te\"._c", "back\\slash._c", "a: b._c",
                                        "dollar$(x)._c", "-option._c",  "#hash._c",       "%s%n._c",
                                        "\xc3\xa4._c",   "..._c"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        /* Once by libtcc, once by gcc. */
        put(names[i], RETURNS(1));
        struct endpoint *e = open_endpoint(names[i]);
        if (ask(e) != 1) {
            fail_msg("%s: %s", names[i], error_text(e));
        }
        put(names[i],
            STAMP "#include <stdatomic.h>\nint kiln_run(kiln_context *ctx, const char *path) { return 2; }\n");
        endpoint_file_changed(e);
        ask_until(e, 2);
        endpoint_close(e);
    }
}

static void a_library_is_linked_by_pragma(void **state)
{
    (void)state;
    put("lib._c", STAMP
        "#include <zlib.h>\n#pragma comment(lib, \"z\")\n"
        "int kiln_run(kiln_context *ctx, const char *path) { return (int)crc32(0, (const void *)\"x\", 1) != 0; }\n");
    struct endpoint *e = open_endpoint("lib._c");
    assert_int_equal(ask(e), 1);
    endpoint_close(e);
}

static void what_libtcc_lacks_is_built_by_gcc(void **state)
{
    (void)state;
    put("atomic._c",
        STAMP "#include <stdatomic.h>\nstatic atomic_int n;\n"
              "int kiln_run(kiln_context *ctx, const char *path) { return atomic_fetch_add(&n, 1) + 60; }\n");
    struct endpoint *e = open_endpoint("atomic._c");
    assert_int_equal(ask(e), 60);
    assert_int_equal(ask(e), 61);
    wait_private(1);
    endpoint_close(e);
}

static void compile_so(const char *name, const char *body)
{
    char command[3 * PATH_MAX];
    put("native.c", body);
    snprintf(command, sizeof command, "gcc -shared -fPIC -Iplugin-sdk/include -o %s %s", at(name), at("native.c"));
    assert_int_equal(system(command), 0);
    unlink(at("native.c"));
}

/* As `cp new.so name.so` does it: the same inode, new bytes, while the old ones may run. */
static void overwrite(const char *from, const char *to)
{
    struct buffer bytes = BUFFER_EMPTY;
    assert_true(file_read(at(from), 1 << 24, &bytes));
    int fd = open(at(to), O_WRONLY | O_TRUNC);
    assert_true(fd >= 0 && fd_write_all(fd, bytes.data, bytes.len));
    close(fd);
    buffer_free(&bytes);
}

static void a_shared_object_overwritten_in_place_is_loaded_anew(void **state)
{
    (void)state;
    compile_so("a.so", RETURNS(1));
    compile_so("b.so", RETURNS(2));
    struct endpoint *e = open_endpoint("a.so");
    struct client held = {.keep = true};
    client_begin(&held, e, 0);
    client_end(&held);
    assert_int_equal(held.returned, 1);
    overwrite("b.so", "a.so");
    assert_int_equal(module_entry(held.module)->run(NULL, ""), 1); /* mapped code is untouched */
    endpoint_file_changed(e);
    ask_until(e, 2);
    assert_int_equal(module_entry(held.module)->run(NULL, ""), 1);
    wait_private(2);
    client_let_go(&held);
    wait_private(1);
    endpoint_close(e);
}

static void unload_runs_after_the_last_request(void **state)
{
    (void)state;
    char mark[PATH_MAX + 16];
    snprintf(mark, sizeof mark, "%s/unloaded", site.directory);
    struct buffer text = BUFFER_EMPTY;
    buffer_printf(&text,
                  STAMP "#include <stdio.h>\n"
                        "void kiln_unload(kiln_module *m) { fclose(fopen(\"%s\", \"w\")); }\n"
                        "int kiln_run(kiln_context *ctx, const char *path) { return 1; }\n",
                  mark);
    buffer_append_char(&text, '\0');
    put("bye._c", text.data);
    buffer_free(&text);
    struct endpoint *e = open_endpoint("bye._c");
    struct client held = {.keep = true};
    client_begin(&held, e, 1);
    client_end(&held);
    put("bye._c", RETURNS(2));
    endpoint_file_changed(e);
    ask_until(e, 2);
    put("other._c", RETURNS(3)); /* time for the janitor: another module goes through all of it */
    struct endpoint *other = open_endpoint("other._c");
    assert_int_equal(ask(other), 3);
    put("other._c", RETURNS(4));
    endpoint_file_changed(other);
    ask_until(other, 4);
    wait_private(3);
    assert_int_not_equal(access(mark, F_OK), 0);
    client_let_go(&held);
    wait_private(2);
    assert_int_equal(access(mark, F_OK), 0);
    endpoint_close(e);
    endpoint_close(other);
}

/* Requests on all loops, some of which keep their module over several versions. */
static void edits_under_load(void **state)
{
    (void)state;
    enum { CLIENTS = 16, EDITS = 40 };
    static struct client clients[CLIENTS];
    put("load._c", RETURNS(0));
    struct endpoint *e = open_endpoint("load._c");
    assert_int_equal(ask(e), 0);
    for (int edit = 1; edit <= EDITS; edit++) {
        char text[200];
        snprintf(text, sizeof text,
                 STAMP "int kiln_run(kiln_context *ctx, const char *path) { *(int *)(void *)ctx = 7; return %d; }\n",
                 edit);
        put("load._c", text);
        endpoint_file_changed(e);
        for (int round = 0; round < 20; round++) {
            for (unsigned i = 0; i < CLIENTS; i++) {
                clients[i].keep = i < 4;
                client_begin(&clients[i], e, i % LOOPS);
            }
            for (unsigned i = 0; i < CLIENTS; i++) {
                client_end(&clients[i]);
                assert_int_equal(clients[i].status, ENDPOINT_READY);
                assert_true(clients[i].returned >= 0 && clients[i].returned <= edit);
                if (clients[i].keep) {
                    client_let_go(&clients[i]);
                }
            }
        }
    }
    ask_until(e, EDITS);
    wait_private(1);
    endpoint_close(e);
}

static void a_waiter_that_is_cancelled_is_not_woken(void **state)
{
    (void)state;
    put("slow._c", RETURNS(1));
    struct endpoint *e = open_endpoint("slow._c");
    struct endpoint_waiter waiter = {.task = {.run = NULL}, .loop = site.loops[0]};
    struct module *module;
    if (endpoint_acquire(e, 0, &module, &waiter) == ENDPOINT_BUILDING && endpoint_wait_cancel(e, &waiter)) {
        assert_false(waiter.queued);
    }
    assert_int_equal(ask(e), 1); /* would have run NULL */
    endpoint_close(e);
}

static void prepare_builds_ahead(void **state)
{
    (void)state;
    put("ahead._c", RETURNS(1));
    struct endpoint *e = open_endpoint("ahead._c");
    endpoint_prepare(e);
    wait_private(1);
    endpoint_close(e);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(an_unbuilt_source_is_built_by_the_first_request),
        T(the_same_file_is_the_same_endpoint),
        T(names_of_endpoints),
        T(many_waiting_requests_cause_one_build),
        T(statics_count_all_requests),
        T(an_edit_is_built_and_the_old_build_unloaded),
        T(a_touched_file_keeps_its_statics),
        T(equal_sources_do_not_share_statics),
        T(going_back_to_an_older_text_starts_afresh),
        T(the_last_good_build_serves_while_a_new_one_fails),
        T(without_a_good_build_requests_fail_until_it_is_mended),
        T(includes_are_dependencies),
        T(a_missing_include_that_appears_mends_the_build),
        T(an_include_outside_the_site_is_looked_at_by_requests),
        T(without_an_index_requests_look_at_the_files_first),
        T(odd_names_are_no_trouble),
        T(a_library_is_linked_by_pragma),
        T(what_libtcc_lacks_is_built_by_gcc),
        T(a_shared_object_overwritten_in_place_is_loaded_anew),
        T(unload_runs_after_the_last_request),
        T(edits_under_load),
        T(a_waiter_that_is_cancelled_is_not_woken),
        T(prepare_builds_ahead),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
