/* Headers of one multipart part, and the parameters of header values (RFC 2183, 5987, 7578). */
#include "request/multipart.h"

#include "request/percent.h"
#include "request/token.h"

static bool has_control(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if ((c < ' ' && c != '\t') || c == 0x7f) {
            return true;
        }
    }
    return false;
}

/* Takes a quoted string or a token from *rest; appends it when `out` is not NULL. Only \" and \\ are
 * escapes: old browsers send whole Windows paths. */
static bool take_value(struct str *rest, struct buffer *out)
{
    size_t i = 0;
    if (rest->len == 0 || rest->ptr[0] != '"') {
        while (i < rest->len && rest->ptr[i] != ';' && rest->ptr[i] != ' ' && rest->ptr[i] != '\t') {
            i++;
        }
        bool ok = out == NULL || buffer_append(out, rest->ptr, i);
        *rest = str_from(*rest, i);
        return ok;
    }
    for (i = 1; i < rest->len; i++) {
        char c = rest->ptr[i];
        if (c == '"') {
            *rest = str_from(*rest, i + 1);
            return true;
        }
        if (c == '\\' && i + 1 < rest->len && (rest->ptr[i + 1] == '"' || rest->ptr[i + 1] == '\\')) {
            c = rest->ptr[++i];
        }
        if (out != NULL && !buffer_append_char(out, c)) {
            return false;
        }
    }
    return false;
}

int header_parameter(struct str value, struct str name, struct buffer *out)
{
    size_t semicolon = str_find(value, ';');
    struct str rest = semicolon == SIZE_MAX ? STR_NONE : str_from(value, semicolon);
    while (rest.len > 0) {
        if (rest.ptr[0] != ';') {
            return -1;
        }
        rest = str_trim(str_from(rest, 1));
        if (rest.len == 0) {
            break;
        }
        size_t end = 0;
        while (end < rest.len && token_has_char(rest.ptr[end])) {
            end++;
        }
        struct str found = str_first(rest, end);
        rest = str_from(rest, end);
        if (rest.len == 0 || rest.ptr[0] != '=') {
            return -1;
        }
        rest = str_from(rest, 1);
        bool wanted = str_eq_nocase(found, name);
        if (!take_value(&rest, wanted ? out : NULL)) {
            return -1;
        }
        if (wanted) {
            return 1;
        }
        rest = str_trim(rest);
    }
    return 0;
}

/* UTF-8 of ISO-8859-1 bytes. */
static bool append_latin1(struct buffer *out, struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        bool ok = c < 0x80 ? buffer_append_char(out, (char)c)
                           : buffer_append_char(out, (char)(0xc0 | c >> 6)) &&
                                 buffer_append_char(out, (char)(0x80 | (c & 0x3f)));
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* charset'language'percent-coded (RFC 5987) -> UTF-8, appended. */
static bool decode_extended(struct buffer *raw, struct buffer *out)
{
    struct str text = buffer_str(raw);
    size_t first = str_find(text, '\'');
    size_t second = first == SIZE_MAX ? SIZE_MAX : str_find(str_from(text, first + 1), '\'');
    if (second == SIZE_MAX) {
        return false;
    }
    struct str charset = str_first(text, first);
    struct str coded = str_from(text, first + 1 + second + 1);
    size_t len = 0;
    char *bytes = raw->data + (coded.ptr - raw->data);
    if (!percent_decode(bytes, coded, &len)) {
        return false;
    }
    if (str_eq_nocase(charset, STR("UTF-8"))) {
        return buffer_append(out, bytes, len);
    }
    return str_eq_nocase(charset, STR("ISO-8859-1")) && append_latin1(out, (struct str){bytes, len});
}

/* What follows the last slash or backslash, without control characters; "." and ".." become "". */
static struct str reduce_filename(char *bytes, size_t len)
{
    size_t start = 0;
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] == '/' || bytes[i] == '\\') {
            start = i + 1;
        }
    }
    size_t n = 0;
    for (size_t i = start; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c >= ' ' && c != 0x7f) {
            bytes[n++] = (char)c;
        }
    }
    if (n <= 2 && memcmp(bytes, "..", n) == 0) {
        n = 0;
    }
    return (struct str){bytes, n};
}

/* Appends the parameter `name` (or its extended form `extended`) to mp->decoded. */
static int decode_parameter(struct multipart *mp, struct str disposition, struct str name, struct str extended)
{
    struct buffer raw = BUFFER_EMPTY;
    int found = extended.ptr != NULL ? header_parameter(disposition, extended, &raw) : 0;
    if (found == 1 && decode_extended(&raw, &mp->decoded)) {
        buffer_free(&raw);
        return 1;
    }
    buffer_free(&raw);
    return found < 0 ? -1 : header_parameter(disposition, name, &mp->decoded);
}

/* Name and filename. They share one buffer that may move while it grows: offsets until the end. */
static enum multipart_event take_disposition(struct multipart *mp, struct str disposition)
{
    size_t end = str_find(disposition, ';');
    struct str type = str_trim(str_first(disposition, end));
    if (!str_eq_nocase(type, STR("form-data"))) {
        return MULTIPART_MALFORMED;
    }
    int has_name = decode_parameter(mp, disposition, STR("name"), STR_NONE);
    size_t name_len = mp->decoded.len;
    int has_file = has_name < 0 ? -1 : decode_parameter(mp, disposition, STR("filename"), STR("filename*"));
    if (mp->decoded.failed) {
        return MULTIPART_NO_MEMORY;
    }
    if (has_name < 0 || has_file < 0) {
        return MULTIPART_MALFORMED;
    }
    char *bytes = mp->decoded.data;
    mp->name = (struct str){bytes != NULL ? bytes : "", name_len};
    if (has_file == 1) {
        mp->filename = bytes != NULL ? reduce_filename(bytes + name_len, mp->decoded.len - name_len) : STR("");
    }
    return MULTIPART_PART;
}

static bool take_line(struct multipart *mp, struct str line)
{
    size_t colon = str_find(line, ':');
    if (colon == SIZE_MAX || mp->header_count == MULTIPART_HEADERS_MAX || has_control(line)) {
        return false;
    }
    struct multipart_header header = {str_first(line, colon), str_trim(str_from(line, colon + 1))};
    if (!token_is_valid(header.name)) {
        return false;
    }
    mp->headers[mp->header_count++] = header;
    return true;
}

enum multipart_event multipart_parse_head(struct multipart *mp)
{
    mp->header_count = 0;
    mp->name = STR("");
    mp->filename = STR_NONE;
    mp->content_type = STR_NONE;
    mp->decoded.len = 0;
    struct str rest = buffer_str(&mp->head);
    struct str disposition = STR_NONE;
    while (!str_eq(rest, STR("\r\n"))) {
        size_t newline = str_find(rest, '\n');
        if (newline == SIZE_MAX || newline == 0 || rest.ptr[newline - 1] != '\r') {
            return MULTIPART_MALFORMED;
        }
        if (!take_line(mp, str_first(rest, newline - 1))) {
            return MULTIPART_MALFORMED;
        }
        const struct multipart_header *header = &mp->headers[mp->header_count - 1];
        if (str_eq_nocase(header->name, STR("Content-Disposition"))) {
            disposition = header->value;
        } else if (str_eq_nocase(header->name, STR("Content-Type"))) {
            mp->content_type = header->value;
        }
        rest = str_from(rest, newline + 1);
    }
    return disposition.ptr != NULL ? take_disposition(mp, disposition) : MULTIPART_MALFORMED;
}
