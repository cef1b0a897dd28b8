/* Debug information as libtcc writes it: lists made by hand, and damaged ones. */
#include "endpoint/stabs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADER = 0x00, FUNCTION = 0x24, LINE = 0x44, SOURCE = 0x64, INCLUDED = 0x84 };

/* What is handed to the reader is exactly as long as it says, so that a sanitizer sees more. */
struct list {
    unsigned char *entries;
    size_t entries_len;
    char *strings;
    size_t strings_len;
    size_t base; /* of the unit that is being written */
};

static struct list made;

static int make_list(void **state)
{
    (void)state;
    made = (struct list){0};
    return 0;
}

static int free_list(void **state)
{
    (void)state;
    free(made.entries);
    free(made.strings);
    return 0;
}

static uint32_t text(const char *words)
{
    size_t len = strlen(words) + 1;
    made.strings = realloc(made.strings, made.strings_len + len);
    memcpy(made.strings + made.strings_len, words, len);
    made.strings_len += len;
    return (uint32_t)(made.strings_len - len - made.base);
}

static void raw(uint8_t type, uint32_t name, uint16_t line, uint32_t value)
{
    unsigned char entry[12] = {0};
    memcpy(entry, &name, 4);
    entry[4] = type;
    memcpy(entry + 6, &line, 2);
    memcpy(entry + 8, &value, 4);
    made.entries = realloc(made.entries, made.entries_len + 12);
    memcpy(made.entries + made.entries_len, entry, 12);
    made.entries_len += 12;
}

static void entry(uint8_t type, const char *name, uint16_t line, uint32_t value)
{
    raw(type, text(name), line, value);
}

static struct str entries(void)
{
    return (struct str){(const char *)made.entries, made.entries_len};
}

static struct str strings(void)
{
    return (struct str){made.strings, made.strings_len};
}

static void check(uint32_t address, const char *function, const char *directory, const char *file, unsigned line)
{
    struct stabs_place place;
    assert_true(stabs_find(entries(), strings(), address, &place));
    assert_true(str_eq(place.function, str_of(function)));
    assert_true(str_eq(place.directory, str_of(directory)));
    assert_true(str_eq(place.file, str_of(file)));
    assert_int_equal(place.line, line);
}

static void two_functions(void)
{
    text("");
    entry(SOURCE, "/site/", 0, 0x1000);
    entry(SOURCE, "index._c", 0, 0x1000);
    entry(FUNCTION, "first:F(0,1)", 0, 0x1000);
    raw(LINE, 0, 3, 0x0);
    raw(LINE, 0, 4, 0x10);
    raw(LINE, 0, 5, 0x20);
    entry(FUNCTION, "", 0, 0x30); /* its end */
    entry(FUNCTION, "second:f(0,1)", 0, 0x1040);
    raw(LINE, 0, 9, 0x0);
    raw(LINE, 0, 10, 0x8);
}

static void test_function_and_line_of_an_address(void **state)
{
    (void)state;
    two_functions();
    check(0x1000, "first", "/site/", "index._c", 3);
    check(0x100f, "first", "/site/", "index._c", 3);
    check(0x1010, "first", "/site/", "index._c", 4);
    check(0x1025, "first", "/site/", "index._c", 5);
    check(0x1040, "second", "/site/", "index._c", 9);
    check(0x2000, "second", "/site/", "index._c", 10);
}

static void test_nothing_begins_before_the_address(void **state)
{
    (void)state;
    struct stabs_place place;
    two_functions();
    assert_false(stabs_find(entries(), strings(), 0xfff, &place));
    assert_false(stabs_find((struct str){"", 0}, (struct str){"", 0}, 0x1000, &place));
}

static void test_order_of_functions_does_not_matter(void **state)
{
    (void)state;
    text("");
    entry(SOURCE, "/site/a._c", 0, 0);
    entry(FUNCTION, "later:F1", 0, 0x500);
    raw(LINE, 0, 20, 0);
    entry(FUNCTION, "", 0, 0);
    entry(FUNCTION, "earlier:F1", 0, 0x100);
    raw(LINE, 0, 10, 0);
    check(0x180, "earlier", "", "/site/a._c", 10);
    check(0x580, "later", "", "/site/a._c", 20);
}

