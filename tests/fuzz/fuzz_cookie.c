/* Cookie headers of any bytes, and Set-Cookie made of them: what is accepted has one line, and reads
 * back as it was written. */
#include "fuzz.h"

#include "base/check.h"
#include "request/cookie.h"

static void check_set_cookie(struct str name, struct str value)
{
    struct buffer out = BUFFER_EMPTY;
    struct set_cookie cookie = {.name = name, .value = value, .secure = true, .http_only = true};
    if (set_cookie_format(&out, &cookie) == COOKIE_OK) {
        struct str rest = buffer_str(&out);
        CHECK(str_find(rest, '\r') == SIZE_MAX && str_find(rest, '\n') == SIZE_MAX && str_find(rest, '\0') == SIZE_MAX);
        struct str back_name;
        struct str back_value;
        CHECK(cookie_next(&rest, &back_name, &back_value));
        CHECK(str_eq(back_name, name) && str_eq(back_value, value));
    } else {
        CHECK(out.len == 0);
    }
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str rest = {(const char *)data, size};
    struct str name;
    struct str value;
    size_t bytes = 0;
    while (cookie_next(&rest, &name, &value)) {
        CHECK(name.len > 0);
        bytes += name.len + value.len;
        check_set_cookie(name, value);
    }
    CHECK(bytes <= size);
    check_set_cookie(STR("n"), (struct str){(const char *)data, size});
    return 0;
}
