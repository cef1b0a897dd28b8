#include "supervisor/status.h"

#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/supervisor_private.h"

#include <stdlib.h>
#include <unistd.h>

const char *supervisor_unready(const struct supervisor *s)
{
    if (s->shutting_down) {
        return "draining";
    }
    LIST_EACH(node, &s->workers) {
        if (LIST_ENTRY(node, struct worker_process, node)->state == WORKER_READY) {
            return NULL;
        }
    }
    return "no worker is ready";
}

static const char *state_of(const struct supervisor *s)
{
    if (s->shutting_down) {
        return "draining";
    }
    if (s->upgrade.heir > 0) {
        return "upgrading";
    }
    return s->ever_ready ? "serving" : "starting";
}

/* ---- workers ------------------------------------------------------------------------------------ */

static unsigned worker_state(const struct worker_process *worker)
{
    switch (worker->state) {
    case WORKER_STARTING: return STATUS_STARTING;
    case WORKER_DRAINING: return STATUS_DRAINING;
    case WORKER_READY:
    default: return worker->to_be_replaced ? STATUS_REPLACED : STATUS_SERVING;
    }
}

static void fill_worker(const struct worker_process *worker, uint64_t now, struct status_worker *out)
{
    const struct figures *figures = worker->figures;
    out->pid = (int)worker->pid;
    out->state = worker_state(worker);
    out->told = figures->told_ms != 0;
    memcpy(out->figure, figures->worker, sizeof out->figure);
    out->figure[WORKER_FIGURE_UPTIME] = (int64_t)(now - worker->started_ms);
    out->figure[WORKER_FIGURE_AGE] = (int64_t)(now - figures->told_ms);
    out->figure[WORKER_FIGURE_REQUESTS] = figures->metric[METRIC_REQUESTS];
    out->figure[WORKER_FIGURE_ACTIVE] = figures->metric[METRIC_REQUESTS_ACTIVE];
    out->figure[WORKER_FIGURE_CONNECTIONS] = figures->metric[METRIC_CONNECTIONS_OPEN];
    out->loop_count = figures->loops;
    for (unsigned i = 0; i < figures->loops; i++) {
        memcpy(out->loop[i].figure, figures->loop[i], sizeof out->loop[i].figure);
        out->loop[i].figure[LOOP_FIGURE_LAG] = figures_loop_lag_us(figures, i, now);
    }
}

static void add_gauges(const struct figures *figures, int64_t *total)
{
    for (int i = 0; i < METRIC_COUNT; i++) {
        if (metric_infos[i].kind == METRIC_IS_GAUGE) {
            total[i] += figures->metric[i];
        }
    }
}

void supervisor_metrics(const struct supervisor *s, int64_t metric[METRIC_COUNT])
{
    memcpy(metric, s->ledger.total, sizeof s->ledger.total); /* zeros where it is a gauge */
    LIST_EACH(node, &s->workers) {
        add_gauges(LIST_ENTRY(node, struct worker_process, node)->figures, metric);
    }
    if (s->upgrade.elder_figures != NULL) {
        add_gauges(s->upgrade.elder_figures, metric);
    }
}

static bool fill_workers(const struct supervisor *s, uint64_t now, struct status *out)
{
    unsigned count = 0;
    LIST_EACH(node, &s->workers) {
        count++;
    }
    out->workers = calloc(count > 0 ? count : 1, sizeof *out->workers);
    if (out->workers == NULL) {
        return false;
    }
    LIST_EACH(node, &s->workers) {
        const struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        fill_worker(worker, now, &out->workers[out->worker_count++]);
    }
    return true;
}

/* ---- endpoints ------------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct status_endpoint *)a)->file, ((const struct status_endpoint *)b)->file);
}

static int by_key(const void *key, const void *element)
{
    return strcmp(key, ((const struct status_endpoint *)element)->file);
}

static void fill_quarantines(const struct supervisor *s, uint64_t now, struct status *out)
{
    LIST_EACH(node, &s->crashes.records) {
        const struct crash_record *record = LIST_ENTRY(node, struct crash_record, node);
        if (!crash_record_in_quarantine(record, now)) {
            continue;
        }
        out->figure[SERVER_FIGURE_QUARANTINED]++;
        struct status_endpoint *endpoint =
            bsearch(record->file, out->endpoints, out->endpoint_count, sizeof *out->endpoints, by_key);
        if (endpoint != NULL) {
            endpoint->figure[ENDPOINT_FIGURE_QUARANTINE] = (int64_t)(record->until_ms - now);
        }
    }
}

static bool fill_endpoints(const struct supervisor *s, uint64_t now, struct status *out)
{
    size_t count = s->ledger.by_file.count;
    out->endpoints = calloc(count > 0 ? count : 1, sizeof *out->endpoints);
    if (out->endpoints == NULL) {
        return false;
    }
    LIST_EACH(node, &s->ledger.accounts) {
        const struct account *account = LIST_ENTRY(node, struct account, node);
        struct status_endpoint *endpoint = &out->endpoints[out->endpoint_count++];
        endpoint->file = account->file;
        memcpy(endpoint->figure, account->figure, sizeof endpoint->figure);
    }
    qsort(out->endpoints, out->endpoint_count, sizeof *out->endpoints, by_name);
    fill_quarantines(s, now, out);
    return true;
}

/* ---- the whole -------------------------------------------------------------------------------------- */

bool supervisor_status(const struct supervisor *s, struct status *out)
{
    uint64_t now = clock_now_ms();
    *out = (struct status){
        .version = KILN_VERSION,
        .state = state_of(s),
        .pid = (int)getpid(),
        .started = s->started,
    };
    memcpy(out->figure, s->ledger.server, sizeof out->figure);
    out->figure[SERVER_FIGURE_READY] = supervisor_unready(s) == NULL;
    out->figure[SERVER_FIGURE_UPTIME] = (int64_t)(now - s->started_ms);
    supervisor_metrics(s, out->total);
    if (!fill_workers(s, now, out) || !fill_endpoints(s, now, out)) {
        supervisor_status_free(out);
        return false;
    }
    return true;
}

void supervisor_status_free(struct status *status)
{
    free(status->workers);
    free(status->endpoints);
}
