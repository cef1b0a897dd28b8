/* DESIGN: the state of the whole server at one moment, as a value: filled in by whoever knows it
 * (supervisor/status.c), written as JSON and as Prometheus' text by the two functions here, which
 * walk the tables of metrics.def. Whatever shows the server's state begins with this struct.
 * Texts and arrays belong to whoever filled it in. */
#ifndef KILN_OBSERVE_STATUS_H
#define KILN_OBSERVE_STATUS_H

#include "base/buffer.h"
#include "observe/metrics.h"

#include <stdbool.h>

struct status_loop {
    int64_t figure[LOOP_FIGURES];
};

struct status_worker {
    int pid;
    unsigned state; /* place in status_worker_states */
    bool told; /* its figures; otherwise only UPTIME is known */
    int64_t figure[WORKER_FIGURES];
    struct status_loop loop[METRICS_LOOPS];
    unsigned loop_count;
};

struct status_endpoint {
    const char *file;
    int64_t figure[ENDPOINT_FIGURES];
};

struct status {
    const char *version;
    const char *state;
    int pid;
    int64_t started; /* wall clock, seconds */
    int64_t figure[SERVER_FIGURES];
    int64_t total[METRIC_COUNT];
    struct status_worker *workers;
    unsigned worker_count;
    struct status_endpoint *endpoints;
    unsigned endpoint_count;
};

/* starting, serving, replaced (it asked for a successor and serves until that is ready), draining. */
enum { STATUS_STARTING, STATUS_SERVING, STATUS_REPLACED, STATUS_DRAINING, STATUS_WORKER_STATES };
extern const char *const status_worker_states[STATUS_WORKER_STATES];

void status_print_json(const struct status *status, struct buffer *out);
/* Text format 0.0.4. */
void status_print_prometheus(const struct status *status, struct buffer *out);
/* For a terminal (status_text.c): the whole in a few lines; a line for each endpoint. */
void status_print_text(const struct status *status, struct buffer *out);
void status_print_endpoints(const struct status *status, struct buffer *out);

#endif
