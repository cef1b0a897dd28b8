#include "isolate/frame.h"

#include <string.h>

static const uint32_t absent = UINT32_MAX; /* the length of a text that is NULL */

void frame_put_u16(struct buffer *out, uint16_t value)
{
    buffer_append(out, &value, sizeof value);
}

void frame_put_u32(struct buffer *out, uint32_t value)
{
    buffer_append(out, &value, sizeof value);
}

void frame_put_u64(struct buffer *out, uint64_t value)
{
    buffer_append(out, &value, sizeof value);
}

void frame_put_str(struct buffer *out, struct str text)
{
    if (text.ptr == NULL) {
        frame_put_u32(out, absent);
        return;
    }
    if (text.len > FRAME_MAX) {
        out->failed = true;
        return;
    }
    frame_put_u32(out, (uint32_t)text.len);
    buffer_append(out, text.ptr, text.len);
    buffer_append_char(out, '\0');
}

static void get(struct frame_reader *in, void *to, size_t size)
{
    if (in->bad || in->left < size) {
        in->bad = true;
        memset(to, 0, size);
        return;
    }
    memcpy(to, in->at, size);
    in->at += size;
    in->left -= size;
}

uint16_t frame_get_u16(struct frame_reader *in)
{
    uint16_t value;
    get(in, &value, sizeof value);
    return value;
}

uint32_t frame_get_u32(struct frame_reader *in)
{
    uint32_t value;
    get(in, &value, sizeof value);
    return value;
}

uint64_t frame_get_u64(struct frame_reader *in)
{
    uint64_t value;
    get(in, &value, sizeof value);
    return value;
}

struct str frame_get_bytes(struct frame_reader *in)
{
    uint32_t len = frame_get_u32(in);
    if (in->bad || len == absent) {
        return STR_NONE;
    }
    if (len >= in->left || in->at[len] != '\0') {
        in->bad = true;
        return STR_NONE;
    }
    struct str text = {(const char *)in->at, len};
    in->at += len + 1;
    in->left -= len + 1;
    return text;
}

struct str frame_get_str(struct frame_reader *in)
{
    struct str text = frame_get_bytes(in);
    if (text.len > 0 && memchr(text.ptr, '\0', text.len) != NULL) {
        in->bad = true;
        return STR_NONE;
    }
    return text;
}

bool frame_done(const struct frame_reader *in)
{
    return !in->bad && in->left == 0;
}
