#include "config/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what was wrong -------------------------------------------------------------------------- */

/* "kiln.json:3: "Key"" or "--Key", then what was expected and what stands there. */
static bool wrong(struct reader *r, const struct option *option, const cJSON *item, const char *expected)
{
    if (r->errors->count >= CONFIG_ERRORS_TOLD) {
        return false;
    }
    struct buffer found = BUFFER_EMPTY;
    char *json = item != NULL ? cJSON_PrintUnformatted(item) : NULL;
    if (json != NULL) {
        struct str text = str_of(json);
        buffer_append_str(&found, str_first(text, 60));
        if (text.len > 60) {
            buffer_append_z(&found, "...");
        }
    }
    buffer_append_char(&found, '\0');
    const char *file = r->source != NULL ? r->source->file : NULL;
    unsigned line = r->source != NULL ? source_line(r->source, item) : 0;
    bool member = item != NULL && item->string != NULL && strcmp(item->string, option->key) != 0;
    errors_add(r->errors, file, line,
               r->source != NULL ? "\"%s\": expected %s; found %s%s%s%s" : "--%s: expected %s; found %s%s%s%s",
               option->key, expected, member ? "\"" : "", member ? item->string : "", member ? "\": " : "",
               found.data != NULL ? found.data : "?");
    free(json);
    buffer_free(&found);
    return false;
}

static bool wrong_type(struct reader *r, const struct option *option, const cJSON *item)
{
    struct buffer expected = BUFFER_EMPTY;
    option_describe(option, &expected);
    buffer_append_char(&expected, '\0');
    wrong(r, option, item, expected.data != NULL ? expected.data : option->key);
    buffer_free(&expected);
    return false;
}

