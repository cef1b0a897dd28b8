/* What compilers and a hostile source can make us read: kiln-cc's report, messages of gcc and
 * clang, make rules, pragmas; and the page that is made of them. The first byte chooses. */
#include "fuzz.h"

#include "endpoint/build.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    struct str text = {(const char *)data + 1, size - 1};
    struct build_result result = {0};
    struct buffer out = BUFFER_EMPTY;
    switch (data[0] % 4) {
    case 0: report_parse(text, &result.diagnostics, &result.dependencies, &out); break;
    case 1: compiler_output_parse(text, &result.diagnostics); break;
    case 2: make_rule_parse(text, &result.dependencies); break;
    default: pragma_libraries(text, &out); break;
    }
    buffer_free(&out);
    for (size_t i = 0; i < result.diagnostics.count; i++) {
        build_error_hint(result.diagnostics.items[i].message);
    }
    build_error_text(&result, "/site/a._c", "/site", &out);
    build_error_page(&result, "/nowhere/a._c", "/site", &out);
    dependencies_name(&result.dependencies, STR("a.h"));
    dependencies_unwatched(&result.dependencies, "/site", "/sdk");
    buffer_free(&out);
    build_result_free(&result);
    return 0;
}
