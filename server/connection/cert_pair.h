/* DESIGN: one certificate chain with its private key, as it lies in two PEM files, checked as a
 * whole before anybody uses it: that the key is the certificate's, that OpenSSL would take both
 * for a handshake, and which host names they are good for. A pair is immutable and counted. */
#ifndef KILN_CONNECTION_CERT_PAIR_H
#define KILN_CONNECTION_CERT_PAIR_H

#include "base/buffer.h"

#include <openssl/x509.h>
#include <stdatomic.h>
#include <time.h>

/* A handshake chooses among one of each, by what the client can verify. */
enum cert_kind { CERT_RSA, CERT_ECDSA, CERT_EDDSA, CERT_KINDS };

struct staple;

struct cert_pair {
    _Atomic unsigned references;
    enum cert_kind kind;
    unsigned bits; /* of the key */
    X509 *leaf;
    STACK_OF(X509) * chain; /* what follows the leaf, NULL when nothing does */
    EVP_PKEY *key;
    struct str *names; /* lower case, "*.example.com" among them; IP addresses as text */
    size_t name_count;
    time_t not_before;
    time_t not_after;
    bool must_staple; /* asks for a stapled OCSP answer (RFC 7633) */
    bool self_signed;
    unsigned char fingerprint[32]; /* SHA-256 of the leaf */
    _Atomic(struct staple *) staple; /* staple.h; the one thing that changes */
};

/* A reference of the caller's; NULL with one line in `why`, for whoever put the files there. */
struct cert_pair *cert_pair_parse(struct str chain_pem, struct str key_pem, struct buffer *why);
struct cert_pair *cert_pair_ref(struct cert_pair *pair);
void cert_pair_unref(struct cert_pair *pair);

/* By its dates. */
bool cert_pair_is_valid(const struct cert_pair *pair, time_t now);
/* By its names, of which "*.example.com" stands for one label more; `name` in lower case. */
bool cert_pair_is_for(const struct cert_pair *pair, struct str name);

/* The pair that an X509 is the leaf of; only while somebody holds it. */
struct cert_pair *cert_pair_of(const X509 *leaf);

const char *cert_kind_name(enum cert_kind kind); /* "RSA" */
/* In hexadecimal. */
void cert_pair_print_fingerprint(const struct cert_pair *pair, char out[65]);
/* What a CN, or the organisation behind it, says of the issuer; never empty. */
void cert_pair_print_issuer(const struct cert_pair *pair, struct buffer *out);

/* A host name that may stand in a certificate: letters, digits, '-', '_', '.', "*." in front. */
bool cert_name_is_valid(struct str name);

/* Empties OpenSSL's queue of errors; the first one's text, or "unknown error". Static. */
const char *openssl_error(void);

#endif
