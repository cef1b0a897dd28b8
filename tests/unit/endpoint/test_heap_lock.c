/* The locks of glibc's heaps are found, and opened for those who wait. */
#include "endpoint/heap_lock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZE = 5000 }; /* too large to be freed without the lock */

static void *free_it(void *block)
{
    free(block);
    return NULL;
}

static void test_first_heap(void **state)
{
    (void)state;
    int *lock = heap_lock_find_first();
    if (lock == NULL) {
        skip(); /* a sanitizer's malloc */
    }
    assert_null(heap_lock_find()); /* it is no other thread's */
    void *block = malloc(SIZE);
    assert_int_equal(*(volatile int *)lock, 0);
    *(volatile int *)lock = 1;
    heap_lock_unstick(lock);
    free(block); /* would wait for it */
    assert_int_equal(*(volatile int *)lock, 0);
}

struct owner {
    int *lock;
    void *block;
    _Atomic bool ready;
    _Atomic bool end;
};

static void *own(void *arg)
{
    struct owner *owner = arg;
    owner->block = malloc(SIZE);
    owner->lock = heap_lock_find();
    owner->ready = true;
    while (!owner->end) {
        usleep(1000);
    }
    return NULL;
}

static void test_waiting_thread_comes_through(void **state)
{
    (void)state;
    struct owner owner = {0};
    pthread_t owning;
    pthread_t freeing;
    assert_int_equal(pthread_create(&owning, NULL, own, &owner), 0);
    while (!owner.ready) {
        usleep(1000);
    }
    if (owner.lock != NULL) {
        *(volatile int *)owner.lock = 1;
        assert_int_equal(pthread_create(&freeing, NULL, free_it, owner.block), 0);
        while (*(volatile int *)owner.lock != 2) {
            usleep(1000); /* until it waits */
        }
        heap_lock_unstick(owner.lock);
        pthread_join(freeing, NULL);
        assert_int_equal(*(volatile int *)owner.lock, 0);
    } else {
        free(owner.block);
    }
    owner.end = true;
    pthread_join(owning, NULL);
}

static void test_nothing_to_open(void **state)
{
    (void)state;
    int open = 0;
    heap_lock_unstick(NULL);
    heap_lock_open(NULL);
    heap_lock_unstick(&open);
    heap_lock_open(&open);
    assert_int_equal(open, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_heap),
        cmocka_unit_test(test_waiting_thread_comes_through),
        cmocka_unit_test(test_nothing_to_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
