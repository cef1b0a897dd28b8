#include "observe/status.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct status_worker workers[2] = {
    {.pid = 11,
     .state = STATUS_DRAINING,
     .told = true,
     .figure = {[WORKER_FIGURE_UPTIME] = 61005, [WORKER_FIGURE_REQUESTS] = 7, [WORKER_FIGURE_ACTIVE] = -1},
     .loop = {{{[LOOP_FIGURE_LAG] = 1500001}}, {{[LOOP_FIGURE_LAG] = 12}}},
     .loop_count = 2},
    {.pid = 12, .state = STATUS_STARTING, .figure = {[WORKER_FIGURE_UPTIME] = 5}},
};
static struct status_endpoint endpoints[2] = {
    {.file = "/a \"b\"\\c\n\xff\xc3\xbc", .figure = {[ENDPOINT_FIGURE_HITS] = 3, [ENDPOINT_FIGURE_QUARANTINE] = 59999}},
    {.file = "/z"},
};
static const struct status status = {
    .version = "1.2.3",
    .state = "serving",
    .pid = 10,
    .started = 1700000000,
    .figure = {[SERVER_FIGURE_READY] = 1},
    .total = {[METRIC_BYTES_SENT] = 9007199254740993},
    .workers = workers,
    .worker_count = 2,
    .endpoints = endpoints,
    .endpoint_count = 2,
};

/* NUL-terminated; the caller frees. */
static char *print(void (*how)(const struct status *, struct buffer *), const struct status *what)
{
    struct buffer out = BUFFER_EMPTY;
    how(what, &out);
    buffer_append_char(&out, '\0');
    assert_false(out.failed);
    return out.data;
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in:\n%s", part, text);
    }
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static void test_json(void **state)
{
    (void)state;
    char *text = print(status_print_json, &status);
    cJSON *json = cJSON_ParseWithOpts(text, NULL, true);
    assert_non_null(json);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "ready")));
    has(text, "\"bytes_sent\": 9007199254740993"); /* every digit */
    const cJSON *list = cJSON_GetObjectItem(json, "workers");
    const cJSON *first = cJSON_GetArrayItem(list, 0);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(first, "state")), "draining");
    assert_true(number(first, "uptime_seconds") == 61.005);
    assert_true(number(first, "requests_active") == 0);
    const cJSON *loops = cJSON_GetObjectItem(first, "loops");
    assert_int_equal(cJSON_GetArraySize(loops), 2);
    assert_true(number(cJSON_GetArrayItem(loops, 0), "lag_seconds") == 1.500001);
    assert_true(number(cJSON_GetArrayItem(loops, 1), "lag_seconds") == 0.000012);
    assert_null(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 1), "requests")); /* not told yet */
    const cJSON *endpoint = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "endpoints"), 0);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(endpoint, "file")),
                        "/a \"b\"\\c\n\xEF\xBF\xBD\xc3\xbc");
    assert_true(number(endpoint, "quarantine_seconds") == 59.999);
    assert_int_equal(cJSON_GetArraySize(endpoint), 1 + ENDPOINT_FIGURES);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "totals")), METRIC_COUNT);
    cJSON_Delete(json);
    free(text);
}

static void test_prometheus(void **state)
{
    (void)state;
    char *text = print(status_print_prometheus, &status);
    has(text, "# TYPE kiln_bytes_sent_total counter\nkiln_bytes_sent_total 9007199254740993\n");
    has(text, "kiln_build_info{version=\"1.2.3\"} 1\n");
    has(text, "kiln_workers{state=\"draining\"} 1\n");
    has(text, "kiln_worker_uptime_seconds{worker=\"11\"} 61.005\nkiln_worker_uptime_seconds{worker=\"12\"} 0.005\n");
    has(text, "kiln_worker_requests_total{worker=\"11\"} 7\n# HELP"); /* nothing of one that has told nothing */
    has(text, "kiln_loop_lag_seconds{worker=\"11\",loop=\"0\"} 1.500001\n");
    has(text, "kiln_endpoint_hits_total{file=\"/a \\\"b\\\"\\\\c\\n\xEF\xBF\xBD\xc3\xbc\"} 3\n");
    has(text, "kiln_endpoint_quarantine_seconds{file=\"/z\"} 0.000\n");
    free(text);
}

static void test_text(void **state)
{
    (void)state;
    char *text = print(status_print_text, &status);
    has(text, "kiln 1.2.3, process 10: serving for 0 s\n");
    has(text, "  worker 11: draining for 61 s, 7 requests and 0 now, 0 connections, 0.0 MB, loops wait 1500.0 ms\n");
    has(text, "  worker 12: starting for 0 s\n"); /* it has told nothing yet */
    has(text, "in quarantine: /a \"b\"\\c\\n"); /* a name can neither end the line nor drive the terminal */
    has(text, " crashed 0 times; it is run again in 60 s, or when its file changes\n");
    assert_null(strstr(text, "/z"));
    free(text);
    text = print(status_print_endpoints, &status);
    has(text, "         3       0        0         0        60 s  /a \"b\"\\c\\n");
    has(text, "         0       0        0         0         0 s  /z\n");
    free(text);
    static struct status later;
    later = status;
    static const struct {
        int64_t seconds;
        const char *text;
    } times[] = {{119, "for 119 s\n"}, {150, "for 2 min\n"}, {7320, "for 2 h 2 min\n"}, {200000, "for 2 days\n"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        later.figure[SERVER_FIGURE_UPTIME] = times[i].seconds * 1000;
        text = print(status_print_text, &later);
        has(text, times[i].text);
        free(text);
    }
}

static void test_nothing_to_show(void **state)
{
    (void)state;
    const struct status nothing = {.version = "", .state = "starting"};
    char *text = print(status_print_json, &nothing);
    cJSON *json = cJSON_ParseWithOpts(text, NULL, true);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "workers")), 0);
    assert_true(cJSON_IsArray(cJSON_GetObjectItem(json, "endpoints")));
    cJSON_Delete(json);
    free(text);
    free(print(status_print_prometheus, &nothing));
}

static void test_the_tables_are_complete(void **state)
{
    (void)state;
    static const struct {
        const struct metric_info *infos;
        int count;
    } tables[] = {{metric_infos, METRIC_COUNT},
                  {server_infos, SERVER_FIGURES},
                  {worker_infos, WORKER_FIGURES},
                  {loop_infos, LOOP_FIGURES},
                  {endpoint_infos, ENDPOINT_FIGURES}};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        for (int i = 0; i < tables[t].count; i++) {
            const struct metric_info *info = &tables[t].infos[i];
            bool counter = info->kind == METRIC_IS_COUNTER;
            assert_int_equal(str_ends(str_of(info->name), STR("_total")), counter);
            assert_true(str_starts(str_of(info->name), STR("kiln_")));
            assert_true(str_ends(str_of(info->help), STR(".")));
            assert_true(info->decimals == METRIC_ONE || str_ends(str_of(info->name), STR("_seconds")));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_prometheus),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_nothing_to_show),
        cmocka_unit_test(test_the_tables_are_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
