/* The loop as it runs: mailbox, deferred tasks, watches, timers, dates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/loop_thread.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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

/* ---- mailbox --------------------------------------------------------------------------------- */

enum { POSTERS = 4, LETTERS = 20000 };

struct letter {
    struct task task;
    unsigned poster;
    unsigned number;
};

static struct letter letters[POSTERS][LETTERS];
static unsigned next_number[POSTERS]; /* loop thread only */
static unsigned out_of_order;
static _Atomic unsigned delivered;
static sem_t all_there;

static void open_letter(struct task *task)
{
    struct letter *letter = CONTAINER_OF(task, struct letter, task);
    out_of_order += letter->number != next_number[letter->poster];
    out_of_order += loop_self() != on.loop;
    next_number[letter->poster]++;
    if (++delivered == POSTERS * LETTERS) {
        sem_post(&all_there);
    }
}

static void *post(void *arg)
{
    struct letter *mine = arg;
    for (unsigned i = 0; i < LETTERS; i++) {
        loop_post(on.loop, &mine[i].task);
    }
    return NULL;
}

static void test_letters_of_each_thread_arrive_once_and_in_order(void **state)
{
    (void)state;
    pthread_t threads[POSTERS];
    sem_init(&all_there, 0, 0);
    for (unsigned p = 0; p < POSTERS; p++) {
        for (unsigned i = 0; i < LETTERS; i++) {
            letters[p][i] = (struct letter){.task = {.run = open_letter}, .poster = p, .number = i};
        }
        pthread_create(&threads[p], NULL, post, letters[p]);
    }
    for (unsigned p = 0; p < POSTERS; p++) {
        pthread_join(threads[p], NULL);
    }
    sem_wait(&all_there);
    assert_int_equal(delivered, POSTERS * LETTERS);
    assert_int_equal(out_of_order, 0);
}

static void nothing(void *arg)
{
    (void)arg;
}

/* Each letter finds the loop asleep or about to sleep: none may be overlooked. */
static void test_single_letters_wake_the_loop(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 5000; i++) {
        loop_thread_call(&on, nothing, NULL);
    }
}

/* ---- deferred tasks ---------------------------------------------------------------------------- */

static char trace[64];
static struct task third;
static struct task first;
static struct task later;

static void note_third(struct task *task)
{
    (void)task;
    strcat(trace, "3");
}

static void note_first(struct task *task)
{
    (void)task;
    strcat(trace, "1");
    third.run = note_third;
    loop_defer(on.loop, &third);
}

static void note_later(struct task *task)
{
    (void)task;
    strcat(trace, "2");
}

static void defer_some(void *arg)
{
    (void)arg;
    first.run = note_first;
    later.run = note_later;
    loop_defer(on.loop, &first);
    loop_defer(on.loop, &later);
    strcat(trace, "0");
}

static void test_deferred_tasks_run_in_order(void **state)
{
    (void)state;
    loop_thread_call(&on, defer_some, NULL);
    loop_thread_call(&on, nothing, NULL);
    assert_string_equal(trace, "0123");
}

/* ---- watches ------------------------------------------------------------------------------------ */

enum { PAIRS = 50 };

static struct watch watches[PAIRS];
static int ends[PAIRS][2];
static unsigned ready_calls;
static sem_t removed;

/* The first that is ready takes all others away: none of them may be called any more. */
static void remove_all(struct watch *watch, uint32_t ready)
{
    ready_calls++;
    for (unsigned i = 0; i < PAIRS; i++) {
        loop_watch_remove(on.loop, &watches[i]);
        memset(&watches[i], 0, sizeof watches[i]);
    }
    if (watch != NULL && ready == LOOP_READ) {
        sem_post(&removed);
    }
}

static void watch_all(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < PAIRS; i++) {
        watches[i] = (struct watch){.fd = ends[i][0], .wanted = LOOP_READ, .on_ready = remove_all};
        if (write(ends[i][1], "x", 1) != 1 || !loop_watch_add(on.loop, &watches[i])) {
            abort();
        }
    }
}

