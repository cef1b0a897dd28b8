/* Shared by socket_inbox.c and sdk_ws.c. */
#ifndef KILN_ENDPOINT_SOCKET_PRIVATE_H
#define KILN_ENDPOINT_SOCKET_PRIVATE_H

#include "endpoint/socket.h"

enum { INBOX_SLOTS = 32, INBOX_BYTES = 65536 };

enum inbox_wait { INBOX_RUNS, INBOX_RECEIVES, INBOX_SENDS };

struct inbox_message {
    uint8_t *data; /* malloc'ed, NUL behind it; NULL: none */
    size_t len;
    uint8_t opcode;
};

struct inbox {
    struct kiln_context *ctx;
    struct kiln_ws *ws;
    struct inbox_message current; /* what the endpoint has in hand */
    size_t read_at; /* of it, as a stream of bytes */
    struct inbox_message ring[INBOX_SLOTS];
    unsigned first;
    unsigned count;
    size_t bytes;
    enum inbox_wait waiting;
    bool timed_out;
    bool ending; /* the client has closed, and waits for our answer */
    struct timer timer;
    int64_t wait_ms; /* of the wait that begins; negative: for ever */
    uint64_t deadline_ms; /* kiln_ws_deadline; 0: none */
};

void inbox_wake(struct inbox *inbox);
/* Frees the message in hand and takes the next one, if there is one. On the loop's thread. */
void inbox_take(struct kiln_context *ctx, void *inbox);
/* Waits for a message, which is then inbox->current: 1; 0: closed; or a kiln_result. */
int inbox_receive(struct inbox *inbox, int64_t timeout_ms);
/* Waits while much is unsent. A kiln_result. */
int inbox_drain(struct inbox *inbox);

#endif
