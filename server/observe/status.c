#include "observe/status.h"

#include <inttypes.h>

const char *const status_worker_states[STATUS_WORKER_STATES] = {"starting", "serving", "replaced", "draining"};

/* ---- numbers ------------------------------------------------------------------------------------ */

static void print_number(struct buffer *out, int64_t value, const struct metric_info *info)
{
    static const int64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000};
    int64_t unit = powers[info->decimals];
    value = value > 0 ? value : 0;
    buffer_append_u64(out, (uint64_t)(value / unit));
    if (unit > 1) {
        buffer_printf(out, ".%0*" PRId64, (int)info->decimals, value % unit);
    }
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static struct str key_of(const struct metric_info *info)
{
    if (info->key != NULL) {
        return str_of(info->key);
    }
    struct str name = str_from(str_of(info->name), strlen("kiln_"));
    return str_ends(name, STR("_total")) ? str_first(name, name.len - strlen("_total")) : name;
}

/* Figures as members, each after a comma unless it is the first. */
static void json_figures(struct buffer *out, const struct metric_info *infos, const int64_t *figures, int count,
                         const char *comma)
{
    for (int i = 0; i < count; i++) {
        buffer_printf(out, "%s\"%.*s\": ", i > 0 ? ", " : comma, STR_ARG(key_of(&infos[i])));
        print_number(out, figures[i], &infos[i]);
    }
}

static void json_worker(struct buffer *out, const struct status_worker *worker)
{
    buffer_printf(out, "{\"pid\": %d, \"state\": \"%s\", ", worker->pid, status_worker_states[worker->state]);
    json_figures(out, worker_infos, worker->figure, worker->told ? WORKER_FIGURES : WORKER_FIGURE_UPTIME + 1, "");
    buffer_append_z(out, ", \"loops\": [");
    for (unsigned i = 0; i < worker->loop_count; i++) {
        buffer_printf(out, "%s{\"loop\": %u, ", i > 0 ? ", " : "", i);
        json_figures(out, loop_infos, worker->loop[i].figure, LOOP_FIGURES, "");
        buffer_append_char(out, '}');
    }
    buffer_append_z(out, "]}");
}

static void json_endpoint(struct buffer *out, const struct status_endpoint *endpoint)
{
    buffer_append_z(out, "{\"file\": ");
    buffer_append_json(out, str_of(endpoint->file));
    json_figures(out, endpoint_infos, endpoint->figure, ENDPOINT_FIGURES, ", ");
    buffer_append_char(out, '}');
}

void status_print_json(const struct status *status, struct buffer *out)
{
    buffer_append_z(out, "{\n  \"version\": ");
    buffer_append_json(out, str_of(status->version));
    buffer_printf(
        out, ",\n  \"pid\": %d,\n  \"state\": \"%s\",\n  \"ready\": %s,\n  \"started\": %" PRId64 ",\n  \"server\": {",
        status->pid, status->state, status->figure[SERVER_FIGURE_READY] != 0 ? "true" : "false", status->started);
    json_figures(out, server_infos, status->figure, SERVER_FIGURES, "");
    buffer_append_z(out, "},\n  \"totals\": {");
    json_figures(out, metric_infos, status->total, METRIC_COUNT, "");
    buffer_append_z(out, "},\n  \"workers\": [");
    for (unsigned i = 0; i < status->worker_count; i++) {
        buffer_append_z(out, i > 0 ? ",\n    " : "\n    ");
        json_worker(out, &status->workers[i]);
    }
    buffer_append_z(out, status->worker_count > 0 ? "\n  ],\n  \"endpoints\": [" : "],\n  \"endpoints\": [");
    for (unsigned i = 0; i < status->endpoint_count; i++) {
        buffer_append_z(out, i > 0 ? ",\n    " : "\n    ");
        json_endpoint(out, &status->endpoints[i]);
    }
    buffer_append_z(out, status->endpoint_count > 0 ? "\n  ]\n}\n" : "]\n}\n");
}

/* ---- Prometheus ------------------------------------------------------------------------------------ */

