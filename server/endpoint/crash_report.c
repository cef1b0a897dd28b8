#include "endpoint/crash_report.h"

#include "base/file.h"
#include "endpoint/debug_page.h"
#include "endpoint/endpoint.h"
#include "endpoint/symbol.h"
#include "observe/log.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOGGED_FRAMES = 24, LOGGED_LINE = 200, SOURCE_MAX = 16 * 1024 * 1024 };

struct story {
    const struct crash_scene *scene;
    struct stack stack;
    const struct stack_frame *fault; /* the innermost of the author's source; NULL: unknown */
    char web_root[PATH_MAX];
    char what[256];
};

/* ---- places -------------------------------------------------------------------------------------- */

/* What is not below the web root, such as the C library, is not the author's. A compiled endpoint
 * may have its source anywhere; `#line 1 "/etc/shadow"` of a C source is not followed. */
static bool may_show(struct endpoint *e, const char *file)
{
    static const char *const suffixes[] = {".c", "._c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".rs", ".zig", ".d"};
    if (e->loader == &loader_so) {
        for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
            if (str_ends(str_of(file), str_of(suffixes[i]))) {
                return true;
            }
        }
        return false;
    }
    bool known = strcmp(file, e->file.ptr) == 0;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; !known && !e->running && i < e->dependencies.count; i++) {
        known = strcmp(e->dependencies.items[i].path, file) == 0;
    }
    pthread_mutex_unlock(&e->lock);
    return known;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Of the module itself: by name, which is unique, because a path may lead through links. */
static bool is_authors(const struct story *story, const struct stack_frame *frame)
{
    return frame->object != NULL && strcmp(base_name(frame->object), base_name(story->scene->object)) == 0;
}

static void find_fault(struct story *story)
{
    for (unsigned i = 0; i < story->stack.count && story->fault == NULL; i++) {
        const struct stack_frame *frame = &story->stack.frames[i];
        if (frame->file != NULL && frame->line > 0 && is_authors(story, frame) &&
            may_show(story->scene->endpoint, frame->file)) {
            story->fault = frame;
        }
    }
}

/* "hello/index._c:12", "libc.so.6+0x1234". */
static void append_frame_place(struct buffer *text, const struct stack_frame *frame, const char *web_root)
{
    if (frame->file != NULL) {
        struct str shown = debug_page_path(frame->file, web_root);
        buffer_append_str(text, shown);
        buffer_printf(text, ":%u", frame->line);
    } else if (frame->object != NULL) {
        buffer_printf(text, "%s+0x%llx", base_name(frame->object), (unsigned long long)frame->offset);
    } else {
        buffer_printf(text, "0x%llx", (unsigned long long)frame->pc);
    }
}

/* ---- log ------------------------------------------------------------------------------------------- */

/* The line itself, without what could break the log's lines. */
static void append_source_line(struct buffer *text, const char *file, unsigned line)
{
    struct buffer source = BUFFER_EMPTY;
    if (file_read(file, SOURCE_MAX, &source)) {
        struct str rest = buffer_str(&source);
        for (unsigned n = 1; n < line && rest.len > 0; n++) {
            size_t end = str_find(rest, '\n');
            rest = end == SIZE_MAX ? STR_NONE : str_from(rest, end + 1);
        }
        struct str row = str_first(str_trim(str_first(rest, str_find(rest, '\n'))), LOGGED_LINE);
        for (size_t i = 0; i < row.len; i++) {
            buffer_append_char(text, iscntrl((unsigned char)row.ptr[i]) ? ' ' : row.ptr[i]);
        }
    }
    buffer_free(&source);
}

static void log_story(const struct story *story)
{
    struct buffer text = BUFFER_EMPTY;
    const struct stack_frame *fault = story->fault;
    buffer_printf(&text, "%s %s %s: %s", story->scene->endpoint->file.ptr,
                  crash_is_timeout(story->scene->report) ? "was stopped" : "crashed", story->scene->doing, story->what);
    if (fault != NULL) {
        buffer_printf(&text, "; %s:%u in %s: ", fault->file, fault->line,
                      fault->function != NULL ? fault->function : "?");
        append_source_line(&text, fault->file, fault->line);
    }
    log_error("%.*s", STR_ARG(buffer_str(&text)));
    for (unsigned i = 0; i < story->stack.count && i < LOGGED_FRAMES; i++) {
        const struct stack_frame *frame = &story->stack.frames[i];
        text.len = 0;
        append_frame_place(&text, frame, "");
        log_error("  #%u %s at %.*s", i, frame->function != NULL ? frame->function : "?", STR_ARG(buffer_str(&text)));
    }
    if (story->stack.count > LOGGED_FRAMES) {
        log_error("  and %u more", story->stack.count - LOGGED_FRAMES);
    }
    buffer_free(&text);
}

