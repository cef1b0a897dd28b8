/* DESIGN: the answer of a file. The usual request (GET, no condition, no range, the file in
 * the cache) costs one look at the node, one at Accept-Encoding and one write of a ready
 * head and body. Everything else goes the long way in the same order for all: load, choose
 * what the client accepts, conditions (RFC 9110 13.2.2), range, send. While output refers
 * to a file's bytes or descriptor it holds a reference, so that a file may change, go or be
 * evicted at any time; what a client was promised and the disk no longer has ends with a
 * cut connection (conn_write_file). */
#include "answer/static_file.h"

#include "answer/answer.h"
#include "answer/cached_file.h"
#include "answer/conditional.h"
#include "answer/error_page.h"
#include "answer/range.h"

/* What waits for a load or a variant. */
struct static_wait {
    struct file_waiter waiter;
    unsigned status;
};

static void answer_file(struct request *req, struct cached_file *file, unsigned status);

/* ---- the fast way --------------------------------------------------------------------------- */

static inline bool has_conditions(const struct request *req)
{
    return (req->known[HEADER_IF_NONE_MATCH] | req->known[HEADER_IF_MODIFIED_SINCE] | req->known[HEADER_RANGE] |
            req->known[HEADER_IF_MATCH] | req->known[HEADER_IF_UNMODIFIED_SINCE]) != 0;
}

static void send_form(struct request *req, struct cached_file *file, const struct file_form *form)
{
    cached_file_ref(file);
    response_send_ready(req, &form->full, form->body, form->length, cached_file_unref, file);
}

/* The form to send when it is there already and in memory; NULL: the long way. */
static const struct file_form *ready_form(const struct request *req, const struct cached_file *file)
{
    const struct accepted_codings *accepted = accept_encoding_cached(request_known_value(req, HEADER_ACCEPT_ENCODING));
    if (accepted->count == 0) {
        return NULL;
    }
    unsigned coding = accepted->order[0];
    if (!file->negotiable) {
        if (!coding_is_accepted(accepted, CODING_IDENTITY)) {
            return NULL;
        }
        coding = CODING_IDENTITY;
    }
    const struct file_form *form = atomic_load_explicit(&file->forms[coding], memory_order_acquire);
    return form != NULL && form->fd < 0 ? form : NULL;
}

/* ---- heads ------------------------------------------------------------------------------------ */

enum { KEEP_ALL = 0, DROP_VALIDATORS = 1, ONLY_304 = 2 };

/* The headers of the form as the request's own; they live in the file, which the request
 * holds by now. */
static bool take_headers(struct request *req, const struct cached_file *file, enum coding coding, int which)
{
    const struct file_form *form = atomic_load_explicit(&file->forms[coding], memory_order_acquire);
    const struct file_form *identity = atomic_load_explicit(&file->forms[CODING_IDENTITY], memory_order_acquire);
    const struct ready_head *head = &(form != NULL ? form : identity)->full;
    req->response.default_headers = false; /* they are among these */
    for (unsigned i = 0; i < head->header_count; i++) {
        struct str name = head->headers[i].name;
        struct str value = head->headers[i].value;
        bool is_etag = str_eq(name, STR("ETag"));
        if ((which == ONLY_304 && !header_belongs_in_304(name)) ||
            (which == DROP_VALIDATORS &&
             (is_etag || str_eq(name, STR("Last-Modified")) || str_eq(name, STR("Accept-Ranges"))))) {
            continue;
        }
        if (!response_header_add(req, name, is_etag ? file->etags[coding] : value)) {
            return false;
        }
    }
    return true;
}

/* ---- bodies ------------------------------------------------------------------------------------ */

static void write_part(struct request *req, struct cached_file *file, const struct file_form *form, uint64_t first,
                       uint64_t length)
{
    if (length == 0) {
        return;
    }
    cached_file_ref(file);
    if (form->fd >= 0) {
        response_write_file(req, form->fd, (off_t)first, length, cached_file_unref, file);
    } else {
        response_write_ref(req, form->body + first, length, cached_file_unref, file);
    }
}

static void send_whole(struct request *req, struct cached_file *file, const struct file_form *form, unsigned status)
{
    if (!take_headers(req, file, form->coding, status == 200 ? KEEP_ALL : DROP_VALIDATORS)) {
        response_error(req, 500);
        return;
    }
    req->response.status = (uint16_t)status;
    response_begin(req, form->length);
    if (req->method != METHOD_HEAD) {
        write_part(req, file, form, 0, form->length);
    }
    response_end(req);
}

