/* DESIGN: one look at one name on the disk. A directory is opened once, its real place is asked
 * of the descriptor, and its entries are looked at relative to it: no swap of a link in
 * between can let a file outside the root pass for one inside. Under tree.lock. */
#ifndef KILN_ROUTE_LOOK_H
#define KILN_ROUTE_LOOK_H

#include "route/tree.h"

#include <limits.h>

/* A directory that is open for looking. */
struct view {
    struct dir *dir; /* NULL: closed */
    int fd;
    bool has_private; /* one of the server's own files lies in it */
    struct str real;
    char real_path[PATH_MAX];
};

/* False with errno; EXDEV when it lies where it may not. */
bool view_open(struct view *view, struct dir *dir);
void view_close(struct view *view);
/* What is there under that name; false for nothing, or nothing of ours (a socket, a device).
 * `target` receives what entry->target points at. */
bool look(const struct view *view, struct str name, struct entry *entry, char target[PATH_MAX]);
/* Where the index knows the directory. */
const char *path_of(const struct dir *dir);

#endif
