/* DESIGN: what a worker counts, told to the supervisor each second (FIGURES and ENDPOINTS of control.h),
 * so that it can be shown also while this process hangs. The first thread tells, which is no loop
 * and waits for none: a loop's lag is how long it takes to run a task that is posted to it each
 * second, or how long the last one has waited already. Nothing is asked of the way of a
 * request: the numbers are those that loops count for themselves.
 *
 * Figures give way to everything else on the control socket: when the supervisor has not read what
 * was told before, this second is left out. */
#ifndef KILN_SUPERVISOR_WORKER_FIGURES_H
#define KILN_SUPERVISOR_WORKER_FIGURES_H

/* Tells when a second has passed; first thread. */
void worker_figures_look(void);
/* At the end, when no loop counts any more. */
void worker_figures_last(void);

#endif
