#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void check_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "kiln: internal error: %s:%d: check failed: %s\n", file, line, what);
    abort();
}
