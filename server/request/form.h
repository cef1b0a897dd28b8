/* DESIGN: application/x-www-form-urlencoded, for query strings and bodies, fed in pieces of
 * any size. Decoding follows the WHATWG URL standard: '+' is a space, a broken escape stays as it
 * is, so nothing is malformed. Names and values are bytes and may hold NUL. Bounded by the number of
 * pairs and by the size of one. Owns its scratch buffer; form_free() ends it. */
#ifndef KILN_REQUEST_FORM_H
#define KILN_REQUEST_FORM_H

#include "base/buffer.h"

enum form_result {
    FORM_OK,
    FORM_TOO_MANY, /* more pairs than max_pairs */
    FORM_TOO_LARGE, /* a pair above max_pair bytes */
    FORM_NO_MEMORY,
};

struct form {
    size_t max_pairs;
    size_t max_pair;
    /* One decoded pair; the bytes are valid during the call. False: out of memory. */
    bool (*on_pair)(void *arg, struct str name, struct str value);
    void *arg;
    /* Private. */
    struct buffer scratch; /* decoded name and value */
    size_t name_len; /* of scratch, once '=' was seen */
    size_t pairs;
    bool has_value;
    bool seen; /* the running pair has bytes, or an '=' */
    uint8_t escape_len; /* bytes of "%XX" held in escape */
    char escape[2];
    enum form_result result;
};

void form_init(struct form *form, size_t max_pairs, size_t max_pair, bool (*on_pair)(void *, struct str, struct str),
               void *arg);
enum form_result form_feed(struct form *form, const char *data, size_t len);
/* The last pair, when it has not ended with '&'. */
enum form_result form_finish(struct form *form);
void form_free(struct form *form);

#endif