static void send_single_range(struct request *req, struct cached_file *file, const struct file_form *form,
                              const struct byte_range *part)
{
    char *range = arena_printf(&req->arena, "bytes %llu-%llu/%llu", (unsigned long long)part->first,
                               (unsigned long long)(part->first + part->length - 1), (unsigned long long)form->length);
    if (range == NULL || !take_headers(req, file, form->coding, KEEP_ALL) ||
        !response_header_add(req, STR("Content-Range"), str_of(range))) {
        response_error(req, 500);
        return;
    }
    req->response.status = 206;
    response_begin(req, part->length);
    write_part(req, file, form, part->first, part->length);
    response_end(req);
}

/* Unpredictable, so that no file can hold it: str_hash() has a secret seed. */
static const char *make_boundary(struct request *req, const struct cached_file *file)
{
    static _Atomic uint64_t counter;
    const uint64_t salt[2] = {atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed), (uint64_t)(uintptr_t)file};
    struct str bytes = {(const char *)salt, sizeof salt};
    uint64_t high = str_hash(bytes);
    return arena_printf(&req->arena, "%016llx%016llx", (unsigned long long)high,
                        (unsigned long long)str_hash(str_first(bytes, 8)) ^ (unsigned long long)(high * 3));
}

/* The heads of all parts, made first since Content-Length counts them. */
static bool make_part_heads(struct request *req, const struct file_form *form, const struct range_set *set,
                            struct str type, const char *boundary, struct str heads[RANGE_MAX], uint64_t *total)
{
    for (unsigned i = 0; i < set->count; i++) {
        const struct byte_range *part = &set->parts[i];
        char *text =
            arena_printf(&req->arena, "%s--%s\r\nContent-Type: %.*s\r\nContent-Range: bytes %llu-%llu/%llu\r\n\r\n",
                         i > 0 ? "\r\n" : "", boundary, STR_ARG(type), (unsigned long long)part->first,
                         (unsigned long long)(part->first + part->length - 1), (unsigned long long)form->length);
        if (text == NULL) {
            return false;
        }
        heads[i] = str_of(text);
        *total += heads[i].len + part->length;
    }
    return true;
}

static void send_ranges(struct request *req, struct cached_file *file, const struct file_form *form,
                        const struct range_set *set)
{
    struct str heads[RANGE_MAX];
    uint64_t total = 0;
    struct str type = header_list_get(form->full.headers, form->full.header_count, STR("Content-Type"));
    const char *boundary = make_boundary(req, file);
    char *end = boundary != NULL ? arena_printf(&req->arena, "\r\n--%s--\r\n", boundary) : NULL;
    char *multipart =
        boundary != NULL ? arena_printf(&req->arena, "multipart/byteranges; boundary=%s", boundary) : NULL;
    if (end == NULL || multipart == NULL || !make_part_heads(req, form, set, type, boundary, heads, &total) ||
        !take_headers(req, file, form->coding, KEEP_ALL) ||
        !response_header_set(req, STR("Content-Type"), str_of(multipart))) {
        response_error(req, 500);
        return;
    }
    struct str tail = str_of(end);
    req->response.status = 206;
    response_begin(req, total + tail.len);
    for (unsigned i = 0; i < set->count; i++) {
        response_write(req, heads[i].ptr, heads[i].len);
        write_part(req, file, form, set->parts[i].first, set->parts[i].length);
    }
    response_write(req, tail.ptr, tail.len);
    response_end(req);
}

/* ---- what the client asks ---------------------------------------------------------------------------- */

/* A list that came in several lines, as one (RFC 9110 5.3); ptr NULL: absent. */
static struct str joined_value(struct request *req, enum known_header which)
{
    if (req->known[which] == 0) {
        return STR_NONE;
    }
    const struct header *first = &req->headers[req->known[which] - 1];
    struct str all = first->value;
    for (unsigned i = req->known[which]; i < req->header_count; i++) {
        if (str_eq_nocase(req->headers[i].name, first->name)) {
            char *text = arena_printf(&req->arena, "%.*s, %.*s", STR_ARG(all), STR_ARG(req->headers[i].value));
            all = text != NULL ? str_of(text) : all;
        }
    }
    return all;
}

static const struct accepted_codings *accepted_codings_of(struct request *req, const struct cached_file *file,
                                                          struct accepted_codings *room)
{
    accept_encoding_parse(joined_value(req, HEADER_ACCEPT_ENCODING), room);
    if (!file->negotiable && coding_is_accepted(room, CODING_IDENTITY)) {
        *room = (struct accepted_codings){1, {CODING_IDENTITY}};
    }
    return room;
}

