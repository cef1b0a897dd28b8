/* Coroutines and waiters, on a loop that runs. What a coroutine finds is noted and asserted outside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loop/pool.h"
#include "loop/waiter.h"
#include "tests/support/loop_thread.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static struct loop_thread on;

static int set_up(void **state)
{
    (void)state;
    loop_thread_start(&on);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    loop_thread_stop(&on);
    return 0;
}

static void nothing(void *arg)
{
    (void)arg;
}

/* ---- suspending and nesting --------------------------------------------------------------------- */

static char trace[64];
static struct coroutine *outer;
static struct coroutine *inner;

static void run_inner(void *arg)
{
    inner = coroutine_self();
    strcat(trace, arg);
    coroutine_suspend();
    strcat(trace, coroutine_self() == inner ? "e" : "?");
}

static void run_outer(void *arg)
{
    (void)arg;
    outer = coroutine_self();
    strcat(trace, "a");
    coroutine_start(on.loop, run_inner, "b");
    strcat(trace, coroutine_self() == outer ? "c" : "?");
    coroutine_suspend();
    /* Resumed by the loop, it resumes the one that it started. */
    strcat(trace, "d");
    coroutine_resume(inner);
    strcat(trace, coroutine_self() == outer ? "f" : "?");
}

static void nest(void *arg)
{
    (void)arg;
    coroutine_start(on.loop, run_outer, NULL);
    strcat(trace, coroutine_self() == NULL ? "|" : "?");
    coroutine_resume(outer);
    strcat(trace, coroutine_self() == NULL ? "." : "?");
}

static void test_nested(void **state)
{
    (void)state;
    trace[0] = '\0';
    loop_thread_call(&on, nest, NULL);
    assert_string_equal(trace, "abc|def.");
}

/* ---- many --------------------------------------------------------------------------------------- */

enum { MANY = 2000, TURNS = 5 };

static struct coroutine *crowd[MANY];
static unsigned finished;
static unsigned wrong;

static void take_turns(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg;
    volatile double number = me + 0.5;
    char local[512];
    memset(local, (int)(me & 0x7f), sizeof local);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        crowd[me] = coroutine_self();
        coroutine_suspend();
        number = sqrt(number * number);
    }
    for (size_t i = 0; i < sizeof local; i++) {
        wrong += local[i] != (char)(me & 0x7f);
    }
    wrong += fabs(number - (me + 0.5)) > 1e-9;
    finished++;
}

static void run_crowd(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < MANY; i++) {
        wrong += !coroutine_start(on.loop, take_turns, (void *)(uintptr_t)i);
    }
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (unsigned i = 0; i < MANY; i++) {
            coroutine_resume(crowd[i]);
        }
    }
}

static void test_many_keep_their_locals(void **state)
{
    (void)state;
    loop_thread_call(&on, run_crowd, NULL);
    assert_int_equal(finished, MANY);
    assert_int_equal(wrong, 0);
}

/* ---- stacks --------------------------------------------------------------------------------------- */

static size_t room;
static bool inside;

static void use_stack(void *arg)
{
    (void)arg;
    void *low;
    void *high;
    char here;
    coroutine_stack_bounds(coroutine_self(), &low, &high);
    inside = (char *)low < &here && &here < (char *)high && (uintptr_t)__builtin_frame_address(0) % 16 == 0;
    room = (size_t)((char *)high - (char *)low);
    /* Nearly all of it is usable. */
    size_t size = (size_t)(&here - (char *)low) - 16384;
    volatile char *block = __builtin_alloca(size);
    for (size_t i = 0; i < size; i += 1024) {
        block[i] = 1;
    }
    block[size - 1] = 1;
}

static void start_on_stack(void *arg)
{
    coroutine_start(on.loop, use_stack, arg);
}

static void test_stack_bounds_and_size(void **state)
{
    (void)state;
    static const size_t sizes[] = {65536, 262144, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        coroutine_stack_size_set(sizes[i]);
        loop_thread_call(&on, start_on_stack, NULL);
        assert_true(inside);
        assert_in_range(room, sizes[i] - 1024, sizes[i]);
    }
    coroutine_stack_size_set(262144);
}

/* ---- waiters --------------------------------------------------------------------------------------- */

static struct waiter *waiting;
static sem_t began;
static sem_t ended;
static unsigned order_wrong;
static bool waker_returned;

static void wait_here(void *arg)
{
    (void)arg;
    struct waiter waiter;
    waiter_init(&waiter, on.loop);
    waiting = &waiter;
    sem_post(&began);
    waiter_wait(&waiter);
    order_wrong += !waker_returned;
    sem_post(&ended);
}

static void start_waiting(void *arg)
{
    (void)arg;
    coroutine_start(on.loop, wait_here, NULL);
}

static void wake_here(void *arg)
{
    (void)arg;
    waker_returned = false;
    waiter_wake(waiting);
    waker_returned = true;
}

static void test_waiter_in_a_coroutine(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        loop_thread_call(&on, start_waiting, NULL);
        sem_wait(&began);
        if (i % 2 == 0) {
            loop_thread_call(&on, wake_here, NULL);
        } else {
            waker_returned = true;
            waiter_wake_remote(waiting);
        }
        sem_wait(&ended);
    }
    assert_int_equal(order_wrong, 0);
}

/* It may be woken before it waits. */
static void wake_first(void *arg)
{
    (void)arg;
    struct waiter waiter;
    waiter_init(&waiter, on.loop);
    waiter_wake(&waiter);
    waiter_wait(&waiter);
    sem_post(&ended);
}

static void start_wake_first(void *arg)
{
    (void)arg;
    coroutine_start(on.loop, wake_first, NULL);
}

static void wait_on_pool(struct pool_job *job)
{
    (void)job;
    struct waiter waiter;
    waiter_init(&waiter, on.loop);
    waiting = &waiter;
    sem_post(&began);
    waiter_wait(&waiter);
    sem_post(&ended);
}

static void test_waiter_on_the_pool(void **state)
{
    (void)state;
    loop_thread_call(&on, start_wake_first, NULL);
    sem_wait(&ended);
    pool_start(2);
    for (unsigned i = 0; i < 500; i++) {
        struct pool_job job = {.run = wait_on_pool};
        pool_submit(&job);
        sem_wait(&began);
        if (i % 2 == 0) {
            loop_thread_call(&on, wake_here, NULL);
        } else {
            waiter_wake_remote(waiting);
        }
        sem_wait(&ended);
    }
    pool_stop();
    loop_thread_call(&on, nothing, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_nested),
        TEST(test_many_keep_their_locals),
        TEST(test_stack_bounds_and_size),
        TEST(test_waiter_in_a_coroutine),
        TEST(test_waiter_on_the_pool),
    };
    sem_init(&began, 0, 0);
    sem_init(&ended, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
