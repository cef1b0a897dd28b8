/* What a request over HTTP/2 may consist of (RFC 9113, 8), and its priority (RFC 9218). */
#include "protocol/http2_private.h"
#include "request/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static struct request request;
static struct http2_stream stream;

static void begin(void)
{
    memset(&request, 0, sizeof request);
    memset(&stream, 0, sizeof stream);
    stream.req = &request;
    stream.announced = RESPONSE_LENGTH_UNKNOWN;
}

static bool add(const char *name, const char *value)
{
    struct http2_field field = {.name = str_of(name), .value = str_of(value)};
    unsigned known;
    bool good = http2_field_check(&stream, &field, &known);
    if (good && strcmp(name, ":method") == 0) {
        request.method = strcmp(value, "CONNECT") == 0   ? METHOD_CONNECT
                         : strcmp(value, "OPTIONS") == 0 ? METHOD_OPTIONS
                                                         : METHOD_GET;
    } else if (good && strcmp(name, ":path") == 0) {
        request.target = field.value;
    }
    return good;
}

/* "name=value name=value ...": true when all are good, and so is the whole. */
static bool head(const char *text)
{
    char copy[512];
    bool good = true;
    begin();
    snprintf(copy, sizeof copy, "%s", text);
    for (char *next = copy, *part; good && (part = strsep(&next, " ")) != NULL;) {
        char *value = strchr(part, '=');
        *value++ = '\0';
        good = add(part, value);
    }
    return good && http2_fields_are_whole(&stream, true);
}

#define START ":method=GET :scheme=https :path=/x"

static void heads(void **state)
{
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {START " :authority=a", true},
        {START " host=a", true},
        {START " :authority=a host=a", true},
        {START, false},
        {":scheme=https :path=/x :authority=a", false},
        {":method=GET :path=/x :authority=a", false},
        {":method=GET :scheme=https :authority=a", false},
        {START " :authority=a :path=/y", false},
        {START " :authority=a :method=GET", false},
        {START " :authority=a :scheme=https", false},
        {START " :authority=a :authority=a", false},
        {START " host=a host=a", false},
        {START " host=", false},
        {START " host=a/b", false},
        {START " x=y :authority=a", false},
        {START " :authority=a :status=200", false},
        {START " :authority=a :other=1", false},
        {START " :authority=", false},
        {":method= :scheme=https :path=/x :authority=a", false},
        {":method=G(T :scheme=https :path=/x :authority=a", false},
        {":method=GET :scheme=1https :path=/x :authority=a", false},
        {":method=GET :scheme=ht_tp :path=/x :authority=a", false},
        {":method=GET :scheme=https :path= :authority=a", false},
        {":method=GET :scheme=https :path=x :authority=a", false},
        {":method=GET :scheme=HTTP :path=x :authority=a", false},
        {":method=GET :scheme=git+ssh :path=x :authority=a", true}, /* answered 400 */
        {":method=GET :scheme=https :path=* :authority=a", false},
        {":method=OPTIONS :scheme=https :path=* :authority=a", true},
        {":method=OPTIONS :scheme=https :path=** :authority=a", false},
        {":method=CONNECT :authority=a:1", true},
        {":method=CONNECT host=a", false},
        {":method=CONNECT :authority=a:1 :scheme=https", false},
        {":method=CONNECT :authority=a:1 :path=/", false},
        {":method=CONNECT :protocol=websocket :scheme=https :path=/x :authority=a", true},
        {":method=CONNECT :protocol=websocket :scheme=https :path=/x host=a", false},
        {":method=CONNECT :protocol=websocket :path=/x :authority=a", false},
        {":method=CONNECT :protocol=websocket :protocol=x :scheme=https :path=/x :authority=a", false},
        {START " :protocol=websocket :authority=a", false},
        {START " :authority=a connection=close", false},
        {START " :authority=a keep-alive=1", false},
        {START " :authority=a proxy-connection=close", false},
        {START " :authority=a transfer-encoding=chunked", false},
        {START " :authority=a upgrade=h2c", false},
        {START " :authority=a te=trailers", true},
        {START " :authority=a te=Trailers", true},
        {START " :authority=a te=gzip", false},
        {START " :authority=a te=", false},
        {START " :authority=a content-length=0", true},
        {START " :authority=a content-length=1", false}, /* there is no body */
        {START " :authority=a content-length=0 content-length=0", false},
        {START " :authority=a content-length=", false},
        {START " :authority=a content-length=+0", false},
        {START " :authority=a content-length=9223372036854775808", false},
        {START " :authority=a x-y!#$%&'*+-.^_`|~09=", true},
        {START " :authority=a X=1", false},
        {START " :authority=a x\xc3=1", false},
        {START " :authority=a x(=1", false},
        {START " :authority=a =1", false},
        {START " :authority=a :=1", false},
        {START " :authority=a x=\xff", true},
        {START " :authority=a x=\x7f", false},
        {START " :authority=a x=1\r", false},
        {START " :authority=a x=\t1", false},
        {START " :authority=a x=1\t", false},
        {START " :authority=a x=1\t1", true},
        {":method=GET :scheme=https :path=/\xff :authority=a", true}, /* answered 400 */
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (head(cases[i].text) != cases[i].good) {
            fail_msg("\"%s\" is not %s", cases[i].text, cases[i].good ? "taken" : "refused");
        }
    }
    begin();
    assert_true(add("x", ""));
    assert_false(add("x", " 1"));
    assert_false(add("x", "1 "));
    assert_true(add("x", "1 2"));
    assert_false(add(":path", "/"));
    begin();
    assert_true(http2_field_is_target(STR("/a%20b?c=d#\xff")));
    assert_false(http2_field_is_target(STR("/a b")));
    assert_false(http2_field_is_target(STR("/\t")));
    assert_false(http2_field_is_target(STR("/\x01")));
    assert_false(http2_field_is_target(STR("/\x7f")));
    assert_true(http2_field_is_authority(STR("u@[::1]:80")));
    assert_false(http2_field_is_authority(STR("a b")));
    assert_false(http2_field_is_authority(STR("a\"")));
}

