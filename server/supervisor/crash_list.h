/* DESIGN: the memory of crashes. Workers come and go with every crash, so the supervisor counts:
 * each caught crash is told to it (CRASHED), with the endpoint's file and a hash that stands for its
 * source. QuarantineCrashes of the same build within QuarantineWindow, and every worker is told
 * that the endpoint is not to be run for QuarantineTime (QUARANTINE); workers that start
 * later are told before their config. A worker tells when it runs it again, because the file has
 * changed or the time has passed (RELEASED). Each way is logged once. */
#ifndef KILN_SUPERVISOR_CRASH_LIST_H
#define KILN_SUPERVISOR_CRASH_LIST_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>

enum { CRASH_TIMES = 100, CRASH_RECORDS = 1000, CRASH_BUILD_LENGTH = 64 };

struct crash_record {
    struct list node; /* newest crash first */
    char *file;
    char build[CRASH_BUILD_LENGTH + 1]; /* a hash in hexadecimal */
    uint64_t recent_ms[CRASH_TIMES]; /* of this build, oldest first */
    unsigned recent_count;
    unsigned total; /* of the file, whatever the build */
    uint64_t until_ms; /* in quarantine until then; 0: not */
};

struct crash_list {
    struct list records;
    unsigned count;
};

struct crash_rule {
    unsigned crashes; /* 0: never */
    uint64_t window_ms;
    uint64_t time_ms;
};

void crash_list_init(struct crash_list *list);
void crash_list_free(struct crash_list *list);

/* One more crash. The record when it begins a quarantine, else NULL. */
const struct crash_record *crash_list_add(struct crash_list *list, const char *file, const char *build, uint64_t now_ms,
                                          const struct crash_rule *rule);
/* A quarantine that another list has decided on, of a server that this one takes over from. */
void crash_list_put(struct crash_list *list, const char *file, const char *build, uint64_t until_ms);

/* It is run again. True when it was in quarantine. */
bool crash_list_release(struct crash_list *list, const char *file);

static inline bool crash_record_in_quarantine(const struct crash_record *record, uint64_t now_ms)
{
    return record->until_ms > now_ms;
}

#endif
