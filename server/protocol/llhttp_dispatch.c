/* llhttp walks header values 16 bytes at a time when it is compiled for SSE4.2, which halves its
 * cost for a browser's head, but Debian's baseline is older. Where it is built from source
 * (Makefile, KILN_LLHTTP_DISPATCH) it is built both ways, and the processor decides at start. */
#include <llhttp.h>

#ifdef KILN_LLHTTP_DISPATCH

int llhttp_execute_baseline(llhttp__internal_t *parser, const char *data, const char *end);
int llhttp_execute_sse42(llhttp__internal_t *parser, const char *data, const char *end);

static int (*chosen)(llhttp__internal_t *, const char *, const char *) = llhttp_execute_baseline;

__attribute__((constructor)) static void choose(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) {
        chosen = llhttp_execute_sse42;
    }
}

int llhttp__internal_execute(llhttp__internal_t *parser, const char *data, const char *end)
{
    return chosen(parser, data, end);
}

#endif
