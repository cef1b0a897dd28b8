/* DESIGN: the output queue of one connection: segments of copied bytes, referenced bytes
 * and file ranges, in order. A queue is taken from a free list of the loop at the first
 * write of an event and given back when everything was sent, so idle connections hold none
 * and busy ones share a few hot ones. Small copies go into the inline buffer; larger ones
 * into chunks that grow. */
#ifndef KILN_CONNECTION_OUTPUT_H
#define KILN_CONNECTION_OUTPUT_H

#include "connection/conn.h"

enum output_result {
    OUTPUT_SENT,
    OUTPUT_BLOCKED, /* the kernel takes no more: it tells when it does */
    OUTPUT_YIELDED, /* it would, but it is the others' turn */
    OUTPUT_FAILED,
};

/* A queue of this loop; NULL when out of memory. */
struct output *output_take(struct loop *loop);
/* Releases what is left in it and gives it back. */
void output_give_back(struct loop *loop, struct output *out);

char *output_reserve(struct output *out, size_t len);
void output_commit(struct output *out, size_t len);
bool output_copy(struct output *out, const void *data, size_t len);
/* On failure the caller runs release itself. */
bool output_ref(struct output *out, const void *data, size_t len, void (*release)(void *), void *arg);
bool output_file(struct output *out, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg);
uint64_t output_pending(const struct output *out);
/* Sends as much as the kernel takes; release functions run as segments end. */
enum output_result output_send(struct output *out, struct conn *conn);

/* When sending began to wait for the peer and what it took since; for the deadline. */
uint64_t output_blocked_since(const struct output *out);
uint64_t output_sent_since(const struct output *out);
void output_mark_blocked(struct output *out, uint64_t now_ms);

void output_pool_free(struct loop *loop);

#endif
