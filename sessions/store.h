/* DESIGN: where session values live. A store maps an id and a key to a JSON text, with one
 * expiry per session. Every operation is one struct store_op, atomic in itself: per-key
 * merge and numeric increment happen inside the store, so parallel requests of one session
 * lose nothing. Operations are submitted and answered by a callback, because a store may
 * have to wait for a writer thread, a disk or a network peer; whoever prefers to wait calls
 * store_run(), which suspends the running coroutine, or blocks the thread outside of one.
 * Ids are opaque bytes (session.c hands in a digest, never what the cookie says). All
 * functions are thread-safe. Times are seconds of the wall clock, always given by the
 * caller, never negative. */
#ifndef KILN_SESSIONS_STORE_H
#define KILN_SESSIONS_STORE_H

#include "base/buffer.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

enum store_result {
    STORE_OK,
    STORE_NOT_FOUND, /* no such session or key, or expired */
    STORE_CONFLICT, /* increment of what is not an integer, or beyond 64 bits; an id that exists */
    STORE_INVALID, /* not JSON, or an id or key of impossible length */
    STORE_TOO_LARGE, /* value or session above the limits */
    STORE_FULL, /* no space; nothing was changed */
    STORE_FAILED, /* I/O or corruption; logged by the store */
};

enum { STORE_ID_MAX = 64, STORE_KEY_MAX = 255 };

/* Bytes that a session and a value count beside their own text against the limits. */
enum { STORE_SESSION_COST = 64, STORE_VALUE_COST = 32 };

enum store_op_kind {
    STORE_EXISTS, /* -> expires */
    STORE_GET, /* key -> out: the JSON text is appended */
    STORE_GET_ALL, /* -> out: one JSON object is appended */
    STORE_CREATE, /* expires; key and json of a first value, or no key */
    STORE_TOUCH, /* expires: moves the end of the session */
    STORE_SET, /* key, json: leaves the other keys alone; an expired session stays ended */
    STORE_REMOVE, /* key; STORE_NOT_FOUND when it was not there */
    STORE_INCREMENT, /* key, number: adds; absent counts as 0 -> number: the sum */
    STORE_RENAME, /* new_id, expires: all values under the new id, the old one is forgotten */
    STORE_DESTROY, /* STORE_OK also when it was not there */
    STORE_SWEEP, /* number: remove at most so many sessions that ended -> number: removed */
};

/* The op, the bytes it points to and `out` belong to the caller and stay untouched until
 * `done` is called, once, on any thread, maybe before submit returns. */
struct store_op {
    enum store_op_kind kind;
    enum store_result result;
    struct str id;
    struct str key;
    struct str json;
    struct str new_id;
    struct buffer *out;
    int64_t now;
    int64_t expires;
    int64_t number;
    void (*done)(struct store_op *op);
    void *context; /* of `done` */
    struct store_op *next; /* the store's */
};

struct store;

struct store_options {
    const char *directory; /* SessionsDir; created 0700 */
    bool strict; /* SessionSync "strict": durable before an operation is answered */
    unsigned sync_ms; /* otherwise: what a loss of power may cost */
    size_t max_value; /* bytes of one JSON text */
    size_t max_session; /* bytes of all keys and values of one session */
    uint64_t max_bytes; /* of the whole store */
    const char *boot_id; /* NULL: the kernel's; tests play a restart of the machine */
};

struct store_ops {
    const char *name; /* "lmdb", "memory"; later "redis" */
    /* NULL with a message for the operator in `error`. */
    struct store *(*open)(const struct store_options *options, struct buffer *error);
    /* No operation is under way or comes any more. */
    void (*close)(struct store *store);
    void (*submit)(struct store *store, struct store_op *op);
    /* Number of sessions, ended ones that are not swept yet included. */
    uint64_t (*count)(struct store *store);
};

extern const struct store_ops store_lmdb; /* lmdb.c */
extern const struct store_ops store_memory; /* memory.c */

/* Submits and waits. */
enum store_result store_run(const struct store_ops *ops, struct store *store, struct store_op *op);

/* For the stores. */
/* Lengths of id and key, and the JSON of STORE_SET. */
enum store_result store_check(const struct store_op *op, size_t max_value);
#endif
