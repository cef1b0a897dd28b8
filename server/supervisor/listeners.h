/* DESIGN: the supervisor binds every listening socket and keeps it open for as long as the
 * config wants it, whatever happens to workers: a connection that comes while a worker is
 * being replaced waits in the socket's queue instead of being refused. A reload keeps the
 * sockets that stay, opens what is new before anything changes, and closes what is gone
 * once the worker has taken over. SO_REUSEPORT is not set, so that a second server on the
 * same port is told so, rather than given a part of the connections. */
#ifndef KILN_SUPERVISOR_LISTENERS_H
#define KILN_SUPERVISOR_LISTENERS_H

#include "base/buffer.h"
#include "connection/listener.h"

struct config;

enum { LISTENERS_MAX = 128 };

struct listener_set {
    struct listener items[LISTENERS_MAX];
    unsigned count;
};

/* What the config wants, reusing the sockets of `keep` (may be NULL) that fit. False with a
 * message in `why` for the first port that cannot be had: which, why, and what to do;
 * then nothing new stays open. */
bool listeners_open(struct listener_set *set, const struct config *config, const struct listener_set *keep,
                    struct buffer *why);
/* Adds a socket that another process bound, with a new id; false when it is none or there are too
 * many. */
bool listeners_adopt(struct listener_set *set, int fd, uint16_t configured_port, enum listener_kind kind);
/* Closes those of `old` that are not in `now` (may be NULL). */
void listeners_close(struct listener_set *old, const struct listener_set *now);
const struct listener *listeners_find(const struct listener_set *set, uint32_t id);

/* "http://localhost:8080", "http://192.0.2.1" (port 80), joined by ", ". */
void listeners_print_urls(const struct listener_set *set, struct buffer *out);

#endif
