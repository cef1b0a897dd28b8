#include "endpoint/pace.h"

#include "base/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { QUICK_SLICES = 3, SLOW_TRIALS = 2, SLOW_SLICES = 3, AT_ONCE_FACTOR = 5, WINDOW_MS = 60000 };

uint64_t pace_threshold_ticks = UINT64_MAX;
uint64_t pace_ticks_per_ms = 1000000;
static double ticks_per_ms = 1e6;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pace_start(double blocking_threshold_ms)
{
    uint64_t ns = now_ns();
    uint64_t ticks = pace_ticks();
    const struct timespec wait = {.tv_nsec = 2000000};
    nanosleep(&wait, NULL);
    ticks = pace_ticks() - ticks;
    ns = now_ns() - ns;
    ticks_per_ms = (double)ticks * 1e6 / (double)ns;
    pace_ticks_per_ms = (uint64_t)ticks_per_ms;
    pace_threshold_ticks = blocking_threshold_ms > 0 ? (uint64_t)(blocking_threshold_ms * ticks_per_ms) : UINT64_MAX;
}

COLD void pace_slow(struct endpoint *endpoint, uint64_t ticks, uint64_t now_ms)
{
    if (endpoint_is_offloaded(endpoint)) {
        return;
    }
    struct endpoint_pace *pace = endpoint_pace(endpoint);
    if (now_ms - atomic_load_explicit(&pace->window_start_ms, memory_order_relaxed) > WINDOW_MS) {
        atomic_store_explicit(&pace->window_start_ms, now_ms, memory_order_relaxed);
        atomic_store_explicit(&pace->slow_slices, 0, memory_order_relaxed);
    }
    unsigned slices = atomic_fetch_add_explicit(&pace->slow_slices, 1, memory_order_relaxed) + 1;
    if (slices < SLOW_SLICES && ticks / AT_ONCE_FACTOR < pace_threshold_ticks) {
        return;
    }
    char why[128];
    snprintf(why, sizeof why, "it held a loop thread for %.0f ms (BlockingThreshold is %.0f ms)",
             (double)ticks / ticks_per_ms, (double)pace_threshold_ticks / ticks_per_ms);
    endpoint_set_offloaded(endpoint, why);
}

uint64_t pace_run_delay(void)
{
    char text[128] = "";
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0; /* then the whole time counts */
    }
    ssize_t len = read(fd, text, sizeof text - 1);
    close(fd);
    char *rest = text;
    strtoull(text, &rest, 10); /* on a processor */
    return len > 0 ? strtoull(rest, NULL, 10) : 0;
}

COLD void pace_trial_end(struct endpoint *endpoint, uint64_t began, uint64_t delay_before)
{
    uint64_t ticks = pace_ticks() - began;
    struct endpoint_pace *pace = endpoint_pace(endpoint);
    double ms = (double)ticks / ticks_per_ms;
    bool slow = ticks > pace_threshold_ticks;
    if (slow) {
        ms -= (double)(pace_run_delay() - delay_before) / 1e6;
        slow = ms * ticks_per_ms > (double)pace_threshold_ticks;
    }
    if (!slow) {
        if (atomic_fetch_add_explicit(&pace->quick_slices, 1, memory_order_relaxed) + 1 >= QUICK_SLICES) {
            endpoint_trial_passed(endpoint);
        }
        return;
    }
    unsigned slices = atomic_fetch_add_explicit(&pace->slow_slices, 1, memory_order_relaxed) + 1;
    if (slices >= SLOW_TRIALS || ms * ticks_per_ms / AT_ONCE_FACTOR > (double)pace_threshold_ticks) {
        char why[128];
        snprintf(why, sizeof why, "it took %.0f ms in one go (BlockingThreshold is %.0f ms)", ms,
                 (double)pace_threshold_ticks / ticks_per_ms);
        endpoint_set_offloaded(endpoint, why);
    }
}
