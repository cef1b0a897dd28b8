/* Timers, by hand on a loop that does not run: time is what the test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loop/loop_private.h"

#include <stdlib.h>

enum { TIMERS = 300, OPERATIONS = 200000 };

struct tested {
    struct timer timer;
    uint64_t due; /* 0: not running */
};

static struct loop *loop;
static struct tested tested[TIMERS];
static uint64_t last_due;
static unsigned fired;

static int set_up(void **state)
{
    (void)state;
    loop = loop_create(0);
    loop->now_ms = 1000000;
    return loop != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    loop_destroy(loop);
    return 0;
}

static void on_fire(struct timer *timer)
{
    struct tested *t = CONTAINER_OF(timer, struct tested, timer);
    assert_true(t->due != 0 && t->due <= loop->now_ms);
    assert_true(t->due >= last_due);
    assert_false(timer_is_running(timer));
    last_due = t->due;
    t->due = 0;
    fired++;
}

static uint64_t nearest(void)
{
    uint64_t due = UINT64_MAX;
    for (unsigned i = 0; i < TIMERS; i++) {
        if (tested[i].due != 0 && tested[i].due < due) {
            due = tested[i].due;
        }
    }
    return due;
}

static void test_random_operations_against_a_model(void **state)
{
    (void)state;
    srand(99);
    for (unsigned i = 0; i < TIMERS; i++) {
        tested[i] = (struct tested){.timer = {.fire = on_fire}};
    }
    for (unsigned i = 0; i < OPERATIONS; i++) {
        struct tested *t = &tested[rand() % TIMERS];
        uint64_t delay = (uint64_t)(rand() % 1000);
        switch (rand() % 8) {
        case 0: /* time passes */
            loop->now_ms += (uint64_t)(rand() % 20);
            last_due = 0;
            timers_run(loop);
            assert_true(nearest() > loop->now_ms);
            break;
        case 1:
        case 2:
            timer_stop(loop, &t->timer);
            t->due = 0;
            break;
        default:
            timer_start(loop, &t->timer, delay);
            t->due = loop->now_ms + delay;
            break;
        }
        assert_int_equal(timer_is_running(&t->timer), t->due != 0);
        uint64_t due = nearest();
        uint64_t wait = due == UINT64_MAX ? UINT64_MAX : due <= loop->now_ms ? 0 : due - loop->now_ms;
        assert_true(timers_wait_ms(loop) == wait);
    }
    loop->now_ms += 10000;
    last_due = 0;
    timers_run(loop);
    assert_true(nearest() == UINT64_MAX && fired > OPERATIONS / 100);
    assert_true(timers_wait_ms(loop) == UINT64_MAX);
}

static struct timer second;
static unsigned second_fired;

static void on_second(struct timer *timer)
{
    (void)timer;
    second_fired++;
}

static void stop_second(struct timer *timer)
{
    (void)timer;
    timer_stop(loop, &second);
}

static void start_again(struct timer *timer)
{
    if (++second_fired < 5) {
        timer_start(loop, timer, 10);
    }
}

static void test_timers_change_each_other_while_they_fire(void **state)
{
    (void)state;
    struct timer first = {.fire = stop_second};
    second = (struct timer){.fire = on_second};
    timer_start(loop, &first, 5);
    timer_start(loop, &second, 6);
    loop->now_ms += 10;
    timers_run(loop);
    assert_int_equal(second_fired, 0);
    assert_false(timer_is_running(&second));
    timer_stop(loop, &second); /* twice does no harm */
    struct timer again = {.fire = start_again};
    timer_start(loop, &again, 0);
    for (unsigned i = 0; i < 10; i++) {
        timers_run(loop);
        loop->now_ms += 10;
    }
    assert_int_equal(second_fired, 5);
    assert_true(timers_wait_ms(loop) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_random_operations_against_a_model, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_timers_change_each_other_while_they_fire, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
