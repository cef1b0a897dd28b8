/* What a person reads about a crash: lines in the log, and a page for DebugPages with the
 * stack and the source around the faulting line. */
#ifndef KILN_ENDPOINT_CRASH_REPORT_H
#define KILN_ENDPOINT_CRASH_REPORT_H

#include "base/buffer.h"
#include "endpoint/crash.h"

struct endpoint;

struct crash_scene {
    struct endpoint *endpoint;
    const struct crash_report *report;
    const char *object; /* the loaded file, whose frames are the author's */
    const char *doing; /* "answering GET /hello", "in its kiln_load" */
};

/* Where it happened in the author's own source, for a message with a place. */
struct crash_place {
    char *file; /* NULL: unknown; the caller frees it */
    unsigned line;
};

/* Logs it; fills *html and *place unless NULL. Takes milliseconds and reads files: not on a loop's
 * thread. */
void crash_explain(const struct crash_scene *scene, struct buffer *html, struct crash_place *place);

#endif
