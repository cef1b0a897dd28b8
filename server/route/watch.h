/* DESIGN: keeps the index true. One thread reads inotify and looks at what the events point
 * at (scan.h). A file that was closed or renamed into place is looked at once; one that
 * was only created, written to, or removed is given 50 ms of quiet first, so that a
 * half-written file is not taken and an editor's "move away, write anew" shows no gap; one
 * that never falls quiet is looked at once a second. Directories are looked at at once, but
 * the old name of a moved one after the new one.
 *
 * What could be missed is found otherwise: a lost event (queue overflow) by a scan of
 * everything; a link whose target moved by a look at all links; the root itself by its
 * parent's watch and a stat() a second. When the kernel refuses more watches the index is
 * `degraded`: lookups check the disk (site_index.c), everything is scanned each minute,
 * and one line in the log says which limit to raise. */
#ifndef KILN_ROUTE_WATCH_H
#define KILN_ROUTE_WATCH_H

#include <stdbool.h>

struct dir;

/* False, degraded, when there is no inotify to be had; the thread runs all the same. */
bool watch_start(void);
bool watch_thread_start(void);
void watch_thread_stop(void);
/* Scans everything in the background. */
void watch_request_scan(void);
/* Returns when everything the kernel has queued is applied. Not under tree.lock. */
void watch_settle(void);

/* ---- by the scanner, under tree.lock ---------------------------------------------------- */
/* `fd` is the open directory. */
void watch_add(struct dir *dir, int fd, const char *path);
void watch_drop(struct dir *dir);
/* Something came or went: symbolic links may lead elsewhere now. */
void watch_note_links(void);

#endif
