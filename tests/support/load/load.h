/* DESIGN: the load of tests/chaos: clients that ask without pause and check every answer whole, byte for
 * byte. Shares no code with the server, so that a mistake there is not made here, too. One thread, one
 * epoll. A `client` holds one connection after another and sends on it, by its habit, requests
 * drawn from the table of kinds (kinds.c); answer.c parses what comes back and hands bodies to the
 * expectation that was noted when the request was sent.
 *
 * What may go wrong with a request is counted apart, because the tests promise different things:
 *   wrong       an answer came whole, or could never become one: other status, other bytes, bad framing
 *   lost        the connection broke (reset, or its end) before the answer was whole
 *   unanswered  the server said "Connection: close" before a request that had already been sent
 *   refused     no connection could be made
 *   timed_out   no whole answer within the patience
 * Increments of sessions: `attempted` counts requests that were written, `answered` those whose sum came
 * back; at the end every session is asked for its sum. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CLIENTS_MAX = 256,
    SESSIONS_MAX = 64,
    OUTSTANDING_MAX = 8, /* on one connection */
    TEXT_MAX = 16384, /* of a body that is looked at as a whole */
    HEAD_MAX = 8192,
    EXAMPLES_MAX = 20,
};

struct file {
    char *data;
    size_t size;
};

struct session {
    char cookie[256];
    uint64_t attempted;
    uint64_t answered;
    int64_t highest; /* that an answer told */
    int64_t final;
};

struct totals {
    uint64_t answered, connections, lost, unanswered, refused, timed_out, wrong, idle_closed, crashes, bytes;
    uint64_t in_flight, in_flight_most;
    uint64_t slowest_ms;
    char slowest[128];
    char examples[EXAMPLES_MAX][512];
    unsigned example_count;
};

struct answer;

/* A request that was sent and what must come back. */
struct sent {
    const struct kind *kind;
    int status;
    const char *expected; /* the body; NULL: it is gathered in `text` for check() */
    size_t expected_size;
    size_t got;
    char *text; /* TEXT_MAX bytes that belong to the place in the client's ring */
    struct session *session;
    uint64_t answered_before; /* of the session, when this was sent */
    size_t range_first;
    uint64_t sent_ms;
    bool close; /* it says "Connection: close" */
    bool bodiless; /* HEAD */
};

struct request_text {
    char *data;
    size_t size, capacity;
};

struct kind {
    const char *name;
    unsigned weight; /* 0: only when asked for */
    bool pipelines; /* may be sent before the answer of the one before has come */
    void (*make)(struct sent *sent, struct request_text *out);
    /* NULL or what is wrong; after the body was whole. May be NULL. */
    const char *(*check)(struct sent *sent, const struct answer *answer);
};

enum body_state { BODY_HEAD, BODY_LENGTH, BODY_SIZE_LINE, BODY_CHUNK, BODY_CHUNK_END, BODY_TRAILER };

struct answer {
    enum body_state state;
    char head[HEAD_MAX];
    size_t head_size;
    int status;
    uint64_t left; /* of the body, or of the chunk */
    bool chunked, has_length, close;
    char content_range[96];
    char content_type[96];
    char set_cookie[256];
};

enum parse_result { PARSE_MORE, PARSE_DONE, PARSE_WRONG };

extern struct totals totals;
extern struct file small_file, large_file;
extern struct session sessions[SESSIONS_MAX];
extern unsigned session_count;
extern unsigned edit_highest;

/* answer.c: takes bytes of one answer; *used of them belonged to it. */
enum parse_result answer_parse(struct answer *answer, struct sent *sent, const char *data, size_t size, size_t *used,
                               const char **why);

/* kinds.c */
void kinds_prepare(void);
const struct kind *kind_draw(bool pipelined);
const struct kind *kind_crash(void);
void text_printf(struct request_text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_append(struct request_text *out, const void *data, size_t size);
void note_example(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t random_below(uint32_t limit);
uint64_t now_ms(void);

/* client.c */
struct client;
struct client_options {
    uint16_t port;
    unsigned clients;
    unsigned crash_ms; /* 0: nobody asks for crashes */
    unsigned patience_ms;
    int epoll;
};
void clients_open(const struct client_options *options);
void clients_tick(bool stopping); /* every few milliseconds */
void client_ready(void *client, uint32_t events);
bool clients_all_quiet(void);

#endif
