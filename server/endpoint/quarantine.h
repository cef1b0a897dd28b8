/* DESIGN: an endpoint that crashes again and again is not run for a while. The supervisor counts and
 * decides (supervisor/crash_list.h), so that it outlives workers; here is what this worker was
 * told. It is about a build, known by the hash of its sources: another content is free at
 * once. A request reads one number of its endpoint, which is 0 for nearly all. */
#ifndef KILN_ENDPOINT_QUARANTINE_H
#define KILN_ENDPOINT_QUARANTINE_H

#include "endpoint/endpoint.h"

/* Any thread. What was told before about the file is forgotten. */
void quarantine_set(const char *file, const unsigned char build[HASH_SIZE], uint64_t until_ms);
/* Until when this build is not to be run; 0: it may be. */
uint64_t quarantine_until(const char *file, const unsigned char build[HASH_SIZE]);
/* This build of the file is run. Tells the supervisor when the file was in quarantine. */
void quarantine_release(const char *file, const unsigned char build[HASH_SIZE]);

#endif
