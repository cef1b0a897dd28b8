/* A TLS connection of the server behind its handshake, and the keys of its client: records are made and read by hand. */
#ifndef KILN_TESTS_SUPPORT_TLS_PEERS_H
#define KILN_TESTS_SUPPORT_TLS_PEERS_H

#include "base/check.h"
#include "connection/tls_private.h"

#include <stdlib.h>

static const struct {
    int nid;
    bool tls13;
} peers_suites[] = {
    {NID_aes_128_gcm, true},  {NID_aes_256_gcm, true},  {NID_chacha20_poly1305, true},
    {NID_aes_128_gcm, false}, {NID_aes_256_gcm, false}, {NID_chacha20_poly1305, false},
};
enum { PEERS_SUITES = sizeof peers_suites / sizeof peers_suites[0] };

struct peers {
    struct tls_loop *shared;
    struct tls tls; /* the server's */
    struct record_way out; /* the client's */
    struct record_way in;
    uint8_t to[2 * TLS_RECORD_ROOM + TLS_RECEIVE_BYTES];
    size_t used;
};

static inline void peers_set(struct record_way *way, const struct record_format *format, bool seal)
{
    uint8_t key[32];
    uint8_t iv[RECORD_IV];
    memset(key, 7, sizeof key);
    memset(iv, 9, sizeof iv);
    memset(way->secret, 5, sizeof way->secret);
    CHECK(record_way_set(way, format, key, iv, seal));
}

static inline size_t peers_seal(struct record_way *way, const struct record_format *format, uint8_t type,
                                const void *data, size_t len, uint8_t *out)
{
    struct iovec vector = {(void *)(uintptr_t)data, len};
    size_t made = record_seal(way, format, type, &vector, len, out);
    enum tls_alert alert;
    CHECK(made > len && made <= len + RECORD_AROUND);
    CHECK(record_length(format, out, &alert) == made);
    return made;
}

static inline struct peers *peers_begin(size_t suite)
{
    struct peers *p = calloc(1, sizeof *p);
    p->shared = calloc(1, sizeof *p->shared);
    p->shared->out_cap = 4096;
    p->shared->out = malloc(p->shared->out_cap);
    p->tls.shared = p->shared;
    p->tls.format = record_format_find(peers_suites[suite].nid, peers_suites[suite].tls13);
    p->tls.record_most = RECORD_MAX;
    peers_set(&p->tls.in, p->tls.format, false);
    peers_set(&p->tls.out, p->tls.format, true);
    peers_set(&p->out, p->tls.format, true);
    peers_set(&p->in, p->tls.format, false);
    return p;
}

static inline void peers_end(struct peers *p)
{
    record_way_free(&p->tls.in);
    record_way_free(&p->tls.out);
    record_way_free(&p->out);
    record_way_free(&p->in);
    free(p->tls.partial);
    free(p->shared->out);
    free(p->shared);
    free(p);
}

/* As tls.c does it when bytes have come, TLS_RECEIVE_BYTES at most. */
static inline bool peers_arrive(struct peers *p, const uint8_t *data, size_t len)
{
    memcpy(p->shared->received + p->tls.partial_len, data, len);
    if (p->tls.partial != NULL) {
        memcpy(p->shared->received, p->tls.partial, p->tls.partial_len);
    }
    p->shared->in = p->shared->received;
    p->shared->in_left = p->tls.partial_len + len;
    free(p->tls.partial);
    p->tls.partial = NULL;
    p->tls.partial_len = 0;
    return tls_input(&p->tls, p->to, sizeof p->to, &p->used);
}

#endif