static void test_function_of_a_header(void **state)
{
    (void)state;
    text("");
    entry(SOURCE, "/site/", 0, 0);
    entry(SOURCE, "index._c", 0, 0);
    entry(INCLUDED, "inner.h", 0, 0);
    entry(FUNCTION, "inside:F1", 0, 0x100);
    raw(LINE, 0, 2, 0);
    entry(FUNCTION, "", 0, 0x10);
    entry(INCLUDED, "index._c", 0, 0);
    entry(FUNCTION, "kiln_run:F1", 0, 0x200);
    raw(LINE, 0, 7, 0);
    check(0x100, "inside", "/site/", "inner.h", 2);
    check(0x200, "kiln_run", "/site/", "index._c", 7);
}

/* Each unit has a string table of its own behind those before; its length stands in the header. */
static void test_units_have_names_of_their_own(void **state)
{
    (void)state;
    text("");
    uint32_t first = text("one:F1");
    text("a.c");
    size_t first_len = made.strings_len;
    made.base = first_len;
    text("");
    uint32_t second = text("two:F1");
    uint32_t file = text("b.c");
    size_t second_len = made.strings_len - first_len;
    raw(HEADER, 0, 0, (uint32_t)first_len);
    raw(SOURCE, 8, 0, 0);
    raw(FUNCTION, first, 0, 0x100);
    raw(LINE, 0, 1, 0);
    raw(HEADER, 0, 0, (uint32_t)second_len);
    raw(SOURCE, file, 0, 0);
    raw(FUNCTION, second, 0, 0x200);
    raw(LINE, 0, 2, 0);
    check(0x100, "one", "", "a.c", 1);
    check(0x200, "two", "", "b.c", 2);
}

static void test_names_outside_of_the_table(void **state)
{
    (void)state;
    struct stabs_place place;
    text("");
    raw(SOURCE, UINT32_MAX, 0, 0);
    raw(FUNCTION, UINT32_MAX, 0, 0x100);
    raw(LINE, 0, 1, 0);
    assert_false(stabs_find(entries(), strings(), 0x100, &place));
    /* A name that does not end. */
    made.strings = realloc(made.strings, made.strings_len + 3);
    memcpy(made.strings + made.strings_len, "f:F", 3);
    raw(FUNCTION, (uint32_t)made.strings_len, 0, 0x100);
    made.strings_len += 3;
    assert_false(stabs_find(entries(), strings(), 0x100, &place));
    raw(HEADER, 0, 0, UINT32_MAX);
    raw(HEADER, 0, 0, UINT32_MAX);
    raw(FUNCTION, 1, 0, 0x100);
    assert_false(stabs_find(entries(), strings(), 0x100, &place));
}

static bool inside(struct str part)
{
    return part.len == 0 || (part.ptr >= made.strings && part.ptr + part.len <= made.strings + made.strings_len);
}

/* Whatever the bytes are: no crash, and names lie in the table. */
static void test_damage(void **state)
{
    (void)state;
    two_functions();
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) {
        unsigned char kept[4];
        size_t at[4];
        for (int i = 0; i < 4; i++) {
            at[i] = (size_t)rand_r(&seed) % made.entries_len;
            kept[i] = made.entries[at[i]];
            made.entries[at[i]] = (unsigned char)rand_r(&seed);
        }
        struct stabs_place place;
        struct str cut = {(const char *)made.entries, (size_t)rand_r(&seed) % (made.entries_len + 1)};
        uint32_t address = (uint32_t)rand_r(&seed) % 0x2000;
        stabs_find(cut, strings(), address, &place);
        bool found = stabs_find(entries(), strings(), address, &place);
        assert_true(!found || (place.function.ptr != NULL && inside(place.function) && inside(place.directory) &&
                               inside(place.file)));
        for (int i = 3; i >= 0; i--) {
            made.entries[at[i]] = kept[i];
        }
    }
    check(0x1010, "first", "/site/", "index._c", 4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_list, free_list)
    const struct CMUnitTest tests[] = {
        TEST(test_function_and_line_of_an_address),
        TEST(test_nothing_begins_before_the_address),
        TEST(test_order_of_functions_does_not_matter),
        TEST(test_function_of_a_header),
        TEST(test_units_have_names_of_their_own),
        TEST(test_names_outside_of_the_table),
        TEST(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
