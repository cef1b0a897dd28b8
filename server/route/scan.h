/* DESIGN: brings the tree in line with the disk. Events are only hints where to look: what
 * counts is what lstat says at the moment of looking, so that it does not matter in which
 * order, how often or how late hints arrive. All of this under tree.lock. */
#ifndef KILN_ROUTE_SCAN_H
#define KILN_ROUTE_SCAN_H

#include "route/tree.h"

/* The whole root: what is new, changed, gone. False when the root cannot be read; then
 * the index is empty. */
bool scan_all(void);
/* One name in a directory. `touched`: its contents may differ though its times are the same. */
void scan_name(struct dir *dir, struct str name, bool touched);
/* The same by absolute path; nothing when its directory is not indexed. */
void scan_path(struct str path, bool touched);
/* A directory's own entries (and directories new in it). */
void scan_directory_of(struct dir *dir);
/* A directory and everything below it. */
void scan_below(struct dir *dir);
/* Looks where every symbolic link leads now. */
void scan_links(void);
/* Some served link leads out of the root, where nothing is watched on its way. */
bool scan_has_links_outside(void);
/* The directory is about to be freed. */
void scan_forget(struct dir *dir);
void scan_forget_root(void);
/* Lets go of what is held open between calls, publishes what changed. Before unlocking. */
void scan_finish(void);
#endif
