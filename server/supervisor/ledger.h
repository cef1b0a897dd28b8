/* DESIGN: what workers have told of their figures, so that it can be shown whatever state they are in.
 *
 * Workers come and go, each counting from 0; what is shown only grows. So the ledger holds sums and
 * adds to them what a teller's number has grown by since it was told last: nothing has to be settled
 * when a worker ends, be it by kill -9, and at most a second of its counting is lost then. A number
 * that went back began anew, and is added whole. Gauges are summed over those that live (status.c).
 *
 * A teller is a worker, or after an upgrade the supervisor before this one, which tells its sums in the
 * same messages until it ends. Numbers are believed only as far as they are numbers. Rows and keys are
 * those of observe/metrics.def; unknown ones, of another version, are passed over.
 *
 * The ledger owns its accounts, a teller its struct figures. Past `most` endpoints (AdminEndpoints), those
 * that were quiet for the longest are forgotten. */
#ifndef KILN_SUPERVISOR_LEDGER_H
#define KILN_SUPERVISOR_LEDGER_H

#include "base/list.h"
#include "base/map.h"
#include "observe/metrics.h"

#include <cjson/cJSON.h>

/* What one teller told last. */
struct figures {
    uint64_t told_ms; /* clock.h; 0: nothing yet */
    int64_t metric[METRIC_COUNT];
    int64_t server[SERVER_FIGURES];
    int64_t worker[WORKER_FIGURES];
    int64_t loop[METRICS_LOOPS][LOOP_FIGURES];
    int64_t waiting_us[METRICS_LOOPS]; /* a task that the loop has not come to yet; 0: none */
    unsigned loops;
    struct map endpoints; /* file to int64_t[ENDPOINT_FIGURES] */
};

/* One endpoint. */
struct account {
    struct list node;
    char *file;
    int64_t figure[ENDPOINT_FIGURES]; /* the counters */
};

struct ledger {
    int64_t total[METRIC_COUNT]; /* the counters */
    int64_t server[SERVER_FIGURES]; /* likewise; the supervisor counts its own here */
    struct map by_file;
    struct list accounts; /* changed last comes first */
    size_t most; /* accounts */
};

void ledger_init(struct ledger *ledger, size_t most);
/* Another number from now on. */
void ledger_limit(struct ledger *ledger, size_t most);
void ledger_free(struct ledger *ledger);

/* NULL when out of memory. */
struct figures *figures_create(void);
void figures_free(struct figures *figures);

/* The bodies of FIGURES and ENDPOINTS (control.h). */
void ledger_take_figures(struct ledger *ledger, struct figures *from, const cJSON *body, uint64_t now_ms);
void ledger_take_endpoints(struct ledger *ledger, struct figures *from, const cJSON *body);
/* Crashes come as messages of their own, at once. */
void ledger_count_crash(struct ledger *ledger, const char *file);

/* How long the loop lets a task wait, as far as is known at this time. */
int64_t figures_loop_lag_us(const struct figures *figures, unsigned loop, uint64_t now_ms);

/* The same bodies, made of numbers. The caller frees. */
cJSON *ledger_print_metrics(const int64_t metric[METRIC_COUNT]);
cJSON *ledger_print_server(const struct ledger *ledger);
cJSON *ledger_print_endpoint(const char *file, const int64_t figure[ENDPOINT_FIGURES]);

#endif
