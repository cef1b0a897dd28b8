/* What a person reads when an endpoint does not build or load: one line for the log, a page for
 * DebugPages with the source around the line. */
#include "endpoint/build.h"
#include "endpoint/debug_page.h"

const char *build_error_hint(const char *message)
{
    static const struct {
        const char *text;
        const char *help;
    } hints[] = {
#define HINT(text, help) {text, help},
#include "endpoint/hints.def"
#undef HINT
    };
    /* gcc quotes names in its own way only under other locales than C. */
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        if (strstr(message, hints[i].text) != NULL) {
            return hints[i].help;
        }
    }
    return NULL;
}

static const char *file_of(const struct diagnostic *d, const char *source)
{
    return d->file[0] != '\0' ? d->file : source;
}

void build_error_text(const struct build_result *result, const char *source, const char *web_root, struct buffer *out)
{
    const struct diagnostic *error = diagnostics_first_error(&result->diagnostics);
    if (error == NULL) {
        buffer_append_str(out, debug_page_path(source, web_root));
        buffer_append_z(out, ": unknown error");
        return;
    }
    buffer_append_str(out, debug_page_path(file_of(error, source), web_root));
    if (error->line > 0) {
        buffer_printf(out, ":%u", error->line);
    }
    buffer_printf(out, ": error: %s", error->message);
}

/* ---- page -------------------------------------------------------------------------------------------- */

static const char *severity_name(enum severity severity)
{
    return severity == SEVERITY_ERROR ? "error" : severity == SEVERITY_WARNING ? "warning" : "note";
}

/* Only files that the build read are shown: `#line 1 "/etc/shadow"` names a file as well. */
static bool may_show(const struct build_result *result, const char *file, const char *source)
{
    if (strcmp(file, source) == 0) {
        return true;
    }
    for (size_t i = 0; i < result->dependencies.count; i++) {
        if (!result->dependencies.items[i].missing && strcmp(result->dependencies.items[i].path, file) == 0) {
            return true;
        }
    }
    return false;
}

static void append_list(struct buffer *html, const struct build_result *result, const char *source,
                        const char *web_root)
{
    if (result->diagnostics.count < 2) {
        return;
    }
    buffer_append_z(html, "<h2>All messages</h2><ul>");
    for (size_t i = 0; i < result->diagnostics.count; i++) {
        const struct diagnostic *d = &result->diagnostics.items[i];
        const char *name = severity_name(d->severity);
        buffer_printf(html, "<li class=%s><b>%s</b> ", name, name);
        buffer_append_html(html, str_of(d->message));
        buffer_append_z(html, " <code>");
        debug_page_place(html, file_of(d, source), d->line, web_root);
        buffer_append_z(html, "</code></li>");
    }
    buffer_append_z(html, "</ul>");
}

void build_error_page(const struct build_result *result, const char *source, const char *web_root, struct buffer *html)
{
    const struct diagnostic *error = diagnostics_first_error(&result->diagnostics);
    const char *message = error != NULL ? error->message : "unknown error";
    const char *file = error != NULL ? file_of(error, source) : source;
    unsigned line = error != NULL ? error->line : 0;
    struct str name = debug_page_path(source, web_root);

    debug_page_begin(html, name, ": error", line > 0 ? " does not compile" : " cannot run");
    buffer_append_z(html, "<p class=message>");
    buffer_append_html(html, str_of(message));
    buffer_append_z(html, "</p><p class=place><b>");
    debug_page_place(html, file, line, web_root);
    buffer_append_z(html, "</b></p>");
    const char *hint = build_error_hint(message);
    if (hint != NULL) {
        buffer_append_z(html, "<p class=tip>");
        buffer_append_html(html, str_of(hint));
        buffer_append_z(html, "</p>");
    }
    if (may_show(result, file, source)) {
        debug_page_source(html, file, line);
    }
    append_list(html, result, source, web_root);
    debug_page_end(html, "Kiln builds the file again as soon as it, or a file that it includes, changes. ");
}
