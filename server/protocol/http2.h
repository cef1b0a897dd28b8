/* DESIGN: HTTP/2 on a connection. nghttp2 keeps the state of RFC 9113 (frames, HPACK, flow control,
 * priorities of RFC 9218); what stands around it makes requests of its streams and keeps them within
 * limits. It is fed straight from the loop's receive buffer and writes straight into the connection's
 * output queue; bodies go there by reference (NGHTTP2_DATA_FLAG_NO_COPY), so all frames of one event
 * leave with one system call. Output is taken from the streams only while less than
 * HTTP2_OUTPUT_HIGH waits to be sent: what is urgent overtakes what is not.
 *
 * A stream lives in its request's arena and its request lives until nghttp2 closes the stream, or the
 * connection ends. A stream whose body nobody reads keeps its window's bytes and no more; the
 * connection's window is given back at once, so it never stops the others. */
#ifndef KILN_PROTOCOL_HTTP2_H
#define KILN_PROTOCOL_HTTP2_H

#include "connection/conn.h"

struct request;

extern const struct protocol protocol_http2;

/* The first bytes of every HTTP/2 connection, up to where an HTTP/1 head would end. */
#define HTTP2_PREFACE_HEAD "PRI * HTTP/2.0\r\n\r\n"

/* The connection, on which nothing was answered yet, goes on as HTTP/2 with these bytes (prior
 * knowledge). The caller has let go of conn->proto. */
void http2_take_over(struct conn *conn, const uint8_t *data, size_t len);

/* Does this HTTP/1.1 request ask to go on as HTTP/2 (Upgrade: h2c), in a way that can be granted? */
bool http2_is_upgrade(const struct request *req);
/* Grants it: 101, and the request goes on as stream 1. False: it stays HTTP/1.1. On success the
 * caller has to let go of the request and the connection, then to call request_start. */
bool http2_upgrade(struct request *req);

#endif