/* What the static table has is not looked at byte by byte, and its empty values are no lengths or hosts. */
static void fields_of_the_static_table(void **state)
{
    unsigned known;
    (void)state;
    begin();
    struct http2_field field = {STR("content-length"), STR(""), true, true};
    assert_false(http2_field_check(&stream, &field, &known));
    field.name = STR("host");
    assert_false(http2_field_check(&stream, &field, &known));
    field.name = STR("transfer-encoding");
    assert_false(http2_field_check(&stream, &field, &known));
    field.name = STR("user-agent");
    assert_true(http2_field_check(&stream, &field, &known));
    assert_int_equal(known, HEADER_USER_AGENT);
    field.name = STR(":path");
    assert_false(http2_field_check(&stream, &field, &known));
}

/* A field of any bytes, in a new head; what else the head lacks does not matter. */
static bool alone(const char *name, struct str value)
{
    struct http2_field field = {.name = str_of(name), .value = value};
    unsigned known;
    begin();
    return http2_field_check(&stream, &field, &known);
}

static void compare(const char *what, struct str text, bool ours, bool theirs)
{
    if (ours != theirs) {
        fail_msg("%s of %zu bytes (%02x %02x ...) is %s", what, text.len, text.len > 0 ? (uint8_t)text.ptr[0] : 0,
                 text.len > 1 ? (uint8_t)text.ptr[1] : 0, ours ? "taken" : "refused");
    }
}

static void ask_nghttp2_too(struct str text)
{
    const uint8_t *bytes = (const uint8_t *)text.ptr;
    bool empty = text.len == 0; /* of these nghttp2 thinks what it likes */
    char name[8] = "";
    memcpy(name, text.ptr, text.len);
    /* nghttp2 takes its own pseudo headers as names; a NUL ends our str_of(). */
    if (!empty && text.ptr[0] != ':' && memchr(text.ptr, 0, text.len) == NULL) {
        compare("a name", text, alone(name, STR("1")), nghttp2_check_header_name(bytes, text.len) != 0);
    }
    compare("a value", text, alone("x", text), nghttp2_check_header_value_rfc9113(bytes, text.len) != 0);
    compare("a method", text, alone(":method", text), !empty && nghttp2_check_method(bytes, text.len) != 0);
    compare("a path", text, !empty && http2_field_is_target(text), !empty && nghttp2_check_path(bytes, text.len) != 0);
    compare("an authority", text, !empty && http2_field_is_authority(text),
            !empty && nghttp2_check_authority(bytes, text.len) != 0);
    compare("a host", text, alone("host", text), !empty && nghttp2_check_authority(bytes, text.len) != 0);
}

/* It would check the fields, were it not told not to: all texts of up to three bytes of which one is anything. */
static void every_byte_is_judged_as_nghttp2_does(void **state)
{
    (void)state;
    ask_nghttp2_too(STR(""));
    for (int byte = 0; byte < 256; byte++) {
        for (int place = 0; place < 6; place++) {
            static const size_t lengths[] = {1, 2, 2, 3, 3, 3};
            static const size_t at[] = {0, 0, 1, 0, 1, 2};
            char text[] = "aaa";
            text[at[place]] = (char)byte;
            ask_nghttp2_too((struct str){text, lengths[place]});
        }
    }
}

