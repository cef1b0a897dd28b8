/* One socket between a loop and a host, with the requests that are under way on it; for relay.c and its tests. */
#ifndef KILN_ISOLATE_RELAY_H
#define KILN_ISOLATE_RELAY_H

#include "base/list.h"
#include "isolate/wire.h"
#include "request/request.h"
#include "sessions/session.h"

struct berth;
struct host;
struct isolate;
struct kiln_context;
struct relay;

struct slot {
    struct relay *relay; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
};

struct channel {
    struct wire wire;
    struct list node; /* of its loop */
    struct host *host; /* a reference */
    struct berth *berth;
    unsigned index; /* of the loop */
    uint64_t number; /* of the last request */
    struct list live; /* relays */
    struct slot *slots;
    uint32_t slot_count;
    uint32_t free_slot; /* UINT32_MAX: none */
    struct buffer fields; /* room for a head */
    struct task free_task;
};

enum relay_state { RELAY_WAITING, RELAY_SENT, RELAY_ANSWERING, RELAY_ENDED };

struct relay {
    struct list node; /* in berth->waiting, or channel->live */
    struct kiln_context *ctx;
    struct request *req;
    struct isolate *isolate;
    struct channel *channel; /* NULL while it waits */
    enum relay_state state;
    uint64_t id;
    uint64_t number;
    uint64_t room; /* body bytes that the host wants */
    uint64_t untaken; /* answer bytes that were not reported as taken */
    unsigned files; /* FILE frames */
    bool draining; /* notify_drained was asked for */
    bool body_end_sent;
    unsigned handed_back;
    struct timer timer;
    struct session session;
    bool session_made;
    struct session_job *session_job; /* under way */
};

/* ---- relay.c ---------------------------------------------------------------------------------- */
/* Until another host is ready. */
void relay_wait(struct relay *relay);
/* Off its channel. */
void relay_detach(struct relay *relay);
/* Before what completes or cuts the answer, which may end the connection and tell us of it. */
void relay_quiet(struct relay *relay);
/* The connection ends, what was written before still arrives. */
void relay_cut(struct request *req);
void relay_end(struct relay *relay);
/* Answers with an error, or cuts, and ends. */
void relay_fail(struct relay *relay, int status, const char *detail);

/* ---- relay_frames.c ----------------------------------------------------------------------------- */
/* What a host says about a request. `fd` is FILE's, and taken. False: it may not say that. */
bool relay_take_frame(struct relay *relay, int fd, const struct frame *frame, const uint8_t *payload);

/* Ready for wire_open() with channel_calls(). */
void channel_init(struct channel *channel, struct host *host, struct berth *berth, unsigned index);
const struct wire_calls *channel_calls(void);

#endif
