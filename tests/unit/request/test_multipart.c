#include "request/multipart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* after the standard headers */
#include <cmocka.h>

#define NAME(n) "Content-Disposition: form-data; name=\"" n "\"\r\n"

/* Events as text: (name|filename|type) for a part, its content, ')' at its end, '.' at the end of
 * all, '!' malformed, '>' too large. */
static void describe(struct multipart *mp, enum multipart_event event, struct str bytes, struct buffer *out)
{
    switch (event) {
    case MULTIPART_PART:
        buffer_printf(out, "(%.*s|%.*s|%.*s:", STR_ARG(mp->name), mp->filename.ptr != NULL ? (int)mp->filename.len : 1,
                      mp->filename.ptr != NULL ? mp->filename.ptr : "-", STR_ARG(mp->content_type));
        break;
    case MULTIPART_BYTES: buffer_append_str(out, bytes); break;
    case MULTIPART_PART_END: buffer_append_char(out, ')'); break;
    case MULTIPART_END: buffer_append_char(out, '.'); break;
    case MULTIPART_TOO_LARGE: buffer_append_char(out, '>'); break;
    default: buffer_append_char(out, '!');
    }
}

static void parse(struct str boundary, struct str body, size_t step, struct buffer *out)
{
    struct multipart mp;
    multipart_init(&mp, boundary);
    out->len = 0;
    bool stop = false;
    for (size_t i = 0; i < body.len && !stop; i += step) {
        /* A copy of exactly this piece: reading past it is seen by the sanitizers. */
        size_t len = i + step < body.len ? step : body.len - i;
        char *piece = malloc(len);
        memcpy(piece, body.ptr + i, len);
        struct str input = {piece, len};
        for (;;) {
            struct str bytes;
            enum multipart_event event = multipart_next(&mp, &input, &bytes);
            if (event == MULTIPART_MORE) {
                break;
            }
            describe(&mp, event, bytes, out);
            stop = event >= MULTIPART_MALFORMED;
            if (stop) {
                break;
            }
        }
        free(piece);
    }
    if (!stop && !multipart_is_complete(&mp)) {
        buffer_append_char(out, '~');
    }
    multipart_free(&mp);
}

static void expect(const char *body, size_t len, const char *events)
{
    struct buffer out = BUFFER_EMPTY;
    for (size_t step = 1; step <= len; step++) {
        parse(STR("abc"), (struct str){body, len}, step, &out);
        if (!str_eq(buffer_str(&out), str_of(events))) {
            fail_msg("pieces of %zu: \"%.*s\", expected \"%s\"", step, STR_ARG(buffer_str(&out)), events);
        }
    }
    buffer_free(&out);
}
#define EXPECT(body, events) expect(body, sizeof(body) - 1, events)

static void parts_come_out_however_the_body_is_cut(void **state)
{
    (void)state;
    EXPECT("--abc\r\n" NAME("a") "\r\nhello\r\n--abc--\r\n", "(a|-|:hello).");
    EXPECT("--abc\r\n" NAME("a") "\r\n1\r\n--abc\r\n" NAME("b") "\r\n2\r\n--abc--", "(a|-|:1)(b|-|:2).");
    EXPECT("preamble\r\n--abc\r\n" NAME("a") "\r\n1\r\n--abc--epilogue\r\n--abc\r\n", "(a|-|:1).");
    EXPECT("--abc  \t\r\n" NAME("a") "\r\n\r\n--abc--", "(a|-|:).");
    EXPECT("--abc\r\n" NAME("a") "\r\n--abc--", "(a|-|:).");
    EXPECT("--abc--", ".");
}

static void content_that_looks_like_the_delimiter_stays_whole(void **state)
{
    (void)state;
    EXPECT("--abc\r\n" NAME("a") "\r\n\r\n--ab\r\r\n\r\n-\r\n--\r\n--abc--", "(a|-|:\r\n--ab\r\r\n\r\n-\r\n--).");
    EXPECT("--abc\r\n" NAME("a") "\r\n--ab--abc\n--abc\r\r\n--abc--", "(a|-|:--ab--abc\n--abc\r).");
    EXPECT("--abc\r\n" NAME("a") "\r\n-\r\n--abc--", "(a|-|:-).");
    EXPECT("--ab\r\n--abc\r\n" NAME("a") "\r\n\r\r\n--abc--", "(a|-|:\r).");
}

