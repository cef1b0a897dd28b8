/* DESIGN: finds endpoints that block their loop. Each time endpoint code runs on a loop
 * thread (a slice: from entry or resumption to return or suspension) its length is taken
 * from the processor's time counter, which costs a few nanoseconds and no system call. One
 * slice of five times BlockingThreshold, or three slices above it within a minute, and the
 * endpoint's further requests run on the pool. More than one is asked for since a slice also
 * looks long when the kernel gave the processor to somebody else.
 *
 * A fresh build is not known: its first runs are made on the pool, where it delays nobody. Three
 * quick slices and it moves to the loops; slow ones and it stays. Time that the thread waited for
 * a processor is the machine's and not counted. */
#ifndef KILN_ENDPOINT_PACE_H
#define KILN_ENDPOINT_PACE_H

#include "endpoint/loader.h"

static inline uint64_t pace_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

/* Ticks of BlockingThreshold; set once by pace_start(). */
extern uint64_t pace_threshold_ticks;
extern uint64_t pace_ticks_per_ms;

/* Measures the counter against the clock (a few milliseconds). */
void pace_start(double blocking_threshold_ms);
/* A slice took that many ticks, more than the threshold. */
void pace_slow(struct endpoint *endpoint, uint64_t ticks, uint64_t now_ms);

/* Around a slice on the pool of an endpoint on trial: nanoseconds that this thread has waited for a
 * processor until now; then the judgement. */
uint64_t pace_run_delay(void);
void pace_trial_end(struct endpoint *endpoint, uint64_t began, uint64_t delay_before);

static inline void pace_end(struct endpoint *endpoint, uint64_t began, uint64_t now_ms)
{
    uint64_t ticks = pace_ticks() - began;
    if (__builtin_expect(ticks > pace_threshold_ticks, 0)) {
        pace_slow(endpoint, ticks, now_ms);
    }
}

#endif
