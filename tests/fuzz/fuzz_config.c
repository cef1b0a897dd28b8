/* Config files and command-line values of any bytes: refused with a message, or a snapshot that
 * prints as a file that reads back as the same snapshot. An input that begins with '-' is the value
 * of a command-line option, as "-Key=value". */
#include "fuzz.h"

#include "base/check.h"
#include "config/config.h"

#include <stdlib.h>

static void check_print(const struct config *config)
{
    struct buffer first = BUFFER_EMPTY;
    struct buffer second = BUFFER_EMPTY;
    struct config_errors errors = {0};
    config_print(config, &first);
    struct config *again = config_parse(buffer_str(&first), "fuzz.json", NULL, &errors);
    CHECK(again != NULL && errors.count == 0);
    config_print(again, &second);
    CHECK(str_eq(buffer_str(&first), buffer_str(&second)));
    CHECK(again->layout == config->layout && str_eq(again->web_root, config->web_root));
    config_unref(again);
    config_errors_free(&errors);
    buffer_free(&first);
    buffer_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config_errors errors = {0};
    struct config_overrides overrides = {0};
    struct str text = {(const char *)data, size};
    char *copy = NULL;
    if (size > 0 && data[0] == '-') {
        copy = strndup(text.ptr + 1, size - 1);
        CHECK(copy != NULL);
        char *equals = strchr(copy, '=');
        if (equals != NULL) {
            *equals = '\0';
        }
        overrides.name[0] = copy;
        overrides.value[0] = equals != NULL ? equals + 1 : NULL;
        overrides.count = 1;
        text = STR_NONE;
    }
    struct config *config = config_parse(text, "fuzz.json", &overrides, &errors);
    CHECK((config == NULL) == (errors.count > 0));
    CHECK(errors.count == 0 || errors.text.len > 0);
    if (config != NULL) {
        check_print(config);
    }
    config_unref(config);
    config_errors_free(&errors);
    free(copy);
    return 0;
}