static void names_and_filenames_are_decoded_and_reduced(void **state)
{
    (void)state;
#define FILE_PART(parameters) \
    "--abc\r\nContent-Disposition: form-data" parameters "\r\nContent-Type: x/y\r\n\r\n.\r\n--abc--"
    EXPECT(FILE_PART("; name=\"f\"; filename=\"a.txt\""), "(f|a.txt|x/y:.).");
    EXPECT(FILE_PART(";name=f;filename=a.txt"), "(f|a.txt|x/y:.).");
    EXPECT(FILE_PART("; name=\"a\\\"b\\\\c\"; filename=\"C:\\dir\\x.txt\""), "(a\"b\\c|x.txt|x/y:.).");
    EXPECT(FILE_PART("; name=\"f\"; filename=\"../../etc/passwd\""), "(f|passwd|x/y:.).");
    EXPECT(FILE_PART("; name=\"f\"; filename=\"..\""), "(f||x/y:.).");
    EXPECT(FILE_PART("; name=\"f\"; filename=\"\""), "(f||x/y:.).");
    EXPECT(FILE_PART("; name=\"f\"; filename=\"a;b\""), "(f|a;b|x/y:.).");
    EXPECT(FILE_PART("; name=\"f\"; filename=\"e.txt\"; filename*=UTF-8''%e2%82%ac%2f%00x.txt"), "(f|x.txt|x/y:.).");
    EXPECT(FILE_PART("; filename*=utf-8'en'%C3%A4; name=f"), "(f|\xc3\xa4|x/y:.).");
    EXPECT(FILE_PART("; name=f; filename*=iso-8859-1''%E4"), "(f|\xc3\xa4|x/y:.).");
    EXPECT(FILE_PART("; name=f; filename*=UTF-8''%zz; filename=b"), "(f|b|x/y:.).");
    EXPECT(FILE_PART("; filename=b"), "(|b|x/y:.).");
}

static void malformed_bodies_are_refused(void **state)
{
    (void)state;
    EXPECT("--abc\r\n" NAME("a") "\r\nx", "(a|-|:x~");
    EXPECT("--abc\r\n" NAME("a") "\r\nx\r\n--abcd\r\n", "(a|-|:x)!");
    EXPECT("--abc \r\n" NAME("a") "\r\nx\r\n--abc --", "(a|-|:x)!");
    EXPECT("--abc\n", "!");
    EXPECT("--abc\r\n\r\nx\r\n--abc--", "!");
    EXPECT("--abc\r\nContent-Type: a/b\r\n\r\nx\r\n--abc--", "!");
    EXPECT("--abc\r\nContent-Disposition: attachment; name=a\r\n\r\nx\r\n--abc--", "!");
    EXPECT("--abc\r\nContent-Disposition: form-data; name=\"a\r\n\r\nx\r\n--abc--", "!");
    EXPECT("--abc\r\n" NAME("a") "Bad Name: x\r\n\r\nx\r\n--abc--", "!");
    EXPECT("--abc\r\n" NAME("a") " folded\r\n\r\nx\r\n--abc--", "!");
    EXPECT("--abc\r\n" NAME("a") "X: \x01\r\n\r\nx\r\n--abc--", "!");
    EXPECT("--abc\r\n" NAME("a") "X: y\n\r\n\r\nx\r\n--abc--", "!");
}

static void headers_are_bounded(void **state)
{
    (void)state;
    struct buffer body = BUFFER_EMPTY;
    struct buffer out = BUFFER_EMPTY;
    buffer_append_z(&body, "--abc\r\nX: ");
    for (int i = 0; i < MULTIPART_HEAD_MAX; i++) {
        buffer_append_char(&body, 'x');
    }
    parse(STR("abc"), buffer_str(&body), 1000, &out);
    assert_true(str_eq(buffer_str(&out), STR(">")));
    body.len = 0;
    buffer_append_z(&body, "--abc\r\n");
    for (int i = 0; i <= MULTIPART_HEADERS_MAX; i++) {
        buffer_append_z(&body, "X: y\r\n");
    }
    buffer_append_z(&body, "\r\n");
    parse(STR("abc"), buffer_str(&body), 1000, &out);
    assert_true(str_eq(buffer_str(&out), STR("!")));
    buffer_free(&body);
    buffer_free(&out);
}

static void the_boundary_comes_from_the_content_type(void **state)
{
    (void)state;
    char storage[MULTIPART_BOUNDARY_MAX];
    struct str boundary;
    assert_true(multipart_boundary(STR("multipart/form-data; boundary=abc"), &boundary, storage));
    assert_true(str_eq(boundary, STR("abc")));
    assert_true(multipart_boundary(STR("Multipart/Form-Data ; charset=x; BOUNDARY=\"a b'c\""), &boundary, storage));
    assert_true(str_eq(boundary, STR("a b'c")));
    static const char *const bad[] = {
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=a",
        "multipart/form-data; boundary=\"a",
        "multipart/form-data; boundary=\"a\\\"\"",
        "multipart/form-data; boundary=\"a \"",
        "text/plain; boundary=a",
        "",
        "multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789x",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(multipart_boundary(str_of(bad[i]), &boundary, storage));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_out_however_the_body_is_cut),
        cmocka_unit_test(content_that_looks_like_the_delimiter_stays_whole),
        cmocka_unit_test(names_and_filenames_are_decoded_and_reduced),
        cmocka_unit_test(malformed_bodies_are_refused),
        cmocka_unit_test(headers_are_bounded),
        cmocka_unit_test(the_boundary_comes_from_the_content_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
