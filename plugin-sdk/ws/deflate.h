/* DESIGN: compression contexts (RFC 7692 on zlib) come from a pool that one thread and all its
 * connections share. A connection borrows one for the time of a message and gives it back, which is
 * all that no_context_takeover needs: ten thousand idle connections then hold none. A connection
 * that agreed to keep its history keeps its context. The pool counts every byte that zlib
 * allocates against its budget:
 * - a promise to keep the peer's history (our inflater) is only given in the handshake while there
 *   is room for it, because it cannot be taken back;
 * - our own history is a favour that we may drop at any message: without room a message is compressed
 *   by a borrowed context, or is sent as it is;
 * - the first context of each kind is always there.
 *
 * Window bits: zlib refuses a raw deflate stream of 8 bits (256 bytes of window). Its encoder of
 * 9 bits never refers further back than 512 - 262 = 250 bytes (MIN_LOOKAHEAD), so that one serves
 * for 8 as well; test_deflate.c reads it back through a window of 256. Received data that refers
 * beyond the agreed window is an error only where the bytes are gone: zlib does not look at the distance
 * as long as they still lie in the output. That is the peer's fault and harms nobody. */
#ifndef KILN_WS_DEFLATE_H
#define KILN_WS_DEFLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_pool;

struct ws_pool_options {
    size_t budget; /* bytes for contexts; 0: only those that are borrowed */
    int level; /* 1 to 9, as zlib's; 0: 6 */
    int memory; /* 1 to 9, zlib's memLevel; 0: 8 */
};

/* What a handshake agreed on. */
struct ws_deflate {
    bool on;
    bool server_no_takeover;
    bool client_no_takeover;
    uint8_t server_bits; /* 8 to 15: window of what the server sends */
    uint8_t client_bits;
};

struct ws_pool *ws_pool_create(const struct ws_pool_options *options);
/* From now on; what was promised within another one is kept. */
void ws_pool_budget(struct ws_pool *pool, size_t budget);
/* After the last connection that used it. */
void ws_pool_free(struct ws_pool *pool);
/* Is there room to promise a peer that its history of `bits` is kept? */
bool ws_pool_has_room(const struct ws_pool *pool, unsigned bits);
/* Bytes that its contexts hold now, and connections hold of them. */
size_t ws_pool_used(const struct ws_pool *pool);

/* ---- for the core ----------------------------------------------------------------------------- */

struct ws_context;

enum ws_inflate {
    WS_INFLATE_MORE, /* all input used */
    WS_INFLATE_FULL, /* no room for more output */
    WS_INFLATE_BAD,
    WS_INFLATE_MEMORY,
};

struct ws_piece {
    const uint8_t *in;
    size_t in_len; /* what is left */
    uint8_t *out;
    size_t out_len; /* room that is left */
};

/* An inflater at the start of a message; may fail for want of memory. */
struct ws_context *ws_inflater_take(struct ws_pool *pool, unsigned bits);
enum ws_inflate ws_inflate(struct ws_context *context, struct ws_piece *piece);
/* True when the stream stands at the end of a block: a message is whole. */
bool ws_inflate_is_whole(const struct ws_context *context);
/* True when the last byte given was that of a final block. */
bool ws_inflate_has_ended(const struct ws_context *context);

/* NULL: no room in the budget (`own` only), or no memory. */
struct ws_context *ws_deflater_take(struct ws_pool *pool, unsigned bits, bool own);
/* Compresses and flushes; *out lies in the pool until its next call. `final`: without the tail that
 * every message ends with. False: no memory, and the context must be given back. */
bool ws_deflate_bytes(struct ws_context *context, const void *data, size_t len, bool final, const uint8_t **out,
                      size_t *out_len);
/* Back to the pool. */
void ws_context_give(struct ws_context *context);
/* A promise of takeover was made, or its connection is over. */
void ws_pool_promise(struct ws_pool *pool, unsigned bits, bool made);

#endif
