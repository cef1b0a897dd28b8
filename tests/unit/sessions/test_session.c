/* The service on top of a store: cookies, ids, the life of a session. */
#include "tests/unit/sessions/store_support.h"

#include "sessions/session.h"

#include <string.h>

#define ALPHABET "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

static struct sessions *open_service(int64_t timeout)
{
    struct session_settings settings = {
        .ops = &store_memory,
        .store = {.max_value = 1000, .max_session = 3000, .max_bytes = 10 << 20},
        .cookie_name = STR("SSID"),
        .alphabet = STR(ALPHABET),
        .timeout = timeout,
    };
    struct buffer error = BUFFER_EMPTY;
    struct sessions *service = sessions_open(&settings, &error);
    assert_non_null(service);
    buffer_free(&error);
    return service;
}

static int setup(void **state)
{
    *state = open_service(1000);
    return 0;
}

static int teardown(void **state)
{
    sessions_close(*state);
    return 0;
}

/* A browser: one cookie header, and what the last response set. */
struct browser {
    char header[512];
    char set_cookie[512];
};

static void request(struct browser *b, struct sessions *service, struct session *s, int64_t now)
{
    session_init(s, service, str_of(b->header), false, now);
}

/* The response's Set-Cookie header is taken as a browser would. */
static void respond(struct browser *b, const struct session *s)
{
    struct buffer out = BUFFER_EMPTY;
    b->set_cookie[0] = '\0';
    if (session_cookie(s, &out)) {
        snprintf(b->set_cookie, sizeof b->set_cookie, "%.*s", STR_ARG(buffer_str(&out)));
        if (strstr(b->set_cookie, "Max-Age=0") != NULL) {
            b->header[0] = '\0';
        } else {
            snprintf(b->header, sizeof b->header, "%.*s", (int)strcspn(b->set_cookie, ";"), b->set_cookie);
        }
    }
    buffer_free(&out);
}

static enum session_result get(struct session *s, const char *key, char text[static 128])
{
    struct buffer out = BUFFER_EMPTY;
    enum session_result result = session_get(s, str_of(key), &out);
    snprintf(text, 128, "%.*s", STR_ARG(buffer_str(&out)));
    buffer_free(&out);
    return result;
}

static enum session_result set(struct session *s, const char *key, const char *json)
{
    return session_set(s, str_of(key), str_of(json));
}

static void a_visit_begins_continues_and_ends(void **state)
{
    struct sessions *service = *state;
    struct browser b = {0};
    struct session s;
    char text[128];
    request(&b, service, &s, 100);
    assert_int_equal(get(&s, "user", text), SESSION_NONE);
    assert_int_equal(set(&s, "user", "\"ada\""), SESSION_OK);
    assert_int_equal(get(&s, "user", text), SESSION_OK);
    assert_string_equal(text, "\"ada\"");
    respond(&b, &s);
    char expected[256];
    snprintf(expected, sizeof expected, "SSID=%s; Path=/; Max-Age=1000; HttpOnly; SameSite=Lax", s.id);
    assert_string_equal(b.set_cookie, expected);
    assert_int_equal(strlen(s.id), 22);

    request(&b, service, &s, 105);
    assert_int_equal(get(&s, "user", text), SESSION_OK);
    assert_string_equal(text, "\"ada\"");
    respond(&b, &s);
    assert_string_equal(b.set_cookie, ""); /* nothing to say so soon */

    request(&b, service, &s, 106);
    assert_int_equal(session_destroy(&s), SESSION_OK);
    assert_int_equal(get(&s, "user", text), SESSION_NONE);
    char old[512];
    snprintf(old, sizeof old, "%s", b.header);
    respond(&b, &s);
    assert_string_equal(b.set_cookie,
                        "SSID=; Path=/; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:00 GMT; HttpOnly; SameSite=Lax");
    snprintf(b.header, sizeof b.header, "%s", old); /* the old cookie, once more */
    request(&b, service, &s, 107);
    assert_int_equal(get(&s, "user", text), SESSION_NONE);
    assert_int_equal(sessions_count(service), 0);
}

