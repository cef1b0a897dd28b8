/* Reclamation: nothing is freed while a reader may hold it, everything once none can. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/epoch.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic unsigned freed;

static void count(void *arg)
{
    (void)arg;
    freed++;
}

static void test_without_readers_all_is_due(void **state)
{
    (void)state;
    freed = 0;
    epoch_retire(count, NULL);
    epoch_retire(count, NULL);
    assert_int_equal(epoch_reclaim(), 0);
    assert_int_equal(freed, 2);
}

static sem_t go;
static sem_t done;

static void step(void)
{
    sem_post(&go);
    sem_wait(&done);
}

static void wait_for_step(void)
{
    sem_post(&done);
    sem_wait(&go);
}

static void *reader(void *arg)
{
    (void)arg;
    epoch_register();
    wait_for_step(); /* online, holds something */
    epoch_quiet();
    wait_for_step();
    epoch_offline();
    wait_for_step();
    epoch_online();
    wait_for_step();
    epoch_unregister();
    sem_post(&done);
    return NULL;
}

static void test_reader_delays_until_it_is_quiet(void **state)
{
    (void)state;
    pthread_t thread;
    sem_init(&go, 0, 0);
    sem_init(&done, 0, 0);
    pthread_create(&thread, NULL, reader, NULL);
    sem_wait(&done);
    freed = 0;
    epoch_retire(count, NULL);
    assert_int_equal(epoch_reclaim(), 1);
    assert_int_equal(freed, 0);
    step(); /* quiet */
    assert_int_equal(epoch_reclaim(), 0);
    assert_int_equal(freed, 1);
    epoch_retire(count, NULL);
    assert_int_equal(epoch_reclaim(), 1);
    step(); /* offline */
    assert_int_equal(epoch_reclaim(), 0);
    epoch_retire(count, NULL);
    assert_int_equal(epoch_reclaim(), 0);
    step(); /* online */
    epoch_retire(count, NULL);
    assert_int_equal(epoch_reclaim(), 1);
    step(); /* gone */
    assert_int_equal(epoch_reclaim(), 0);
    assert_int_equal(freed, 4);
    pthread_join(thread, NULL);
}

/* Readers look through a pointer that a writer keeps replacing; a sanitizer sees a wrong free, and
 * so does the value. */
enum { ALIVE = 0x600d, ROUNDS = 20000, READERS = 3 };

static _Atomic(_Atomic unsigned *) shared;
static _Atomic bool stop;

static void bury(void *arg)
{
    _Atomic unsigned *value = arg;
    *value = 0;
    free(arg);
    freed++;
}

static _Atomic unsigned *fresh(void)
{
    _Atomic unsigned *value = malloc(sizeof *value);
    atomic_init(value, ALIVE);
    return value;
}

static void *look(void *arg)
{
    unsigned turns = 0;
    uintptr_t wrong = 0;
    (void)arg;
    epoch_register();
    while (!stop) {
        for (unsigned i = 0; i < 10; i++) {
            _Atomic unsigned *value = atomic_load_explicit(&shared, memory_order_acquire);
            wrong += *value != ALIVE;
            wrong += *value != ALIVE;
        }
        if (++turns % 2 == 0) {
            epoch_quiet();
        } else {
            epoch_offline();
            epoch_online();
        }
    }
    epoch_unregister();
    return (void *)wrong;
}

static void test_nothing_is_freed_under_a_reader(void **state)
{
    (void)state;
    pthread_t threads[READERS];
    freed = 0;
    stop = false;
    atomic_store(&shared, fresh());
    for (unsigned i = 0; i < READERS; i++) {
        pthread_create(&threads[i], NULL, look, NULL);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        _Atomic unsigned *old = atomic_exchange_explicit(&shared, fresh(), memory_order_acq_rel);
        epoch_retire(bury, (void *)old);
        if (i % 16 == 0) {
            epoch_reclaim();
        }
    }
    stop = true;
    for (unsigned i = 0; i < READERS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    assert_int_equal(epoch_reclaim(), 0);
    assert_int_equal(freed, ROUNDS);
    free((void *)atomic_load(&shared));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_readers_all_is_due),
        cmocka_unit_test(test_reader_delays_until_it_is_quiet),
        cmocka_unit_test(test_nothing_is_freed_under_a_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
