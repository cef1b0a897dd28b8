/* kiln.h: multipart/form-data, whole (parts are slices of the whole body, in memory or mapped) and
 * streamed (nothing is kept but the headers of the running part). */
#include "endpoint/sdk.h"

#include "base/file.h"
#include "request/multipart.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>

enum { PART_MAGIC = 0x50415254, UPLOAD_CHUNK = 16384 };

struct kiln_part {
    uint32_t magic;
    bool streamed;
    struct sdk_pairs headers;
    struct str name;
    struct str filename; /* ptr NULL: not a file */
    struct str content_type;
    char *data; /* into the body */
    uint64_t size;
    struct kiln_part *next;
};

struct sdk_parts {
    kiln_part *first;
    kiln_part **last;
    int result; /* of parsing; stays */
};

struct sdk_upload {
    struct multipart mp;
    struct str input; /* not parsed yet, in chunk */
    struct str bytes; /* content of the running part that was not read yet */
    kiln_part *part; /* NULL: between two */
    bool ended;
    int error;
    char chunk[UPLOAD_CHUNK];
};

static kiln_part *part_check(const kiln_part *part)
{
    return MAGIC_CAST(kiln_part, (void *)(uintptr_t)part, PART_MAGIC);
}

/* ---- making parts ------------------------------------------------------------------------ */

static bool init_parser(struct kiln_context *ctx, struct multipart *mp)
{
    char storage[MULTIPART_BOUNDARY_MAX];
    struct str boundary;
    if (!multipart_boundary(request_known_value(ctx->req, HEADER_CONTENT_TYPE), &boundary, storage)) {
        return false;
    }
    multipart_init(mp, boundary);
    return true;
}

/* A copy of what the parser says about the part that begins; NULL when out of memory. */
static kiln_part *make_part(struct kiln_context *ctx, const struct multipart *mp)
{
    struct arena *arena = &ctx->req->arena;
    kiln_part *part = arena_zalloc(arena, sizeof *part);
    if (part == NULL) {
        return NULL;
    }
    part->magic = PART_MAGIC;
    part->headers.req = ctx->req;
    for (unsigned i = 0; i < mp->header_count; i++) {
        if (!sdk_pairs_add(&part->headers, mp->headers[i].name, mp->headers[i].value)) {
            return NULL;
        }
    }
    part->name = arena_str(arena, mp->name);
    part->content_type = mp->content_type.ptr != NULL ? arena_str(arena, mp->content_type) : STR("text/plain");
    bool ok = part->name.ptr != NULL && part->content_type.ptr != NULL;
    if (mp->filename.ptr != NULL) {
        part->filename = arena_str(arena, mp->filename);
        ok = ok && part->filename.ptr != NULL;
    }
    return ok ? part : NULL;
}

static int error_of(enum multipart_event event)
{
    return event == MULTIPART_NO_MEMORY ? KILN_NO_MEMORY : event == MULTIPART_TOO_LARGE ? KILN_TOO_LARGE : KILN_INVALID;
}

/* ---- whole ---------------------------------------------------------------------------------- */

static int add_part(struct kiln_context *ctx, struct sdk_parts *parts, const struct multipart *mp)
{
    kiln_part *part = make_part(ctx, mp);
    if (part == NULL) {
        return KILN_NO_MEMORY;
    }
    *parts->last = part;
    parts->last = &part->next;
    return KILN_OK;
}

/* The input is one piece, so the content of a part is one slice, however many events tell of it. */
static int split_body(struct kiln_context *ctx, struct sdk_parts *parts, struct multipart *mp, struct str body)
{
    kiln_part *part = NULL;
    struct str bytes;
    for (;;) {
        enum multipart_event event = multipart_next(mp, &body, &bytes);
        switch (event) {
        case MULTIPART_PART: {
            kiln_part **at = parts->last;
            int result = add_part(ctx, parts, mp);
            if (result != KILN_OK) {
                return result;
            }
            part = *at;
            break;
        }
        case MULTIPART_BYTES:
            CHECK(part != NULL); /* the parser begins with a part */
            if (part->data == NULL) {
                part->data = (char *)(uintptr_t)bytes.ptr;
            }
            CHECK(part->data + part->size == bytes.ptr);
            part->size += bytes.len;
            break;
        case MULTIPART_PART_END: break;
        case MULTIPART_END: return KILN_OK;
        case MULTIPART_MORE: /* ended before its closing delimiter */ return KILN_INVALID;
        case MULTIPART_MALFORMED:
        case MULTIPART_TOO_LARGE:
        case MULTIPART_NO_MEMORY: return error_of(event);
        }
    }
}

