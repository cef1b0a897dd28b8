/* Not a test: prints how long a new 60-line source takes from the first request to its answer, on
 * a loop of this process. make build/unit/endpoint/time_build && build/unit/endpoint/time_build */
#include "endpoint_support.h"

#define KILN_NO_STAMP
#include <kiln.h>

/* The program is linked from an archive: what only endpoints call must be named. */
void *const used_by_endpoints[] = {(void *)kiln_path, (void *)kiln_printf};

enum { ROUNDS = 60 };

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static void write_source(const char *name, int number)
{
    struct buffer text = BUFFER_EMPTY;
    buffer_append_z(&text, "#include <kiln.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n");
    for (int i = 0; i < 12; i++) {
        buffer_printf(
            &text,
            "static int step_%d(kiln_context *ctx, int value)\n{\n    kiln_printf(ctx, \"<p>%%d %%zu</p>\", value, "
            "strlen(kiln_path(ctx)));\n    return value + %d;\n}\n",
            i, i + number);
    }
    buffer_append_z(&text, "int kiln_run(kiln_context *ctx, const char *path)\n{\n    if (path[1] == 'x') {\n"
                           "        return step_0(ctx, 1);\n    }\n");
    buffer_printf(&text, "    return %d;\n}\n", number);
    buffer_append_char(&text, '\0');
    put(name, text.data);
    buffer_free(&text);
}

static void report(const char *what, double *times)
{
    qsort(times, ROUNDS, sizeof *times, compare);
    printf("%-28s min %5.2f ms   median %5.2f ms\n", what, times[0], times[ROUNDS / 2]);
}

int main(void)
{
    static double first[ROUNDS];
    static double edited[ROUNDS];
    site_make();
    server_start(", \"OptimizeEndpoints\": false");
    for (int i = 0; i < ROUNDS; i++) {
        char name[32];
        snprintf(name, sizeof name, "page%d._c", i);
        write_source(name, i);
        struct endpoint *e = open_endpoint(name);
        struct client c = {0};
        double begin = now_ms();
        client_begin(&c, e, 0);
        client_end(&c);
        first[i] = now_ms() - begin;
        if (c.status != ENDPOINT_READY) {
            printf("%s\n", error_text(e));
            return 1;
        }
    }
    struct endpoint *e = open_endpoint("page0._c");
    for (int i = 0; i < ROUNDS; i++) {
        write_source("page0._c", 1000 + i);
        double begin = now_ms();
        endpoint_file_changed(e);
        while (ask_on(e, 0) != 1000 + i) {
            usleep(100);
        }
        edited[i] = now_ms() - begin;
    }
    report("first request", first);
    report("after an edit", edited);
    server_stop();
    site_remove();
    return 0;
}
