/* DESIGN: each loop keeps its own handle on the config snapshot, counted without atomics,
 * so that a request may keep the snapshot it began with over a reload at the price of one
 * increment. The handle drops its reference when a newer one has replaced it and its last
 * request ended. */
#ifndef KILN_LOOP_CONFIG_HOLD_H
#define KILN_LOOP_CONFIG_HOLD_H

#include "loop/loop.h"

struct config;

struct config_hold {
    const struct config *config;
    unsigned users;
    bool retired;
    /* "Name: value\r\n" of every DefaultHeaders entry, for HTTP/1 heads. */
    char *default_headers;
    size_t default_headers_len;
};

/* On the loop's thread: takes a reference of the config for this loop. */
void config_hold_set(struct loop *loop, struct config *config);
struct config_hold *config_hold_take(struct loop *loop);
void config_hold_drop(struct config_hold *hold);
static inline struct config_hold *config_hold_of(const struct loop *loop)
{
    return loop_slot(loop, LOOP_SLOT_CONFIG);
}
static inline const struct config *config_hold_current(const struct loop *loop)
{
    return config_hold_of(loop)->config;
}
/* The loop ends. */
void config_hold_clear(struct loop *loop);

#endif
