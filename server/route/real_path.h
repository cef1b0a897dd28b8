/* Where a file really is, links resolved, and whether a file there may be served. Reads the root
 * and the settings: under tree.lock or tree.rules_lock. */
#ifndef KILN_ROUTE_REAL_PATH_H
#define KILN_ROUTE_REAL_PATH_H

#include "base/str.h"

#include <limits.h>

/* Of an open descriptor, into `out`; empty when the system does not say. */
struct str real_path_of(int fd, char out[PATH_MAX]);
/* In the web root, or the root itself. */
bool real_path_is_inside(struct str real);
/* Inside, and in a dot directory of it or a dotfile. Names that begin with two dots are let
 * through: "..data/" is how mounted volumes swap all their files at once. */
bool real_path_is_dotted(struct str real);
/* May a file there be served as a file, under whatever name? (site_open) */
bool real_path_is_allowed(struct str real);

static inline struct str base_name(struct str path)
{
    return str_from(path, str_find_last(path, '/') + 1);
}

static inline bool name_is_dotted(struct str name)
{
    return name.len > 0 && name.ptr[0] == '.';
}

#endif