static void a_request_that_does_not_ask_costs_nothing(void **state)
{
    struct sessions *service = *state;
    struct browser b = {0};
    struct session s;
    request(&b, service, &s, 100);
    respond(&b, &s);
    assert_string_equal(b.set_cookie, "");
    assert_int_equal(sessions_count(service), 0);
    const char *id;
    assert_int_equal(session_id(&s, &id), SESSION_OK);
    assert_string_equal(id, "");
    assert_int_equal(session_remove(&s, STR("k")), SESSION_OK);
    assert_int_equal(session_destroy(&s), SESSION_OK);
    respond(&b, &s);
    assert_string_equal(b.set_cookie, "");
    assert_int_equal(sessions_count(service), 0);
}

static void tls_makes_the_cookie_secure(void **state)
{
    struct session s;
    struct buffer out = BUFFER_EMPTY;
    session_init(&s, *state, STR_NONE, true, 1);
    assert_int_equal(set(&s, "k", "1"), SESSION_OK);
    assert_true(session_cookie(&s, &out));
    assert_true(str_ends(buffer_str(&out), STR("; Secure; HttpOnly; SameSite=Lax")) ||
                str_ends(buffer_str(&out), STR("; HttpOnly; SameSite=Lax; Secure")));
    buffer_free(&out);
}

static void foreign_ids_are_never_adopted(void **state)
{
    struct sessions *service = *state;
    static const char *const headers[] = {
        "SSID=AAAAAAAAAAAAAAAAAAAAAA", /* right form, unknown */
        "SSID=../../../../etc/passwd", /* traversal */
        "SSID=..%2f..%2fetc%2fpasswd000",
        "SSID=",
        "SSID",
        "SSID=AAAAAAAAAAAAAAAAAAAAAAA",
        "SSID=AAAAAAAAAAAAAAAAAAAAA",
        "SSID=AAAAAAAAAAA AAAAAAAAAA",
        "SSID=AAAAAAAAAAAAAAAAAAAAA\x80",
        "ssid=AAAAAAAAAAAAAAAAAAAAAA",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct browser b = {0};
        struct session s;
        snprintf(b.header, sizeof b.header, "%s", headers[i]);
        request(&b, service, &s, 100);
        char text[128];
        assert_int_equal(get(&s, "k", text), SESSION_NONE);
        assert_int_equal(set(&s, "k", "1"), SESSION_OK);
        respond(&b, &s);
        assert_true(strncmp(b.set_cookie, "SSID=", 5) == 0);
        assert_null(strstr(headers[i], s.id));
    }
    assert_int_equal(sessions_count(service), sizeof headers / sizeof *headers);
}

static void ours_is_found_among_others(void **state)
{
    struct sessions *service = *state;
    struct browser b = {0};
    struct session s;
    char text[128];
    request(&b, service, &s, 100);
    assert_int_equal(set(&s, "k", "7"), SESSION_OK);
    respond(&b, &s);
    char header[1024];
    snprintf(header, sizeof header, "a=b; XSSID=1; SSID=; SSID=AAAAAAAAAAAAAAAAAAAAAA; SSID=%s; z=1", s.id);
    session_init(&s, service, str_of(header), false, 101);
    assert_int_equal(get(&s, "k", text), SESSION_OK);
    assert_string_equal(text, "7");
    /* Not for ever: someone who plants many cookies buys only a few looks at the store. */
    snprintf(header, sizeof header,
             "SSID=AAAAAAAAAAAAAAAAAAAAAA; SSID=AAAAAAAAAAAAAAAAAAAAAB; SSID=AAAAAAAAAAAAAAAAAAAAAC; "
             "SSID=AAAAAAAAAAAAAAAAAAAAAD; %s",
             b.header);
    session_init(&s, service, str_of(header), false, 101);
    assert_int_equal(get(&s, "k", text), SESSION_NONE);
}

