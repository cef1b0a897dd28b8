/* The small parts of the supervisor: pauses, pid file, ports. */
#include "base/file.h"
#include "config/config.h"
#include "supervisor/backoff.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/listeners.h"
#include "supervisor/pid_file.h"
#include "supervisor/worker_process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- pauses --------------------------------------------------------------------------------- */

static void test_pauses_double_up_to_the_most(void **state)
{
    (void)state;
    struct backoff backoff = {0};
    const uint64_t expected[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_int_equal(backoff_next(&backoff, 0), expected[i]);
    }
}

static void test_pause_is_forgotten_after_good_service(void **state)
{
    (void)state;
    struct backoff backoff = {0};
    backoff_next(&backoff, 0);
    backoff_next(&backoff, 0);
    assert_int_equal(backoff_next(&backoff, BACKOFF_STEADY_MS), 200); /* does not grow */
    assert_int_equal(backoff_next(&backoff, BACKOFF_HEALTHY_MS), 0);
    assert_int_equal(backoff_next(&backoff, 0), 100);
}

/* ---- pid file --------------------------------------------------------------------------------- */

static char path[] = "/tmp/kiln-test-pid-XXXXXX";

static int make_path(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0 || unlink(path) != 0;
}

static void test_pid_file_is_written_and_removed(void **state)
{
    (void)state;
    struct pid_file file;
    struct buffer why = BUFFER_EMPTY;
    assert_int_equal(pid_file_open(&file, path, &why), PID_FILE_OK);
    struct buffer text = BUFFER_EMPTY;
    char expected[32];
    assert_true(file_read(path, 100, &text));
    int len = snprintf(expected, sizeof expected, "%d\n", (int)getpid());
    assert_int_equal(text.len, len);
    assert_memory_equal(text.data, expected, text.len);
    buffer_free(&text);
    pid_file_close(&file);
    assert_int_equal(access(path, F_OK), -1);
    pid_file_close(&file); /* harmless */
}

static void test_pid_file_held_by_another_is_refused(void **state)
{
    (void)state;
    struct pid_file first;
    struct pid_file second;
    struct buffer why = BUFFER_EMPTY;
    assert_int_equal(pid_file_open(&first, path, &why), PID_FILE_OK);
    assert_int_equal(pid_file_open(&second, path, &why), PID_FILE_TAKEN);
    buffer_append_char(&why, '\0');
    char expected[64];
    snprintf(expected, sizeof expected, "running already (process %d)", (int)getpid());
    assert_non_null(strstr(why.data, expected));
    assert_int_equal(second.fd, -1);
    pid_file_close(&second);
    assert_int_equal(access(path, F_OK), 0); /* not by the one that was refused */
    pid_file_close(&first);
    buffer_free(&why);
}

static void test_no_pid_file_when_unset_or_unwritable(void **state)
{
    (void)state;
    struct pid_file file;
    struct buffer why = BUFFER_EMPTY;
    assert_int_equal(pid_file_open(&file, "", &why), PID_FILE_OK);
    assert_int_equal(why.len, 0);
    assert_int_equal(pid_file_open(&file, "/nowhere/kiln.pid", &why), PID_FILE_FAILED);
    assert_true(why.len > 0);
    buffer_free(&why);
}

/* ---- ports -------------------------------------------------------------------------------------- */

static struct config *config_with(const char *ports, const char *address)
{
    struct config_overrides overrides = {
        .name = {"HttpPorts", "BindAddress", "SiteDir"}, .value = {ports, address, "/"}, .count = 3};
    struct config_errors errors = {0};
    struct config *config = config_parse(STR_NONE, NULL, &overrides, &errors);
    assert_non_null(config);
    config_errors_free(&errors);
    return config;
}

static void test_listeners_are_kept_opened_and_closed(void **state)
{
    (void)state;
    struct buffer why = BUFFER_EMPTY;
    struct listener_set one;
    struct config *config = config_with("0", "127.0.0.1");
    assert_true(listeners_open(&one, config, NULL, &why));
    assert_int_equal(one.count, 1);
    uint16_t port = one.items[0].address.port;
    assert_true(port != 0);

    char ports[32];
    snprintf(ports, sizeof ports, "0,%u", port);
    /* The port is in use by ourselves, for the entry 0: a second socket cannot have it. */
    struct config *clash = config_with(ports, "127.0.0.1");
    struct listener_set two;
    assert_false(listeners_open(&two, clash, &one, &why));
    buffer_append_char(&why, '\0');
    assert_non_null(strstr(why.data, "cannot listen on port"));
    assert_true(fcntl(one.items[0].fd, F_GETFD) >= 0);

    assert_true(listeners_open(&two, config, &one, &why));
    assert_int_equal(two.items[0].fd, one.items[0].fd);
    assert_int_equal(two.items[0].id, one.items[0].id);
    int fd = one.items[0].fd;
    listeners_close(&one, &two);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    listeners_close(&two, NULL);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    buffer_free(&why);
    config_unref(config);
    config_unref(clash);
}

