/* Threads whose time is over get signals, and those that nothing helps are given up. */
#include "endpoint/watchdog.h"

#include "base/str.h"
#include "endpoint/crash.h"
#include "endpoint/pace.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int thing; /* stands for an endpoint, of which nothing but the address is used */
static struct endpoint *const endpoint = (struct endpoint *)(void *)&thing;

static _Atomic unsigned replaced;
static _Atomic unsigned signals; /* that came */
static _Atomic unsigned early; /* of them before the time was over */

struct str __wrap_endpoint_file(const struct endpoint *e)
{
    assert_ptr_equal(e, endpoint);
    return STR("/site/index._c");
}

void __wrap_worker_replace(const char *why)
{
    assert_string_equal(why, "an endpoint does not return");
    replaced++;
}

static void on_signal(int number)
{
    (void)number;
    signals++;
    early += !watchdog_is_over();
}

static int start(void **state)
{
    (void)state;
    replaced = signals = early = 0;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(crash_timeout_signal(), &action, NULL);
    return watchdog_start() ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    watchdog_stop();
    return watchdog_stuck() == 0 ? 0 : -1;
}

static uint64_t ms_from_now(uint64_t ms)
{
    return pace_ticks() + ms * pace_ticks_per_ms;
}

/* A thread that runs something, with a deadline, until it is told to return and to end. */
struct runner {
    pthread_t thread;
    uint64_t deadline;
    _Atomic bool left; /* it has returned from the endpoint */
    _Atomic bool return_now;
    _Atomic bool end_now;
};

static void pause_for(_Atomic bool *flag)
{
    while (!*flag) {
        usleep(1000);
    }
}

static void *run(void *arg)
{
    struct runner *r = arg;
    watchdog_thread_ready();
    watchdog_thread_ready(); /* again does nothing */
    watchdog_enter(endpoint, r->deadline);
    pause_for(&r->return_now);
    watchdog_leave();
    r->left = true;
    pause_for(&r->end_now);
    return NULL;
}

static void begin(struct runner *r, uint64_t deadline)
{
    *r = (struct runner){.deadline = deadline};
    assert_int_equal(pthread_create(&r->thread, NULL, run, r), 0);
}

static void end(struct runner *r)
{
    r->return_now = r->end_now = true;
    pthread_join(r->thread, NULL);
}

static void wait_until_more(_Atomic unsigned *count, unsigned than)
{
    while (*count <= than) {
        usleep(1000);
    }
}

static void wait_for_stuck(unsigned count)
{
    while (watchdog_stuck() != count) {
        usleep(1000);
    }
}

static void test_a_thread_past_its_time_gets_signals(void **state)
{
    (void)state;
    struct runner in_time;
    struct runner endless;
    struct runner late;
    begin(&in_time, ms_from_now(1000000));
    begin(&endless, WATCHDOG_NEVER);
    begin(&late, ms_from_now(50));
    wait_until_more(&signals, 3);
    assert_int_equal(early, 0); /* nobody else got one */
    late.return_now = true;
    pause_for(&late.left);
    unsigned seen = signals;
    /* It may have been on its way; a second look finds that the time is taken back. */
    struct runner another;
    begin(&another, ms_from_now(0));
    wait_until_more(&signals, seen + 3);
    end(&another);
    end(&late);
    end(&in_time);
    end(&endless);
    assert_int_equal(replaced, 0);
}

static void test_what_never_returns_is_given_up_once(void **state)
{
    (void)state;
    struct runner stuck;
    begin(&stuck, ms_from_now(0));
    wait_for_stuck(1);
    assert_int_equal(replaced, 1);
    unsigned seen = signals;
    struct runner also;
    begin(&also, ms_from_now(0));
    wait_for_stuck(2);
    assert_int_equal(replaced, 2);
    also.return_now = true;
    wait_for_stuck(1);
    assert_true(signals > seen);
    assert_int_equal(replaced, 2);
    /* The end of a thread takes it off, whether it was seen to return or not. */
    end(&also);
    end(&stuck);
    wait_for_stuck(0);
}

static void test_the_next_request_begins_anew(void **state)
{
    (void)state;
    struct runner r;
    begin(&r, ms_from_now(0));
    wait_until_more(&signals, 1);
    end(&r);
    for (int i = 0; i < 3; i++) {
        unsigned seen = signals;
        begin(&r, ms_from_now(0));
        wait_until_more(&signals, seen + 1);
        end(&r);
    }
    assert_int_equal(replaced, 0);
}

/* A thread that was never made ready shares a slot that nobody looks at. */
static void test_unknown_threads_are_not_watched(void **state)
{
    (void)state;
    watchdog_enter(endpoint, ms_from_now(0));
    assert_true(watchdog_is_over());
    watchdog_leave();
    assert_false(watchdog_is_over());
}

static void test_start_and_stop_again(void **state)
{
    (void)state;
    watchdog_stop();
    watchdog_stop();
    assert_true(watchdog_start());
    struct runner late;
    begin(&late, ms_from_now(0));
    wait_until_more(&signals, 0);
    end(&late);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(test_a_thread_past_its_time_gets_signals),
        TEST(test_what_never_returns_is_given_up_once),
        TEST(test_the_next_request_begins_anew),
        TEST(test_unknown_threads_are_not_watched),
        TEST(test_start_and_stop_again),
    };
    pace_start(5);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
