#include "request/sse.h"

static bool is_one_line(struct str s)
{
    return str_find(s, '\n') == SIZE_MAX && str_find(s, '\r') == SIZE_MAX && str_find(s, '\0') == SIZE_MAX;
}

static void append_field(struct buffer *out, const char *name, struct str value)
{
    buffer_append_z(out, name);
    buffer_append_str(out, value);
    buffer_append_char(out, '\n');
}

/* Cuts the first line off *rest; false when that was the last one. */
static bool next_line(struct str *rest, struct str *line)
{
    size_t end = 0;
    while (end < rest->len && rest->ptr[end] != '\n' && rest->ptr[end] != '\r') {
        end++;
    }
    *line = str_first(*rest, end);
    if (end == rest->len) {
        return false;
    }
    bool crlf = rest->ptr[end] == '\r' && end + 1 < rest->len && rest->ptr[end + 1] == '\n';
    *rest = str_from(*rest, end + (crlf ? 2 : 1));
    return true;
}

bool sse_append_event(struct buffer *out, struct str event, struct str id, struct str data)
{
    if (!is_one_line(event) || !is_one_line(id)) {
        return false;
    }
    if (id.ptr != NULL) {
        append_field(out, "id: ", id);
    }
    if (event.ptr != NULL) {
        append_field(out, "event: ", event);
    }
    struct str line;
    bool more;
    do {
        more = next_line(&data, &line);
        append_field(out, "data: ", line);
    } while (more);
    return buffer_append_char(out, '\n') && !out->failed;
}

bool sse_append_ping(struct buffer *out)
{
    return buffer_append_z(out, ":\n\n");
}

bool sse_append_retry(struct buffer *out, unsigned milliseconds)
{
    return buffer_printf(out, "retry: %u\n\n", milliseconds);
}
