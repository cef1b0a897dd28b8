/* Exit codes of kiln-cc beside 0 (built) and 1 (the source is at fault). */
#ifndef KILN_TOOLS_CC_EXIT_H
#define KILN_TOOLS_CC_EXIT_H

enum { CC_EXIT_NOT_WRITTEN = 74 }; /* the output could not be written; later it may be */

#endif
