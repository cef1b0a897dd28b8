#include "supervisor/ledger.h"

#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LEDGER_ACCOUNTS = 300 };

static struct ledger ledger;

static int make(void **state)
{
    (void)state;
    ledger_init(&ledger, LEDGER_ACCOUNTS);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ledger_free(&ledger);
    return 0;
}

static void take(struct figures *from, const char *json, uint64_t now)
{
    cJSON *body = cJSON_Parse(json);
    assert_non_null(body);
    ledger_take_figures(&ledger, from, body, now);
    ledger_take_endpoints(&ledger, from, body);
    cJSON_Delete(body);
}

static const struct account *account(const char *file)
{
    return map_get(&ledger.by_file, str_of(file));
}

static void test_sums_only_grow(void **state)
{
    (void)state;
    struct figures *first = figures_create();
    struct figures *second = figures_create();
    take(first, "{\"metrics\": {\"kiln_requests_total\": 10, \"kiln_connections_open\": 5}}", 1);
    take(second, "{\"metrics\": {\"kiln_requests_total\": 3}}", 1);
    take(first, "{\"metrics\": {\"kiln_requests_total\": 12, \"kiln_connections_open\": 2}}", 2);
    assert_int_equal(ledger.total[METRIC_REQUESTS], 15);
    assert_int_equal(ledger.total[METRIC_CONNECTIONS_OPEN], 0); /* gauges are those of the living */
    assert_int_equal(first->metric[METRIC_CONNECTIONS_OPEN], 2);
    figures_free(first); /* killed */
    first = figures_create();
    take(first, "{\"metrics\": {\"kiln_requests_total\": 1}}", 3);
    assert_int_equal(ledger.total[METRIC_REQUESTS], 16);
    take(second, "{\"metrics\": {\"kiln_requests_total\": 2}}", 3); /* it began anew */
    assert_int_equal(ledger.total[METRIC_REQUESTS], 18);
    figures_free(first);
    figures_free(second);
}

static void test_what_is_no_number_is_passed_over(void **state)
{
    (void)state;
    struct figures *f = figures_create();
    take(f, "{\"metrics\": {\"kiln_requests_total\": 7}, \"loops\": [{\"connections\": 1}]}", 1);
    static const char *const bad[] = {
        "{}",
        "{\"metrics\": 5, \"worker\": [], \"loops\": {}, \"endpoints\": 7, \"server\": null}",
        "{\"metrics\": {\"kiln_requests_total\": -1}}",
        "{\"metrics\": {\"kiln_requests_total\": 1e300}}",
        "{\"metrics\": {\"kiln_requests_total\": \"9\", \"kiln_unknown_total\": 9}}",
        "{\"endpoints\": [7, {}, {\"file\": 7}, {\"hits\": 7}]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        take(f, bad[i], 2);
        assert_int_equal(ledger.total[METRIC_REQUESTS], 7);
        assert_int_equal(ledger.by_file.count, 0);
    }
    struct buffer many = BUFFER_EMPTY;
    buffer_append_z(&many, "{\"loops\": [");
    for (int i = 0; i < 100; i++) {
        buffer_append_z(&many, i > 0 ? ", {}" : "{}");
    }
    buffer_append(&many, "]}", 3);
    take(f, many.data, 3);
    assert_int_equal(f->loops, METRICS_LOOPS);
    buffer_free(&many);
    figures_free(f);
}

static void test_lag_grows_while_a_task_waits(void **state)
{
    (void)state;
    struct figures *f = figures_create();
    take(f, "{\"loops\": [{\"lag_seconds\": 50}, {\"lag_seconds\": 50, \"waiting\": 2000}]}", 1000);
    assert_int_equal(figures_loop_lag_us(f, 0, 4000), 50);
    assert_int_equal(figures_loop_lag_us(f, 1, 1000), 2000);
    assert_int_equal(figures_loop_lag_us(f, 1, 4000), 3002000);
    take(f, "{\"loops\": [{\"lag_seconds\": 50}, {\"lag_seconds\": 3500000}]}", 5000);
    assert_int_equal(figures_loop_lag_us(f, 1, 9000), 3500000);
    figures_free(f);
}

