#include "supervisor/worker_limits.h"

#include "config/config.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "supervisor/clock.h"
#include "supervisor/worker.h"
#include "supervisor/worker_integrity.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { LOOK_MS = 1000 };

uint64_t worker_resident_bytes(void)
{
    char text[128] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t len = read(fd, text, sizeof text - 1);
    close(fd);
    char *rest = text;
    strtoull(text, &rest, 10); /* all that is mapped */
    return len > 0 ? strtoull(rest, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static double mb(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

void worker_limits_judge(const struct config *config, const struct worker_size *size, struct buffer *why)
{
    uint64_t limit = (uint64_t)config->worker_memory_limit;
    uint64_t growth = (uint64_t)config->worker_memory_growth;
    uint64_t requests = (uint64_t)config->max_requests_per_worker;
    if (limit > 0 && size->memory > limit) {
        buffer_printf(why, "it uses %.0f MB of memory, more than WorkerMemoryLimit (%.0f MB)", mb(size->memory),
                      mb(limit));
    } else if (growth > 0 && size->memory > size->memory_at_start + growth) {
        buffer_printf(why, "its memory has grown by %.0f MB, more than WorkerMemoryGrowth (%.0f MB)",
                      mb(size->memory - size->memory_at_start), mb(growth));
    } else if (requests > 0 && size->requests >= requests) {
        buffer_printf(why, "it has served %llu requests (MaxRequestsPerWorker is %llu)",
                      (unsigned long long)size->requests, (unsigned long long)requests);
    }
}

void worker_limits_look(void)
{
    static uint64_t next_ms;
    static struct worker_size size;
    static bool asked;
    uint64_t now = clock_now_ms();
    if (asked || now < next_ms) {
        return;
    }
    next_ms = now + LOOK_MS;
    struct config *config = config_acquire();
    size.memory = worker_resident_bytes();
    size.memory_at_start = size.memory_at_start == 0 ? size.memory : size.memory_at_start;
    size.requests = (uint64_t)metric_sum(METRIC_REQUESTS);
    struct buffer why = BUFFER_EMPTY;
    worker_limits_judge(config, &size, &why);
    config_unref(config);
    if (why.len == 0) {
        worker_integrity_judge(&why);
    }
    if (why.len > 0 && buffer_append_char(&why, '\0')) {
        asked = true;
        metric_add(METRIC_WORKER_LIMITS, 1);
        worker_replace(why.data); /* the supervisor logs it */
    }
    buffer_free(&why);
}
