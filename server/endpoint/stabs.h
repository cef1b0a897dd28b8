/* Line numbers of what libtcc builds. Its debug information is stabs: a flat list of 12-byte
 * entries, with names in a string table beside it. No allocation; every offset is checked,
 * since the bytes come from a file. */
#ifndef KILN_ENDPOINT_STABS_H
#define KILN_ENDPOINT_STABS_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct stabs_place {
    struct str function; /* into the string table, as are the others */
    struct str directory; /* "" or ends with '/'; before a relative file */
    struct str file;
    unsigned line; /* 0: unknown */
};

/* `address` as in the file, without the load address. False when no function begins before it. */
bool stabs_find(struct str entries, struct str strings, uint32_t address, struct stabs_place *place);

#endif