static int parse_parts(struct kiln_context *ctx, struct sdk_parts *parts)
{
    struct str body;
    int result = sdk_body_whole(ctx, &body);
    if (result != KILN_OK) {
        return result;
    }
    struct multipart *mp = arena_alloc(&ctx->req->arena, sizeof *mp);
    if (mp == NULL) {
        return KILN_NO_MEMORY;
    }
    if (!init_parser(ctx, mp)) {
        return KILN_INVALID;
    }
    result = split_body(ctx, parts, mp, body);
    multipart_free(mp);
    return result;
}

/* NULL with kiln_last_result. */
static struct sdk_parts *parts_of(struct kiln_context *ctx)
{
    struct sdk_parts **at = sdk_body_parts(context_check(ctx));
    struct sdk_parts *parts = at != NULL ? *at : NULL;
    if (at != NULL && parts == NULL) {
        parts = arena_zalloc(&ctx->req->arena, sizeof *parts);
        if (parts != NULL) {
            parts->last = &parts->first;
            *at = parts;
            parts->result = parse_parts(ctx, parts);
        }
    }
    if (parts == NULL) {
        return sdk_null(ctx, KILN_NO_MEMORY);
    }
    return parts->result == KILN_OK ? parts : sdk_null(ctx, parts->result);
}

int sdk_parts_fields(struct kiln_context *ctx, struct sdk_pairs *fields)
{
    struct sdk_parts *parts = parts_of(ctx);
    if (parts == NULL) {
        return ctx->last_result;
    }
    for (const kiln_part *part = parts->first; part != NULL; part = part->next) {
        if (part->filename.ptr != NULL) {
            continue;
        }
        if (part->size > SDK_FIELD_SIZE || fields->count == SDK_FIELDS_MAX) {
            return KILN_TOO_LARGE;
        }
        if (!sdk_pairs_add(fields, part->name, (struct str){part->data, (size_t)part->size})) {
            return KILN_NO_MEMORY;
        }
    }
    return KILN_OK;
}

kiln_part *kiln_part_get(kiln_context *ctx, const char *name)
{
    struct sdk_parts *parts = parts_of(ctx);
    if (parts == NULL) {
        return NULL;
    }
    kiln_part *part = parts->first;
    while (part != NULL && !str_eq(part->name, str_of(name))) {
        part = part->next;
    }
    return part != NULL ? part : sdk_null(ctx, KILN_NOT_FOUND);
}

kiln_part *kiln_part_at(kiln_context *ctx, size_t index)
{
    struct sdk_parts *parts = parts_of(ctx);
    if (parts == NULL) {
        return NULL;
    }
    kiln_part *part = parts->first;
    while (part != NULL && index > 0) {
        part = part->next;
        index--;
    }
    return part != NULL ? part : sdk_null(ctx, KILN_NOT_FOUND);
}

const char *kiln_part_name(const kiln_part *part)
{
    return part_check(part)->name.ptr;
}

const char *kiln_part_filename(const kiln_part *part)
{
    return part_check(part)->filename.ptr;
}

const char *kiln_part_content_type(const kiln_part *part)
{
    return part_check(part)->content_type.ptr;
}

const char *kiln_part_header(const kiln_part *part, const char *name)
{
    const struct sdk_pairs *headers = &part_check(part)->headers;
    for (size_t i = 0; i < headers->count; i++) {
        if (str_eq_nocase(headers->items[i].name, str_of(name))) {
            return headers->items[i].value.ptr;
        }
    }
    return NULL;
}

uint64_t kiln_part_size(const kiln_part *part)
{
    return part_check(part)->size;
}

const char *kiln_part_data(kiln_context *ctx, kiln_part *part, size_t *length)
{
    if (part_check(part)->streamed) {
        return sdk_null(context_check(ctx), KILN_LATE);
    }
    if (length != NULL) {
        *length = (size_t)part->size;
    }
    if (part->data == NULL) {
        return "";
    }
    part->data[part->size] = '\0'; /* on the delimiter's CR; the whole body was parsed already */
    return part->data;
}

struct save {
    const kiln_part *part;
    const char *path;
    bool ok;
    int error;
};

static void save(void *arg)
{
    struct save *job = arg;
    job->ok = file_replace(job->path, job->part->data, (size_t)job->part->size, 0640);
    job->error = errno;
}

