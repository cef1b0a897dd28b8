#include "observe/access_log.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static char out[ACCESS_LINE_MAX + 1];

static struct access_line example(void)
{
    return (struct access_line){
        .client = "2001:db8::1",
        .http_major = 1,
        .http_minor = 1,
        .status = 200,
        .method = STR("GET"),
        .host = STR("example.com"),
        .target = STR("/a?b=\"c\""),
        .referer = STR("http://x/\n"),
        .user_agent = STR("Mozilla/5.0 \\ \x01"),
        .bytes = 18446744073709551615u,
        .milliseconds = 12,
    };
}

static void test_combined(void **state)
{
    (void)state;
    struct access_line line = example();
    size_t len = access_log_combined(out, &line, "[30/Nov/2026:12:00:00 +0000]");
    out[len] = '\0';
    assert_string_equal(out, "2001:db8::1 - - [30/Nov/2026:12:00:00 +0000] \"GET /a?b=\\\"c\\\" HTTP/1.1\" 200 "
                             "18446744073709551615 \"http://x/\\x0a\" \"Mozilla/5.0 \\\\ \\x01\"\n");
}

static void test_combined_without_headers(void **state)
{
    (void)state;
    struct access_line line = {.client = "192.0.2.1", .http_major = 2, .status = 404};
    line.method = STR("GET");
    line.target = STR("/");
    size_t len = access_log_combined(out, &line, "[t]");
    out[len] = '\0';
    assert_string_equal(out, "192.0.2.1 - - [t] \"GET / HTTP/2\" 404 0 \"-\" \"-\"\n");
}

static void test_json_is_read_back(void **state)
{
    (void)state;
    struct access_line line = example();
    line.user_agent = STR("a\",\"status\":1,\"\xff\t");
    size_t len = access_log_json(out, &line, "2026-11-30T12:00:00Z");
    assert_int_equal(out[len - 1], '\n');
    cJSON *json = cJSON_ParseWithLength(out, len);
    assert_non_null(json);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "target")), "/a?b=\"c\"");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "user_agent")),
                        "a\",\"status\":1,\"\xef\xbf\xbd\t");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "time")), "2026-11-30T12:00:00Z");
    assert_int_equal((int)cJSON_GetNumberValue(cJSON_GetObjectItem(json, "status")), 200);
    assert_int_equal((int)cJSON_GetNumberValue(cJSON_GetObjectItem(json, "milliseconds")), 12);
    assert_int_equal(cJSON_GetArraySize(json), 11);
    cJSON_Delete(json);
}

/* Every field as long and as hostile as it can be: the line keeps its bound and its form. */
static void test_longest_line_fits(void **state)
{
    (void)state;
    size_t size = 100000;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, '\x01', size);
    struct str field = {text, size};
    struct access_line line = {
        .client = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
        .http_major = 255,
        .http_minor = 255,
        .status = 65535,
        .method = field,
        .host = field,
        .target = field,
        .referer = field,
        .user_agent = field,
        .bytes = UINT64_MAX,
        .milliseconds = UINT64_MAX,
    };
    size_t len = access_log_json(out, &line, "2026-11-30T12:00:00Z");
    assert_true(len <= ACCESS_LINE_MAX && len > 5 * (ACCESS_FIELD_MAX - 6));
    cJSON *json = cJSON_ParseWithLength(out, len);
    assert_non_null(json);
    cJSON_Delete(json);
    len = access_log_combined(out, &line, "[30/Nov/2026:12:00:00 +0000]");
    assert_true(len <= ACCESS_LINE_MAX);
    assert_memory_equal(out + len - 2, "\"\n", 2);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_combined),
        cmocka_unit_test(test_combined_without_headers),
        cmocka_unit_test(test_json_is_read_back),
        cmocka_unit_test(test_longest_line_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
