/* Names, the choice of a certificate, ticket keys and ALPN. */
#include "config/config.h"
#include "connection/certs.h"
#include "connection/hex.h"
#include "connection/tickets.h"
#include "protocol/alpn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* A pair without OpenSSL's parts: the choice looks at names, kind and times alone. */
static struct cert_pair *make_pair(enum cert_kind kind, time_t from, const char *const *names)
{
    struct cert_pair *pair = calloc(1, sizeof *pair);
    assert_non_null(pair);
    atomic_init(&pair->references, 1);
    pair->kind = kind;
    pair->not_before = from;
    pair->not_after = time(NULL) + 1000;
    for (; *names != NULL; names++) {
        pair->names = realloc(pair->names, (pair->name_count + 1) * sizeof *pair->names);
        pair->names[pair->name_count++] = str_of(strdup(*names));
    }
    return pair;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct cert_pair *found(const struct cert_set *set, const char *name, enum cert_kind kind)
{
    const struct cert_choice *choice = cert_set_find(set, str_of(name));
    return choice != NULL ? choice->by_kind[kind] : NULL;
}

static void names_that_may_stand_in_a_certificate(void **state)
{
    (void)state;
    static const char *const good[] = {"a",     "example.com", "*.example.com", "xn--bcher-kva.example",
                                       "a_b.c", "1.2.3.4"};
    static const char *const bad[] = {"",     ".",   "*.",  "*",     ".a",   "a.",
                                      "a..b", "a b", "a/b", "*.*.a", "a*.b", "\xC3\xA4.b"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(cert_name_is_valid(str_of(good[i])));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(cert_name_is_valid(str_of(bad[i])));
    }
}

static void exact_before_wildcard_and_one_label_alone(void **state)
{
    (void)state;
    struct cert_source sources[] = {
        {STR("a"), make_pair(CERT_ECDSA, 1, NAMES("example.com", "www.example.com"))},
        {STR("b"), make_pair(CERT_ECDSA, 1, NAMES("*.example.com"))},
    };
    struct cert_set *set = cert_set_make(sources, 2, STR(""));
    assert_ptr_equal(found(set, "WWW.example.COM", CERT_ECDSA), sources[0].pair);
    assert_ptr_equal(found(set, "shop.example.com", CERT_ECDSA), sources[1].pair);
    assert_null(found(set, "a.shop.example.com", CERT_ECDSA));
    assert_null(found(set, ".example.com", CERT_ECDSA));
    assert_null(found(set, "", CERT_ECDSA));
    assert_ptr_equal(found(set, "a", CERT_ECDSA), sources[0].pair); /* the directory's own name */
    char huge[400];
    memset(huge, 'a', sizeof huge);
    assert_null(cert_set_find(set, (struct str){huge, sizeof huge}));
    assert_ptr_equal(cert_set_default(set)->by_kind[CERT_ECDSA], sources[0].pair);
    cert_pair_unref(sources[0].pair);
    cert_pair_unref(sources[1].pair);
    cert_set_unref(set);
}

static void of_two_for_one_name_the_better(void **state)
{
    (void)state;
    struct cert_source sources[] = {
        {STR("x"), make_pair(CERT_ECDSA, 10, NAMES("n.example"))},
        {STR("y"), make_pair(CERT_ECDSA, 20, NAMES("n.example"))}, /* newer */
        {STR("z"), make_pair(CERT_ECDSA, 30, NAMES("n.example"))}, /* newest, but ended */
        {STR("r"), make_pair(CERT_RSA, 1, NAMES("n.example"))}, /* another kind: beside it */
        {STR("m.example"), make_pair(CERT_ECDSA, 1, NAMES("m.example"))}, /* the directory of that name */
        {STR("o"), make_pair(CERT_ECDSA, 99, NAMES("m.example"))},
    };
    sources[2].pair->not_after = 1;
    struct cert_set *set = cert_set_make(sources, 6, STR("o"));
    assert_ptr_equal(found(set, "n.example", CERT_ECDSA), sources[1].pair);
    assert_ptr_equal(found(set, "n.example", CERT_RSA), sources[3].pair);
    assert_ptr_equal(found(set, "m.example", CERT_ECDSA), sources[4].pair);
    assert_ptr_equal(cert_set_default(set)->by_kind[CERT_ECDSA], sources[5].pair);
    cert_set_unref(set);
    set = cert_set_make(sources, 6, STR("n.example")); /* by name */
    assert_ptr_equal(cert_set_default(set)->by_kind[CERT_RSA], sources[3].pair);
    cert_set_unref(set);
    for (size_t i = 0; i < 6; i++) {
        cert_pair_unref(sources[i].pair);
    }
    set = cert_set_make(NULL, 0, STR(""));
    assert_null(cert_set_default(set));
    assert_null(found(set, "a", CERT_RSA));
    cert_set_unref(set);
}

static void ticket_keys_travel_and_rotate(void **state)
{
    (void)state;
    struct ticket_keys keys = {0};
    struct ticket_keys back;
    for (unsigned i = 1; i <= 5; i++) {
        struct ticket_key first = keys.keys[0];
        assert_true(ticket_keys_rotate(&keys));
        assert_int_equal(keys.count, i < TICKET_KEYS ? i : TICKET_KEYS);
        assert_memory_equal(&keys.keys[1], &first, sizeof first);
        assert_memory_not_equal(&keys.keys[0], &first, sizeof first);
        struct buffer text = BUFFER_EMPTY;
        ticket_keys_print(&keys, &text);
        assert_true(ticket_keys_parse(buffer_str(&text), &back));
        assert_memory_equal(&back, &keys, sizeof keys);
        text.data[3] = 'X';
        assert_false(ticket_keys_parse(buffer_str(&text), &back));
        text.len--;
        assert_false(ticket_keys_parse(buffer_str(&text), &back));
        buffer_free(&text);
    }
    assert_false(ticket_keys_parse(STR(""), &back));
}

static void alpn_takes_what_we_like_best(void **state)
{
    (void)state;
    struct config config = {.enable_http2 = true};
    struct config without = {0};
    assert_true(str_eq(alpn_select(STR("\10http/1.1\2h2"), &config), STR("h2")));
    assert_true(str_eq(alpn_select(STR("\10http/1.1\2h2"), &without), STR("http/1.1")));
    static const struct str none[] = {{"", 0}, {"\3ftp", 4}, {"\2h", 2}, {"\0", 1}, {"\5h2", 3}, {"\3h2c", 4}};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_int_equal(alpn_select(none[i], &config).len, 0);
    }
    assert_non_null(protocol_for_alpn(STR_NONE));
    assert_ptr_not_equal(protocol_for_alpn(STR("h2")), protocol_for_alpn(STR("http/1.1")));
}

static void hexadecimal_there_and_back(void **state)
{
    (void)state;
    const unsigned char bytes[] = {0, 1, 0xab, 0xff};
    char text[9];
    unsigned char back[4];
    hex_print(bytes, sizeof bytes, text);
    assert_string_equal(text, "0001abff");
    assert_true(hex_read(str_of(text), back));
    assert_memory_equal(back, bytes, sizeof bytes);
    assert_false(hex_read(STR("0"), back));
    assert_false(hex_read(STR("0g"), back));
    assert_false(hex_read(STR("AB"), back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_may_stand_in_a_certificate),
        cmocka_unit_test(exact_before_wildcard_and_one_label_alone),
        cmocka_unit_test(of_two_for_one_name_the_better),
        cmocka_unit_test(ticket_keys_travel_and_rotate),
        cmocka_unit_test(alpn_takes_what_we_like_best),
        cmocka_unit_test(hexadecimal_there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