int kiln_part_save(kiln_context *ctx, kiln_part *part, const char *path)
{
    if (part_check(part)->streamed) {
        return KILN_LATE;
    }
    const char *full = path[0] == '/' ? path : kiln_sprintf(ctx, "%s/%s", kiln_directory(ctx), path);
    if (full == NULL) {
        return KILN_NO_MEMORY;
    }
    struct save job = {.part = part, .path = full};
    int result = kiln_offload(ctx, save, &job);
    if (result == KILN_OK && !job.ok) {
        result = job.error == ENOSPC || job.error == ENOMEM ? KILN_NO_MEMORY : KILN_FAILED;
        errno = job.error;
    }
    return result;
}

/* ---- streamed ---------------------------------------------------------------------------------- */

static void free_upload(void *arg)
{
    struct sdk_upload *upload = arg;
    multipart_free(&upload->mp);
}

static struct sdk_upload *upload_of(struct kiln_context *ctx)
{
    struct sdk_upload **at = sdk_body_upload(ctx);
    if (at == NULL || *at != NULL) {
        return at != NULL ? *at : NULL;
    }
    struct arena *arena = &ctx->req->arena;
    struct sdk_upload *upload = arena_zalloc(arena, sizeof *upload);
    if (upload == NULL) {
        return NULL;
    }
    if (!init_parser(ctx, &upload->mp)) {
        upload->error = KILN_INVALID;
    } else if (!arena_defer(arena, free_upload, upload)) {
        return NULL;
    }
    *at = upload;
    return upload;
}

/* Receives more; KILN_OK, or the error that stays. */
static int refill(struct kiln_context *ctx, struct sdk_upload *upload)
{
    ssize_t n = sdk_body_stream(ctx, true, upload->chunk, sizeof upload->chunk);
    if (n > 0) {
        upload->input = (struct str){upload->chunk, (size_t)n};
        return KILN_OK;
    }
    upload->error = n < 0 ? (int)n : KILN_INVALID; /* ended before its closing delimiter */
    return upload->error;
}

/* The next event other than MORE into *event; a kiln_result. */
static int next_event(struct kiln_context *ctx, struct sdk_upload *upload, enum multipart_event *event)
{
    while (upload->error == 0) {
        *event = multipart_next(&upload->mp, &upload->input, &upload->bytes);
        if (*event >= MULTIPART_MALFORMED) {
            upload->error = error_of(*event);
        } else if (*event != MULTIPART_MORE) {
            return KILN_OK;
        } else {
            refill(ctx, upload);
        }
    }
    return upload->error;
}

/* What follows the last part is read too, so that the connection can go on. */
static int drain(struct kiln_context *ctx, struct sdk_upload *upload)
{
    upload->ended = true;
    ssize_t n;
    do {
        n = sdk_body_stream(ctx, true, upload->chunk, sizeof upload->chunk);
    } while (n > 0);
    return n < 0 ? (int)n : 0;
}

int kiln_upload_next(kiln_context *ctx, kiln_part **part)
{
    struct sdk_upload *upload = upload_of(context_check(ctx));
    if (upload == NULL) {
        return KILN_NO_MEMORY;
    }
    if (upload->ended) {
        return 0;
    }
    upload->part = NULL;
    for (;;) {
        enum multipart_event event;
        int result = next_event(ctx, upload, &event);
        if (result != KILN_OK) {
            return result;
        }
        if (event == MULTIPART_END) {
            return drain(ctx, upload);
        }
        if (event != MULTIPART_PART) {
            continue; /* the rest of the part before */
        }
        upload->bytes = STR_NONE;
        upload->part = make_part(ctx, &upload->mp);
        if (upload->part == NULL) {
            upload->error = KILN_NO_MEMORY;
            return KILN_NO_MEMORY;
        }
        upload->part->streamed = true;
        *part = upload->part;
        return 1;
    }
}

ssize_t kiln_upload_read(kiln_context *ctx, void *buffer, size_t size)
{
    struct sdk_upload *upload = upload_of(context_check(ctx));
    if (upload == NULL || upload->part == NULL) {
        return upload == NULL ? KILN_NO_MEMORY : upload->error;
    }
    while (upload->bytes.len == 0) {
        enum multipart_event event;
        int result = next_event(ctx, upload, &event);
        if (result != KILN_OK) {
            return result;
        }
        if (event == MULTIPART_PART_END) {
            upload->part = NULL;
            return 0;
        }
    }
    size_t n = size < upload->bytes.len ? size : upload->bytes.len;
    memcpy(buffer, upload->bytes.ptr, n);
    upload->bytes = str_from(upload->bytes, n);
    upload->part->size += n;
    return (ssize_t)n;
}
