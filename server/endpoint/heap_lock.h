/* DESIGN: the locks of glibc's heaps, found from the outside, so that they can be opened after a crash inside
 * of malloc. Such a crash leaves a lock taken, and then not this thread alone hangs: whoever frees a
 * block of that heap does. It is the heap of the thread, or the first thread's, to which each block
 * seems to belong that is freed twice.
 *
 * A block of any other heap says so in the word before it; it lies in a region aligned to its own
 * size, which begins with the address of the heap's state; and that begins with the lock, 0 when it is
 * open. A free block of the first heap points to the list of such blocks inside of that heap's state.
 * All of that is checked, and where anything is not as expected (another C library, a sanitizer's
 * malloc) there is no lock to be found and a thread that hangs is given up (lost_thread.h). */
#ifndef KILN_ENDPOINT_HEAP_LOCK_H
#define KILN_ENDPOINT_HEAP_LOCK_H

/* Of the calling thread's heap; NULL: it cannot be told. */
int *heap_lock_find(void);
/* Of the first heap: on the process's first thread. */
int *heap_lock_find_first(void);
/* After a crash: opens it if nobody else does for long (the time that a thread may be kept from running).
 * NULL: does nothing. */
void heap_lock_unstick(int *lock);
/* At once: it is known to be this thread's. */
void heap_lock_open(int *lock);

#endif