static void the_end_slides_in_steps(void **state)
{
    struct sessions *service = *state;
    struct browser b = {0};
    struct session s;
    char text[128];
    request(&b, service, &s, 100);
    assert_int_equal(set(&s, "k", "1"), SESSION_OK);
    respond(&b, &s);
    request(&b, service, &s, 110); /* exactly a hundredth: not yet */
    assert_int_equal(get(&s, "k", text), SESSION_OK);
    respond(&b, &s);
    assert_string_equal(b.set_cookie, "");
    request(&b, service, &s, 111);
    assert_int_equal(get(&s, "k", text), SESSION_OK);
    respond(&b, &s);
    assert_non_null(strstr(b.set_cookie, "Max-Age=1000"));
    request(&b, service, &s, 1110); /* the last second of its new life */
    assert_int_equal(get(&s, "k", text), SESSION_OK);
    respond(&b, &s);
    assert_int_equal(sessions_sweep(service, 2109), 0);
    assert_int_equal(sessions_sweep(service, 2110), 1);
    request(&b, service, &s, 2110);
    assert_int_equal(get(&s, "k", text), SESSION_NONE);
}

static void a_shorter_timeout_reaches_old_sessions(void **state)
{
    (void)state;
    struct fixture *f = fixture_make(&store_lmdb);
    struct session_settings settings = {
        .ops = &store_lmdb,
        .store = f->options,
        .cookie_name = STR("SSID"),
        .alphabet = STR(ALPHABET),
        .timeout = 100000,
    };
    struct buffer error = BUFFER_EMPTY;
    struct browser b = {0};
    struct session s;
    char text[128];
    struct sessions *service = sessions_open(&settings, &error);
    assert_non_null(service);
    request(&b, service, &s, 100);
    assert_int_equal(set(&s, "k", "1"), SESSION_OK);
    respond(&b, &s);
    sessions_close(service);
    settings.timeout = 50;
    service = sessions_open(&settings, &error);
    assert_non_null(service);
    request(&b, service, &s, 101);
    assert_int_equal(get(&s, "k", text), SESSION_OK);
    assert_int_equal(sessions_sweep(service, 151), 1);
    sessions_close(service);
    buffer_free(&error);
    fixture_free(f);
}

static void login_changes_the_id(void **state)
{
    struct sessions *service = *state;
    struct browser victim = {0};
    struct session s;
    char text[128];
    request(&victim, service, &s, 100);
    assert_int_equal(set(&s, "cart", "[1]"), SESSION_OK);
    respond(&victim, &s);
    struct browser attacker = victim; /* knows the id from before the login */
    request(&victim, service, &s, 101);
    assert_int_equal(session_renew(&s), SESSION_OK);
    assert_int_equal(set(&s, "user", "\"ada\""), SESSION_OK);
    respond(&victim, &s);
    assert_string_not_equal(victim.header, attacker.header);
    request(&victim, service, &s, 102);
    assert_int_equal(get(&s, "cart", text), SESSION_OK);
    assert_string_equal(text, "[1]");
    assert_int_equal(get(&s, "user", text), SESSION_OK);
    request(&attacker, service, &s, 102);
    assert_int_equal(get(&s, "user", text), SESSION_NONE);
    assert_int_equal(get(&s, "cart", text), SESSION_NONE);
    /* Without a session before, the login begins one. */
    struct browser fresh = {0};
    request(&fresh, service, &s, 103);
    assert_int_equal(session_renew(&s), SESSION_OK);
    respond(&fresh, &s);
    assert_true(strncmp(fresh.set_cookie, "SSID=", 5) == 0);
}