static enum precondition check_conditions(struct request *req, const struct cached_file *file,
                                          const struct accepted_codings *accepted, enum coding *coding)
{
    struct str tags[CODING_COUNT];
    enum coding codings[CODING_COUNT] = {CODING_IDENTITY};
    struct validators validators = {.etags = tags, .modified = file->modified};
    for (unsigned i = 0; i < accepted->count; i++) {
        if (file->etags[accepted->order[i]].len > 0) {
            codings[validators.count] = (enum coding)accepted->order[i];
            tags[validators.count++] = file->etags[accepted->order[i]];
        }
    }
    const struct conditional_fields fields = {
        joined_value(req, HEADER_IF_MATCH), joined_value(req, HEADER_IF_NONE_MATCH),
        request_known_value(req, HEADER_IF_MODIFIED_SINCE), request_known_value(req, HEADER_IF_UNMODIFIED_SINCE)};
    size_t which;
    enum precondition result = preconditions_check(&fields, &validators, true, loop_wall_seconds(req->loop), &which);
    *coding = codings[which];
    return result;
}

static void send_not_modified(struct request *req, struct cached_file *file, enum coding coding)
{
    const struct file_form *form = atomic_load_explicit(&file->forms[coding], memory_order_acquire);
    if (form != NULL && req->response.header_count == 0) {
        cached_file_ref(file);
        response_send_ready(req, &form->not_modified, NULL, 0, cached_file_unref, file);
        return;
    }
    if (!take_headers(req, file, coding, ONLY_304)) {
        response_error(req, 500);
        return;
    }
    req->response.status = 304;
    response_begin(req, 0);
    response_end(req);
}

/* Range as far as it is to be honoured; ptr NULL: not. */
static struct str wanted_range(struct request *req)
{
    return req->method == METHOD_GET ? request_known_value(req, HEADER_RANGE) : STR_NONE;
}

static bool range_condition_holds(struct request *req, const struct cached_file *file, enum coding coding)
{
    struct str if_range = request_known_value(req, HEADER_IF_RANGE);
    return if_range.ptr == NULL ||
           if_range_holds(if_range, file->etags[coding], file->modified, loop_wall_seconds(req->loop));
}

/* ---- choosing the form -------------------------------------------------------------------------------- */

static void go_on(struct file_waiter *waiter)
{
    struct static_wait *wait = CONTAINER_OF(waiter, struct static_wait, waiter);
    struct request *req = waiter->req;
    struct cached_file *file = waiter->file;
    if (waiter->result == FILE_LOADED && !arena_defer(&req->arena, cached_file_unref, file)) {
        cached_file_unref(file);
        waiter->result = FILE_BUSY;
    }
    if (waiter->result != FILE_LOADED) {
        /* Not the site's own page, which may be what could not be read. */
        error_page_builtin(req, wait->status == 200 ? 503 : (int)wait->status, NULL);
        return;
    }
    answer_file(req, file, wait->status);
}

static struct static_wait *wait_new(struct request *req, unsigned status)
{
    struct static_wait *wait = arena_zalloc(&req->arena, sizeof *wait);
    if (wait != NULL) {
        wait->waiter.req = req;
        wait->waiter.done = go_on;
        wait->status = status;
    }
    return wait;
}

enum choice { CHOSEN, CHOICE_WAITS, CHOICE_NONE };

/* The best form that the client accepts. One that could be made is made: waited for when
 * the file is small or nothing else will do, else in the background for the next request. */
static enum choice choose_form(struct request *req, struct cached_file *file, const struct accepted_codings *accepted,
                               unsigned status, const struct file_form **form)
{
    bool identity_will_do = coding_is_accepted(accepted, CODING_IDENTITY);
    for (unsigned i = 0; i < accepted->count; i++) {
        enum coding coding = (enum coding)accepted->order[i];
        *form = atomic_load_explicit(&file->forms[coding], memory_order_acquire);
        if (*form != NULL) {
            return CHOSEN;
        }
        const struct file_form *identity = atomic_load_explicit(&file->forms[CODING_IDENTITY], memory_order_acquire);
        if (identity->fd >= 0 && identity_will_do) {
            (void)variant_make(file, coding, NULL);
            continue;
        }
        struct static_wait *wait = wait_new(req, status);
        if (wait != NULL && variant_make(file, coding, &wait->waiter)) {
            return CHOICE_WAITS;
        }
        *form = atomic_load_explicit(&file->forms[coding], memory_order_acquire);
        if (*form != NULL) {
            return CHOSEN; /* it has been made in this very moment */
        }
    }
    return CHOICE_NONE;
}

/* Ranges are of the identity form where that is accepted, unless If-Range names another. */
static const struct file_form *form_for_range(struct request *req, struct cached_file *file,
                                              const struct accepted_codings *accepted)
{
    struct str if_range = request_known_value(req, HEADER_IF_RANGE);
    for (unsigned i = 0; if_range.ptr != NULL && i < accepted->count; i++) {
        const struct file_form *form = atomic_load_explicit(&file->forms[accepted->order[i]], memory_order_acquire);
        if (form != NULL && etag_equal(if_range, file->etags[form->coding], ETAG_STRONG)) {
            return form;
        }
    }
    return coding_is_accepted(accepted, CODING_IDENTITY)
               ? atomic_load_explicit(&file->forms[CODING_IDENTITY], memory_order_acquire)
               : NULL;
}