static void head(struct buffer *out, const char *name, const char *kind, const char *help)
{
    buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void head_of(struct buffer *out, const struct metric_info *info)
{
    head(out, info->name, info->kind == METRIC_IS_COUNTER ? "counter" : "gauge", info->help);
}

static void label_value(struct buffer *out, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        size_t len = str_utf8_length(text, left);
        if (len == 0) {
            buffer_append_z(out, "\xEF\xBF\xBD"); /* as the readers demand UTF-8 */
            len = 1;
        } else if (*text == '\n') {
            buffer_append_z(out, "\\n");
        } else {
            if (*text == '\\' || *text == '"') {
                buffer_append_char(out, '\\');
            }
            buffer_append(out, text, len);
        }
        text += len;
        left -= len;
    }
}

static void sample(struct buffer *out, const struct metric_info *info, int64_t value)
{
    buffer_append_char(out, ' ');
    print_number(out, value, info);
    buffer_append_char(out, '\n');
}

static void plain_samples(struct buffer *out, const struct metric_info *infos, const int64_t *figures, int count)
{
    for (int i = 0; i < count; i++) {
        head_of(out, &infos[i]);
        buffer_append_z(out, infos[i].name);
        sample(out, &infos[i], figures[i]);
    }
}

static void worker_samples(struct buffer *out, const struct status *status, int figure)
{
    const struct metric_info *info = &worker_infos[figure];
    head_of(out, info);
    for (unsigned i = 0; i < status->worker_count; i++) {
        const struct status_worker *worker = &status->workers[i];
        if (worker->told || figure == WORKER_FIGURE_UPTIME) {
            buffer_printf(out, "%s{worker=\"%d\"}", info->name, worker->pid);
            sample(out, info, worker->figure[figure]);
        }
    }
}

static void loop_samples(struct buffer *out, const struct status *status, int figure)
{
    const struct metric_info *info = &loop_infos[figure];
    head_of(out, info);
    for (unsigned i = 0; i < status->worker_count; i++) {
        const struct status_worker *worker = &status->workers[i];
        for (unsigned k = 0; k < worker->loop_count; k++) {
            buffer_printf(out, "%s{worker=\"%d\",loop=\"%u\"}", info->name, worker->pid, k);
            sample(out, info, worker->loop[k].figure[figure]);
        }
    }
}

static void endpoint_samples(struct buffer *out, const struct status *status, int figure)
{
    const struct metric_info *info = &endpoint_infos[figure];
    head_of(out, info);
    for (unsigned i = 0; i < status->endpoint_count; i++) {
        buffer_printf(out, "%s{file=\"", info->name);
        label_value(out, status->endpoints[i].file);
        buffer_append_z(out, "\"}");
        sample(out, info, status->endpoints[i].figure[figure]);
    }
}

static void states(struct buffer *out, const struct status *status)
{
    unsigned count[STATUS_WORKER_STATES] = {0};
    for (unsigned i = 0; i < status->worker_count; i++) {
        count[status->workers[i].state]++;
    }
    head(out, "kiln_workers", "gauge", "Workers by state.");
    for (unsigned i = 0; i < STATUS_WORKER_STATES; i++) {
        buffer_printf(out, "kiln_workers{state=\"%s\"} %u\n", status_worker_states[i], count[i]);
    }
}

void status_print_prometheus(const struct status *status, struct buffer *out)
{
    head(out, "kiln_build_info", "gauge", "1, with the version of the program.");
    buffer_append_z(out, "kiln_build_info{version=\"");
    label_value(out, status->version);
    buffer_append_z(out, "\"} 1\n");
    head(out, "kiln_start_time_seconds", "gauge", "When the supervisor was started, in seconds since 1970.");
    buffer_printf(out, "kiln_start_time_seconds %" PRId64 "\n", status->started);
    plain_samples(out, server_infos, status->figure, SERVER_FIGURES);
    states(out, status);
    plain_samples(out, metric_infos, status->total, METRIC_COUNT);
    for (int i = 0; i < WORKER_FIGURES; i++) {
        worker_samples(out, status, i);
    }
    for (int i = 0; i < LOOP_FIGURES; i++) {
        loop_samples(out, status, i);
    }
    for (int i = 0; i < ENDPOINT_FIGURES; i++) {
        endpoint_samples(out, status, i);
    }
}
