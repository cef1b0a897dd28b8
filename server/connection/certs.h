/* DESIGN: which certificate answers which name. A set is made once from the pairs that are there,
 * never changed after that and counted, so that loops look into it without a lock; a reload makes
 * another one, and handshakes and connections keep what they began with. A name is looked up as
 * it is, then with "*" in the place of its first label. For each name there may be one pair of
 * each kind of key. */
#ifndef KILN_CONNECTION_CERTS_H
#define KILN_CONNECTION_CERTS_H

#include "connection/cert_pair.h"

struct cert_source {
    struct str directory; /* below CertDir; it is a name of the pair too when it looks like one */
    struct cert_pair *pair; /* the caller's */
};

struct cert_choice {
    struct cert_pair *by_kind[CERT_KINDS]; /* NULL: none of that kind */
};

struct cert_set;

/* `preferred`: directory or name whose certificate unknown names get; empty: the directory
 * "default", else the first of the sources. NULL when out of memory. */
struct cert_set *cert_set_make(const struct cert_source *sources, size_t count, struct str preferred);
struct cert_set *cert_set_ref(struct cert_set *set);
void cert_set_unref(struct cert_set *set);

/* In any case of letters, without a port; NULL when there is none. */
const struct cert_choice *cert_set_find(const struct cert_set *set, struct str name);
/* NULL when the set is empty. */
const struct cert_choice *cert_set_default(const struct cert_set *set);
size_t cert_set_count(const struct cert_set *set);
struct cert_pair *cert_set_pair(const struct cert_set *set, size_t index);

#endif
