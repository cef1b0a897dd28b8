/* kiln.h: the fields of a form, urlencoded or multipart. */
#include "endpoint/sdk.h"

#include "request/form.h"

struct sdk_form {
    struct sdk_pairs fields;
    int result; /* of parsing; stays */
};

static int parse_urlencoded(struct sdk_form *parsed, struct str body)
{
    struct form form;
    form_init(&form, SDK_FIELDS_MAX, SDK_FIELD_SIZE, sdk_pairs_add, &parsed->fields);
    form_feed(&form, body.ptr, body.len);
    enum form_result result = form_finish(&form);
    form_free(&form);
    switch (result) {
    case FORM_OK: return KILN_OK;
    case FORM_NO_MEMORY: return KILN_NO_MEMORY;
    case FORM_TOO_MANY:
    case FORM_TOO_LARGE: break;
    }
    return KILN_TOO_LARGE;
}

static bool type_is(const struct request *req, struct str wanted)
{
    struct str type = request_known_value(req, HEADER_CONTENT_TYPE);
    size_t end = str_find(type, ';');
    return str_eq_nocase(str_trim(str_first(type, end)), wanted);
}

static int parse(struct kiln_context *ctx, struct sdk_form *form)
{
    if (type_is(ctx->req, STR("multipart/form-data"))) {
        return sdk_parts_fields(ctx, &form->fields);
    }
    if (!type_is(ctx->req, STR("application/x-www-form-urlencoded"))) {
        return KILN_OK; /* no form: no fields */
    }
    struct str body;
    int result = sdk_body_whole(ctx, &body);
    return result == KILN_OK ? parse_urlencoded(form, body) : result;
}

/* NULL with kiln_last_result. */
static const struct sdk_pairs *form_fields(struct kiln_context *ctx)
{
    struct sdk_form **at = sdk_body_form(context_check(ctx));
    struct sdk_form *form = at != NULL ? *at : NULL;
    if (at != NULL && form == NULL) {
        form = arena_zalloc(&ctx->req->arena, sizeof *form);
        if (form != NULL) {
            form->fields.req = ctx->req;
            *at = form;
            form->result = parse(ctx, form);
        }
    }
    if (form == NULL) {
        return sdk_null(ctx, KILN_NO_MEMORY);
    }
    return form->result == KILN_OK ? &form->fields : sdk_null(ctx, form->result);
}

const char *kiln_form_get(kiln_context *ctx, const char *name)
{
    const struct sdk_pairs *fields = form_fields(ctx);
    if (fields == NULL) {
        return NULL;
    }
    const struct sdk_pair *field = sdk_pairs_find(fields, name);
    return field != NULL ? field->value.ptr : sdk_null(ctx, KILN_NOT_FOUND);
}

int kiln_form_at(kiln_context *ctx, size_t index, const char **name, const char **value, size_t *length)
{
    const struct sdk_pairs *fields = form_fields(ctx);
    if (fields == NULL) {
        return 0;
    }
    ctx->last_result = KILN_NOT_FOUND;
    return sdk_pairs_at(fields, index, name, value, length);
}
