/* The server includes this before every ._c source. glibc's headers erase __attribute__ for a
 * compiler that they do not know, and packed, aligned and weak with it; after their one include
 * of <sys/cdefs.h> it can be given back. Nothing to do for gcc and clang. */
#ifndef KILN_TCC_H
#define KILN_TCC_H
#ifdef __TINYC__
#include <sys/cdefs.h>
#undef __attribute__
#endif
#endif
