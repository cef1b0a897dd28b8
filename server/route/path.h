/* DESIGN: from the path of a request-target to the path that is looked up. One scan tells
 * whether a path is clean; a clean one is used where it lies. Any other is decoded once
 * into a copy:
 *  - %XX once, so "%252e" stays "%2e"; a broken escape or %00 is refused;
 *  - "%2F" counts as "/" (as in nginx): a file name cannot hold one, and a path that meant
 *    two things would be a hole;
 *  - repeated slashes are one; "." and ".." are resolved after decoding; a path that climbs
 *    above the root is refused rather than cut;
 *  - a backslash is an ordinary byte.
 * A component that begins with "." is never served, except /.well-known: `dotted`. */
#ifndef KILN_ROUTE_PATH_H
#define KILN_ROUTE_PATH_H

#include "base/str.h"

struct path_scan {
    bool clean; /* nothing to decode or resolve */
    unsigned slashes;
};
struct path_scan path_scan(struct str raw);

struct path_result {
    bool ok; /* false: 400 */
    bool dotted;
    unsigned slashes;
    struct str path; /* in `out`; begins with '/', NUL-terminated */
};
/* `out` has room for raw.len + 1. */
struct path_result path_normalise(struct str raw, char *out);

/* A path as it may stand in a Location header: all but unreserved bytes, '/' and a few harmless
 * marks as %XX. A backslash is encoded, as browsers take it for a slash. Room: 3 * path.len. */
size_t path_encode(char *out, struct str path);

#endif
