/* Files that are no good modules: each has a message of its own that says what to do. */
#include "endpoint_support.h"

#include "endpoint/build.h"

#define KILN_NO_STAMP
#include <kiln.h>

#include <elf.h>

/* The program is linked from an archive: what only endpoints call must be named. */
void *const used_by_endpoints[] = {(void *)kiln_module_file, (void *)kiln_module_directory};

static void compile(const char *name, const char *options, const char *text)
{
    char command[3 * PATH_MAX];
    put("source.c", text);
    snprintf(command, sizeof command, "gcc %s -Iplugin-sdk/include -o %s %s", options, at(name), at("source.c"));
    assert_int_equal(system(command), 0);
    unlink(at("source.c"));
}

static void patch(const char *name, long offset, const void *bytes, size_t len)
{
    FILE *file = fopen(at(name), "r+");
    assert_non_null(file);
    fseek(file, offset, SEEK_SET);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    fclose(file);
}

static void expect(const char *name, const char *message)
{
    struct endpoint *e = open_endpoint(name);
    assert_error(e, message);
    assert_int_equal(count_private(), 0);
    endpoint_close(e);
}

static void a_good_one_runs(void **state)
{
    (void)state;
    compile("good.so", "-shared -fPIC", RETURNS(5));
    struct endpoint *e = open_endpoint("good.so");
    assert_int_equal(ask(e), 5);
    endpoint_close(e);
}

static void text_is_no_elf_file(void **state)
{
    (void)state;
    put("text.so", "this is text\n");
    expect("text.so", "text.so: error: not an ELF file");
    put("empty.so", "");
    expect("empty.so", "not an ELF file");
}