/* True: answered with a part, or with 416. */
static bool answer_range(struct request *req, struct cached_file *file, const struct accepted_codings *accepted)
{
    struct str range = wanted_range(req);
    if (range.ptr == NULL) {
        return false;
    }
    const struct file_form *form = form_for_range(req, file, accepted);
    if (form == NULL || !range_condition_holds(req, file, form->coding)) {
        return false;
    }
    struct range_set set;
    switch (range_parse(range, form->length, &set)) {
    case RANGE_IGNORED: return false;
    case RANGE_BEYOND: {
        char *size = arena_printf(&req->arena, "bytes */%llu", (unsigned long long)form->length);
        if (size != NULL) {
            response_header_add(req, STR("Content-Range"), str_of(size));
        }
        error_page_send(req, 416, NULL);
        return true;
    }
    case RANGE_PARTS: break;
    }
    if (set.count == 1) {
        send_single_range(req, file, form, &set.parts[0]);
    } else {
        send_ranges(req, file, form, &set);
    }
    return true;
}

/* The long way, with the file held by the request. Starts anew after each wait. */
static void answer_file(struct request *req, struct cached_file *file, unsigned status)
{
    struct accepted_codings room;
    const struct accepted_codings *accepted = accepted_codings_of(req, file, &room);
    const struct file_form *form;
    if (status == 200 && has_conditions(req)) {
        enum coding coding;
        enum precondition result = check_conditions(req, file, accepted, &coding);
        if (result == PRECONDITION_NOT_MODIFIED) {
            send_not_modified(req, file, coding);
            return;
        }
        if (result == PRECONDITION_FAILED) {
            error_page_send(req, 412, NULL);
            return;
        }
        if (answer_range(req, file, accepted)) {
            return;
        }
    }
    switch (choose_form(req, file, accepted, status, &form)) {
    case CHOICE_WAITS: return;
    case CHOICE_NONE:
        if (status == 200) {
            response_header_add(req, STR("Vary"), STR("Accept-Encoding"));
            error_page_send(req, 406, NULL);
            return;
        }
        form = atomic_load_explicit(&file->forms[CODING_IDENTITY], memory_order_acquire);
        break;
    case CHOSEN: break;
    }
    if (status == 200 && form->fd < 0 && req->response.header_count == 0) {
        send_form(req, file, form);
        return;
    }
    send_whole(req, file, form, status);
}

/* ---- entry -------------------------------------------------------------------------------------------------- */

/* With a reference for the request, which gives it back when its arena goes. */
static enum file_load_result find_or_load(struct request *req, const struct site_node *node, unsigned status,
                                          struct cached_file **out)
{
    struct cached_file *file = file_cache_find(req, node);
    if (file != NULL) {
        cached_file_ref(file);
    } else {
        struct static_wait *wait = wait_new(req, status);
        enum file_load_result result = wait != NULL ? file_load(node, &wait->waiter, &file) : FILE_BUSY;
        if (result != FILE_LOADED) {
            return result;
        }
    }
    if (!arena_defer(&req->arena, cached_file_unref, file)) {
        cached_file_unref(file);
        return FILE_BUSY;
    }
    *out = file;
    return FILE_LOADED;
}

bool static_file_send(struct request *req, const struct site_node *node, unsigned status)
{
    struct cached_file *file;
    switch (find_or_load(req, node, status, &file)) {
    case FILE_LOADED: answer_file(req, file, status); return true;
    case FILE_LOADING: return true;
    case FILE_MISSING:
    case FILE_FORBIDDEN:
    case FILE_BUSY: break;
    }
    return false;
}

static void start(struct request *req)
{
    if (UNLIKELY(req->method != METHOD_GET && req->method != METHOD_HEAD)) {
        answer_refuse_method(req, answer_static_file.allow);
        return;
    }
    struct cached_file *file = file_cache_find(req, req->node);
    if (LIKELY(file != NULL && !has_conditions(req) && req->response.header_count == 0)) {
        const struct file_form *form = ready_form(req, file);
        if (LIKELY(form != NULL)) {
            send_form(req, file, form);
            return;
        }
    }
    switch (find_or_load(req, req->node, 200, &file)) {
    case FILE_LOADED: answer_file(req, file, 200); return;
    case FILE_LOADING: return;
    case FILE_MISSING: error_page_send(req, 404, NULL); return;
    case FILE_FORBIDDEN: error_page_send(req, 403, NULL); return;
    case FILE_BUSY: error_page_send(req, 503, NULL); return;
    }
}

const struct answer answer_static_file = {
    .name = "static",
    .allow = "GET, HEAD, OPTIONS",
    .start = start,
};
