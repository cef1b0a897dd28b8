#ifndef KILN_ENDPOINT_EXIT_CALLS_H
#define KILN_ENDPOINT_EXIT_CALLS_H

/* Once per worker: also calls of exit() from inside the C library land at the guard. */
void exit_calls_watch(void);

#endif