static void a_session_lost_under_way_is_gone_and_not_begun_again(void **state)
{
    struct sessions *service = *state;
    struct browser b = {0};
    struct session slow;
    struct session fast;
    char text[128];
    request(&b, service, &fast, 100);
    assert_int_equal(set(&fast, "k", "1"), SESSION_OK);
    respond(&b, &fast);
    request(&b, service, &slow, 150);
    request(&b, service, &fast, 150);
    assert_int_equal(get(&slow, "k", text), SESSION_OK);
    assert_int_equal(session_renew(&fast), SESSION_OK);
    assert_int_equal(set(&slow, "k", "2"), SESSION_GONE);
    assert_int_equal(set(&slow, "k", "2"), SESSION_GONE);
    assert_int_equal(session_renew(&slow), SESSION_GONE);
    assert_int_equal(sessions_count(service), 1);
    struct browser copy = b;
    respond(&copy, &slow); /* must not disturb the new cookie */
    assert_string_equal(copy.set_cookie, "");
    assert_int_equal(get(&fast, "k", text), SESSION_OK);
    assert_string_equal(text, "1");
}

static void after_the_head_no_session_begins(void **state)
{
    struct sessions *service = *state;
    struct browser b = {0};
    struct session s;
    request(&b, service, &s, 100);
    s.head_sent = true;
    assert_int_equal(set(&s, "k", "1"), SESSION_LATE);
    assert_int_equal(session_increment(&s, STR("k"), 1, NULL), SESSION_LATE);
    assert_int_equal(session_renew(&s), SESSION_LATE);
    assert_int_equal(sessions_count(service), 0);
    s.head_sent = false;
    assert_int_equal(set(&s, "k", "1"), SESSION_OK);
    respond(&b, &s);
    request(&b, service, &s, 500);
    s.head_sent = true;
    assert_int_equal(set(&s, "k", "2"), SESSION_OK); /* values may change, the cookie not */
    assert_int_equal(s.cookie, SESSION_COOKIE_NONE);
    assert_int_equal(session_renew(&s), SESSION_LATE);
}

