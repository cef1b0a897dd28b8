/* DESIGN: a client may resume its session with a ticket, which only the server can read. The keys
 * come from the supervisor, so that every loop, the next worker and the next version of the
 * program read what another one wrote, and a new one takes over every TicketRotation: what
 * is stolen from a running server opens no recording of older connections. The newest
 * key writes; the ones before only read. */
#ifndef KILN_CONNECTION_TICKETS_H
#define KILN_CONNECTION_TICKETS_H

#include "base/buffer.h"

#include <openssl/ssl.h>

enum {
    TICKET_KEYS = 3, /* the one that writes and those that still read */
    TICKET_PERIODS = TICKET_KEYS - 1, /* of TicketRotation that each ticket can be read at least */
    TICKET_KEY_BYTES = 80,
};

struct ticket_key {
    unsigned char name[16];
    unsigned char aes[32];
    unsigned char hmac[32];
};

struct ticket_keys {
    struct ticket_key keys[TICKET_KEYS]; /* newest first */
    unsigned count;
};

/* ---- the supervisor ---- */
/* A new first key; the last one goes. False when there is no randomness. */
bool ticket_keys_rotate(struct ticket_keys *keys);
/* As text for a message, and back; wipe it after use. */
void ticket_keys_print(const struct ticket_keys *keys, struct buffer *out);
bool ticket_keys_parse(struct str text, struct ticket_keys *keys);
void ticket_keys_wipe(struct ticket_keys *keys);

/* ---- the worker ---- */
/* From now on; any thread. Without keys there are no tickets. */
bool tickets_use(const struct ticket_keys *keys);
void tickets_end(void);
/* OpenSSL's question, on a loop. */
int tickets_callback(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac,
                     int encrypt);

#endif
