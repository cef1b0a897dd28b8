#ifndef KILN_ENDPOINT_SIGNAL_CALLS_H
#define KILN_ENDPOINT_SIGNAL_CALLS_H

#include <signal.h>
#include <stdbool.h>

/* From now on nobody but these two functions changes what this process does about the signals of the set, nobody blocks
 * them, and no thread that has its alternate stack from here gets another. Once, before any endpoint is loaded. */
void signal_calls_own(const sigset_t *signals);

/* The C library's own sigaction() and sigaltstack(). */
int signal_calls_action(int number, const struct sigaction *action, struct sigaction *before);
int signal_calls_stack(const stack_t *stack, stack_t *before);

#endif