static bool no_memory(struct reader *r)
{
    errors_add(r->errors, NULL, 0, "out of memory while reading the configuration");
    return false;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* "64M": digits and one letter. */
static bool size_from_text(struct str text, double *out)
{
    static const char letters[] = "KMGT";
    const char *unit = text.len > 1 ? strchr(letters, text.ptr[text.len - 1] & ~0x20) : NULL;
    uint64_t value;
    if (unit != NULL && *unit != '\0') {
        text.len--;
    } else {
        unit = NULL;
    }
    if (!str_to_u64(text, (uint64_t)1 << 53, &value)) {
        return false;
    }
    *out = (double)value;
    if (unit != NULL) {
        *out = ldexp(*out, 10 * (int)(unit - letters + 1));
    }
    return true;
}

static bool number_of(const struct option *option, const cJSON *item, double *out)
{
    bool whole = option->type != OPTION_number;
    if (cJSON_IsNull(item) && whole && option->least <= 0) {
        *out = 0;
        return true;
    }
    if (cJSON_IsString(item) && option->type == OPTION_size) {
        if (!size_from_text(str_of(item->valuestring), out)) {
            return false;
        }
    } else if (cJSON_IsNumber(item)) {
        *out = item->valuedouble;
    } else {
        return false;
    }
    return *out >= option->least && *out <= option->most && (!whole || *out == floor(*out));
}

static bool read_number(struct reader *r, const struct option *option, const cJSON *item)
{
    double value;
    if (!number_of(option, item, &value)) {
        return wrong_type(r, option, item);
    }
    void *member = option_member(option, r->config);
    if (option->type == OPTION_number) {
        *(config_number *)member = value;
    } else {
        *(config_int *)member = (config_int)value;
    }
    return true;
}

static bool read_bool(struct reader *r, const struct option *option, const cJSON *item)
{
    if (!cJSON_IsBool(item)) {
        return wrong_type(r, option, item);
    }
    *(config_bool *)option_member(option, r->config) = cJSON_IsTrue(item);
    return true;
}

static bool read_enum(struct reader *r, const struct option *option, const cJSON *item)
{
    int *member = option_member(option, r->config);
    for (int i = 0; option->words[i] != NULL; i++) {
        if ((cJSON_IsNumber(item) && item->valuedouble == i) ||
            (cJSON_IsString(item) && str_eq_nocase(str_of(item->valuestring), str_of(option->words[i])))) {
            *member = i;
            return true;
        }
    }
    return wrong_type(r, option, item);
}

/* ---- texts ----------------------------------------------------------------------------------- */

struct str path_absolute(struct arena *arena, const char *base, struct str path)
{
    bool absolute = str_starts(path, STR("/"));
    size_t room = path.len + (absolute ? 0 : strlen(base) + 1) + 2;
    char *out = arena_alloc(arena, room);
    if (out == NULL) {
        return STR_NONE;
    }
    size_t len = 0;
    struct str rest = path;
    if (!absolute) {
        len = strlen(base);
        memcpy(out, base, len);
        while (len > 0 && out[len - 1] == '/') {
            len--;
        }
    }
    while (rest.len > 0) {
        size_t slash = str_find(rest, '/');
        struct str part = str_first(rest, slash);
        rest = slash == SIZE_MAX ? (struct str){rest.ptr, 0} : str_from(rest, slash + 1);
        if (part.len == 0 || str_eq(part, STR("."))) {
            continue;
        }
        out[len++] = '/';
        memcpy(out + len, part.ptr, part.len);
        len += part.len;
    }
    if (len == 0) {
        out[len++] = '/';
    }
    out[len] = '\0';
    return (struct str){out, len};
}

/* The text of a string value as the option wants it, in the arena. */
static bool text_of(struct reader *r, const struct option *option, const cJSON *item, struct str *out)
{
    if (!cJSON_IsString(item)) {
        return wrong_type(r, option, item);
    }
    struct str text = str_of(item->valuestring);
    for (size_t i = 0; i < text.len; i++) {
        if ((unsigned char)text.ptr[i] < ' ' || text.ptr[i] == 0x7F) {
            return wrong(r, option, item, "a text without control characters");
        }
    }
    if (!text_is_utf8(text)) { /* from the command line; a file has been checked */
        return wrong(r, option, item, "a text in UTF-8");
    }
    const char *better = option->form != NULL ? option->form(r->arena, NULL, &text) : NULL;
    if (better != NULL) {
        return wrong(r, option, item, better);
    }
    if ((option->type == OPTION_path && text.len > 0) || option->type == OPTION_path_list) {
        *out = path_absolute(r->arena, r->base_dir, text);
    } else {
        *out = arena_str(r->arena, text);
    }
    return out->ptr != NULL || no_memory(r);
}

static bool read_text(struct reader *r, const struct option *option, const cJSON *item)
{
    struct str text;
    if (!text_of(r, option, item, &text)) {
        return false;
    }
    *(struct str *)option_member(option, r->config) = text;
    return true;
}

static bool read_list(struct reader *r, const struct option *option, const cJSON *item)
{
    if (!cJSON_IsArray(item)) {
        return wrong_type(r, option, item);
    }
    struct config_strings list = {0};
    bool ok = true;
    list.items = arena_alloc(r->arena, (size_t)cJSON_GetArraySize(item) * sizeof *list.items + 1);
    if (list.items == NULL) {
        return no_memory(r);
    }
    for (const cJSON *element = item->child; element != NULL; element = element->next) {
        ok = text_of(r, option, element, &list.items[list.count]) && ok;
        list.count += ok;
    }
    if (ok) {
        *(struct config_strings *)option_member(option, r->config) = list;
    }
    return ok;
}

enum { PORTS_MOST = 65536 };

static bool read_ports(struct reader *r, const struct option *option, const cJSON *item)
{
    /* One number stands for a list of one. */
    bool single = cJSON_IsNumber(item);
    if (!single && !cJSON_IsArray(item)) {
        return wrong_type(r, option, item);
    }
    struct config_ports ports = {0};
    bool ok = true;
    size_t most = single ? 1 : (size_t)cJSON_GetArraySize(item);
    if (most > PORTS_MOST) {
        return wrong(r, option, NULL, "not so many ports");
    }
    ports.items = arena_alloc(r->arena, most * sizeof *ports.items + 1);
    if (ports.items == NULL) {
        return no_memory(r);
    }
    for (const cJSON *port = single ? item : item->child; port != NULL; port = single ? NULL : port->next) {
        double value = cJSON_IsNumber(port) ? port->valuedouble : -1;
        if (!(value >= 0 && value <= 65535 && value == floor(value))) {
            ok = wrong_type(r, option, port);
            continue;
        }
        for (size_t i = 0; i < ports.count; i++) {
            if (value != 0 && ports.items[i] == (uint16_t)value) {
                ok = wrong(r, option, port, "each port once");
            }
        }
        if (ok) {
            ports.items[ports.count++] = (uint16_t)value;
        }
    }
    if (ok) {
        *(struct config_ports *)option_member(option, r->config) = ports;
    }
    return ok;
}

/* ---- objects --------------------------------------------------------------------------------- */

/* Puts the new map in the place of the old one when all went well. */
static bool replace_map(struct reader *r, const struct option *option, struct map *map, bool ok)
{
    if (!ok) {
        map_free(map);
        return false;
    }
    struct map *member = option_member(option, r->config);
    map_free(member);
    *member = *map;
    return true;
}

static bool put_text(struct reader *r, const struct option *option, struct map *map, const cJSON *item)
{
    char number[32];
    if (cJSON_IsNumber(item)) {
        snprintf(number, sizeof number, "%.15g", item->valuedouble); /* for the form to judge */
    } else if (!cJSON_IsString(item)) {
        return wrong_type(r, option, item);
    }
    struct str key = str_of(item->string);
    struct str value = str_of(cJSON_IsNumber(item) ? number : item->valuestring);
    const char *better = option->form != NULL ? option->form(r->arena, &key, &value) : NULL;
    if (better != NULL) {
        return wrong(r, option, item, better);
    }
    if (map_get(map, key) != NULL) {
        return wrong(r, option, item, "each name once (capital letters do not count)");
    }
    struct str *copy = arena_alloc(r->arena, sizeof *copy);
    if (copy == NULL || key.ptr == NULL || value.ptr == NULL) {
        return no_memory(r);
    }
    *copy = arena_str(r->arena, value);
    return (copy->ptr != NULL && map_put(map, key, copy, NULL)) || no_memory(r);
}

static bool read_string_map(struct reader *r, const struct option *option, const cJSON *item)
{
    if (!cJSON_IsObject(item)) {
        return wrong_type(r, option, item);
    }
    struct map map = {0};
    bool ok = true;
    for (const cJSON *member = item->child; member != NULL; member = member->next) {
        ok = put_text(r, option, &map, member) && ok;
    }
    return replace_map(r, option, &map, ok);
}

static struct str lower_copy(struct arena *arena, struct str text)
{
    char *lower = arena_strndup(arena, text.ptr, text.len);
    for (size_t i = 0; lower != NULL && i < text.len; i++) {
        lower[i] = ascii_lower(lower[i]);
    }
    return (struct str){lower, text.len};
}

static bool add_header(struct reader *r, const struct option *option, const cJSON *item, struct str name,
                       struct str value, struct config_headers *headers)
{
    name = str_trim(name);
    value = str_trim(value);
    const char *better = form_header(name, value);
    if (better != NULL) {
        return wrong(r, option, item, better);
    }
    struct config_header header = {arena_str(r->arena, name), arena_str(r->arena, value), lower_copy(r->arena, name)};
    if (header.name.ptr == NULL || header.value.ptr == NULL || header.lower.ptr == NULL) {
        return no_memory(r);
    }
    headers->items[headers->count++] = header;
    return true;
}

static bool read_header_list(struct reader *r, const struct option *option, const cJSON *item)
{
    if (!cJSON_IsObject(item)) {
        return wrong_type(r, option, item);
    }
    struct config_headers headers = {0};
    bool ok = true;
    headers.items = arena_alloc(r->arena, (size_t)cJSON_GetArraySize(item) * sizeof *headers.items + 1);
    if (headers.items == NULL) {
        return no_memory(r);
    }
    for (const cJSON *member = item->child; member != NULL; member = member->next) {
        if (!cJSON_IsString(member)) {
            ok = wrong_type(r, option, member);
            continue;
        }
        for (size_t i = 0; i < headers.count; i++) {
            if (str_eq_nocase(headers.items[i].name, str_of(member->string))) {
                ok = wrong(r, option, member, "each header once (capital letters do not count)");
            }
        }
        ok = add_header(r, option, member, str_of(member->string), str_of(member->valuestring), &headers) && ok;
    }
    if (ok) {
        *(struct config_headers *)option_member(option, r->config) = headers;
    }
    return ok;
}

/* ["Name: value", ...] or one such text. NULL after an error. */
static struct config_headers *header_lines(struct reader *r, const struct option *option, const cJSON *item)
{
    bool single = cJSON_IsString(item);
    if (!single && !cJSON_IsArray(item)) {
        wrong_type(r, option, item);
        return NULL;
    }
    size_t most = single ? 1 : (size_t)cJSON_GetArraySize(item);
    struct config_headers *headers = arena_zalloc(r->arena, sizeof *headers);
    bool ok = headers != NULL;
    if (ok) {
        headers->items = arena_alloc(r->arena, most * sizeof *headers->items + 1);
        ok = headers->items != NULL;
    }
    if (!ok) {
        no_memory(r);
        return NULL;
    }
    for (const cJSON *line = single ? item : item->child; line != NULL; line = single ? NULL : line->next) {
        size_t colon = cJSON_IsString(line) ? str_find(str_of(line->valuestring), ':') : SIZE_MAX;
        if (colon == SIZE_MAX) {
            ok = wrong(r, option, line, "a header line, as \"Content-Type: text/html\"");
            continue;
        }
        struct str text = str_of(line->valuestring);
        ok = add_header(r, option, line, str_first(text, colon), str_from(text, colon + 1), headers) && ok;
    }
    return ok ? headers : NULL;
}

static bool put_headers(struct reader *r, const struct option *option, struct map *map, const cJSON *item)
{
    struct config_headers *headers = header_lines(r, option, item);
    if (headers == NULL) {
        return false;
    }
    struct str rest = str_of(item->string);
    struct str extension;
    while (str_split_next(&rest, ',', &extension)) {
        const char *better = form_extensions(r->arena, NULL, &extension);
        if (better != NULL) {
            return wrong(r, option, item, "extensions and commas before the ':', as \"html,htm\"");
        }
        if (map_get(map, extension) != NULL) {
            return wrong(r, option, item, "each extension once");
        }
        if (extension.ptr == NULL || !map_put(map, extension, headers, NULL)) {
            return no_memory(r);
        }
    }
    return true;
}

static bool read_header_map(struct reader *r, const struct option *option, const cJSON *item)
{
    if (!cJSON_IsObject(item)) {
        return wrong_type(r, option, item);
    }
    struct map map = {0};
    bool ok = true;
    for (const cJSON *member = item->child; member != NULL; member = member->next) {
        ok = put_headers(r, option, &map, member) && ok;
    }
    return replace_map(r, option, &map, ok);
}

/* ---- any type -------------------------------------------------------------------------------- */

bool value_read(struct reader *reader, const struct option *option, const cJSON *value)
{
    static bool (*const read[])(struct reader *, const struct option *, const cJSON *) = {
        [OPTION_bool] = read_bool,
        [OPTION_int] = read_number,
        [OPTION_size] = read_number,
        [OPTION_number] = read_number,
        [OPTION_string] = read_text,
        [OPTION_path] = read_text,
        [OPTION_list] = read_list,
        [OPTION_path_list] = read_list,
        [OPTION_port_list] = read_ports,
        [OPTION_string_map] = read_string_map,
        [OPTION_header_map] = read_header_map,
        [OPTION_header_list] = read_header_list,
        [OPTION_enum] = read_enum,
    };
    return read[option->type](reader, option, value);
}

void value_free(const struct option *option, struct config *config)
{
    if (option->type == OPTION_string_map || option->type == OPTION_header_map) {
        map_free(option_member(option, config));
    }
}

static cJSON *bool_from_text(struct str text)
{
    static const char *const yes[] = {"true", "yes", "on", "1", ""};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (str_eq_nocase(text, str_of(yes[i]))) {
            return cJSON_CreateTrue();
        }
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        if (str_eq_nocase(text, str_of(no[i]))) {
            return cJSON_CreateFalse();
        }
    }
    return NULL;
}