static void trailers(void **state)
{
    (void)state;
    assert_true(head(START " host=a"));
    stream.trailers = true;
    assert_true(add("x", "1"));
    assert_true(add("content-length", "3"));
    assert_false(add("content-length", "3"));
    assert_false(add("host", "a"));
    assert_false(add(":path", "/"));
    assert_false(add("te", "gzip"));
}

static void bodies_are_as_long_as_was_said(void **state)
{
    (void)state;
    assert_true(head(START " host=a"));
    assert_true(http2_fields_data(&stream, 1000));
    assert_true(http2_fields_end(&stream));
    begin();
    assert_true(add("content-length", "5"));
    assert_true(http2_fields_data(&stream, 3));
    assert_false(http2_fields_end(&stream));
    assert_true(http2_fields_data(&stream, 2));
    assert_true(http2_fields_end(&stream));
    assert_false(http2_fields_data(&stream, 1));
    assert_false(http2_fields_end(&stream));
}

/* ---- priority ------------------------------------------------------------------------------------- */

static void priorities(void **state)
{
    static const struct {
        const char *text;
        int urgency; /* -1: it cannot be read */
        int incremental;
    } cases[] = {
        {"", 3, 0},
        {"u=0", 0, 0},
        {"u=7", 7, 0},
        {"u=8", -1, 0},
        {"u=-1", -1, 0},
        {"u=-0", 0, 0},
        {"u=1.0", -1, 0},
        {"u=?1", -1, 0},
        {"u", -1, 0},
        {"u=", -1, 0},
        {"u=01", 1, 0},
        {"u=0000000000000001", -1, 0},
        {"i", 3, 1},
        {"i=?1", 3, 1},
        {"i=?0", 3, 0},
        {"i=?2", -1, 0},
        {"i=1", -1, 0},
        {"i=", -1, 0},
        {"  u=2, i", 2, 1},
        {"u=2,i", 2, 1},
        {"u=2 \t,\t i", 2, 1},
        {"u=2  ", 2, 0},
        {"u=2,", -1, 0},
        {",u=2", -1, 0},
        {"u=2 i", -1, 0},
        {"u=2;a;b=1;c=\"x\", i;q=*t", 2, 1},
        {"u=2; a", 2, 0},
        {"u=2;A", -1, 0},
        {"u=5, u=1", 1, 0},
        {"U=1", -1, 0},
        {"x=1, y=1.5, z=-3, s=\"a\\\"b\\\\\", t=a/b:c, *b=:aGk=:, f=?0, u=4", 4, 0},
        {"s=\"a", -1, 0},
        {"s=\"a\\n\"", -1, 0},
        {"b=:a", -1, 0},
        {"b=:(:", -1, 0},
        {"n=1.", -1, 0},
        {"n=1.1234", -1, 0},
        {"n=1234567890123.1", -1, 0},
        {"n=-", -1, 0},
        {"l=(1 \"a\" b;x=1);y, u=6", 6, 0},
        {"l=(), u=6", 6, 0},
        {"l=( 1  2 ), u=6", 6, 0},
        {"l=(1\"a\")", -1, 0},
        {"l=(1", -1, 0},
        {"u=(1)", -1, 0},
        {"i=()", -1, 0},
        {"u=99, ((", -1, 0},
        {"a_-.*9=1, u=1", 1, 0},
        {"9=1", -1, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        nghttp2_extpri priority = {NGHTTP2_EXTPRI_DEFAULT_URGENCY, 0};
        bool read = http2_priority_read(str_of(cases[i].text), &priority);
        if (read != (cases[i].urgency >= 0) ||
            (read && ((int)priority.urgency != cases[i].urgency || priority.inc != cases[i].incremental)) ||
            (!read && (priority.urgency != NGHTTP2_EXTPRI_DEFAULT_URGENCY || priority.inc != 0))) {
            fail_msg("\"%s\" is read as u=%u, i=%d", cases[i].text, priority.urgency, priority.inc);
        }
    }
}

/* Two fields are one list (RFC 9110, 5.3); what cannot be read spoils all of it. */
static void priority_in_two_fields(void **state)
{
    (void)state;
    begin();
    assert_true(add("priority", "u=1"));
    assert_true(add("priority", "i"));
    assert_true(stream.has_priority && stream.urgency == 1 && stream.incremental && !stream.bad_priority);
    assert_true(add("priority", "u=9"));
    assert_true(add("priority", "u=2"));
    assert_true(stream.bad_priority);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads),
        cmocka_unit_test(fields_of_the_static_table),
        cmocka_unit_test(every_byte_is_judged_as_nghttp2_does),
        cmocka_unit_test(trailers),
        cmocka_unit_test(bodies_are_as_long_as_was_said),
        cmocka_unit_test(priorities),
        cmocka_unit_test(priority_in_two_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