static void test_watch_removed_in_the_batch_is_not_called(void **state)
{
    (void)state;
    sem_init(&removed, 0, 0);
    for (unsigned i = 0; i < PAIRS; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]), 0);
    }
    loop_thread_call(&on, watch_all, NULL);
    sem_wait(&removed);
    loop_thread_call(&on, nothing, NULL);
    assert_int_equal(ready_calls, 1);
    for (unsigned i = 0; i < PAIRS; i++) {
        close(ends[i][0]);
        close(ends[i][1]);
    }
}

/* Three are ready in one batch; of what each defers, that of the first two runs before the third is called, since the
 * second hurries. */
static struct task deferred[3];
static char order[16];

static void note_task(struct task *task)
{
    (void)task;
    strcat(order, "t");
    if (strlen(order) == 6) {
        sem_post(&removed);
    }
}

static void defer_and_hurry(struct watch *watch, uint32_t ready)
{
    static unsigned calls;
    (void)ready;
    loop_watch_remove(on.loop, watch);
    strcat(order, "w");
    deferred[calls].run = note_task;
    loop_defer(on.loop, &deferred[calls]);
    if (++calls == 2) {
        loop_hurry(on.loop);
    }
}

static void watch_three(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < 3; i++) {
        watches[i] = (struct watch){.fd = ends[i][0], .wanted = LOOP_READ, .on_ready = defer_and_hurry};
        if (write(ends[i][1], "x", 1) != 1 || !loop_watch_add(on.loop, &watches[i])) {
            abort();
        }
    }
}

static void test_who_hurries_does_not_wait_for_other_events(void **state)
{
    (void)state;
    sem_init(&removed, 0, 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]), 0);
    }
    loop_thread_call(&on, watch_three, NULL);
    sem_wait(&removed);
    loop_thread_call(&on, nothing, NULL);
    assert_string_equal(order, "wwttwt");
    for (unsigned i = 0; i < 3; i++) {
        close(ends[i][0]);
        close(ends[i][1]);
    }
}

/* ---- time --------------------------------------------------------------------------------------- */

static struct timer timer;
static uint64_t started;
static uint64_t fired;
static sem_t rang;

static void ring(struct timer *t)
{
    (void)t;
    fired = loop_now_ms(on.loop);
    sem_post(&rang);
}

static void start_timer(void *arg)
{
    (void)arg;
    started = loop_now_ms(on.loop);
    timer.fire = ring;
    timer_start(on.loop, &timer, 30);
}

static void test_timer_wakes_the_loop(void **state)
{
    (void)state;
    sem_init(&rang, 0, 0);
    loop_thread_call(&on, start_timer, NULL);
    sem_wait(&rang);
    assert_true(fired >= started + 30);
}

static char date[64];
static int64_t seconds;

static void copy_date(void *arg)
{
    (void)arg;
    snprintf(date, sizeof date, "%s", loop_http_date(on.loop));
    seconds = loop_wall_seconds(on.loop);
}

static void test_date_header(void **state)
{
    (void)state;
    loop_thread_call(&on, copy_date, NULL);
    time_t now = (time_t)seconds;
    struct tm tm;
    char expected[64];
    gmtime_r(&now, &tm);
    strftime(expected, sizeof expected, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    assert_string_equal(date, expected);
    assert_int_equal(loop_index(on.loop), 3);
    assert_null(loop_self());
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_letters_of_each_thread_arrive_once_and_in_order),
        TEST(test_single_letters_wake_the_loop),
        TEST(test_deferred_tasks_run_in_order),
        TEST(test_watch_removed_in_the_batch_is_not_called),
        TEST(test_who_hurries_does_not_wait_for_other_events),
        TEST(test_timer_wakes_the_loop),
        TEST(test_date_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
