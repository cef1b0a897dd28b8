/* What libtcc has written: see object.c. */
#ifndef KILN_TOOLS_CC_OBJECT_H
#define KILN_TOOLS_CC_OBJECT_H

#include <stdbool.h>

/* Checks that the shared object is whole, and says in it that its code needs no executable stack.
 * False with errno. */
bool object_finish(const char *path);

#endif