static void bad_values_begin_nothing(void **state)
{
    struct sessions *service = *state;
    struct session s;
    char big[1100];
    char long_key[SESSION_KEY_MAX + 2];
    memset(big, '1', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    memset(long_key, 'k', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = '\0';
    session_init(&s, service, STR_NONE, false, 1);
    assert_int_equal(set(&s, "k", "nope"), SESSION_INVALID);
    assert_int_equal(set(&s, "k", big), SESSION_TOO_LARGE);
    assert_int_equal(set(&s, "", "1"), SESSION_INVALID);
    assert_int_equal(set(&s, long_key, "1"), SESSION_INVALID);
    assert_int_equal(sessions_count(service), 0);
    struct buffer out = BUFFER_EMPTY;
    assert_false(session_cookie(&s, &out));
    long_key[SESSION_KEY_MAX] = '\0';
    assert_int_equal(set(&s, long_key, "1"), SESSION_OK);
    int64_t sum;
    assert_int_equal(session_increment(&s, str_of(long_key), 4, &sum), SESSION_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(set(&s, "t", "\"x\""), SESSION_OK);
    assert_int_equal(session_increment(&s, STR("t"), 1, NULL), SESSION_CONFLICT);
    assert_int_equal(session_get_all(&s, &out), SESSION_OK);
    assert_true(str_starts(buffer_str(&out), STR("{")));
    buffer_free(&out);
}

static void ids_are_long_unlike_and_spread(void **state)
{
    (void)state;
    static const struct {
        const char *symbols;
        unsigned length; /* 0: refused */
    } cases[] = {
        {ALPHABET, 22},
        {"0123456789abcdef", 32},
        {ALPHABET "-_", 22},
        {"0123456789abcde", 0},
        {"0123456789abcdeff", 0},
        {"0123456789abcdef;", 0},
        {"0123456789abcdef ", 0},
        {"0123456789abcdef\"", 0},
        {"", 0},
        {"0123456789abcdef\x80", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct session_alphabet alphabet;
        assert_int_equal(session_alphabet_init(&alphabet, str_of(cases[i].symbols)), cases[i].length != 0);
        if (cases[i].length == 0) {
            continue;
        }
        assert_int_equal(alphabet.length, cases[i].length);
        char ids[2][SESSION_ID_MAX + 1];
        unsigned seen[256] = {0};
        for (unsigned n = 0; n < 2000; n++) {
            assert_true(session_id_make(&alphabet, ids[n % 2]));
            assert_int_equal(strlen(ids[n % 2]), cases[i].length);
            assert_true(session_id_is_valid(&alphabet, str_of(ids[n % 2])));
            assert_true(n == 0 || strcmp(ids[0], ids[1]) != 0);
            for (const char *p = ids[n % 2]; *p != '\0'; p++) {
                seen[(unsigned char)*p]++;
            }
        }
        /* Each symbol about as often as the others: six standard deviations and more. */
        unsigned expected = 2000 * cases[i].length / alphabet.count;
        for (unsigned k = 0; k < alphabet.count; k++) {
            assert_in_range(seen[(unsigned char)alphabet.symbols[k]], expected * 3 / 4, expected * 5 / 4);
        }
    }
}

static void the_store_never_sees_the_id(void **state)
{
    (void)state;
    struct fixture *f = fixture_make(&store_lmdb);
    struct session_settings settings = {.ops = &store_lmdb,
                                        .store = f->options,
                                        .cookie_name = STR("SSID"),
                                        .alphabet = STR(ALPHABET),
                                        .timeout = 100000};
    struct buffer error = BUFFER_EMPTY;
    struct session s;
    struct sessions *service = sessions_open(&settings, &error);
    assert_non_null(service);
    session_init(&s, service, STR_NONE, false, 100);
    assert_int_equal(set(&s, "marker", "\"find-me-in-the-file\""), SESSION_OK);
    sessions_close(service);
    static const char *const names[] = {"live.mdb", "saved.mdb"};
    for (unsigned i = 0; i < 2; i++) {
        char path[PATH_MAX + 16];
        snprintf(path, sizeof path, "%s/%s", f->directory, names[i]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        static char bytes[1 << 20];
        size_t len = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        assert_non_null(memmem(bytes, len, "find-me-in-the-file", 19));
        assert_null(memmem(bytes, len, s.id, strlen(s.id)));
    }
    buffer_free(&error);
    fixture_free(f);
}

static void bad_settings_are_refused(void **state)
{
    (void)state;
    struct buffer error = BUFFER_EMPTY;
    struct session_settings settings = {
        .ops = &store_memory, .cookie_name = STR("S"), .alphabet = STR("abc"), .timeout = 1};
    assert_null(sessions_open(&settings, &error));
    assert_non_null(memmem(error.data, error.len, "Rand_Alphabet", 13));
    buffer_free(&error);
}

#define WITH_SERVICE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SERVICE(a_visit_begins_continues_and_ends),
        WITH_SERVICE(a_request_that_does_not_ask_costs_nothing),
        WITH_SERVICE(tls_makes_the_cookie_secure),
        WITH_SERVICE(foreign_ids_are_never_adopted),
        WITH_SERVICE(ours_is_found_among_others),
        WITH_SERVICE(the_end_slides_in_steps),
        cmocka_unit_test(a_shorter_timeout_reaches_old_sessions),
        WITH_SERVICE(login_changes_the_id),
        WITH_SERVICE(a_session_lost_under_way_is_gone_and_not_begun_again),
        WITH_SERVICE(after_the_head_no_session_begins),
        WITH_SERVICE(bad_values_begin_nothing),
        cmocka_unit_test(ids_are_long_unlike_and_spread),
        cmocka_unit_test(the_store_never_sees_the_id),
        cmocka_unit_test(bad_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
