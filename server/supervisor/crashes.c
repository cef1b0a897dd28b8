/* What workers tell of crashes of endpoints, and what all workers are told then (crash_list.h). */
#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/supervisor_private.h"

#include <string.h>

static cJSON *print(const struct crash_record *record)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "file", record->file);
    cJSON_AddStringToObject(body, "build", record->build);
    cJSON_AddNumberToObject(body, "until", (double)record->until_ms);
    return body;
}

static void tell(struct worker_process *worker, const struct crash_record *record)
{
    if (worker->control < 0) {
        return;
    }
    cJSON *body = print(record);
    if (control_send(worker->control, CONTROL_QUARANTINE, body, NULL, 0) != CONTROL_OK) {
        log_warning("worker %d cannot be told of the quarantine of %s", (int)worker->pid, record->file);
    }
    cJSON_Delete(body);
}

void supervisor_tell_quarantines(struct supervisor *s, struct worker_process *worker)
{
    uint64_t now = clock_now_ms();
    LIST_EACH(node, &s->crashes.records) {
        const struct crash_record *record = LIST_ENTRY(node, struct crash_record, node);
        if (crash_record_in_quarantine(record, now)) {
            tell(worker, record);
        }
    }
}

cJSON *supervisor_print_quarantines(const struct supervisor *s, size_t bytes)
{
    enum { RECORD_BYTES = 160 }; /* beside the name, which JSON may make six times as long */
    uint64_t now = clock_now_ms();
    cJSON *list = cJSON_CreateArray();
    LIST_EACH(node, &s->crashes.records) {
        const struct crash_record *record = LIST_ENTRY(node, struct crash_record, node);
        size_t size = 6 * strlen(record->file) + RECORD_BYTES;
        if (crash_record_in_quarantine(record, now) && size <= bytes) {
            bytes -= size;
            cJSON_AddItemToArray(list, print(record));
        }
    }
    return list;
}

void supervisor_take_quarantines(struct supervisor *s, const cJSON *list)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        const char *file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
        const char *build = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "build"));
        const cJSON *until = cJSON_GetObjectItemCaseSensitive(item, "until");
        if (file != NULL && build != NULL && strlen(build) == CRASH_BUILD_LENGTH && cJSON_IsNumber(until) &&
            until->valuedouble > 0) {
            crash_list_put(&s->crashes, file, build, (uint64_t)until->valuedouble);
        }
    }
}

void supervisor_crashed(struct supervisor *s, const struct control_message *message)
{
    const char *file = control_text(message, "file");
    const char *build = control_text(message, "build");
    if (file == NULL || build == NULL || strlen(build) != CRASH_BUILD_LENGTH) {
        return;
    }
    ledger_count_crash(&s->ledger, file);
    const struct config *config = s->config;
    struct crash_rule rule = {.crashes = (unsigned)config->quarantine_crashes,
                              .window_ms = (uint64_t)(config->quarantine_window * 1000),
                              .time_ms = (uint64_t)(config->quarantine_time * 1000)};
    const struct crash_record *record = crash_list_add(&s->crashes, file, build, clock_now_ms(), &rule);
    if (record == NULL) {
        return;
    }
    log_error("%s crashed %u time%s within %g s and is in quarantine: it answers 503 until its source changes, or "
              "%g s have passed (options QuarantineCrashes, QuarantineWindow, QuarantineTime)",
              file, record->recent_count, record->recent_count == 1 ? "" : "s", config->quarantine_window,
              config->quarantine_time);
    LIST_EACH(node, &s->workers) {
        tell(LIST_ENTRY(node, struct worker_process, node), record);
    }
}

void supervisor_released(struct supervisor *s, const struct control_message *message)
{
    const char *file = control_text(message, "file");
    const char *why = control_text(message, "why");
    if (file != NULL && why != NULL && crash_list_release(&s->crashes, file)) {
        log_notice("%s is run again after its quarantine: %s", file, why);
    }
}
