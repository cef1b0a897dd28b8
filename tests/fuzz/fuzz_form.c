/* Forms of any bytes, cut in any way, give the same pairs; decoding never grows. */
#include "fuzz.h"

#include "base/check.h"
#include "request/form.h"
#include "request/percent.h"

#include <stdlib.h>

static bool note_pair(void *arg, struct str name, struct str value)
{
    struct buffer *out = arg;
    char mark[2 * sizeof(size_t)];
    memcpy(mark, &name.len, sizeof(size_t));
    memcpy(mark + sizeof(size_t), &value.len, sizeof(size_t));
    return buffer_append(out, mark, sizeof mark) && buffer_append_str(out, name) && buffer_append_str(out, value);
}

static enum form_result parse(const char *data, size_t size, size_t step, struct buffer *out)
{
    struct form form;
    form_init(&form, 64, 256, note_pair, out);
    for (size_t i = 0; i < size; i += step) {
        form_feed(&form, data + i, size - i < step ? size - i : step);
    }
    enum form_result result = form_finish(&form);
    form_free(&form);
    return result;
}

static void check_percent(struct str text)
{
    struct buffer coded = BUFFER_EMPTY;
    char *out = malloc(text.len + 1);
    size_t len = 0;
    if (percent_decode(out, text, &len)) {
        CHECK(len <= text.len);
        CHECK(percent_encode(&coded, (struct str){out, len}));
        char *back = malloc(coded.len + 1);
        size_t back_len = 0;
        CHECK(percent_decode(back, buffer_str(&coded), &back_len));
        CHECK(back_len == len && memcmp(back, out, len) == 0);
        free(back);
    }
    free(out);
    buffer_free(&coded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    struct buffer whole = BUFFER_EMPTY;
    struct buffer pieces = BUFFER_EMPTY;
    enum form_result a = parse(text, size - 1, size, &whole);
    enum form_result b = parse(text, size - 1, (size_t)data[0] % 8 + 1, &pieces);
    CHECK(a == b);
    CHECK(str_eq(buffer_str(&whole), buffer_str(&pieces)));
    buffer_free(&whole);
    buffer_free(&pieces);
    check_percent((struct str){text, size - 1});
    return 0;
}
