/* DESIGN: an error is told in the words of the one who meets it: what happened, what to do.
 * Nothing that a client sent goes into a page unescaped, nothing of ours that could help an
 * attacker goes in at all; details reach a page only from callers who mean them to be seen.
 * The page stands alone: no script, no external resource. */
#include "answer/error_page.h"

#include "answer/accept.h"
#include "answer/answer.h"
#include "answer/static_file.h"
#include "route/site_index.h"

#include <stdlib.h>

const char page_style[] =
    ":root{color-scheme:light dark;--bg:#faf8f5;--card:#fff;--ink:#26221e;--soft:#756c63;--line:#e8e2da;"
    "--accent:#b8431f;--hover:#f6f1ea}"
    "@media(prefers-color-scheme:dark){:root{--bg:#181614;--card:#211e1b;--ink:#ece6df;--soft:#a0968b;"
    "--line:#37322d;--accent:#f08a5d;--hover:#2a2622}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--ink);"
    "font:16px/1.55 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",sans-serif}";

static const struct {
    int status;
    const char *text;
} explanations[] = {
    {400, "The server could not make sense of this request."},
    {401, "You need to sign in to see this."},
    {403, "You are not allowed to see this."},
    {404, "There is nothing at this address. It may have moved, or the link may be mistyped."},
    {405, "This address does not take requests of that kind."},
    {406, "This page is not available in a form that your program accepts."},
    {408, "The request took too long to arrive."},
    {409, "The request does not fit what is there now."},
    {410, "This page was here once and is gone for good."},
    {411, "The request must say how long it is."},
    {412, "The page has changed since you last saw it."},
    {413, "What was sent is larger than this server takes."},
    {414, "The address is longer than this server takes."},
    {415, "This kind of content is not taken here."},
    {416, "The requested part lies outside of the file."},
    {417, "The server cannot do what the request expects."},
    {421, "This server does not answer for that name."},
    {426, "This address needs a newer protocol."},
    {429, "Too many requests. Please wait a little and try again."},
    {431, "The request's headers are larger than this server takes."},
    {500, "Something went wrong on the server. It has been noted in the log."},
    {501, "This server cannot do that."},
    {502, "The program behind this page gave no proper answer."},
    {503, "The server cannot answer just now. Please try again in a moment."},
    {504, "The program behind this page took too long."},
    {505, "This version of HTTP is not supported."},
};

static const char *explanation_of(int status)
{
    for (size_t i = 0; i < ARRAY_LEN(explanations); i++) {
        if (explanations[i].status == status) {
            return explanations[i].text;
        }
    }
    return status >= 500 ? "The server could not answer this request." : "The request could not be answered.";
}

/* ---- the three forms ----------------------------------------------------------------------- */

static void write_html(struct buffer *out, int status, const char *detail)
{
    const char *reason = status_reason(status);
    buffer_printf(out,
                  "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                  "<meta name=\"robots\" content=\"noindex\">\n<title>%d %s</title>\n<style>",
                  status, reason);
    buffer_append_z(out, page_style);
    buffer_append_z(out, "body{min-height:100vh;display:flex;align-items:center;justify-content:center;padding:24px}"
                         "main{width:100%;max-width:34rem;padding:40px 44px 36px;background:var(--card);"
                         "border:1px solid var(--line);border-radius:14px;border-top:4px solid var(--accent)}"
                         ".code{margin:0;font-size:4.2rem;line-height:1;font-weight:700;letter-spacing:-.03em;"
                         "color:var(--accent)}"
                         "h1{margin:10px 0 14px;font-size:1.45rem;line-height:1.25}p{margin:0 0 10px}"
                         ".detail{margin-top:16px;padding:10px 14px;border-radius:8px;background:var(--hover);"
                         "font:.88rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
                         "white-space:pre-wrap;overflow-wrap:anywhere}"
                         "footer{margin-top:22px;font-size:.85rem;color:var(--soft)}"
                         "a{color:var(--accent)}"
                         "@media(max-width:480px){main{padding:28px 24px}}</style>\n</head>\n<body>\n<main>\n");
    buffer_printf(out, "<p class=\"code\">%d</p>\n<h1>%s</h1>\n<p>%s</p>\n", status, reason, explanation_of(status));
    if (detail != NULL && detail[0] != '\0') {
        buffer_append_z(out, "<p class=\"detail\">");
        buffer_append_html(out, str_of(detail));
        buffer_append_z(out, "</p>\n");
    }
    buffer_append_z(out, "<footer><a href=\"/\">Go to the start page</a></footer>\n</main>\n</body>\n</html>\n");
}

