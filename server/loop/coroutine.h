/* DESIGN: stackful coroutines for endpoints, switched by a few instructions of assembly.
 * A coroutine runs only on its loop's thread. Stacks are 256 KB of address space with a
 * guard below, taken from a pool of the loop; an idle pooled stack keeps only its hot
 * pages. AddressSanitizer and ThreadSanitizer are told of every switch. */
#ifndef KILN_LOOP_COROUTINE_H
#define KILN_LOOP_COROUTINE_H

#include <stdbool.h>
#include <stddef.h>

struct loop;
struct coroutine;

/* Runs fn(arg) on a stack of its own until it suspends or returns. False when no stack
 * can be had (fn has not run). */
bool coroutine_start(struct loop *loop, void (*fn)(void *), void *arg);

/* The coroutine that is running on this thread, or NULL. */
struct coroutine *coroutine_self(void);

/* Inside a coroutine: back to whoever resumed it. Returns when resumed. */
void coroutine_suspend(void);

/* On the loop's thread, outside coroutines or from another one: continues it now. */
void coroutine_resume(struct coroutine *co);

/* Lowest and highest usable address of the running coroutine's stack. */
void coroutine_stack_bounds(const struct coroutine *co, void **low, void **high);

/* Stack size of coroutines started from now on, in bytes (rounded to pages). */
void coroutine_stack_size_set(size_t bytes);

/* Frees the loop's pooled stacks beyond `keep`. */
void coroutine_pool_trim(struct loop *loop, unsigned keep);

#endif
