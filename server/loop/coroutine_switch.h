/* The switch itself: saves the callee-saved registers on the old stack, its pointer in
 * *save, and continues at `to`. The floating-point control words are not saved: the
 * ABI lets nobody change them over a call without restoring. */
#ifndef KILN_LOOP_COROUTINE_SWITCH_H
#define KILN_LOOP_COROUTINE_SWITCH_H

void coroutine_switch(void **save, void *to);

/* Prepares a fresh stack so that the first switch to the returned pointer calls
 * entry(arg); entry never returns. `top` is 16-byte aligned. */
void *coroutine_prepare(void *top, void (*entry)(void *), void *arg);

#endif
