#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "loop/pool.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic unsigned runs;
static _Atomic unsigned at_once;
static _Atomic unsigned most_at_once;
static sem_t go;
static sem_t entered;

static void hold(struct pool_job *job)
{
    (void)job;
    unsigned now = ++at_once;
    unsigned most = most_at_once;
    while (now > most && !atomic_compare_exchange_weak(&most_at_once, &most, now)) {
    }
    sem_post(&entered);
    sem_wait(&go);
    at_once--;
    runs++;
}

static void test_grows_to_the_limit_and_queues_the_rest(void **state)
{
    (void)state;
    enum { LIMIT = 4, JOBS = 10 };
    static struct pool_job jobs[JOBS];
    sem_init(&go, 0, 0);
    sem_init(&entered, 0, 0);
    pool_start(LIMIT);
    for (unsigned i = 0; i < JOBS; i++) {
        jobs[i].run = hold;
        pool_submit_endpoint(&jobs[i]);
    }
    for (unsigned i = 0; i < LIMIT; i++) {
        sem_wait(&entered);
    }
    unsigned threads;
    unsigned waiting;
    pool_counts(&threads, &waiting);
    assert_int_equal(threads, LIMIT);
    assert_int_equal(waiting, JOBS - LIMIT);
    for (unsigned i = 0; i < JOBS; i++) {
        sem_post(&go);
    }
    pool_stop();
    assert_int_equal(runs, JOBS);
    assert_int_equal(most_at_once, LIMIT);
    pool_counts(&threads, &waiting);
    assert_int_equal(threads, 0);
    assert_int_equal(waiting, 0);
}

/* One after the other they need one thread; the job may be freed once it runs. */
static unsigned next;
static unsigned out_of_order;
static unsigned wrong_names;
static sem_t one_done;

struct numbered {
    struct pool_job job;
    unsigned number;
};

static void run_numbered(struct pool_job *job)
{
    struct numbered *n = CONTAINER_OF(job, struct numbered, job);
    out_of_order += n->number != next++;
    out_of_order += !pool_is_worker();
    char name[16];
    wrong_names += pthread_getname_np(pthread_self(), name, sizeof name) != 0 || strcmp(name, "pool") != 0;
    free(n);
    sem_post(&one_done);
}

static void submit_numbered(unsigned number)
{
    struct numbered *n = malloc(sizeof *n);
    *n = (struct numbered){.job = {.run = run_numbered}, .number = number};
    pool_submit_endpoint(&n->job);
}

static void test_jobs_start_in_order(void **state)
{
    (void)state;
    enum { JOBS = 5000 };
    next = 0;
    sem_init(&one_done, 0, 0);
    pool_start(1);
    for (unsigned i = 0; i < JOBS; i++) {
        submit_numbered(i);
    }
    pool_stop();
    assert_int_equal(next, JOBS);
    assert_int_equal(out_of_order, 0);
    assert_int_equal(wrong_names, 0);
    assert_false(pool_is_worker());
}

static void test_an_idle_thread_is_used_again(void **state)
{
    (void)state;
    next = 0;
    sem_init(&one_done, 0, 0);
    pool_start(8);
    for (unsigned i = 0; i < 200; i++) {
        submit_numbered(i);
        sem_wait(&one_done);
        unsigned threads;
        unsigned waiting;
        /* The last one may still be on its way back to the queue. */
        pool_counts(&threads, &waiting);
        assert_in_range(threads, 1, 8);
    }
    pool_stop();
    assert_int_equal(out_of_order, 0);
}

static _Atomic unsigned chained;

static void submit_more(struct pool_job *job)
{
    if (atomic_fetch_add(&chained, 1) < 5000) {
        pool_submit_endpoint(job);
    } else {
        free(job);
    }
}

/* Jobs that submit jobs, from many threads, with the end in the middle of it. */
static void test_stop_runs_what_is_queued(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 20; round++) {
        chained = 0;
        pool_start(6);
        for (unsigned i = 0; i < 12; i++) {
            struct pool_job *job = calloc(1, sizeof *job);
            job->run = submit_more;
            pool_submit_endpoint(job);
        }
        pool_stop();
        unsigned threads;
        unsigned waiting;
        pool_counts(&threads, &waiting);
        assert_int_equal(threads + waiting, 0);
        assert_int_equal(chained, 5012);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows_to_the_limit_and_queues_the_rest),
        cmocka_unit_test(test_jobs_start_in_order),
        cmocka_unit_test(test_an_idle_thread_is_used_again),
        cmocka_unit_test(test_stop_runs_what_is_queued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
