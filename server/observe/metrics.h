/* DESIGN: metrics.def is the table of everything that is counted. Each thread that counts
 * has a row of numbers of its own, so that counting is an ordinary add in memory that no
 * other core writes: a relaxed load and store, no lock prefix. A reader sums the rows; it
 * may see one number a moment before another. Threads without a row share row 0, by
 * atomic adds. Rows stay when a thread ends, so that totals never go back. */
#ifndef KILN_OBSERVE_METRICS_H
#define KILN_OBSERVE_METRICS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum metric {
#define METRIC(id, ...) METRIC_##id,
#include "observe/metrics.def"
    METRIC_COUNT
};

/* Of the supervisor's making, or told to it by workers; see status.h. */
enum server_figure {
#define SERVER_FIGURE(id, ...) SERVER_FIGURE_##id,
#include "observe/metrics.def"
    SERVER_FIGURES
};

enum worker_figure {
#define WORKER_FIGURE(id, ...) WORKER_FIGURE_##id,
#include "observe/metrics.def"
    WORKER_FIGURES
};

enum loop_figure {
#define LOOP_FIGURE(id, ...) LOOP_FIGURE_##id,
#include "observe/metrics.def"
    LOOP_FIGURES
};

enum endpoint_figure {
#define ENDPOINT_FIGURE(id, ...) ENDPOINT_FIGURE_##id,
#include "observe/metrics.def"
    ENDPOINT_FIGURES
};

enum { METRICS_LOOPS = 64, METRICS_ROWS = 1 + METRICS_LOOPS /* shared, and one for each loop */ };

struct metrics_row {
    _Alignas(64) _Atomic int64_t value[METRIC_COUNT];
};

extern struct metrics_row metrics_rows[METRICS_ROWS];
extern _Thread_local struct metrics_row *metrics_self; /* NULL: counts in row 0 */

/* The calling thread is loop `index` from now on. */
void metrics_attach(unsigned index);

static inline void metric_add(enum metric metric, int64_t by)
{
    struct metrics_row *row = metrics_self;
    if (row == NULL) {
        atomic_fetch_add_explicit(&metrics_rows[0].value[metric], by, memory_order_relaxed);
        return;
    }
    int64_t before = atomic_load_explicit(&row->value[metric], memory_order_relaxed);
    atomic_store_explicit(&row->value[metric], before + by, memory_order_relaxed);
}

/* The answer's status class; other numbers are not counted. */
static inline void metric_add_status(unsigned status)
{
    if (status >= 100 && status < 600) {
        metric_add((enum metric)(METRIC_RESPONSES_1XX + status / 100 - 1), 1);
    }
}

struct metric_info {
    const char *name; /* in Prometheus' text */
    const char *key; /* in JSON; NULL: the name without "kiln_" and "_total" */
    const char *help;
    enum { METRIC_IS_COUNTER, METRIC_IS_GAUGE } kind;
    enum { METRIC_ONE = 0, METRIC_MILLI = 3, METRIC_MICRO = 6 } decimals; /* what is held is 10^decimals of it */
};
extern const struct metric_info metric_infos[METRIC_COUNT];
extern const struct metric_info server_infos[SERVER_FIGURES];
extern const struct metric_info worker_infos[WORKER_FIGURES];
extern const struct metric_info loop_infos[LOOP_FIGURES];
extern const struct metric_info endpoint_infos[ENDPOINT_FIGURES];

/* Any thread. */
int64_t metric_sum(enum metric metric);
/* Of one loop alone. */
int64_t metric_of_loop(enum metric metric, unsigned index);

#endif
