/* DESIGN: HTTP/1.1 on a connection. A head is gathered whole (bounded by MaxHeaderSize and
 * RequestHeadersTimeout), scanned for bytes that may not be there, then parsed once. One
 * request runs at a time; pipelined input waits in the connection. A body is handed to the
 * request's sink as it lies in the receive buffer, and the socket is not read while the
 * sink pauses. Whatever cannot be parsed beyond doubt ends the connection. */
#ifndef KILN_PROTOCOL_HTTP1_H
#define KILN_PROTOCOL_HTTP1_H

#include "connection/conn.h"

extern const struct protocol protocol_http1;

#endif
