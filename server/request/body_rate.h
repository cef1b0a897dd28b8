/* How fast the body of a request comes, whatever the protocol. Only the time counts during which the
 * sink wants bytes. */
#ifndef KILN_REQUEST_BODY_RATE_H
#define KILN_REQUEST_BODY_RATE_H

#include "request/request.h"

struct body_rate {
    uint64_t start_ms; /* of measuring; while it is stopped: how much of the time has passed */
    uint64_t bytes; /* received when it began */
};

/* The sink wants bytes, and wants none for a while. */
static inline void body_rate_start(struct body_rate *rate, uint64_t now)
{
    rate->start_ms = now - rate->start_ms;
}
static inline void body_rate_stop(struct body_rate *rate, uint64_t now)
{
    rate->start_ms = now - rate->start_ms;
}

/* Slower than bytesPerSecond (averaged over half a minute at most, after gracePeriod), or not there
 * within RequestBodyTimeout. */
bool body_rate_is_too_slow(struct body_rate *rate, const struct request *req, uint64_t now);

#endif
