/* DESIGN: threads for work that blocks: endpoints that do, compression, disk reads.
 * Threads are made when a job finds none idle, up to the limit, and go after ten idle
 * seconds. Jobs start in order. A job belongs to its submitter, who may free it once run()
 * has been entered.
 *
 * There are two lanes, each with threads of its own: endpoints, up to PoolThreads, which may sleep
 * or compute for as long as they like and give way to the loops when processors are few; and the
 * server's own work, which never waits behind them. */
#ifndef KILN_LOOP_POOL_H
#define KILN_LOOP_POOL_H

#include <stdbool.h>

struct pool_job {
    struct pool_job *next;
    void (*run)(struct pool_job *job);
};

void pool_start(unsigned max_threads);
/* Any thread. */
void pool_submit(struct pool_job *job);
/* The same for code of endpoints. */
void pool_submit_endpoint(struct pool_job *job);
/* Runs what is queued, waits for every thread to end. */
void pool_stop(void);
/* Threads alive, and jobs waiting for one. */
void pool_counts(unsigned *threads, unsigned *waiting);
/* True on a thread of the pool. */
bool pool_is_worker(void);

#endif
