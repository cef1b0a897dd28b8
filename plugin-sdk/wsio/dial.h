/* DESIGN: a client's way to an open WebSocket, as a machine that never waits:
 *
 *     PREPARE -> TCP -> (PROXY) -> (TLS) -> REQUEST -> ANSWER -> done
 *
 * Each state has one function in a table; dial_step() runs them until one has to wait. The names and the
 * authorities of TLS are the exception that may block: with `threads` they are left to a thread (plan.h) whose end is
 * an event like any other; without, dial_step() returns DIAL_PREPARE and the caller runs preparation_run()
 * where it may block (an endpoint: kiln_offload).
 *
 * Addresses are tried one after the other; each gets an equal share of the time that is left, so that a dead
 * first address does not use up all of it. One limit of time holds for the whole way. */
#ifndef KILN_WSIO_DIAL_H
#define KILN_WSIO_DIAL_H

#include "kiln_ws.h"
#include "wsio/plan.h"

enum { DIAL_HEAD_MAX = 32768 };

enum dial_result {
    DIAL_WAIT, /* for dial_fd(), dial_wants(), dial_until_us() */
    DIAL_PREPARE, /* preparation_run(&dial->preparation), then step again */
    DIAL_DONE,
    DIAL_FAILED, /* dial->error tells */
};

enum dial_state { STATE_PREPARE, STATE_TCP, STATE_PROXY, STATE_TLS, STATE_REQUEST, STATE_ANSWER, STATE_COUNT };

struct dial {
    struct plan *plan; /* a reference */
    enum dial_state state;
    bool threads;
    bool prepared;
    struct preparation preparation;
    struct resolver *resolver;
    const struct addrinfo *address; /* the one that is tried */
    struct carrier transport; /* whoever finishes takes it; fd -1: none */
    struct proxy_dialogue *proxy;
    struct ws_buffer out;
    size_t out_at;
    uint64_t began_us;
    uint64_t until_us; /* UINT64_MAX: no limit */
    uint64_t attempt_until_us;
    char key[WS_KEY_LENGTH + 1];
    char *head; /* the server's answer and what came with it; malloc'ed, taken by whoever finishes */
    size_t head_len;
    size_t head_size; /* of the head itself */
    size_t interim; /* bytes of interim answers that came before it */
    struct ws_deflate agreed;
    struct ws_text protocol;
    int status;
    kiln_ws_times times;
    char peer[80];
    char error[URL_ERROR_MAX];
};

uint64_t clock_us(void);

/* Takes a reference of the plan. timeout_ms negative: no limit. */
void dial_begin(struct dial *dial, struct plan *plan, int timeout_ms, bool threads);
enum dial_result dial_step(struct dial *dial);
int dial_fd(const struct dial *dial);
int dial_wants(const struct dial *dial);
uint64_t dial_until_us(const struct dial *dial);
int *dial_watcher(struct dial *dial); /* as wslink_watcher() */
/* Whatever was not taken. */
void dial_end(struct dial *dial);

/* "192.0.2.1:80" of a socket's other end. */
void describe_peer(int fd, char *text, size_t room);

#endif
