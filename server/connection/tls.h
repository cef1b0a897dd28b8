/* DESIGN: TLS as one more transport below the protocols. Handshakes are OpenSSL's, between two of the loop's own
 * buffers instead of the socket: what one recv brought is read from where it lies, and it never waits. When one is
 * done, the connection keeps the keys (tls_keys.c) and OpenSSL's object is given back; records are opened
 * (tls_input.c) and made (tls_output.c) with OpenSSL's ciphers, see tls_record.h, and those that an event makes
 * leave together with one send. An idle connection keeps two cipher contexts and no buffer.
 *
 * Output: bytes count as sent when the kernel has taken the records that hold them. What it does
 * not take is kept with the connection (at most one batch), and the bytes in it stay at the
 * front of the output queue until then, so that the queue's deadlines and back-pressure are
 * those of a plain connection. Nothing else is ever encrypted ahead.
 *
 * Until the handshake is done the protocol is protocol_tls, which only keeps time; then the one
 * that was negotiated (alpn.h) takes its place. Bytes that are no TLS get an answer in plain
 * HTTP that says so. */
#ifndef KILN_CONNECTION_TLS_H
#define KILN_CONNECTION_TLS_H

#include "connection/conn.h"

/* The protocol of a connection of transport_tls until its handshake is done. */
extern const struct protocol protocol_tls;

/* The loop ends. */
void tls_loop_free(struct loop *loop);

/* ---- of a connection whose handshake is done ---- */
/* The name that the client asked for; empty when it named none. Lives as long as the connection. */
struct str tls_server_name(const struct conn *conn);
/* May a request for this host (without port) be answered on this connection? Not, when the client
 * asked for another name and was shown a certificate that is not good for this one: 421. */
bool tls_covers_host(const struct conn *conn, struct str host);

/* Who the client's certificate, which was verified, says that it is. */
struct tls_client {
    char fingerprint[65]; /* SHA-256 in hexadecimal */
    char subject[]; /* as RFC 2253 has it, UTF-8 */
};
/* NULL: it showed none. Lives as long as the connection. */
const struct tls_client *tls_client_of(const struct conn *conn);

#endif
