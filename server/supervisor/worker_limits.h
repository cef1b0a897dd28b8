/* DESIGN: a worker that has grown too large, or has served its number of requests, asks for a
 * successor (worker_replace): that one begins on the same sockets, this one finishes what it has
 * begun. The first thread looks once a second. All limits are off by default; a reload
 * changes them. */
#ifndef KILN_SUPERVISOR_WORKER_LIMITS_H
#define KILN_SUPERVISOR_WORKER_LIMITS_H

#include "base/buffer.h"

#include <stdint.h>

struct config;

struct worker_size {
    uint64_t memory; /* resident bytes now */
    uint64_t memory_at_start;
    uint64_t requests;
};

/* The first thread, as often as it likes. */
void worker_limits_look(void);
/* Of this process. */
uint64_t worker_resident_bytes(void);
/* Writes why a worker of that size has to be replaced; nothing when it may stay. */
void worker_limits_judge(const struct config *config, const struct worker_size *size, struct buffer *why);

#endif
