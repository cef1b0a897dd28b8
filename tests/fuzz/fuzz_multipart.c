/* Any body, cut in any way, gives the same parts: parsed whole and in pieces, and compared. */
#include "fuzz.h"

#include "base/check.h"
#include "request/multipart.h"

#include <stdlib.h>

static void note(struct buffer *out, const struct multipart *mp, enum multipart_event event, struct str bytes)
{
    if (event == MULTIPART_BYTES) {
        buffer_append_str(out, bytes);
        return;
    }
    buffer_append_char(out, (char)event);
    if (event == MULTIPART_PART) {
        buffer_append_str(out, mp->name);
        buffer_append_str(out, mp->filename);
        CHECK(str_find(mp->filename, '/') == SIZE_MAX && str_find(mp->filename, '\0') == SIZE_MAX);
        for (unsigned i = 0; i < mp->header_count; i++) {
            buffer_append_str(out, mp->headers[i].name);
            buffer_append_str(out, mp->headers[i].value);
        }
    }
}

static void parse(struct str boundary, struct str body, size_t step, struct buffer *out)
{
    struct multipart mp;
    multipart_init(&mp, boundary);
    bool failed = false;
    for (size_t i = 0; i < body.len && !failed; i += step) {
        size_t len = body.len - i < step ? body.len - i : step;
        char *piece = malloc(len);
        memcpy(piece, body.ptr + i, len);
        struct str input = {piece, len};
        struct str bytes;
        enum multipart_event event;
        while (!failed && (event = multipart_next(&mp, &input, &bytes)) != MULTIPART_MORE) {
            note(out, &mp, event, bytes);
            failed = event >= MULTIPART_MALFORMED;
        }
        CHECK(failed || input.len == 0);
        free(piece);
    }
    multipart_free(&mp);
}

/* The first byte chooses the size of the pieces; up to the first newline it is the Content-Type. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    size_t step = (size_t)data[0] % 16 + 1;
    struct str rest = {(const char *)data + 1, size - 1};
    size_t newline = str_find(rest, '\n');
    char storage[MULTIPART_BOUNDARY_MAX];
    struct str boundary;
    struct str body = newline == SIZE_MAX ? rest : str_from(rest, newline + 1);
    if (!multipart_boundary(str_first(rest, newline), &boundary, storage)) {
        boundary = STR("b");
    }
    struct buffer whole = BUFFER_EMPTY;
    struct buffer pieces = BUFFER_EMPTY;
    parse(boundary, body, size, &whole);
    parse(boundary, body, step, &pieces);
    CHECK(str_eq(buffer_str(&whole), buffer_str(&pieces)));
    buffer_free(&whole);
    buffer_free(&pieces);
    return 0;
}
