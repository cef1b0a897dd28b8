/* DESIGN: how a host gives up its rights, before it has read anything of its worker or its module, and while
 * it has one thread. In this order: limits of the kernel (rlimits), the other user, no
 * capabilities, no new privileges, Landlock (which files, which ports), seccomp (which system calls). Each
 * stands alone: what one does not stop, another does.
 *
 * What it is meant to stop: reading or writing files that are not the endpoint's, starting programs,
 * touching other processes, the network, exhausting memory, descriptors, threads. What it does not: use of
 * processor time up to the number of threads (RLIMIT_CPU and RequestTimeout bound it over time), many files in its
 * own directories up to the size of the disk, bugs of the kernel in what is left. */
#ifndef KILN_ISOLATE_SANDBOX_H
#define KILN_ISOLATE_SANDBOX_H

#include "base/buffer.h"
#include "isolate/orders.h"

/* False with the reason: the process is to end then. Log lines go to standard error. */
bool sandbox_enter(const struct host_orders *orders, struct buffer *why);

/* ---- its parts --------------------------------------------------------------------------------- */
/* landlock.c */
bool sandbox_landlock(const struct host_orders *orders, struct buffer *why);
/* seccomp.c */
bool sandbox_seccomp(const struct host_orders *orders, struct buffer *why);

#endif
