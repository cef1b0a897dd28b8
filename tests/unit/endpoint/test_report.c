/* Readers of what compilers write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "endpoint/build.h"

#include <stdio.h>
#include <stdlib.h>

static void a_report_of_kiln_cc(void **state)
{
    (void)state;
    struct diagnostics d = {0};
    struct dependencies deps = {0};
    struct buffer stray = BUFFER_EMPTY;
    const char *text = "F\t12\t34\t56\t/site/a._c\nF\t1\t2\t3\t/site/ta\\tb\\nc\\\\.h\nM\t/site/late.h\n"
                       "D\twarning\t/site/a._c\t3\tlook here\nD\terror\t/site/a._c\t4\tbad\\tthing\n"
                       "tcc: something\nE\tfailed\n";
    assert_false(report_parse(str_of(text), &d, &deps, &stray));
    assert_int_equal(d.count, 2);
    assert_int_equal(d.items[0].severity, SEVERITY_WARNING);
    assert_string_equal(diagnostics_first_error(&d)->message, "bad\tthing");
    assert_int_equal(diagnostics_first_error(&d)->line, 4);
    assert_int_equal(deps.count, 3);
    assert_string_equal(deps.items[1].path, "/site/ta\tb\nc\\.h");
    assert_int_equal(deps.items[0].inode, 56);
    assert_true(deps.items[2].missing);
    assert_true(stray.len == 15 && memcmp(stray.data, "tcc: something\n", 15) == 0);
    diagnostics_free(&d);
    dependencies_free(&deps);
    buffer_free(&stray);
}

static void only_an_end_that_says_ok_is_success(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
    } cases[] = {{"E\tok\n", true},
                 {"E\tok", true},
                 {"", false},
                 {"E\tfailed\n", false},
                 {"E\tok\nE\tfailed\n", false},
                 {"E\n", false},
                 {"F\t1\t2\t3\t/x\n", false},
                 {"ok\n", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct diagnostics d = {0};
        struct dependencies deps = {0};
        assert_int_equal(report_parse(str_of(cases[i].text), &d, &deps, NULL), cases[i].ok);
        diagnostics_free(&d);
        dependencies_free(&deps);
    }
}

static void messages_of_gcc_and_clang(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum severity severity;
        const char *file;
        unsigned line;
        const char *message;
    } cases[] = {
        {"/site/a._c:12:5: error: expected ';'", SEVERITY_ERROR, "/site/a._c", 12, "expected ';'"},
        {"/site/a._c:12: error: no column", SEVERITY_ERROR, "/site/a._c", 12, "no column"},
        {"/si:te/a b._c:7:1: warning: odd: path [-Wodd]", SEVERITY_WARNING, "/si:te/a b._c", 7, "odd: path [-Wodd]"},
        {"/site/a._c:1:10: fatal error: x.h: No such file or directory", SEVERITY_ERROR, "/site/a._c", 1,
         "x.h: No such file or directory"},
        {"a.c:3:2: note: here", SEVERITY_NOTE, "a.c", 3, "here"},
        {"gcc: fatal error: Killed signal terminated program cc1", SEVERITY_ERROR, "", 0,
         "Killed signal terminated program cc1"},
        {"/usr/bin/ld: cannot find -lfoo: No such file", SEVERITY_ERROR, "", 0, "cannot find -lfoo: No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct diagnostics d = {0};
        compiler_output_parse(str_of(cases[i].text), &d);
        assert_int_equal(d.count, 1);
        assert_int_equal(d.items[0].severity, cases[i].severity);
        assert_string_equal(d.items[0].file, cases[i].file);
        assert_int_equal(d.items[0].line, cases[i].line);
        assert_string_equal(d.items[0].message, cases[i].message);
        diagnostics_free(&d);
    }
    struct diagnostics d = {0};
    compiler_output_parse(STR("x.c: In function 'f':\ncompilation terminated.\n\n"), &d);
    assert_int_equal(d.count, 0);
}

static void the_first_error_is_kept_behind_a_flood_of_warnings(void **state)
{
    (void)state;
    struct buffer text = BUFFER_EMPTY;
    for (int i = 0; i < 10000; i++) {
        buffer_printf(&text, "a.c:%d:1: warning: w\n", i + 1);
    }
    buffer_append_z(&text, "a.c:5:1: error: e\n");
    struct diagnostics d = {0};
    compiler_output_parse(buffer_str(&text), &d);
    assert_int_equal(d.count, DIAGNOSTICS_MAX + 1);
    assert_string_equal(diagnostics_first_error(&d)->message, "e");
    diagnostics_free(&d);
    buffer_free(&text);
}

static void files_of_a_make_rule(void **state)
{
    (void)state;
    struct dependencies deps = {0};
    make_rule_parse(STR("out.o: /a.c \\\n /with\\ blank.h /do$$lar.h \\\n  /last.h\n\n/next: /not.h\n"), &deps);
    assert_int_equal(deps.count, 4);
    assert_string_equal(deps.items[1].path, "/with blank.h");
    assert_string_equal(deps.items[2].path, "/do$lar.h");
    assert_string_equal(deps.items[3].path, "/last.h");
    dependencies_free(&deps);
}

static void libraries_of_pragmas(void **state)
{
    (void)state;
    struct buffer out = BUFFER_EMPTY;
    assert_int_equal(pragma_libraries(STR("#pragma comment(lib,\"z\")\n  # pragma  comment ( lib , \"stdc++\" ) \n"
                                          "#pragma comment(lib, \"-evil\")\n#pragma comment(lib, \"a/b\")\n"
                                          "#pragma comment(option, \"x\")\nint pragma;\n#pragma comment(lib,\"open"),
                                      &out),
                     2);
    assert_int_equal(out.len, 4 + 9);
    assert_memory_equal(out.data, "-lz\0-lstdc++", 13);
    buffer_free(&out);
}

static void the_page_is_escaped_and_shows_only_what_was_read(void **state)
{
    (void)state;
    struct build_result result = {0};
    diagnostics_add(&result.diagnostics, SEVERITY_ERROR, STR("/etc/passwd"), 1,
                    STR("<script>alert(1)</script> & \"x\""));
    diagnostics_add(&result.diagnostics, SEVERITY_WARNING, STR("/site/<b>.h"), 2, STR("second"));
    struct buffer page = BUFFER_EMPTY;
    build_error_page(&result, "/site/a._c", "/site", &page);
    buffer_append_char(&page, '\0');
    assert_null(strstr(page.data, "<script>"));
    assert_null(strstr(page.data, "<b>.h"));
    assert_non_null(strstr(page.data, "&lt;script&gt;"));
    assert_non_null(strstr(page.data, "second"));
    assert_null(strstr(page.data, "root:"));
    assert_null(strstr(page.data, "http://"));
    buffer_free(&page);
    struct buffer text = BUFFER_EMPTY;
    build_error_text(&result, "/site/a._c", "/site", &text);
    assert_true(text.len > 20 && memcmp(text.data, "/etc/passwd:1: error: ", 22) == 0);
    buffer_free(&text);
    build_result_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_of_kiln_cc),
        cmocka_unit_test(only_an_end_that_says_ok_is_success),
        cmocka_unit_test(messages_of_gcc_and_clang),
        cmocka_unit_test(the_first_error_is_kept_behind_a_flood_of_warnings),
        cmocka_unit_test(files_of_a_make_rule),
        cmocka_unit_test(libraries_of_pragmas),
        cmocka_unit_test(the_page_is_escaped_and_shows_only_what_was_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
