/* Heads of HTTP/1.1 as the stand-alone library reads them, and looking things up in headers. */
#include "ws/handshake.h"

struct ws_text ws_header_find(struct ws_headers headers, struct ws_text name, size_t *count)
{
    struct ws_text found = {0};
    size_t seen = 0;
    struct ws_header header;
    for (size_t i = 0; headers.at(headers.from, i, &header); i++) {
        if (ws_text_eq_nocase(header.name, name)) {
            if (seen == 0) {
                found = header.value.ptr != NULL ? header.value : WS_TEXT_OF("");
            }
            seen++;
        }
    }
    if (count != NULL) {
        *count = seen;
    }
    return found;
}

bool ws_header_has_token(struct ws_headers headers, struct ws_text name, struct ws_text token)
{
    struct ws_header header;
    for (size_t i = 0; headers.at(headers.from, i, &header); i++) {
        if (!ws_text_eq_nocase(header.name, name)) {
            continue;
        }
        struct ws_text rest = header.value;
        struct ws_text element;
        while (ws_list_next(&rest, &element)) {
            if (ws_text_eq_nocase(element, token)) {
                return true;
            }
        }
    }
    return false;
}

static bool head_at(const void *from, size_t i, struct ws_header *header)
{
    const struct ws_head *head = from;
    if (i >= head->count) {
        return false;
    }
    *header = head->headers[i];
    return true;
}

struct ws_headers ws_head_headers(const struct ws_head *head)
{
    return (struct ws_headers){.at = head_at, .from = head};
}

/* ---- parsing -------------------------------------------------------------------------------------------- */

/* The next line without its end. False: there is no whole line. A lone CR or LF shows as a character that
 * may stand nowhere. */
static bool next_line(struct ws_text *rest, struct ws_text *line)
{
    for (size_t i = 0; i + 1 < rest->len; i++) {
        if (rest->ptr[i] == '\r' && rest->ptr[i + 1] == '\n') {
            *line = (struct ws_text){rest->ptr, i};
            rest->ptr += i + 2;
            rest->len -= i + 2;
            return true;
        }
    }
    return false;
}

/* "HTTP/1.1" */
static bool read_version(struct ws_text text, unsigned *minor)
{
    if (text.len != 8 || memcmp(text.ptr, "HTTP/1.", 7) != 0 || text.ptr[7] < '0' || text.ptr[7] > '1') {
        return false;
    }
    *minor = (unsigned)(text.ptr[7] - '0');
    return true;
}

static bool read_request_line(struct ws_head *head, struct ws_text line)
{
    const char *first = memchr(line.ptr, ' ', line.len);
    if (first == NULL || line.len < 10 || line.ptr[line.len - 9] != ' ') {
        return false;
    }
    head->method = (struct ws_text){line.ptr, (size_t)(first - line.ptr)};
    const char *end = line.ptr + line.len - 9;
    if (end <= first) {
        return false;
    }
    head->target = (struct ws_text){first + 1, (size_t)(end - first - 1)};
    for (size_t i = 0; i < head->target.len; i++) {
        unsigned char c = (unsigned char)head->target.ptr[i];
        if (c <= 0x20 || c >= 0x7f) {
            return false;
        }
    }
    return ws_text_is_token(head->method) && head->target.len > 0 &&
           read_version((struct ws_text){end + 1, 8}, &head->minor);
}

static bool read_status_line(struct ws_head *head, struct ws_text line)
{
    if (line.len < 12 || line.ptr[8] != ' ' || !read_version((struct ws_text){line.ptr, 8}, &head->minor)) {
        return false;
    }
    head->status = 0;
    for (size_t i = 9; i < 12; i++) {
        if (line.ptr[i] < '0' || line.ptr[i] > '9') {
            return false;
        }
        head->status = head->status * 10 + (line.ptr[i] - '0');
    }
    if (line.len > 12 && line.ptr[12] != ' ') {
        return false;
    }
    head->reason = line.len > 13 ? (struct ws_text){line.ptr + 13, line.len - 13} : WS_TEXT_OF("");
    return head->status >= 100 && ws_text_is_value(head->reason);
}

static bool read_header(struct ws_head *head, struct ws_text line)
{
    const char *colon = memchr(line.ptr, ':', line.len);
    if (colon == NULL || head->count == WS_HEADERS_MAX) {
        return false;
    }
    struct ws_header *header = &head->headers[head->count++];
    header->name = (struct ws_text){line.ptr, (size_t)(colon - line.ptr)};
    header->value = ws_text_trim((struct ws_text){colon + 1, (size_t)(line.ptr + line.len - colon - 1)});
    return ws_text_is_token(header->name) && ws_text_is_value(header->value);
}

enum ws_head_result ws_head_parse(struct ws_head *head, const char *data, size_t len, bool request)
{
    struct ws_text rest = {data, len};
    struct ws_text line;
    *head = (struct ws_head){0};
    if (!next_line(&rest, &line)) {
        return WS_HEAD_MORE;
    }
    if (!(request ? read_request_line(head, line) : read_status_line(head, line))) {
        return WS_HEAD_BAD;
    }
    while (next_line(&rest, &line)) {
        if (line.len == 0) {
            head->size = len - rest.len;
            return WS_HEAD_WHOLE;
        }
        if (!read_header(head, line)) {
            return WS_HEAD_BAD;
        }
    }
    return WS_HEAD_MORE;
}
