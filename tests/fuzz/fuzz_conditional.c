/* The values of conditional and negotiating headers, of any bytes: dates, entity tags,
 * Accept-Encoding, Accept, and file names on their way into Content-Disposition. */
#include "fuzz.h"

#include "answer/accept.h"
#include "answer/compress.h"
#include "answer/conditional.h"
#include "answer/mime.h"
#include "base/check.h"

static void check_date(struct str text)
{
    int64_t seconds;
    if (!http_date_parse(text, 1800000000, &seconds)) {
        return;
    }
    char written[HTTP_DATE_LENGTH + 1];
    http_date_format(seconds, written);
    int64_t again;
    CHECK(http_date_parse((struct str){written, HTTP_DATE_LENGTH}, 1800000000, &again) && again == seconds);
}

static void check_conditions(struct str text)
{
    const struct str tags[] = {STR("\"a\""), STR("W/\"b\"")};
    const struct validators validators = {tags, 2, 784111777};
    size_t which;
    const struct conditional_fields match = {.if_match = text, .if_unmodified_since = text};
    const struct conditional_fields none = {.if_none_match = text};
    const struct conditional_fields since = {.if_modified_since = text, .if_unmodified_since = text};
    preconditions_check(&match, &validators, true, 1800000000, &which);
    CHECK(which < 2);
    preconditions_check(&none, &validators, true, 1800000000, &which);
    CHECK(which < 2);
    preconditions_check(&since, &validators, false, 1800000000, &which);
    (void)if_range_holds(text, tags[0], 784111777, 1800000000);
}

static void check_codings(struct str text)
{
    struct accepted_codings accepted;
    accept_encoding_parse(text, &accepted);
    CHECK(accepted.count <= CODING_COUNT);
    unsigned seen = 0;
    for (unsigned i = 0; i < accepted.count; i++) {
        CHECK(accepted.order[i] < CODING_COUNT && (seen & (1u << accepted.order[i])) == 0);
        seen |= 1u << accepted.order[i];
    }
    const struct accepted_codings *cached = accept_encoding_cached(text);
    CHECK(text.len == 0 || cached->count == accepted.count);
}

static void check_disposition(struct str name)
{
    struct buffer out = BUFFER_EMPTY;
    content_disposition_append(&out, name);
    unsigned quotes = 0;
    for (size_t i = 0; i < out.len; i++) {
        CHECK(out.data[i] >= 0x20 && out.data[i] < 0x7f);
        quotes += out.data[i] == '"';
    }
    CHECK(quotes == 2);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};
    check_date(text);
    check_conditions(text);
    check_codings(text);
    (void)page_type_preferred(text);
    check_disposition(text);
    return 0;
}
