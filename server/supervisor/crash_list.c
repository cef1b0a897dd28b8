#include "supervisor/crash_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void crash_list_init(struct crash_list *list)
{
    *list = (struct crash_list){0};
    list_init(&list->records);
}

static void free_record(struct crash_list *list, struct crash_record *record)
{
    list_remove(&record->node);
    list->count--;
    free(record->file);
    free(record);
}

void crash_list_free(struct crash_list *list)
{
    LIST_EACH(node, &list->records) {
        free_record(list, LIST_ENTRY(node, struct crash_record, node));
    }
}

static struct crash_record *find(struct crash_list *list, const char *file)
{
    LIST_EACH(node, &list->records) {
        struct crash_record *record = LIST_ENTRY(node, struct crash_record, node);
        if (strcmp(record->file, file) == 0) {
            return record;
        }
    }
    return NULL;
}

static struct crash_record *find_or_create(struct crash_list *list, const char *file)
{
    struct crash_record *record = find(list, file);
    if (record != NULL) {
        list_remove(&record->node);
        list_prepend(&list->records, &record->node);
        return record;
    }
    record = calloc(1, sizeof *record);
    char *copy = strdup(file);
    if (record == NULL || copy == NULL) {
        free(record);
        free(copy);
        return NULL;
    }
    record->file = copy;
    list_prepend(&list->records, &record->node);
    if (++list->count > CRASH_RECORDS) {
        free_record(list, LIST_ENTRY(list->records.prev, struct crash_record, node));
    }
    return record;
}

/* When there is no room, the oldest gives way. */
static void forget_before(struct crash_record *record, uint64_t since_ms)
{
    unsigned old = record->recent_count == CRASH_TIMES ? 1 : 0;
    while (old < record->recent_count && record->recent_ms[old] < since_ms) {
        old++;
    }
    record->recent_count -= old;
    memmove(record->recent_ms, record->recent_ms + old, record->recent_count * sizeof record->recent_ms[0]);
}

const struct crash_record *crash_list_add(struct crash_list *list, const char *file, const char *build, uint64_t now_ms,
                                          const struct crash_rule *rule)
{
    struct crash_record *record = find_or_create(list, file);
    if (record == NULL) {
        return NULL;
    }
    record->total++;
    if (strcmp(record->build, build) != 0) {
        snprintf(record->build, sizeof record->build, "%s", build);
        record->recent_count = 0;
        record->until_ms = 0;
    }
    forget_before(record, now_ms > rule->window_ms ? now_ms - rule->window_ms : 0);
    record->recent_ms[record->recent_count++] = now_ms;
    if (rule->crashes == 0 || record->recent_count < rule->crashes || crash_record_in_quarantine(record, now_ms)) {
        return NULL;
    }
    record->until_ms = now_ms + rule->time_ms;
    return record;
}

void crash_list_put(struct crash_list *list, const char *file, const char *build, uint64_t until_ms)
{
    struct crash_record *record = find_or_create(list, file);
    if (record != NULL) {
        snprintf(record->build, sizeof record->build, "%s", build);
        record->until_ms = until_ms;
    }
}

bool crash_list_release(struct crash_list *list, const char *file)
{
    struct crash_record *record = find(list, file);
    if (record == NULL || record->until_ms == 0) {
        return false;
    }
    record->until_ms = 0;
    record->recent_count = 0;
    return true;
}
