/* DESIGN: sessions as the SDK offers them: the cookie, the id, the life of a session, on
 * top of a store. It knows no request: it takes the text of the Cookie header and gives
 * back the text of a Set-Cookie header.
 * - An id is 128 random bits of the kernel in characters of Rand_Alphabet. A cookie of any
 *   other length or alphabet is dropped before it reaches the store, and an id that the
 *   store does not know is never adopted: the server makes up every id itself.
 * - The store sees only a digest of the id, so that its files or a copy of them do not
 *   open anyone's session.
 * - The end slides with use; it is written, and the cookie renewed, only once a hundredth
 *   of SessionTimeout has passed, so that a read is not a write: a session ends between
 *   0.99 and 1 SessionTimeout after its last use.
 * Functions on a struct session may wait: inside a coroutine they suspend it, elsewhere
 * they block the thread. A struct session belongs to one request. */
#ifndef KILN_SESSIONS_SESSION_H
#define KILN_SESSIONS_SESSION_H

#include "base/buffer.h"
#include "base/str.h"
#include "sessions/store.h"

enum session_result {
    SESSION_OK,
    SESSION_NONE, /* no session, or no such key in it */
    SESSION_GONE, /* it ended, or got a new id, while this request was using it */
    SESSION_CONFLICT, /* increment of what is not an integer, or past 64 bits */
    SESSION_INVALID, /* not JSON, or a key that is empty or longer than SESSION_KEY_MAX */
    SESSION_TOO_LARGE, /* SessionMaxValue, SessionMaxSize */
    SESSION_FULL, /* SessionStoreSize, or the disk */
    SESSION_FAILED, /* the log says why */
    SESSION_LATE, /* a cookie would have to be set, but the response head is gone */
};

enum { SESSION_ID_MAX = 128, SESSION_KEY_MAX = 200, SESSION_DIGEST = 16 };

/* ---- the service: one in a worker ---------------------------------------------------------- */
struct sessions;

struct session_settings {
    const struct store_ops *ops;
    struct store_options store;
    struct str cookie_name;
    struct str alphabet; /* SESSION_ALPHABET_MIN or more different characters */
    int64_t timeout; /* seconds */
    double sweep_minutes; /* 0: no background thread (tests) */
};

struct config;
/* What the config says; the strings stay the config's. */
void session_settings_of(const struct config *config, struct session_settings *settings);
/* Opens the store and starts the sweeper. NULL with a message for the operator in `error`. */
struct sessions *sessions_open(const struct session_settings *settings, struct buffer *error);
/* Requests are over. */
void sessions_close(struct sessions *sessions);
uint64_t sessions_count(struct sessions *sessions);
/* Removes what ended before `now`; the sweeper does it by itself. Returns how many. */
uint64_t sessions_sweep(struct sessions *sessions, int64_t now);

/* ---- the session of one request ------------------------------------------------------------ */
enum session_cookie_state { SESSION_COOKIE_NONE, SESSION_COOKIE_SET, SESSION_COOKIE_DELETE };

/* Members are private to session.c, except as said. No clean-up is needed. */
struct session {
    struct sessions *service;
    struct str cookies; /* of the request; must outlive the session */
    int64_t now;
    bool secure; /* TLS: the cookie gets Secure */
    bool head_sent; /* the caller sets it when the response head is sent */
    bool looked; /* the cookie was looked up */
    bool lost; /* had a session, which ended under our hands */
    enum session_cookie_state cookie;
    char id[SESSION_ID_MAX + 1]; /* "" without a session */
    uint8_t digest[SESSION_DIGEST];
};

/* Looks at nothing yet: a request that does not use its session costs nothing. */
void session_init(struct session *s, struct sessions *service, struct str cookies, bool secure, int64_t now);

/* The id, "" when the request has no session. For SESSION_FAILED the store could not tell. */
enum session_result session_id(struct session *s, const char **id);
/* Appends the JSON text of a value. */
enum session_result session_get(struct session *s, struct str key, struct buffer *json);
/* Appends all values as one JSON object; SESSION_NONE without a session. */
enum session_result session_get_all(struct session *s, struct buffer *json);
/* Begins a session when there is none. */
enum session_result session_set(struct session *s, struct str key, struct str json);
enum session_result session_increment(struct session *s, struct str key, int64_t by, int64_t *sum);
/* SESSION_OK also when it was not there. */
enum session_result session_remove(struct session *s, struct str key);
/* The same values under a new id (login); begins a session when there is none. */
enum session_result session_renew(struct session *s);
/* Forgets the values, deletes the cookie (logout). */
enum session_result session_destroy(struct session *s);

/* The value of the Set-Cookie header that the response needs now, appended; false when it
 * needs none. Ask when the head is made. An answer that sets one must not be cached. */
bool session_cookie(const struct session *s, struct buffer *out);

/* ---- parts, for tests (session_id.c) -------------------------------------------------------- */
enum { SESSION_ALPHABET_MIN = 16 };

/* How ids look: made once from Rand_Alphabet. */
struct session_alphabet {
    char symbols[96];
    unsigned count;
    unsigned length; /* of an id: 128 bits or more */
    bool known[256];
};

/* False when a character repeats, cannot stand in a cookie, or they are too few. */
bool session_alphabet_init(struct session_alphabet *alphabet, struct str symbols);
/* Writes length + 1 bytes. False when the kernel gives no random bytes. */
bool session_id_make(const struct session_alphabet *alphabet, char *id);
bool session_id_is_valid(const struct session_alphabet *alphabet, struct str id);
/* Takes the next value of the cookie `name` from *rest (a Cookie header); false at the end. */
bool session_cookie_next(struct str *rest, struct str name, struct str *value);

#endif
