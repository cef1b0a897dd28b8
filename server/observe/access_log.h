/* How one line of the access log looks; access_log_write() of log.h makes them. */
#ifndef KILN_OBSERVE_ACCESS_LOG_H
#define KILN_OBSERVE_ACCESS_LOG_H

#include "base/str.h"
#include "connection/conn.h"

struct access_line {
    char client[ADDRESS_TEXT];
    uint8_t http_major;
    uint8_t http_minor;
    uint16_t status;
    struct str method;
    struct str host;
    struct str target;
    struct str referer;
    struct str user_agent;
    uint64_t bytes; /* of the body */
    uint64_t milliseconds;
};

/* Each writes the line with its newline and returns its length; `out` has room for
 * ACCESS_LINE_MAX bytes. `time` is as the format wants it. */
enum { ACCESS_FIELD_MAX = 4096 /* escaped bytes of one field */, ACCESS_LINE_MAX = 5 * ACCESS_FIELD_MAX + 512 };
size_t access_log_combined(char *out, const struct access_line *line, const char *time);
size_t access_log_json(char *out, const struct access_line *line, const char *time);

#endif
