/* May this request have what its path leads to? What the index hides is "not found", so
 * that nobody learns that it exists; a link out of the root is "forbidden", so that its
 * owner learns why it does not work. */
#include "answer/answer.h"
#include "config/config.h"
#include "request/steps.h"
#include "route/site_index.h"

enum step_result step_access(struct request *req)
{
    const struct site_node *node = req->node;
    if (node == NULL || (!node->symlink_out && site_node_is_hidden(node))) {
        response_error(req, 404);
        return STEP_TAKEN;
    }
    if (UNLIKELY(node->symlink_out)) {
        response_error(req, 403);
        return STEP_TAKEN;
    }
    req->answer = node->answer;
    const char *allow = req->answer->allow;
    if (allow != NULL && req->method != METHOD_GET && req->method != METHOD_HEAD && answer_refuse_method(req, allow)) {
        return STEP_TAKEN;
    }
    return STEP_NEXT;
}
