/* The heads of requests and answers as frames (frame.h). */
#ifndef KILN_ISOLATE_HEADS_H
#define KILN_ISOLATE_HEADS_H

#include "isolate/frame.h"
#include "request/request.h"

/* REQUEST: everything that the SDK can ask for. `number` counts the requests of a channel from 1. */
void request_head_put(struct buffer *out, const struct request *req, uint64_t number, bool secure);

struct request_head {
    uint64_t number;
    bool secure;
    struct address client;
};

/* The address and whether it is encrypted are needed before the request can be made. */
bool request_head_peek(const uint8_t *payload, size_t len, struct request_head *head);
/* Fills the request from a payload, which is copied to its arena. False: broken, or no memory. */
bool request_head_get(struct request *req, const uint8_t *payload, size_t len);

/* HEAD and ERROR. */
struct answer_parts {
    uint16_t status;
    uint16_t header_count;
    struct str content_type; /* ptr NULL: none */
    const struct response_header *headers;
    uint64_t length; /* HEAD's */
    struct str detail; /* ERROR's; ptr NULL: none */
};
void answer_head_put(struct buffer *out, const struct answer_parts *parts);

struct answer_head {
    uint16_t status;
    uint64_t length;
    struct str detail;
};

/* Checks every field as the SDK does, and then puts the headers into req->response, from whose arena
 * the copies come. False: nothing that a host could rightly send, or no memory (*memory). */
bool answer_head_get(struct request *req, const uint8_t *payload, size_t len, struct answer_head *head, bool *memory);

#endif
