/* Shared by the files of TLS. */
#ifndef KILN_CONNECTION_TLS_PRIVATE_H
#define KILN_CONNECTION_TLS_PRIVATE_H

#include "connection/tls.h"
#include "connection/tls_kdf.h"
#include "connection/tls_record.h"

#include <openssl/ssl.h>

enum {
    TLS_MAGIC = 0x544c5331,
    TLS_RECORD_ROOM = RECORD_HEAD + RECORD_CIPHERTEXT_12,
    TLS_RECEIVE_BYTES = 45 * 1024, /* ciphertext of one recv */
    TLS_BATCH = 64 * 1024, /* plaintext whose records leave with one send */
    TLS_NOTHINGS = 32, /* records in a row that bring no data */
};

/* What the connections of a loop share: each uses it within one call and leaves nothing in it. */
struct tls_loop {
    struct loop *loop;
    BIO_METHOD *method;
    BIO *bio; /* of every handshake */
    const uint8_t *in; /* ciphertext that was received and not read yet */
    size_t in_left;
    bool starved; /* OpenSSL asked for more than there was */
    uint8_t *out; /* records that were made and not sent yet */
    size_t out_len;
    size_t out_cap;
    bool out_failed; /* memory ran out */
    uint8_t *file; /* a part of a file on its way into records; made when first needed */
    uint8_t received[TLS_RECORD_ROOM + TLS_RECEIVE_BYTES]; /* what was kept of a record, and one recv */
};

/* What only a handshake needs. */
struct tls_opening {
    SSL *ssl;
    struct record_way in; /* the secret, and how many records were sent */
    struct record_way out;
    struct tls_secrets watch;
    unsigned secrets;
    uint64_t finished_iv; /* TLS 1.2: what came in front of our Finished in its record */
    bool encrypts; /* TLS 1.2: our ChangeCipherSpec was sent */
    bool finished_sent;
};

struct tls {
    uint32_t magic;
    uint16_t record_most; /* bytes in a record that is sent */
    uint8_t nothings; /* records since there was data */
    uint8_t message_len; /* of the KeyUpdate that has begun to come */
    uint8_t message[5];
    bool established : 1;
    bool ended : 1; /* the peer's close_notify, or its end of file, has come */
    bool closing : 1; /* our last record is made: what still comes is dropped unread */
    bool failed : 1;
    bool counted : 1; /* among the handshakes of its address */
    bool kernel : 1; /* makes the records (tls_kernel.c) */
    bool kernel_asked : 1; /* whether it does */
    bool alert_waits : 1; /* for the kernel to take it, or for `held` to be gone */
    bool update_waits : 1; /* the KeyUpdate, likewise */
    uint8_t alert[2];
    struct tls_loop *shared;
    struct tls_opening *opening; /* NULL before the first bytes came, and when the handshake is done */
    const struct record_format *format;
    struct record_way in;
    struct record_way out;
    uint8_t *partial; /* a record that has not come to its end; NULL: none */
    uint32_t partial_len;
    uint32_t held_len;
    uint8_t *held; /* records that the kernel did not take yet; NULL: none */
    uint32_t held_at;
    uint32_t ahead; /* bytes at the front of the output queue that are in `held` */
    uint32_t run; /* bytes sent since the connection was last idle, for the size of records */
    uint64_t sent_ms;
    struct tls_client *client; /* NULL: no certificate was shown */
    struct cert_set *certs; /* that it was offered from */
    const X509 *shown; /* our certificate, one of `certs` */
    char *name; /* that the client asked for; NULL: none */
};

static inline struct tls *tls_of(const struct conn *conn)
{
    return MAGIC_CAST(struct tls, conn->transport_state, TLS_MAGIC);
}

/* tls_bio.c */
struct tls_loop *tls_loop_of(struct loop *loop);
/* Room for `len` bytes at the end of the loop's output; NULL when out of memory. */
uint8_t *tls_loop_room(struct tls_loop *shared, size_t len);

/* tls_client.c: of the peer's certificate. False when out of memory. */
bool tls_client_read(struct tls *tls, const SSL *ssl);

/* tls_trial.c */
/* Are the secrets of a server's handshake seen, when its context has these properties and this callback? */
bool tls_trial(const char *properties, void (*key_log)(const SSL *, const char *));

/* tls_keys.c */
void tls_keys_begin(void); /* before any of the others */
/* SSL_do_handshake(), whose secrets are taken. True: it is done. */
bool tls_keys_shake(struct tls_opening *opening);
/* Callback of the SSL_CTX: what is sent. */
void tls_keys_watch(int sent, int version, int type, const void *data, size_t len, SSL *ssl, void *arg);
/* What a handshake is about to send. */
void tls_keys_see_sent(struct tls_opening *opening, const uint8_t *data, size_t len);
/* The handshake is done: format, in and out are set. */
bool tls_keys_take(struct tls *tls);
/* TLS 1.3: the next keys of one direction. */
bool tls_keys_update(struct record_way *way, const struct record_format *format, bool seal);

/* The key of a direction, as long as the format has it. */
bool tls_keys_of(const struct record_way *way, const struct record_format *format, uint8_t key[32]);

/* tls.c: as transport_tls has them. */
ssize_t tls_receive(struct conn *conn, void *to, size_t cap);
bool tls_resume(struct conn *conn);
void tls_shutdown(struct conn *conn);
void tls_close(struct conn *conn);

/* tls_input.c */
/* What lies in the loop's buffer, into `to` behind *used; the rest of a record is kept. False: the connection
 * has failed; what there is to tell the peer is in the loop's output. */
bool tls_input(struct tls *tls, uint8_t *to, size_t cap, size_t *used);

/* tls_output.c */
enum tls_sent { TLS_SENT, TLS_BLOCKED, TLS_FAILED /* errno */ };
/* Sends what is held and what lies in the loop's output. */
enum tls_sent tls_flush(struct conn *conn, bool more);
/* A record with these bytes into the loop's output. */
bool tls_put(struct tls *tls, uint8_t type, const void *data, size_t len);
/* The same for an alert, fatal ones but for close_notify and no_renegotiation. */
void tls_put_alert(struct tls *tls, enum tls_alert alert);
extern const uint8_t tls_key_update[5]; /* the message; of the peer no update is asked */
/* TLS 1.3: KeyUpdate, and new keys for what we send. */
bool tls_put_key_update(struct tls *tls);
ssize_t tls_send(struct conn *conn, const struct iovec *vectors, int count, bool more);
ssize_t tls_send_file(struct conn *conn, int fd, off_t offset, size_t len);

/* tls_kernel.c */
extern const struct transport transport_tls_kernel;
/* A file of this length is to be sent, and nothing waits in front of it: true when the connection's transport is
 * transport_tls_kernel from now on. */
bool tls_kernel_begin(struct conn *conn, size_t file_len);
enum tls_sent tls_kernel_flush(struct conn *conn);

#endif
