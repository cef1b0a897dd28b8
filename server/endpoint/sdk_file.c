/* kiln.h: kiln_send_file. The file is opened here, on whatever thread asks, and goes out by sendfile;
 * conditional requests and single ranges are answered by the rules of the static files. */
#include "endpoint/sdk.h"

#include "answer/cached_file.h"
#include "answer/conditional.h"
#include "answer/mime.h"
#include "answer/range.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct sending {
    int fd;
    uint64_t offset;
    uint64_t length;
};

static void close_file(void *arg)
{
    int *fd = arg;
    close(*fd);
    free(fd);
}

/* On the loop's thread. */
static void send_body(struct kiln_context *ctx, void *arg)
{
    struct sending *sending = arg;
    struct request *req = ctx->req;
    int *held = malloc(sizeof *held);
    if (req->gone || held == NULL) {
        free(held);
        close(sending->fd);
        if (!req->gone) {
            response_error(req, 503);
        }
        return;
    }
    *held = sending->fd;
    req->response.status = (uint16_t)ctx->status;
    response_begin(req, sending->length);
    if (sending->length > 0 && !req->response.no_body) {
        response_write_file(req, sending->fd, (off_t)sending->offset, sending->length, close_file, held);
    } else {
        close_file(held);
    }
    response_end(req);
}

static int open_file(struct kiln_context *ctx, const char *path, struct stat *st, int *fd)
{
    const char *full = path[0] == '/' ? path : kiln_sprintf(ctx, "%s/%s", kiln_directory(ctx), path);
    if (full == NULL) {
        return KILN_NO_MEMORY;
    }
    *fd = open(full, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (*fd < 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP;
        return absent                                                  ? KILN_NOT_FOUND
               : errno == EMFILE || errno == ENFILE || errno == ENOMEM ? KILN_NO_MEMORY
                                                                       : KILN_FAILED;
    }
    if (fstat(*fd, st) != 0 || !S_ISREG(st->st_mode)) {
        close(*fd);
        return KILN_NOT_FOUND;
    }
    return KILN_OK;
}

/* Type, disposition, validators; false when out of memory. */
static bool set_headers(struct kiln_context *ctx, const char *path, const kiln_file_options *options,
                        const struct stat *st, struct str *etag)
{
    struct request *req = ctx->req;
    const char *type = options->content_type;
    if (type == NULL && req->response.content_type.ptr == NULL) {
        struct buffer disposition = BUFFER_EMPTY;
        struct response_header headers[HEAD_MAX_HEADERS];
        struct str found = STR_NONE;
        file_headers(req->config, str_of(path), &disposition, headers, &found);
        response_header_set(req, STR("Content-Type"), found.ptr != NULL ? found : MIME_DEFAULT);
        buffer_free(&disposition); /* a download only when the endpoint says so */
    } else if (type != NULL && kiln_content_type(ctx, type) != KILN_OK) {
        return false;
    }
    if (options->download_as != NULL) {
        struct buffer value = BUFFER_EMPTY;
        content_disposition_append(&value, str_of(options->download_as));
        buffer_append_char(&value, '\0');
        bool ok = !value.failed && kiln_header_set(ctx, "Content-Disposition", value.data) == KILN_OK;
        buffer_free(&value);
        if (!ok) {
            return false;
        }
    }
    char date[HTTP_DATE_LENGTH + 1];
    http_date_format(st->st_mtim.tv_sec, date);
    char *tag = kiln_sprintf(ctx, "\"%llx-%llx%lx\"", (unsigned long long)st->st_size,
                             (unsigned long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
    if (tag == NULL) {
        return false;
    }
    *etag = str_of(tag);
    return kiln_header_set(ctx, "Last-Modified", date) == KILN_OK && kiln_header_set(ctx, "ETag", tag) == KILN_OK &&
           kiln_header_set(ctx, "Accept-Ranges", "bytes") == KILN_OK;
}

/* The part that was asked for: sets status, Content-Range, offset and length. */
static void choose_range(struct kiln_context *ctx, const struct stat *st, struct str etag, struct sending *sending)
{
    struct request *req = ctx->req;
    struct str range = request_known_value(req, HEADER_RANGE);
    struct str if_range = request_known_value(req, HEADER_IF_RANGE);
    struct range_set set;
    if (req->method != METHOD_GET || ctx->status != 200 || range.ptr == NULL ||
        (if_range.ptr != NULL && !if_range_holds(if_range, etag, st->st_mtim.tv_sec, time(NULL)))) {
        return;
    }
    enum range_result result = range_parse(range, sending->length, &set);
    unsigned long long size = sending->length;
    if (result == RANGE_BEYOND) {
        ctx->status = 416;
        sending->length = 0;
        kiln_header_set(ctx, "Content-Range", kiln_sprintf(ctx, "bytes */%llu", size));
    } else if (result == RANGE_PARTS && set.count == 1) {
        ctx->status = 206;
        sending->offset = set.parts[0].first;
        sending->length = set.parts[0].length;
        kiln_header_set(ctx, "Content-Range",
                        kiln_sprintf(ctx, "bytes %llu-%llu/%llu", (unsigned long long)sending->offset,
                                     (unsigned long long)(sending->offset + sending->length - 1), size));
    }
}

static enum precondition check_preconditions(struct kiln_context *ctx, const struct stat *st, struct str etag)
{
    struct request *req = ctx->req;
    struct conditional_fields fields = {
        .if_match = request_known_value(req, HEADER_IF_MATCH),
        .if_none_match = request_known_value(req, HEADER_IF_NONE_MATCH),
        .if_modified_since = request_known_value(req, HEADER_IF_MODIFIED_SINCE),
        .if_unmodified_since = request_known_value(req, HEADER_IF_UNMODIFIED_SINCE),
    };
    struct validators validators = {.etags = &etag, .count = 1, .modified = st->st_mtim.tv_sec};
    bool is_read = req->method == METHOD_GET || req->method == METHOD_HEAD;
    size_t which = 0;
    return preconditions_check(&fields, &validators, is_read, time(NULL), &which);
}

int kiln_send_file(kiln_context *ctx, const char *path, const kiln_file_options *options)
{
    static const kiln_file_options defaults = {0};
    if (!sdk_head_is_open(context_check(ctx)) || ctx->written > 0) {
        return KILN_LATE;
    }
    struct stat st;
    struct sending sending = {.fd = -1};
    int result = open_file(ctx, path, &st, &sending.fd);
    if (result != KILN_OK) {
        return result;
    }
    struct str etag;
    if (!set_headers(ctx, path, options != NULL ? options : &defaults, &st, &etag)) {
        close(sending.fd);
        return KILN_INVALID;
    }
    sending.length = (uint64_t)st.st_size;
    enum precondition condition = ctx->status == 200 ? check_preconditions(ctx, &st, etag) : PRECONDITION_PASSED;
    if (condition == PRECONDITION_PASSED) {
        choose_range(ctx, &st, etag, &sending);
    } else {
        ctx->status = condition == PRECONDITION_NOT_MODIFIED ? 304 : 412;
        sending.length = 0;
    }
    sdk_session_head(ctx);
    ctx->finished = true;
    context_on_loop(ctx, send_body, &sending);
    return sdk_is_gone(ctx) ? KILN_GONE : KILN_OK;
}