/* ---- page ------------------------------------------------------------------------------------------ */

static const char *tip(const struct crash_report *report)
{
    if (crash_is_timeout(report)) {
        return "A loop that does not end is one cause. What takes long by its nature gets more time by "
               "EndpointTimeouts.";
    }
    if (report->call != NULL) {
        return "An endpoint ends by returning from kiln_run: 0, or a status such as 404.";
    }
    if (report->stack_overflow) {
        return "Calls nest without end, or a local array is too large for the stack of a request (option StackSize). "
               "Large things belong into kiln_alloc or a static variable.";
    }
    if (report->wild_jump) {
        return "A function pointer that is not set was called, or the return address was overwritten.";
    }
    switch (report->signal) {
    case SIGABRT: return "What the C library says about it stands on the server's standard error.";
    case SIGBUS: return "A mapped file that has become shorter is one cause.";
    default: return NULL;
    }
}

static void append_row(struct buffer *html, const struct story *story, unsigned i)
{
    const struct stack_frame *frame = &story->stack.frames[i];
    struct buffer place = BUFFER_EMPTY;
    const char *class = frame == story->fault ? " class=at" : frame->file == NULL ? " class=other" : "";
    append_frame_place(&place, frame, story->web_root);
    buffer_printf(html, "<tr%s><td>%u<td><code>", class, i);
    buffer_append_html(html, str_of(frame->function != NULL ? frame->function : "?"));
    buffer_append_z(html, "</code><td><code>");
    buffer_append_html(html, buffer_str(&place));
    buffer_append_z(html, "</code>");
    buffer_free(&place);
}

static void write_page(const struct story *story, struct buffer *html)
{
    struct str name = debug_page_path(story->scene->endpoint->file.ptr, story->web_root);
    const struct stack_frame *fault = story->fault;
    bool timeout = crash_is_timeout(story->scene->report);
    debug_page_begin(html, name, timeout ? ": timeout" : ": crash", timeout ? " was stopped" : " crashed");
    buffer_append_z(html, "<p class=message>");
    buffer_append_char(html, (char)toupper((unsigned char)story->what[0]));
    buffer_append_html(html, str_of(story->what + 1));
    buffer_append_z(html, "</p><p class=place>");
    if (fault != NULL) {
        buffer_append_z(html, "<b>");
        debug_page_place(html, fault->file, fault->line, story->web_root);
        buffer_append_z(html, "</b> in <b>");
        buffer_append_html(html, str_of(fault->function != NULL ? fault->function : "?"));
        buffer_append_z(html, "</b>, ");
    }
    buffer_append_html(html, str_of(story->scene->doing));
    buffer_append_z(html, "</p>");
    if (tip(story->scene->report) != NULL) {
        buffer_append_z(html, "<p class=tip>");
        buffer_append_z(html, tip(story->scene->report));
        buffer_append_z(html, "</p>");
    }
    if (fault != NULL) {
        debug_page_source(html, fault->file, fault->line);
    }
    buffer_append_z(html, "<h2>Stack</h2><table>");
    for (unsigned i = 0; i < story->stack.count; i++) {
        append_row(html, story, i);
    }
    buffer_append_z(html, "</table>");
    debug_page_end(html, timeout ? "Only this request was lost: other requests go on. "
                                 : "Only this request was lost: other requests go on, and another worker takes over. ");
}

void crash_explain(const struct crash_scene *scene, struct buffer *html, struct crash_place *place)
{
    struct story *story = calloc(1, sizeof *story);
    if (story == NULL) {
        log_error("%s crashed %s", scene->endpoint->file.ptr, scene->doing);
        return;
    }
    story->scene = scene;
    crash_describe(scene->report, story->what, sizeof story->what);
    struct settings *settings = builder_settings_ref();
    if (settings != NULL) {
        snprintf(story->web_root, sizeof story->web_root, "%s", settings->web_root);
        settings_unref(settings);
    }
    stack_find(scene->report, &story->stack);
    find_fault(story);
    log_story(story);
    if (html != NULL) {
        write_page(story, html);
    }
    if (place != NULL) {
        place->file = story->fault != NULL ? strdup(story->fault->file) : NULL;
        place->line = story->fault != NULL ? story->fault->line : 0;
    }
    stack_free(&story->stack);
    free(story);
}
