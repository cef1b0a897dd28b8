/* What every protocol makes of the parts of a request's head: methods, the headers that the server
 * itself looks at, host names. */
#ifndef KILN_REQUEST_HEAD_H
#define KILN_REQUEST_HEAD_H

#include "request/request.h"

uint8_t request_method_of(struct str text); /* enum method */

/* Name in any case to enum known_header; HEADER_KNOWN_COUNT when it is none of them. The parser has passed the
 * name: it consists of the bytes that RFC 9110 lets stand in a token. */
unsigned request_known_of(struct str name);

/* name, name:port, [v6], [v6]:port; an empty value is allowed by RFC 9110 7.2. Sets req->host in
 * lower case, copied only when it must be, and req->host_name_len. False: not a host. */
bool request_host_set(struct request *req, struct str host);

#endif
