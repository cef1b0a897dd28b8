/* Timers of one loop: a 4-ary heap keyed by due time. Entries carry the key, so that
 * sifting does not touch the timers themselves. Index 0 means "not running". */
#include "loop/loop_private.h"

#include <stdlib.h>

static void place(struct loop *loop, uint32_t i, struct timer_entry entry)
{
    loop->heap[i] = entry;
    entry.timer->heap_index = i;
}

/* Entries stand at 1..count; children of i are 4i-2 .. 4i+1. */
static void sift_up(struct loop *loop, uint32_t i, struct timer_entry entry)
{
    while (i > 1) {
        uint32_t parent = (i + 2) / 4;
        if (loop->heap[parent].due_ms <= entry.due_ms) {
            break;
        }
        place(loop, i, loop->heap[parent]);
        i = parent;
    }
    place(loop, i, entry);
}

static void sift_down(struct loop *loop, uint32_t i, struct timer_entry entry)
{
    for (;;) {
        uint32_t first = 4 * i - 2;
        if (first > loop->heap_count) {
            break;
        }
        uint32_t last = first + 3 < loop->heap_count ? first + 3 : loop->heap_count;
        uint32_t least = first;
        for (uint32_t c = first + 1; c <= last; c++) {
            if (loop->heap[c].due_ms < loop->heap[least].due_ms) {
                least = c;
            }
        }
        if (entry.due_ms <= loop->heap[least].due_ms) {
            break;
        }
        place(loop, i, loop->heap[least]);
        i = least;
    }
    place(loop, i, entry);
}

static void heap_grow(struct loop *loop)
{
    uint32_t cap = loop->heap_cap == 0 ? 64 : loop->heap_cap * 2;
    struct timer_entry *heap = realloc(loop->heap, cap * sizeof *heap);
    CHECK(heap != NULL);
    loop->heap = heap;
    loop->heap_cap = cap;
}

void timer_start(struct loop *loop, struct timer *timer, uint64_t delay_ms)
{
    timer_stop(loop, timer);
    if (loop->heap_count + 2 > loop->heap_cap) {
        heap_grow(loop);
    }
    timer->due_ms = loop->now_ms + delay_ms;
    loop->heap_count++;
    sift_up(loop, loop->heap_count, (struct timer_entry){timer->due_ms, timer});
}

void timer_stop(struct loop *loop, struct timer *timer)
{
    uint32_t i = timer->heap_index;
    if (i == 0) {
        return;
    }
    timer->heap_index = 0;
    struct timer_entry moved = loop->heap[loop->heap_count--];
    if (moved.timer == timer) {
        return;
    }
    if (i > 1 && moved.due_ms < loop->heap[(i + 2) / 4].due_ms) {
        sift_up(loop, i, moved);
    } else {
        sift_down(loop, i, moved);
    }
}

uint64_t timers_wait_ms(const struct loop *loop)
{
    if (loop->heap_count == 0) {
        return UINT64_MAX;
    }
    uint64_t due = loop->heap[1].due_ms;
    return due <= loop->now_ms ? 0 : due - loop->now_ms;
}

void timers_run(struct loop *loop)
{
    while (loop->heap_count > 0 && loop->heap[1].due_ms <= loop->now_ms) {
        struct timer *timer = loop->heap[1].timer;
        timer_stop(loop, timer);
        timer->fire(timer);
    }
}