/* The number that is the whole text, or the text itself for the reader to refuse or take. */
static cJSON *number_from_text(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    bool number = *text != '\0' && *end == '\0' && (ascii_is_digit(*text) || *text == '-' || *text == '.');
    return number && isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateString(text);
}

static cJSON *list_from_text(const char *text, bool numbers)
{
    if (text[0] == '[') {
        return cJSON_Parse(text);
    }
    cJSON *list = cJSON_CreateArray();
    struct str rest = str_of(text);
    struct str element;
    while (list != NULL && rest.len > 0 && str_split_next(&rest, ',', &element)) {
        char *copy = strndup(element.ptr, element.len);
        cJSON *item = copy == NULL ? NULL : numbers ? number_from_text(copy) : cJSON_CreateString(copy);
        free(copy);
        if (item == NULL || !cJSON_AddItemToArray(list, item)) {
            cJSON_Delete(item);
            cJSON_Delete(list);
            return NULL;
        }
    }
    return list;
}

cJSON *value_from_text(const struct option *option, const char *text)
{
    if (!text_is_utf8(str_of(text))) { /* cJSON would not mind */
        return NULL;
    }
    switch (option->type) {
    case OPTION_bool: return bool_from_text(str_of(text));
    case OPTION_int:
    case OPTION_size:
    case OPTION_number:
    case OPTION_enum: return number_from_text(text);
    case OPTION_string:
    case OPTION_path: return cJSON_CreateString(text);
    case OPTION_list:
    case OPTION_path_list: return list_from_text(text, false);
    case OPTION_port_list: return list_from_text(text, true);
    case OPTION_string_map:
    case OPTION_header_map:
    case OPTION_header_list: return cJSON_Parse(text);
    }
    return NULL;
}
