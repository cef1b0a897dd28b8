#include "request/body_rate.h"

#include "config/config.h"

bool body_rate_is_too_slow(struct body_rate *rate, const struct request *req, uint64_t now)
{
    enum { WINDOW_MS = 30000 };
    double limit = req->config->request_body_timeout;
    if (limit > 0 && (double)(now - req->started_ms) >= limit * 1000) {
        return true;
    }
    uint64_t elapsed = now - rate->start_ms;
    uint64_t bytes = req->body.received - rate->bytes;
    if ((double)elapsed < req->config->grace_period * 1000) {
        return false;
    }
    if ((double)bytes * 1000 < req->config->bytes_per_second * (double)elapsed) {
        return true;
    }
    if (elapsed > WINDOW_MS) {
        rate->start_ms = now;
        rate->bytes = req->body.received;
    }
    return false;
}
