/* DESIGN: quiescent-state reclamation, so that loop threads read shared structures
 * (site index, config, modules) with plain acquire loads: no lock, no counter.
 * A reader thread registers once and calls epoch_quiet() when it holds no pointer from a
 * protected structure (the loop does so once per iteration), or goes offline while it
 * sleeps. A writer unpublishes a pointer and then retires it; the function runs, on some
 * later epoch_reclaim() call, once every online reader has been quiet since.
 * A pointer that is kept over a suspension needs a reference of its own. */
#ifndef KILN_BASE_EPOCH_H
#define KILN_BASE_EPOCH_H

#include <stdbool.h>

/* Registers the calling thread as a reader, online. */
void epoch_register(void);
void epoch_unregister(void);

/* The calling reader holds no protected pointer now. */
void epoch_quiet(void);

/* Around a wait that may last (epoll_wait): an offline reader delays nobody. */
void epoch_offline(void);
void epoch_online(void);

/* Any thread, reader or not. fn(arg) runs later inside epoch_reclaim(). */
void epoch_retire(void (*fn)(void *), void *arg);

/* Runs what is due; called by background threads a few times a second, and by
 * epoch_retire() itself when much has gathered. Returns how many still wait. */
unsigned epoch_reclaim(void);

#endif
