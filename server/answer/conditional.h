/* DESIGN: conditional requests as RFC 9110 13 has them, apart from any file or request:
 * fields in, a decision out. A resource with several content codings passes the entity
 * tags of all forms that the client accepts, since a client that asks "do you still have
 * one of these?" may hold any of them. */
#ifndef KILN_ANSWER_CONDITIONAL_H
#define KILN_ANSWER_CONDITIONAL_H

#include "base/str.h"

/* ---- dates ----------------------------------------------------------------------------- */
enum { HTTP_DATE_LENGTH = 29 };
/* "Sun, 06 Nov 1994 08:49:37 GMT" and a NUL. Times outside of years 0 to 9999 are clamped. */
void http_date_format(int64_t seconds, char out[HTTP_DATE_LENGTH + 1]);
/* All three formats of RFC 9110 5.6.7. `now` decides the century of two-digit years: one
 * that would be more than 50 years ahead is in the past. */
bool http_date_parse(struct str text, int64_t now, int64_t *seconds);

/* ---- entity tags ------------------------------------------------------------------------ */
enum etag_comparison { ETAG_WEAK, ETAG_STRONG };
/* Both with their quotes and `W/`. */
bool etag_equal(struct str a, struct str b, enum etag_comparison how);
/* True when `list` ("*" or entity tags) names one of `tags`; *which is its index, 0 for "*".
 * What is no entity tag is skipped. */
bool etag_list_matches(struct str list, const struct str *tags, size_t count, enum etag_comparison how, size_t *which);

/* ---- preconditions ------------------------------------------------------------------------ */
struct conditional_fields { /* ptr NULL: absent */
    struct str if_match;
    struct str if_none_match;
    struct str if_modified_since;
    struct str if_unmodified_since;
};

struct validators {
    const struct str *etags; /* the form that would be sent first */
    size_t count;
    int64_t modified; /* Last-Modified, seconds */
};

enum precondition { PRECONDITION_PASSED, PRECONDITION_NOT_MODIFIED, PRECONDITION_FAILED };

/* In the order of 13.2.2. `is_read`: GET or HEAD. *which: the tag to name in a 304. */
enum precondition preconditions_check(const struct conditional_fields *fields, const struct validators *validators,
                                      bool is_read, int64_t now, size_t *which);

/* If-Range: true when Range may be honoured for the representation with this tag. A date
 * counts only when equal, and only when the last change is a whole second past (8.8.2.2:
 * before that a second change may hide in the same second). */
bool if_range_holds(struct str if_range, struct str etag, int64_t modified, int64_t now);

#endif
