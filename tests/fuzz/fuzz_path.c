/* Any bytes as a path: what comes out holds no way out of the root, and a second look at
 * it changes nothing. */
#include "fuzz.h"

#include "base/check.h"
#include "route/path.h"

#include <stdlib.h>

static void check_normal(struct str path)
{
    CHECK(path.len > 0 && path.ptr[0] == '/' && path.ptr[path.len] == '\0');
    CHECK(memchr(path.ptr, '\0', path.len) == NULL);
    struct str rest = str_from(path, 1);
    while (rest.len > 0) {
        size_t end = str_find(rest, '/');
        struct str part = end == SIZE_MAX ? rest : str_first(rest, end);
        CHECK(part.len > 0 && !str_eq(part, STR(".")) && !str_eq(part, STR("..")));
        rest = end == SIZE_MAX ? STR("") : str_from(rest, end + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *raw = malloc(size > 0 ? size : 1);
    char *out = malloc(size + 1);
    CHECK(raw != NULL && out != NULL);
    if (size > 0) {
        memcpy(raw, data, size);
    }
    struct str path = {raw, size};
    struct path_scan scan = path_scan(path);
    struct path_result result = path_normalise(path, out);
    if (scan.clean && memchr(raw, '\0', size) == NULL) {
        CHECK(result.ok && !result.dotted && str_eq(result.path, path) && result.slashes == scan.slashes);
    }
    if (result.ok) {
        check_normal(result.path);
        /* Encoded for a Location and read back, it is the same path. */
        char *encoded = malloc(result.path.len * 3);
        char *again = malloc(result.path.len * 3 + 1);
        CHECK(encoded != NULL && again != NULL);
        size_t len = path_encode(encoded, result.path);
        for (size_t i = 0; i < len; i++) {
            CHECK(encoded[i] > ' ' && encoded[i] < 0x7f && encoded[i] != '\\');
        }
        CHECK(len < 2 || encoded[1] != '/');
        struct path_result second = path_normalise((struct str){encoded, len}, again);
        CHECK(second.ok && str_eq(second.path, result.path) && second.dotted == result.dotted);
        free(encoded);
        free(again);
    }
    free(raw);
    free(out);
    return 0;
}
