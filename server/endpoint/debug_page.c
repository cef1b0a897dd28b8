#include "endpoint/debug_page.h"

#include "base/file.h"

#include <string.h>

enum { LINES_AROUND = 7, SHOWN_LINE_MAX = 400, SOURCE_MAX = 16 * 1024 * 1024 };

/* Below the web root without the root; others whole. */
struct str debug_page_path(const char *path, const char *web_root)
{
    size_t len = web_root != NULL ? strlen(web_root) : 0;
    if (len > 0 && strncmp(path, web_root, len) == 0 && path[len] == '/') {
        return str_of(path + len + 1);
    }
    return str_of(path);
}

static const char style[] =
    ":root{--bg:#f6f5f2;--fg:#1d1f24;--card:#fff;--dim:#6d7078;--line:#e3e1db;--bad:#b3261e;--mark:#fde7e5;"
    "--warn:#8a5a00;--tip:#e9f3ea;--tipfg:#1d5a2b}"
    "@media(prefers-color-scheme:dark){:root{--bg:#14161a;--fg:#e6e6e3;--card:#1c1f25;--dim:#8d929c;--line:#2c3038;"
    "--bad:#ff8a80;--mark:#44211f;--warn:#f0c060;--tip:#1b2e20;--tipfg:#a5d8b0}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);"
    "font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}"
    "main{max-width:60rem;margin:0 auto;padding:2.5rem 1.25rem}"
    "h1{font-size:1.05rem;font-weight:600;color:var(--dim);margin:0 0 .5rem}"
    ".message{font-size:1.35rem;font-weight:600;color:var(--bad);margin:0 0 .25rem;overflow-wrap:anywhere}"
    ".place{color:var(--dim);margin:0 0 1.25rem;overflow-wrap:anywhere}"
    "code,pre,.place b{font-family:ui-monospace,\"SF Mono\",Menlo,Consolas,monospace;font-size:.875rem}"
    ".tip{background:var(--tip);color:var(--tipfg);border-radius:8px;padding:.75rem 1rem;margin:0 0 1.25rem}"
    "pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.75rem 0;margin:0 0 1.5rem;"
    "overflow-x:auto;line-height:1.6;tab-size:4}"
    "pre span{display:block;padding:0 1rem;white-space:pre}"
    "pre i{display:inline-block;width:3.5rem;padding-right:1rem;text-align:right;font-style:normal;color:var(--dim);"
    "user-select:none}"
    "pre .here{background:var(--mark);box-shadow:inset 3px 0 var(--bad)}pre .here i{color:var(--bad);font-weight:700}"
    "h2{font-size:.95rem;margin:0 0 .5rem}ul{list-style:none;margin:0 0 1.5rem;padding:0}"
    "li{padding:.4rem 0;border-top:1px solid var(--line);overflow-wrap:anywhere}"
    "li b{font-weight:600}.error b{color:var(--bad)}.warning b{color:var(--warn)}.note b{color:var(--dim)}"
    "table{width:100%;border-collapse:collapse;margin:0 0 1.5rem;font-size:.875rem}"
    "td{padding:.4rem .75rem .4rem 0;border-top:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}"
    "td:first-child{color:var(--dim);text-align:right;width:2.5rem;padding-right:1rem}"
    "tr.other{color:var(--dim)}tr.at td{color:var(--bad)}tr.at td:nth-child(2){font-weight:600}"
    "footer{color:var(--dim);font-size:.85rem}";

void debug_page_begin(struct buffer *html, struct str name, const char *title, const char *heading)
{
    buffer_append_z(html, "<!doctype html><html lang=en><head><meta charset=utf-8>"
                          "<meta name=viewport content=\"width=device-width,initial-scale=1\"><title>");
    buffer_append_html(html, name);
    buffer_append_z(html, title);
    buffer_append_z(html, "</title><style>");
    buffer_append(html, style, sizeof style - 1);
    buffer_append_z(html, "</style></head><body><main><h1>");
    buffer_append_html(html, name);
    buffer_append_z(html, heading);
    buffer_append_z(html, "</h1>");
}

void debug_page_place(struct buffer *html, const char *file, unsigned line, const char *web_root)
{
    buffer_append_html(html, debug_page_path(file, web_root));
    if (line > 0) {
        buffer_printf(html, ":%u", line);
    }
}

void debug_page_source(struct buffer *html, const char *file, unsigned line)
{
    struct buffer text = BUFFER_EMPTY;
    if (line == 0 || !file_read(file, SOURCE_MAX, &text)) {
        buffer_free(&text);
        return;
    }
    unsigned first = line > LINES_AROUND ? line - LINES_AROUND : 1;
    struct str rest = buffer_str(&text);
    buffer_append_z(html, "<pre>");
    for (unsigned n = 1; rest.len > 0 && n <= line + LINES_AROUND; n++) {
        size_t end = str_find(rest, '\n');
        struct str row = end == SIZE_MAX ? rest : str_first(rest, end);
        rest = end == SIZE_MAX ? STR_NONE : str_from(rest, end + 1);
        if (n < first) {
            continue;
        }
        buffer_printf(html, "<span%s><i>%u</i>", n == line ? " class=here" : "", n);
        buffer_append_html(html, str_first(row, SHOWN_LINE_MAX));
        buffer_append_z(html, "</span>");
    }
    buffer_append_z(html, "</pre>");
    buffer_free(&text);
}

void debug_page_end(struct buffer *html, const char *text)
{
    buffer_append_z(html, "<footer>");
    buffer_append_z(html, text);
    buffer_append_z(html, "This page is shown because DebugPages is on.</footer></main></body></html>\n");
}
