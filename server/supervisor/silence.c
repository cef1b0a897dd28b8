/* DESIGN: a worker that serves nobody any more although its process lives. What an endpoint can do to its own process
 * has no end: it may stop it (SIGSTOP), close descriptors that are not its own, hold a lock that all others need. Most of
 * that is seen inside (watchdog.c, worker_integrity.c); what leaves nobody to see it is seen here, by what does not
 * come. A worker tells its figures each second. One that has told none at WorkerSilence looks in a row, a second apart, is
 * replaced like one that asked for it: a successor serves first. Looks are counted and not time, so that a machine
 * that was suspended does not count against it. The same for one that has closed its control socket and yet goes
 * on. */
#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/supervisor_private.h"

#include <stdio.h>

enum {
    LOOK_MS = 1000,
    END_MS = 300, /* between the end of its control socket and of the process */
};

static bool is_wanted(const struct worker_process *worker)
{
    return worker->state == WORKER_READY && !worker->to_be_replaced;
}

uint64_t silence_due_ms(const struct supervisor *s)
{
    uint64_t due = UINT64_MAX;
    LIST_EACH(node, &s->workers) {
        const struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        uint64_t at = worker->hung_up_ms != 0 ? worker->hung_up_ms + END_MS : s->looked_ms + LOOK_MS;
        due = is_wanted(worker) && at < due ? at : due;
    }
    return due;
}

static void look_at(struct supervisor *s, struct worker_process *worker)
{
    unsigned most = (unsigned)s->config->worker_silence;
    bool told = worker->figures->told_ms != worker->heard_ms;
    worker->heard_ms = worker->figures->told_ms;
    worker->silent_looks = told ? 0 : worker->silent_looks + 1;
    if (most > 0 && worker->silent_looks >= most) {
        char why[128];
        snprintf(why, sizeof why, "it has said nothing for %u seconds (WorkerSilence)", worker->silent_looks);
        supervisor_replace_worker(s, worker, why);
    }
}

void silence_run(struct supervisor *s, uint64_t now)
{
    bool look = now - s->looked_ms >= LOOK_MS;
    s->looked_ms = look ? now : s->looked_ms;
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (!is_wanted(worker)) {
            continue;
        }
        if (worker->hung_up_ms != 0 && now - worker->hung_up_ms >= END_MS) {
            supervisor_replace_worker(s, worker, "it has closed its control socket, and goes on");
        } else if (look && worker->hung_up_ms == 0) {
            look_at(s, worker);
        }
    }
}
