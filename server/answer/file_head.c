/* DESIGN: heads are made when a file is loaded, not when it is asked for. What config and
 * type say is gathered into one list, framing that only the protocol may set is dropped,
 * and list and HTTP/1 lines are laid into one block of memory, the list pointing into the
 * lines. A variant's heads are made from those of the identity form, since the config may
 * be gone by the time its compression has ended. */
#include "answer/cached_file.h"
#include "answer/conditional.h"
#include "answer/mime.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- lists ------------------------------------------------------------------------------ */

struct header_list {
    struct response_header *items;
    unsigned count;
};

static unsigned list_find(const struct header_list *list, struct str name)
{
    unsigned i = 0;
    while (i < list->count && !str_eq_nocase(list->items[i].name, name)) {
        i++;
    }
    return i;
}

static void list_remove_name(struct header_list *list, struct str name)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < list->count; i++) {
        if (!str_eq_nocase(list->items[i].name, name)) {
            list->items[kept++] = list->items[i];
        }
    }
    list->count = kept;
}

static void list_add(struct header_list *list, struct str name, struct str value)
{
    if (list->count < HEAD_MAX_HEADERS) {
        list->items[list->count++] = (struct response_header){name, value};
    }
}

static void list_set(struct header_list *list, struct str name, struct str value)
{
    unsigned at = list_find(list, name);
    if (at < list->count) {
        list->items[at].value = value;
    } else {
        list_add(list, name, value);
    }
}

struct str header_list_get(const struct response_header *headers, unsigned count, struct str name)
{
    for (unsigned i = 0; i < count; i++) {
        if (str_eq_nocase(headers[i].name, name)) {
            return headers[i].value;
        }
    }
    return STR_NONE;
}

/* ---- what config and type say --------------------------------------------------------------- */

/* Only the protocol or the file itself can know these. */
static bool is_ours(struct str name)
{
    static const struct str names[] = {
        STR("Content-Length"), STR("Transfer-Encoding"), STR("Connection"),   STR("Keep-Alive"),
        STR("Upgrade"),        STR("Trailer"),           STR("Date"),         STR("ETag"),
        STR("Last-Modified"),  STR("Accept-Ranges"),     STR("Content-Range")};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (str_eq_nocase(name, names[i])) {
            return true;
        }
    }
    return false;
}

/* Headers of the config replace what was there before; of several with one name that come
 * together, all stay. An empty value takes the header away. */
static void apply(struct header_list *list, const struct config_headers *headers)
{
    for (size_t i = 0; headers != NULL && i < headers->count; i++) {
        const struct config_header *header = &headers->items[i];
        bool first = true;
        for (size_t k = 0; k < i; k++) {
            first = first && !str_eq_nocase(headers->items[k].name, header->name);
        }
        if (first) {
            list_remove_name(list, header->name);
        }
        if (header->value.len > 0 && !is_ours(header->name)) {
            list_add(list, header->name, header->value);
        }
    }
}

unsigned file_headers(const struct config *config, struct str path, struct buffer *disposition,
                      struct response_header out[HEAD_MAX_HEADERS], struct str *type)
{
    struct header_list list = {out, 0};
    char room[16];
    struct str extension;
    bool known = extension_lower(path_extension(path), room, &extension);
    struct str media = known ? mime_lookup(extension) : STR_NONE;

    list_add(&list, STR("X-Content-Type-Options"), STR("nosniff"));
    apply(&list, &config->default_headers);
    list_set(&list, STR("Content-Type"), media.ptr != NULL ? media : MIME_DEFAULT);
    if (known && extension.len > 0 && map_get(&config->download_extensions, extension) != NULL) {
        size_t slash = str_find_last(path, '/');
        content_disposition_append(disposition, slash == SIZE_MAX ? path : str_from(path, slash + 1));
        if (!disposition->failed) {
            list_set(&list, STR("Content-Disposition"), buffer_str(disposition));
        }
    }
    if (known) {
        apply(&list, map_get(&config->ext_types, extension));
    }
    *type = header_list_get(out, list.count, STR("Content-Type"));
    return list.count;
}

/* ---- entity tags ----------------------------------------------------------------------------- */

/* Stable over restarts, unlike str_hash(). Hides the inode number, which is nobody's business. */
static uint64_t identity_hash(const struct file_identity *identity, uint64_t hash)
{
    const uint64_t words[] = {(uint64_t)identity->device, (uint64_t)identity->inode, identity->size,
                              (uint64_t)identity->mtime.tv_sec, (uint64_t)identity->mtime.tv_nsec};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
        hash ^= hash >> 32;
        hash *= 0xd6e8feb86659fd93ULL;
        hash ^= hash >> 29;
    }
    return hash;
}

void file_make_etags(struct cached_file *file)
{
    uint64_t hash = identity_hash(&file->identity, 0);
    for (int i = 0; i < CODING_COUNT; i++) {
        char *text = file->etag_text[i];
        const char *weak = file->weak ? "W/" : "";
        int len = 0;
        if (i == CODING_IDENTITY) {
            len = snprintf(text, ETAG_MAX, "%s\"%016llx\"", weak, (unsigned long long)hash);
        } else if (file->siblings[i].size > 0) {
            len = snprintf(text, ETAG_MAX, "%s\"%016llx%s\"", weak,
                           (unsigned long long)identity_hash(&file->siblings[i], hash), coding_infos[i].mark.ptr);
        } else if (file->compressible) {
            /* The level is part of it: other levels give other bytes. */
            len = snprintf(text, ETAG_MAX, "%s\"%016llx%s%d\"", weak, (unsigned long long)hash,
                           coding_infos[i].mark.ptr, (int)file->level);
        }
        file->etags[i] = (struct str){text, (size_t)len};
    }
}

