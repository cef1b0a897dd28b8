/* The switch itself: saves the callee-saved registers on the old stack, its pointer in
 * *save, and continues at `to`. The floating-point control words are not saved: the
 * ABI lets nobody change them over a call without restoring.
 *
 * A processor foretells where a return leads from the calls that it has seen. A coroutine that runs through without
 * waiting, as most do, is therefore begun by a call and ended by a return, like any function. Begun and ended by
 * switches, it cost a wrong guess for each function that stood below it, ten and more for a request. */
#ifndef KILN_LOOP_COROUTINE_SWITCH_H
#define KILN_LOOP_COROUTINE_SWITCH_H

void coroutine_switch(void **save, void *to);

/* Calls entry(arg) on another stack, whose `top` is 16-byte aligned. What it returns, if it returns, is the stack to
 * go back to: what was saved in *save, by this or by a switch since then. */
void coroutine_enter(void **save, void *top, void *(*entry)(void *), void *arg);

#endif
