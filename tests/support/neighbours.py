"""What runs beside an endpoint that does harm, and must not notice."""

HELLO = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; return kiln_puts(c, \"hello\"); }\n"
# Sends a part, and the rest when the file `go` is there.
PARTS = r"""
#include <kiln.h>
#include <unistd.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    kiln_printf(ctx, "begun ");
    kiln_flush(ctx);
    while (access(kiln_sprintf(ctx, "%s/../go", kiln_directory(ctx)), F_OK) != 0)
        if (kiln_sleep(ctx, 5) != KILN_OK)
            return KILN_GONE;
    kiln_puts(ctx, "ended");
    return 0;
}
"""