static void test_endpoints_add_up_over_workers(void **state)
{
    (void)state;
    struct figures *first = figures_create();
    struct figures *second = figures_create();
    take(first, "{\"endpoints\": [{\"file\": \"/a\", \"hits\": 5, \"builds\": 1}, {\"file\": \"/b\", \"hits\": 1}]}",
         1);
    take(second, "{\"endpoints\": [{\"file\": \"/a\", \"hits\": 2}]}", 1);
    ledger_count_crash(&ledger, "/a");
    take(first, "{\"endpoints\": [{\"file\": \"/a\", \"hits\": 6}]}", 2);
    assert_int_equal(account("/a")->figure[ENDPOINT_FIGURE_HITS], 8);
    assert_int_equal(account("/a")->figure[ENDPOINT_FIGURE_BUILDS], 1);
    assert_int_equal(account("/a")->figure[ENDPOINT_FIGURE_CRASHES], 1);
    assert_int_equal(account("/b")->figure[ENDPOINT_FIGURE_HITS], 1);
    figures_free(first);
    figures_free(second);
}

static void test_the_quiet_ones_are_forgotten_first(void **state)
{
    (void)state;
    char file[32];
    for (int i = 0; i < LEDGER_ACCOUNTS; i++) {
        snprintf(file, sizeof file, "/%d", i);
        ledger_count_crash(&ledger, file);
    }
    ledger_count_crash(&ledger, "/0");
    ledger_count_crash(&ledger, "/new");
    assert_int_equal(ledger.by_file.count, LEDGER_ACCOUNTS);
    assert_non_null(account("/0"));
    assert_null(account("/1"));
    assert_non_null(account("/new"));
    ledger_limit(&ledger, 2);
    assert_int_equal(ledger.by_file.count, 2);
    assert_non_null(account("/0"));
    assert_non_null(account("/new"));
}

static void test_what_is_told_can_be_taken(void **state)
{
    (void)state;
    struct figures *f = figures_create();
    int64_t metric[METRIC_COUNT];
    int64_t figure[ENDPOINT_FIGURES];
    for (int i = 0; i < METRIC_COUNT; i++) {
        metric[i] = i - 1; /* a gauge may be below 0 for a moment */
    }
    for (int i = 0; i < ENDPOINT_FIGURES; i++) {
        figure[i] = 100 + i;
    }
    ledger.server[SERVER_FIGURE_RELOADS] = 4;
    cJSON *body = cJSON_CreateObject();
    cJSON_AddItemToObject(body, "metrics", ledger_print_metrics(metric));
    cJSON_AddItemToObject(body, "server", ledger_print_server(&ledger));
    cJSON *list = cJSON_AddArrayToObject(body, "endpoints");
    cJSON_AddItemToArray(list, ledger_print_endpoint("/\"\xff\n", figure));
    char *text = cJSON_PrintUnformatted(body);
    ledger.server[SERVER_FIGURE_RELOADS] = 0;
    take(f, text, 1);
    for (int i = 0; i < METRIC_COUNT; i++) {
        assert_int_equal(f->metric[i], i > 0 ? i - 1 : 0);
    }
    assert_int_equal(ledger.server[SERVER_FIGURE_RELOADS], 4);
    assert_int_equal(account("/\"\xff\n")->figure[ENDPOINT_FIGURE_TIMEOUTS], 100 + ENDPOINT_FIGURE_TIMEOUTS);
    free(text);
    cJSON_Delete(body);
    figures_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sums_only_grow, make, end),
        cmocka_unit_test_setup_teardown(test_what_is_no_number_is_passed_over, make, end),
        cmocka_unit_test_setup_teardown(test_lag_grows_while_a_task_waits, make, end),
        cmocka_unit_test_setup_teardown(test_endpoints_add_up_over_workers, make, end),
        cmocka_unit_test_setup_teardown(test_the_quiet_ones_are_forgotten_first, make, end),
        cmocka_unit_test_setup_teardown(test_what_is_told_can_be_taken, make, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
