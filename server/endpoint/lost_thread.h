/* DESIGN: what becomes of a thread whose heap cannot be used any more after a crash (crash.h): its lock is
 * taken for good, or malloc crashes. The thread waits for the end of the process; it holds no
 * lock and is never waited for. The watchdog finds it (watchdog_lose) and does from its own thread,
 * whose heap is another one, what the crashed thread would have done: the crash is counted,
 * logged with its stack, and a successor asked for. The owner of the guard tells the clients
 * first (crash_guard.lost).
 *
 * Guarantees: when it was a loop, each of its connections is cut at once, so that no client waits
 * for nothing, and nobody waits for that loop; the request itself gets a 500 where that needs no
 * memory. */
#ifndef KILN_ENDPOINT_LOST_THREAD_H
#define KILN_ENDPOINT_LOST_THREAD_H

struct crash_guard;

/* On the watchdog's thread, once for each. */
void lost_thread_tell(struct crash_guard *guard);

#endif
