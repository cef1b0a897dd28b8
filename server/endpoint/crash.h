/* DESIGN: a crash of endpoint code ends one request, not the server. Around each run stands a
 * guard; while a thread executes endpoint code (not while its coroutine sleeps, and not
 * inside the server's own bookkeeping) a thread-local pointer names the guard. A fatal signal
 * then arrives on the thread's alternate stack, the handler writes down where it happened,
 * and the interrupted context is sent to the landing of the guard: crash_run() returns
 * CRASH_CAUGHT as if the endpoint had. The stack below is forgotten. exit(), _exit() and
 * pthread_exit() called by an endpoint land in the same place (exit_calls.c).
 *
 * What is caught may have left locks taken and memory damaged, so a worker that has caught a
 * crash only finishes what it has begun: the supervisor starts another on the same sockets.
 * A signal outside a guard is the server's own fault: it takes its default way.
 *
 * A crash inside of malloc leaves the lock of that thread's heap taken, and damage of the heap
 * makes malloc itself crash. So after each crash locks that stay taken are opened (heap_lock.h), and
 * the thread tries its heap, under a guard and watched (crash_run). When that fails it can do nothing
 * any more that needs memory and is given up (lost_thread.h). What its loop had begun is lost; the
 * other loops finish theirs.
 *
 * Not caught: crashes of threads that an endpoint made itself, SIGKILL, an overrun that goes on
 * for kilobytes up the stack and so destroys the landing. They end the worker, and the supervisor
 * starts another. */
#ifndef KILN_ENDPOINT_CRASH_H
#define KILN_ENDPOINT_CRASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    CRASH_FRAMES = 48,
    CRASH_CAUGHT = INT32_MIN,
    CRASH_REGISTERS = 33, /* arm64: x0 to x30, sp, pc; x86-64: 16 and rip, as DWARF counts them */
    CRASH_STACK_KEPT = 131072,
    CRASH_SNAPSHOTS = 4,
};

/* What unwinding by the tables of .eh_frame needs, taken in the signal handler, used later
 * (symbol.c). A few of them are there for the whole process. */
struct crash_snapshot {
    uintptr_t registers[CRASH_REGISTERS];
    unsigned register_count;
    uintptr_t pc;
    uintptr_t sp;
    size_t size; /* of the stack from sp upwards */
    unsigned char stack[CRASH_STACK_KEPT];
};

struct crash_report {
    int signal; /* SIGSEGV...; 0: a call of `call` */
    int code; /* si_code */
    const char *call; /* "exit(3)": static text */
    uintptr_t address; /* si_addr: what could not be accessed */
    uintptr_t frames[CRASH_FRAMES]; /* program counters, the faulting one first */
    unsigned frame_count;
    char access; /* 'r', 'w', 'x': how; 0: unknown */
    bool stack_overflow; /* the address lies in the guard below the stack */
    bool wild_jump; /* frames[0] is no code: what follows is where the jump came from, if known */
    struct crash_snapshot *snapshot; /* NULL: there was none free; crash_report_done gives it back */
};

/* Where a module's code lies: the only place that a timeout is allowed to interrupt. */
struct crash_text {
    uintptr_t low;
    uintptr_t high;
};

/* report.call of a run that was stopped because its time was over. */
extern const char crash_timeout_call[];
static inline bool crash_is_timeout(const struct crash_report *report)
{
    return report->call == crash_timeout_call;
}

/* Lives where the run's own state lives (never on the stack that may be smashed). */
struct crash_guard {
    void *landing_sp; /* of crash_run(): set by it */
    uintptr_t stack_low;
    uintptr_t stack_high;
    const struct crash_text *text; /* NULL: a timeout never interrupts it */
    volatile bool overdue; /* its time is over: the next SDK call leaves (crash_leave_overdue) */
    /* The thread is given up after a crash: called on the watchdog's thread. NULL: nobody is told. */
    void (*lost)(struct crash_guard *guard);
    struct crash_report report;
};

/* The guard of the endpoint code that runs on this thread now; NULL outside. A child that an
 * endpoint forked inherits it; crash.c tells them apart by process id. */
extern _Thread_local struct crash_guard *crash_guard_now;

/* Before the worker's first thread: those that are made without attributes of their own (builders, which run
 * kiln_load, and an endpoint's threads) get the guard that coroutines have below their stacks, not one page. */
void crash_guard_threads(void);
/* Installs the handlers; once per worker, before any thread runs endpoints. */
void crash_start(void);
/* Before crash_run: the alternate stack, and the bounds of the stack that this thread runs on
 * now, a coroutine's or its own. */
void crash_guard_ready(struct crash_guard *guard);

/* Calls fn(arg) under the guard. Returns what it returned, or CRASH_CAUGHT with
 * guard->report filled. The guard is armed during the call only. Does not return when the crash
 * has left a heap that cannot be used. */
int crash_run(struct crash_guard *guard, int (*fn)(void *), void *arg);

/* From the interposed exit functions: lands at the guard if one is armed in this process,
 * else returns. */
void crash_leave(const char *call);

/* What the watchdog sends to a thread whose slice is past its time. */
int crash_timeout_signal(void);
/* From calls of the SDK: lands there when the armed guard is overdue, else returns. */
static inline void crash_leave_overdue(void)
{
    if (__builtin_expect(crash_guard_now != NULL && crash_guard_now->overdue, 0)) {
        crash_leave(crash_timeout_call);
    }
}

/* Lands at a guard whose crash_run() is active on this thread, with a report that the caller has
 * put into it: for work that crashed on another thread on its behalf. */
_Noreturn void crash_land(struct crash_guard *guard);

/* Once for each report that was caught; without it, its snapshot is lost for later crashes. */
void crash_report_done(struct crash_report *report);

/* True once anything was caught: what runs at the exit of the process may not be trusted. */
bool crash_has_happened(void);

/* True in a child that endpoint code forked: it must never return into the server. */
bool crash_is_child(void);

/* True on a thread that may not end the process: any but the first. */
bool crash_is_foreign_thread(void);

/* True between crash_enter and its end: where the server called endpoint code. */
bool crash_is_entry(uintptr_t pc);

/* "Segmentation fault: read of address 0x8" for people. */
void crash_describe(const struct crash_report *report, char *out, size_t size);

#endif