/* ---- rendering --------------------------------------------------------------------------------- */

bool header_belongs_in_304(struct str name)
{
    static const struct str representation[] = {
        STR("Content-Type"),  STR("Content-Encoding"), STR("Content-Disposition"),   STR("Content-Language"),
        STR("Last-Modified"), STR("Accept-Ranges"),    STR("X-Content-Type-Options")};
    for (size_t i = 0; i < ARRAY_LEN(representation); i++) {
        if (str_eq_nocase(name, representation[i])) {
            return false;
        }
    }
    return true;
}

static size_t lines_size(const struct response_header *headers, unsigned count)
{
    size_t size = 0;
    for (unsigned i = 0; i < count; i++) {
        size += headers[i].name.len + headers[i].value.len + 4;
    }
    return size;
}

/* Writes the lines at `text` and the list that points into them at `list`. */
static char *lay_out(struct ready_head *head, const struct response_header *headers, unsigned count,
                     struct response_header *list, char *text)
{
    head->headers = list;
    head->header_count = (uint16_t)count;
    head->block.ptr = text;
    for (unsigned i = 0; i < count; i++) {
        list[i].name = (struct str){text, headers[i].name.len};
        memcpy(text, headers[i].name.ptr, headers[i].name.len);
        text += headers[i].name.len;
        *text++ = ':';
        *text++ = ' ';
        list[i].value = (struct str){text, headers[i].value.len};
        memcpy(text, headers[i].value.ptr, headers[i].value.len);
        text += headers[i].value.len;
        *text++ = '\r';
        *text++ = '\n';
    }
    return text;
}

static bool form_lay_out(struct file_form *form, const struct response_header *headers, unsigned count)
{
    static const char name[] = "Content-Length: ";
    struct response_header kept[HEAD_MAX_HEADERS];
    unsigned kept_count = 0;
    for (unsigned i = 0; i < count; i++) {
        if (header_belongs_in_304(headers[i].name)) {
            kept[kept_count++] = headers[i];
        }
    }
    size_t size = (count + kept_count) * sizeof *headers + lines_size(headers, count) + lines_size(kept, kept_count) +
                  sizeof name + 24;
    char *memory = malloc(size);
    if (memory == NULL) {
        return false;
    }
    form->head_memory = memory;
    form->full.status = 200;
    form->not_modified.status = 304;
    struct response_header *list = (struct response_header *)(void *)memory;
    char *text = (char *)(list + count + kept_count);
    text = lay_out(&form->full, headers, count, list, text);
    memcpy(text, name, sizeof name - 1);
    text += sizeof name - 1;
    text += str_put_u64(text, form->length);
    *text++ = '\r';
    *text++ = '\n';
    form->full.block.len = (size_t)(text - form->full.block.ptr);
    text = lay_out(&form->not_modified, kept, kept_count, list + count, text);
    form->not_modified.block.len = (size_t)(text - form->not_modified.block.ptr);
    CHECK((size_t)(text - memory) <= size);
    form->charge = size + sizeof *form + (form->body != NULL ? form->length : 0);
    return true;
}

/* "Accept-Encoding" added to whatever Vary the config has. */
static void add_vary(struct header_list *list, struct buffer *room)
{
    struct str vary = header_list_get(list->items, list->count, STR("Vary"));
    if (vary.ptr == NULL || vary.len == 0) {
        list_set(list, STR("Vary"), STR("Accept-Encoding"));
    } else if (!str_list_has(vary, STR("Accept-Encoding")) && !str_eq(vary, STR("*"))) {
        buffer_append_str(room, vary);
        if (buffer_append_z(room, ", Accept-Encoding")) {
            list_set(list, STR("Vary"), buffer_str(room));
        }
    }
}

bool form_render(struct file_form *form, const struct cached_file *file, const struct response_header *base,
                 unsigned count)
{
    struct response_header headers[HEAD_MAX_HEADERS];
    struct header_list list = {headers, count < HEAD_MAX_HEADERS - 6 ? count : HEAD_MAX_HEADERS - 6};
    memcpy(headers, base, list.count * sizeof *base);
    char date[HTTP_DATE_LENGTH + 1];
    struct buffer vary = BUFFER_EMPTY;
    http_date_format(file->modified, date);
    list_set(&list, STR("Last-Modified"), (struct str){date, HTTP_DATE_LENGTH});
    list_set(&list, STR("ETag"), file->etags[form->coding]);
    list_set(&list, STR("Accept-Ranges"), STR("bytes"));
    if (form->coding != CODING_IDENTITY) {
        list_set(&list, STR("Content-Encoding"), coding_infos[form->coding].name);
    }
    if (file->negotiable) {
        add_vary(&list, &vary);
    }
    bool made = form_lay_out(form, headers, list.count);
    buffer_free(&vary);
    return made;
}
