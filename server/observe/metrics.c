#include "observe/metrics.h"

#include "base/check.h"

struct metrics_row metrics_rows[METRICS_ROWS];
_Thread_local struct metrics_row *metrics_self;

/* clang-format off */
#define COUNTER METRIC_IS_COUNTER
#define GAUGE METRIC_IS_GAUGE
#define ONE METRIC_ONE
#define MILLI METRIC_MILLI
#define MICRO METRIC_MICRO
#define FIGURE(place, metric_kind, unit, json_key, metric_name, metric_help) \
    [place] = {.name = (metric_name), \
               .key = (json_key), \
               .help = (metric_help), \
               .kind = (metric_kind), \
               .decimals = (unit)},
/* clang-format on */

const struct metric_info metric_infos[METRIC_COUNT] = {
#define METRIC(id, metric_kind, metric_name, metric_help) \
    FIGURE(METRIC_##id, metric_kind, METRIC_ONE, NULL, metric_name, metric_help)
#include "observe/metrics.def"
};
const struct metric_info server_infos[SERVER_FIGURES] = {
#define SERVER_FIGURE(id, ...) FIGURE(SERVER_FIGURE_##id, __VA_ARGS__)
#include "observe/metrics.def"
};
const struct metric_info worker_infos[WORKER_FIGURES] = {
#define WORKER_FIGURE(id, ...) FIGURE(WORKER_FIGURE_##id, __VA_ARGS__)
#include "observe/metrics.def"
};
const struct metric_info loop_infos[LOOP_FIGURES] = {
#define LOOP_FIGURE(id, ...) FIGURE(LOOP_FIGURE_##id, __VA_ARGS__)
#include "observe/metrics.def"
};
const struct metric_info endpoint_infos[ENDPOINT_FIGURES] = {
#define ENDPOINT_FIGURE(id, ...) FIGURE(ENDPOINT_FIGURE_##id, __VA_ARGS__)
#include "observe/metrics.def"
};

_Static_assert(METRIC_RESPONSES_5XX - METRIC_RESPONSES_1XX == 4, "metric_add_status() counts on five rows in order");

void metrics_attach(unsigned index)
{
    CHECK(index < METRICS_LOOPS);
    metrics_self = &metrics_rows[index + 1];
}

int64_t metric_sum(enum metric metric)
{
    int64_t sum = 0;
    for (unsigned i = 0; i < METRICS_ROWS; i++) {
        sum += atomic_load_explicit(&metrics_rows[i].value[metric], memory_order_relaxed);
    }
    return sum;
}

int64_t metric_of_loop(enum metric metric, unsigned index)
{
    CHECK(index < METRICS_LOOPS);
    return atomic_load_explicit(&metrics_rows[index + 1].value[metric], memory_order_relaxed);
}