static void test_port_in_use_names_us(void **state)
{
    (void)state;
    struct buffer why = BUFFER_EMPTY;
    struct config *config = config_with("0", "127.0.0.1");
    struct listener_set held;
    assert_true(listeners_open(&held, config, NULL, &why));
    char port[16];
    snprintf(port, sizeof port, "%u", held.items[0].address.port);
    struct config *same = config_with(port, "127.0.0.1");
    struct listener_set none;
    assert_false(listeners_open(&none, same, NULL, &why));
    assert_int_equal(none.count, 0);
    buffer_append_char(&why, '\0');
    char expected[96];
    snprintf(expected, sizeof expected, "port %s (127.0.0.1): it is in use by ", port);
    assert_non_null(strstr(why.data, expected));
    snprintf(expected, sizeof expected, "(process %d); stop that program", (int)getpid());
    assert_non_null(strstr(why.data, expected));
    buffer_free(&why);
    listeners_close(&held, NULL);
    config_unref(config);
    config_unref(same);
}

static void check_url(const char *address, uint16_t port, enum listener_kind kind, const char *expected)
{
    struct listener_set set = {.count = 1};
    set.items[0].kind = kind;
    set.items[0].address.port = port;
    set.items[0].address.family = strchr(address, ':') != NULL ? AF_INET6 : AF_INET;
    assert_int_equal(inet_pton(set.items[0].address.family, address, set.items[0].address.ip), 1);
    struct buffer out = BUFFER_EMPTY;
    listeners_print_urls(&set, &out);
    buffer_append_char(&out, '\0');
    assert_string_equal(out.data, expected);
    buffer_free(&out);
}

static void test_urls(void **state)
{
    (void)state;
    check_url("::", 8080, LISTENER_PLAIN, "http://localhost:8080");
    check_url("0.0.0.0", 80, LISTENER_PLAIN, "http://localhost");
    check_url("192.0.2.1", 443, LISTENER_TLS, "https://192.0.2.1");
    check_url("2001:db8::1", 443, LISTENER_PLAIN, "http://[2001:db8::1]:443");
}

/* A worker on its way out closes its end a moment before it is gone: whoever stops the server then must not
 * kill it. */
static void test_ending_worker_keeps_its_time(void **state)
{
    (void)state;
    int ends[2];
    assert_true(control_pair(ends));
    struct worker_process worker = {.control = ends[0], .state = WORKER_READY, .ready_ms = 1};
    uint64_t later = clock_now_ms() + 100000;
    worker_process_drain(&worker, 1, later, false);
    assert_true(worker.kill_at_ms == later);
    close(ends[1]);
    worker_process_drain(&worker, 1, later + 1000, false);
    assert_true(worker.kill_at_ms == later);
    worker_process_stop(&worker, later - 1000);
    assert_true(worker.kill_at_ms == later - 1000);
    /* One that was never told and hears nothing is ended at once. */
    worker = (struct worker_process){.control = ends[0], .state = WORKER_READY, .ready_ms = 1};
    worker_process_drain(&worker, 1, later, false);
    assert_true(worker.kill_at_ms <= clock_now_ms());
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pauses_double_up_to_the_most),
        cmocka_unit_test(test_pause_is_forgotten_after_good_service),
        cmocka_unit_test(test_pid_file_is_written_and_removed),
        cmocka_unit_test(test_pid_file_held_by_another_is_refused),
        cmocka_unit_test(test_no_pid_file_when_unset_or_unwritable),
        cmocka_unit_test(test_listeners_are_kept_opened_and_closed),
        cmocka_unit_test(test_port_in_use_names_us),
        cmocka_unit_test(test_ending_worker_keeps_its_time),
        cmocka_unit_test(test_urls),
    };
    return cmocka_run_group_tests(tests, make_path, NULL);
}