static void another_processor(void **state)
{
    (void)state;
    compile("arm.so", "-shared -fPIC", RETURNS(5));
    uint16_t machine = EM_RISCV;
    patch("arm.so", offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
    expect("arm.so", "built for another processor: RISC-V");
    unsigned char class32 = ELFCLASS32;
    patch("arm.so", EI_CLASS, &class32, 1);
    put("touch", "");
    struct endpoint *e = open_endpoint("arm.so");
    endpoint_file_changed(e);
    for (int i = 0; i < 6000 && strstr(error_text(e), "64-bit") == NULL; i++) {
        usleep(5000);
    }
    assert_contains(error_text(e), "no 64-bit little-endian");
    endpoint_close(e);
}

static void an_object_file_or_a_program(void **state)
{
    (void)state;
    compile("object.so", "-c", RETURNS(5));
    expect("object.so", "not a shared object");
}

static void half_a_file(void **state)
{
    (void)state;
    compile("half.so", "-shared -fPIC", RETURNS(5));
    struct stat st;
    assert_int_equal(stat(at("half.so"), &st), 0);
    assert_int_equal(truncate(at("half.so"), st.st_size / 2), 0);
    expect("half.so", "not complete");
}

static void no_kiln_run(void **state)
{
    (void)state;
    compile("norun.so", "-shared -fPIC", STAMP "int kiln_rum(void) { return 1; }\n");
    expect("norun.so", "it has no kiln_run function");
    compile("static.so", "-shared -fPIC -fvisibility=hidden",
            "int kiln_run(void *c, const char *p) { return 1; }\nconst unsigned kiln_module_abi[4] = {0x4b494c4e, 1, "
            "0, 0};\n");
    expect("static.so", "it has no kiln_run function");
    put("norun._c", STAMP "int kiln_rum(kiln_context *ctx, const char *path) { return 1; }\n");
    expect("norun._c", "norun._c: error: it has no kiln_run function");
}

static void no_stamp(void **state)
{
    (void)state;
    compile("nostamp.so", "-shared -fPIC", "int kiln_run(void *c, const char *p) { return 1; }\n");
    expect("nostamp.so", "no kiln_module_abi stamp");
    compile("badstamp.so", "-shared -fPIC",
            "const unsigned kiln_module_abi[4] = {1, 2, 3, 4};\nint kiln_run(void *c, const char *p) { return 1; }\n");
    expect("badstamp.so", "damaged");
}

static void another_sdk(void **state)
{
    (void)state;
    compile("newer.so", "-shared -fPIC",
            "const unsigned kiln_module_abi[4] = {0x4b494c4e, 1, 99, 0};\nint kiln_run(void *c, const char *p) { "
            "return 1; }\n");
    expect("newer.so", "built for SDK 1.99, this server has 1.");
    compile("other.so", "-shared -fPIC",
            "const unsigned kiln_module_abi[4] = {0x4b494c4e, 7, 0, 0};\nint kiln_run(void *c, const char *p) { return "
            "1; }\n");
    expect("other.so", "built for SDK 7.0");
}

static void undefined_symbols(void **state)
{
    (void)state;
    put("undef._c",
        STAMP "int nowhere(int); int kiln_run(kiln_context *ctx, const char *path) { return nowhere(1); }\n");
    expect("undef._c", "undefined symbol: nowhere");
    put("sql._c", STAMP "int sqlite3_libversion_number(void);\n"
                        "int kiln_run(kiln_context *ctx, const char *path) { return sqlite3_libversion_number(); }\n");
    struct endpoint *e = open_endpoint("sql._c");
    assert_error(e, "undefined symbol: sqlite3_libversion_number");
    struct buffer page = BUFFER_EMPTY;
    endpoint_error_page(e, &page);
    buffer_append_char(&page, '\0');
    assert_contains(page.data, "#pragma comment(lib, &quot;sqlite3&quot;)");
    buffer_free(&page);
    endpoint_close(e);
    put("lost._c", STAMP "#pragma comment(lib, \"surely_no_such_library\")\n"
                         "int kiln_run(kiln_context *ctx, const char *path) { return 1; }\n");
    expect("lost._c", "surely_no_such_library");
}

static void a_function_that_is_not_declared(void **state)
{
    (void)state;
    put("implicit._c",
        STAMP "int kiln_run(kiln_context *ctx, const char *path)\n{\n    return strcmp(path, \"x\");\n}\n");
    expect("implicit._c", "implicit._c:4: error: implicit declaration of function 'strcmp'");
}

static void a_load_function_that_refuses(void **state)
{
    (void)state;
    put("refuse._c", STAMP "int kiln_load(kiln_module *m) { return 17; }\n"
                           "int kiln_run(kiln_context *ctx, const char *path) { return 1; }\n");
    expect("refuse._c", "kiln_load returned 17");
}

static void load_gets_the_source_and_its_directory(void **state)
{
    (void)state;
    put("where._c",
        STAMP "#include <string.h>\nstatic int good;\n"
              "int kiln_load(kiln_module *m)\n{\n"
              "    const char *file = kiln_module_file(m); const char *directory = kiln_module_directory(m);\n"
              "    good = strncmp(file, directory, strlen(directory)) == 0 && strcmp(file + strlen(directory), "
              "\"/where._c\") == 0;\n"
              "    return 0;\n}\n"
              "int kiln_run(kiln_context *ctx, const char *path) { return good; }\n");
    struct endpoint *e = open_endpoint("where._c");
    assert_int_equal(ask(e), 1);
    endpoint_close(e);
}

static void offload_is_asked_for_by_the_source(void **state)
{
    (void)state;
    put("pool._c", "#define KILN_OFFLOAD\n" RETURNS(1));
    put("loop._c", RETURNS(1));
    struct endpoint *pool = open_endpoint("pool._c");
    struct endpoint *loop = open_endpoint("loop._c");
    assert_int_equal(ask(pool), 1);
    assert_int_equal(ask(loop), 1);
    assert_true(endpoint_is_offloaded(pool));
    assert_false(endpoint_is_offloaded(loop));
    endpoint_set_offloaded(loop, "a test");
    assert_true(endpoint_is_offloaded(loop));
    endpoint_close(pool);
    endpoint_close(loop);
}

static void offload_is_asked_for_by_an_option(void **state)
{
    (void)state;
    server_stop();
    server_start(", \"OffloadEndpoints\": [\"/report\", \"*/slow/*._c\", \"/shop/\"]");
    mkdir(at("slow"), 0755);
    mkdir(at("shop"), 0755);
    static const struct {
        const char *name;
        bool expected;
    } cases[] = {{"report._c", true},     {"report.so", true},   {"slow/x._c", true},
                 {"shop/index._c", true}, {"reports._c", false}, {"shop/cart._c", false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct endpoint *e = open_endpoint(cases[i].name);
        assert_int_equal(endpoint_is_offloaded(e), cases[i].expected);
        endpoint_close(e);
    }
}

static void state_is_seen_in_the_object(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool expected;
    } cases[] = {
        {RETURNS(1), false},
        {STAMP
         "static const char *const names[] = {\"a\", \"b\"}; static const int table[4] = {1, 2};\n"
         "int kiln_run(kiln_context *ctx, const char *path) { return names[path[0] & 1][0] + table[path[1] & 3]; }\n",
         false},
        {STAMP "static int count; int kiln_run(kiln_context *ctx, const char *path) { return ++count; }\n", true},
        {STAMP "int kiln_run(kiln_context *ctx, const char *path) { static int count = 5; return ++count; }\n", true},
        {STAMP "int shared; int kiln_run(kiln_context *ctx, const char *path) { return shared; }\n", true},
        {STAMP "static __thread int mine; int kiln_run(kiln_context *ctx, const char *path) { return ++mine; }\n",
         true},
        {STAMP "__attribute__((constructor)) static void begin(void) { __asm__ volatile(\"\"); }\n"
               "int kiln_run(kiln_context *ctx, const char *path) { return 1; }\n",
         true},
        {STAMP "int kiln_load(kiln_module *m) { return 0; } int kiln_run(kiln_context *ctx, const char *path) { return "
               "1; }\n",
         true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        compile("state.so", "-shared -fPIC -O2", cases[i].text);
        if (elf_has_state(at("state.so")) != cases[i].expected) {
            fail_msg("case %zu", i);
        }
    }
    assert_true(elf_has_state(at("nothing.so")));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_good_one_runs),
        T(text_is_no_elf_file),
        T(another_processor),
        T(an_object_file_or_a_program),
        T(half_a_file),
        T(no_kiln_run),
        T(no_stamp),
        T(another_sdk),
        T(undefined_symbols),
        T(a_function_that_is_not_declared),
        T(a_load_function_that_refuses),
        T(load_gets_the_source_and_its_directory),
        T(offload_is_asked_for_by_the_source),
        T(offload_is_asked_for_by_an_option),
        T(state_is_seen_in_the_object),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
