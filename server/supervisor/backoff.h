/* How long to wait before a dead worker is replaced: a worker that served well is replaced
 * at once; one that dies soon after it began is given ever longer pauses, 0.1 to 5 s, so
 * that a broken site does not eat the machine. */
#ifndef KILN_SUPERVISOR_BACKOFF_H
#define KILN_SUPERVISOR_BACKOFF_H

#include <stdint.h>

enum {
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MOST_MS = 5000,
    BACKOFF_STEADY_MS = 500, /* served for so long: the pause does not grow */
    BACKOFF_HEALTHY_MS = 10000, /* served for so long: it is forgotten */
};

struct backoff {
    uint64_t pause_ms; /* the last one; 0: none yet */
};

/* A worker died that had been ready for `served_ms`; returns the pause. */
static inline uint64_t backoff_next(struct backoff *backoff, uint64_t served_ms)
{
    if (served_ms >= BACKOFF_HEALTHY_MS) {
        backoff->pause_ms = 0;
        return 0;
    }
    if (backoff->pause_ms == 0) {
        backoff->pause_ms = BACKOFF_FIRST_MS;
    } else if (served_ms < BACKOFF_STEADY_MS) {
        backoff->pause_ms *= 2;
    }
    if (backoff->pause_ms > BACKOFF_MOST_MS) {
        backoff->pause_ms = BACKOFF_MOST_MS;
    }
    return backoff->pause_ms;
}

#endif
