/* What can be said about a request before its host and path are looked at. */
#include "answer/answer.h"
#include "config/config.h"
#include "request/steps.h"

/* "OPTIONS *" and methods that no answer may see. */
static const char all_methods[] = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

static enum step_result answer_with_allow(struct request *req, int status)
{
    if (!response_header_set(req, STR("Allow"), STR(all_methods))) {
        response_error(req, 500);
        return STEP_TAKEN;
    }
    if (status >= 400) {
        response_error(req, status);
        return STEP_TAKEN;
    }
    req->response.status = (uint16_t)status;
    response_send(req, "", 0);
    return STEP_TAKEN;
}

enum step_result step_limits(struct request *req)
{
    if (req->body.present && req->body.length != RESPONSE_LENGTH_UNKNOWN && req->body.limit != 0 &&
        req->body.length > req->body.limit) {
        response_error(req, 413);
        return STEP_TAKEN;
    }
    if (UNLIKELY(req->method == METHOD_TRACE || req->method == METHOD_CONNECT)) {
        /* TRACE would echo cookies to scripts; CONNECT is for proxies. */
        return answer_with_allow(req, 405);
    }
    if (UNLIKELY(req->raw_path.len == 0 || req->raw_path.ptr[0] != '/')) {
        if (req->method == METHOD_OPTIONS && str_eq(req->target, STR("*"))) {
            return answer_with_allow(req, 204);
        }
        response_error(req, 400);
        return STEP_TAKEN;
    }
    return STEP_NEXT;
}