static void write_json(struct buffer *out, int status, const char *detail)
{
    buffer_printf(out, "{\"status\":%d,\"error\":", status);
    buffer_append_json(out, str_of(status_reason(status)));
    buffer_append_z(out, ",\"message\":");
    buffer_append_json(out, str_of(detail != NULL && detail[0] != '\0' ? detail : explanation_of(status)));
    buffer_append_z(out, "}\n");
}

static void write_text(struct buffer *out, int status, const char *detail)
{
    buffer_printf(out, "%d %s\n%s\n", status, status_reason(status), explanation_of(status));
    if (detail != NULL && detail[0] != '\0') {
        buffer_printf(out, "%s\n", detail);
    }
}

/* ---- sending --------------------------------------------------------------------------------- */

void page_headers_add(struct request *req)
{
    response_header_set(req, STR("X-Content-Type-Options"), STR("nosniff"));
    response_header_set(req, STR("Content-Security-Policy"),
                        STR("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"));
    struct str vary = response_header_get(req, STR("Vary"));
    if (vary.ptr == NULL) {
        response_header_add(req, STR("Vary"), STR("Accept"));
    } else if (!str_list_has(vary, STR("Accept"))) {
        char *both = arena_printf(&req->arena, "%.*s, Accept", STR_ARG(vary));
        if (both != NULL) {
            response_header_set(req, STR("Vary"), str_of(both));
        }
    }
}

void page_send_buffer(struct request *req, struct buffer *page, struct str type)
{
    if (page->failed || page->data == NULL) {
        buffer_free(page);
        req->response.status = 500;
        response_send(req, NULL, 0);
        return;
    }
    req->response.content_type = type;
    response_send_ref(req, page->data, page->len, free, page->data);
    *page = BUFFER_EMPTY;
}

void error_page_builtin(struct request *req, int status, const char *detail)
{
    struct buffer page = BUFFER_EMPTY;
    struct str type = STR("text/html; charset=utf-8");
    req->response.status = (uint16_t)status;
    req->response.default_headers = false; /* DefaultHeaders are for what is no error */
    page_headers_add(req);
    switch (page_type_preferred(request_header(req, STR("Accept")))) {
    case PAGE_HTML: write_html(&page, status, detail); break;
    case PAGE_JSON:
        write_json(&page, status, detail);
        type = STR("application/json");
        break;
    case PAGE_TEXT:
        write_text(&page, status, detail);
        type = STR("text/plain; charset=utf-8");
        break;
    }
    page_send_buffer(req, &page, type);
}

/* The site's own page goes to those who look at pages. */
static bool send_own_page(struct request *req, int status)
{
    if (req->hostname.ptr == NULL || page_type_preferred(request_header(req, STR("Accept"))) != PAGE_HTML) {
        return false;
    }
    struct site *site = site_find(req->hostname);
    const struct site_node *node = site != NULL ? site_error_page(site, status) : NULL;
    if (node == NULL || node->kind != NODE_FILE) {
        return false;
    }
    return static_file_send(req, node, (unsigned)status);
}

const char answer_no_websocket[] = "There is no WebSocket at this address.";

void error_page_send(struct request *req, int status, const char *detail)
{
    if (status < 400 || !send_own_page(req, status)) {
        error_page_builtin(req, status, detail);
    }
}

bool answer_refuse_method(struct request *req, const char *allow)
{
    struct str allowed = str_of(allow);
    if (req->method == METHOD_OPTIONS) {
        response_header_set(req, STR("Allow"), allowed);
        req->response.status = 204;
        response_send(req, NULL, 0);
        return true;
    }
    if (str_list_has(allowed, req->method_text)) {
        return false;
    }
    response_header_set(req, STR("Allow"), allowed);
    error_page_send(req, 405, NULL);
    return true;
}
