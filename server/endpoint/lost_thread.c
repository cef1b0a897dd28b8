#include "endpoint/lost_thread.h"

#include "endpoint/crash.h"
#include "observe/log.h"
#include "supervisor/worker.h"

void lost_thread_tell(struct crash_guard *guard)
{
    char what[256];
    crash_describe(&guard->report, what, sizeof what);
    log_error("a crash (%s) has left the memory of its thread locked or damaged: the thread is given up, what it had "
              "begun is lost",
              what);
    if (guard->lost != NULL) {
        guard->lost(guard);
    }
    worker_replace("a crash has left one of its threads without memory");
}
