/* The state of the server for people: what the console shows. */
#include "observe/escape.h"
#include "observe/status.h"

#include <inttypes.h>

static void print_name(struct buffer *out, const char *name)
{
    struct str left = str_of(name);
    while (left.len > 0) {
        char part[256];
        size_t len = escape_text(part, sizeof part, &left);
        if (len == 0) {
            return;
        }
        buffer_append(out, part, len);
    }
}

/* A gauge is a sum of what threads counted at different moments. */
static int64_t no_less_than_0(int64_t value)
{
    return value > 0 ? value : 0;
}

/* "5 s", "12 min", "3 h 20 min", "4 days" */
static void print_time(struct buffer *out, int64_t ms)
{
    int64_t seconds = ms / 1000;
    if (seconds < 120) {
        buffer_printf(out, "%" PRId64 " s", seconds);
    } else if (seconds < 7200) {
        buffer_printf(out, "%" PRId64 " min", seconds / 60);
    } else if (seconds < 172800) {
        buffer_printf(out, "%" PRId64 " h %" PRId64 " min", seconds / 3600, seconds / 60 % 60);
    } else {
        buffer_printf(out, "%" PRId64 " days", seconds / 86400);
    }
}

static int64_t longest_lag_us(const struct status_worker *worker)
{
    int64_t longest = 0;
    for (unsigned i = 0; i < worker->loop_count; i++) {
        int64_t lag = worker->loop[i].figure[LOOP_FIGURE_LAG];
        longest = lag > longest ? lag : longest;
    }
    return longest;
}

static void print_worker(struct buffer *out, const struct status_worker *worker)
{
    buffer_printf(out, "  worker %d: %s for ", worker->pid, status_worker_states[worker->state]);
    print_time(out, worker->figure[WORKER_FIGURE_UPTIME]);
    if (worker->told) {
        buffer_printf(
            out, ", %" PRId64 " requests and %" PRId64 " now, %" PRId64 " connections, %.1f MB, loops wait %.1f ms",
            worker->figure[WORKER_FIGURE_REQUESTS], no_less_than_0(worker->figure[WORKER_FIGURE_ACTIVE]),
            no_less_than_0(worker->figure[WORKER_FIGURE_CONNECTIONS]),
            (double)worker->figure[WORKER_FIGURE_MEMORY] / 1e6, (double)longest_lag_us(worker) / 1e3);
    }
    buffer_append_char(out, '\n');
}

static void print_quarantine(struct buffer *out, const struct status_endpoint *endpoint)
{
    buffer_append_z(out, "  in quarantine: ");
    print_name(out, endpoint->file);
    buffer_printf(out, " crashed %" PRId64 " times; it is run again in ", endpoint->figure[ENDPOINT_FIGURE_CRASHES]);
    print_time(out, endpoint->figure[ENDPOINT_FIGURE_QUARANTINE] + 999);
    buffer_append_z(out, ", or when its file changes\n");
}

void status_print_text(const struct status *status, struct buffer *out)
{
    const int64_t *total = status->total;
    buffer_printf(out, "kiln %s, process %d: %s for ", status->version, status->pid, status->state);
    print_time(out, status->figure[SERVER_FIGURE_UPTIME]);
    buffer_printf(out,
                  "\n  %" PRId64 " requests and %" PRId64 " now, %" PRId64 " answers of 4xx, %" PRId64
                  " of 5xx; %" PRId64 " connections, %" PRId64 " WebSockets\n",
                  total[METRIC_REQUESTS], no_less_than_0(total[METRIC_REQUESTS_ACTIVE]), total[METRIC_RESPONSES_4XX],
                  total[METRIC_RESPONSES_5XX], no_less_than_0(total[METRIC_CONNECTIONS_OPEN]),
                  no_less_than_0(total[METRIC_WEBSOCKETS_OPEN]));
    buffer_printf(out,
                  "  %u endpoints used, %" PRId64 " builds, %" PRId64 " crashes, %" PRId64 " timeouts, %" PRId64
                  " in quarantine\n",
                  status->endpoint_count, total[METRIC_BUILDS], total[METRIC_ENDPOINT_CRASHES],
                  total[METRIC_ENDPOINT_TIMEOUTS], status->figure[SERVER_FIGURE_QUARANTINED]);
    for (unsigned i = 0; i < status->worker_count; i++) {
        print_worker(out, &status->workers[i]);
    }
    for (unsigned i = 0; i < status->endpoint_count; i++) {
        if (status->endpoints[i].figure[ENDPOINT_FIGURE_QUARANTINE] > 0) {
            print_quarantine(out, &status->endpoints[i]);
        }
    }
}

void status_print_endpoints(const struct status *status, struct buffer *out)
{
    buffer_printf(out, "%10s %7s %8s %9s %11s  file\n", "hits", "builds", "crashes", "timeouts", "quarantine");
    for (unsigned i = 0; i < status->endpoint_count; i++) {
        const int64_t *figure = status->endpoints[i].figure;
        buffer_printf(out, "%10" PRId64 " %7" PRId64 " %8" PRId64 " %9" PRId64 " %9" PRId64 " s  ",
                      figure[ENDPOINT_FIGURE_HITS], figure[ENDPOINT_FIGURE_BUILDS], figure[ENDPOINT_FIGURE_CRASHES],
                      figure[ENDPOINT_FIGURE_TIMEOUTS], (figure[ENDPOINT_FIGURE_QUARANTINE] + 999) / 1000);
        print_name(out, status->endpoints[i].file);
        buffer_append_char(out, '\n');
    }
}
