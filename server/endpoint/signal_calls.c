/* DESIGN: sigaction(), signal(), sigprocmask(), pthread_sigmask() and sigaltstack() as endpoints see them, in front of
 * the C library's like exit() (exit_calls.c). What catches crashes (crash.c) is one handler for the whole process and
 * one stack and mask for each thread, so code that takes them for itself would take them from every other endpoint: the
 * next crash, whoever's, would end the worker with all its requests, or jump into code that was unloaded. So handlers
 * for those signals are refused (EINVAL, as for SIGKILL), they are left out of every mask, and a thread's alternate
 * stack stays. All other signals are as free as ever.
 *
 * A child that an endpoint forked may do what it likes. System calls without the C library are not seen. Under
 * ThreadSanitizer, which stands before these functions itself, and calls them before the program is ready, they are its. */
#include "endpoint/signal_calls.h"

#include "base/sanitize.h"
#include "observe/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef KILN_TSAN

void signal_calls_own(const sigset_t *signals)
{
    (void)signals;
}

int signal_calls_action(int number, const struct sigaction *action, struct sigaction *before)
{
    return sigaction(number, action, before);
}

int signal_calls_stack(const stack_t *stack, stack_t *before)
{
    return sigaltstack(stack, before);
}

#else

static sigset_t owned;
static pid_t owner; /* 0: nothing is owned yet */
static _Thread_local bool has_stack;

static void *next(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (function == NULL) {
        abort();
    }
    return function;
}

/* Looked up once: signal handlers come here, too. A function of the name and type of the one that follows. */
#define NEXT(function) \
    static __typeof__(&(function)) next_##function(void) \
    { \
        static _Atomic(void *) found; \
        void *at = atomic_load_explicit(&found, memory_order_relaxed); \
        if (at == NULL) { \
            at = next(#function); \
            atomic_store_explicit(&found, at, memory_order_relaxed); \
        } \
        __typeof__(&(function)) typed; \
        memcpy(&typed, &at, sizeof typed); \
        return typed; \
    }

NEXT(sigaction)
NEXT(signal)
NEXT(sigprocmask)
NEXT(pthread_sigmask)
NEXT(sigaltstack)

void signal_calls_own(const sigset_t *signals)
{
    next_sigaction();
    owned = *signals;
    owner = getpid();
}

int signal_calls_action(int number, const struct sigaction *action, struct sigaction *before)
{
    return next_sigaction()(number, action, before);
}

int signal_calls_stack(const stack_t *stack, stack_t *before)
{
    has_stack = stack != NULL && (stack->ss_flags & SS_DISABLE) == 0;
    return next_sigaltstack()(stack, before);
}

static bool is_owned(int number)
{
    return owner != 0 && sigismember(&owned, number) == 1 && owner == getpid();
}

static bool refused(int number)
{
    static _Atomic bool told;
    if (!is_owned(number)) {
        return false;
    }
    if (!atomic_exchange(&told, true)) {
        log_warning("code of an endpoint wants a handler of its own for signal %d (%s): refused, crashes are caught by "
                    "the server",
                    number, strsignal(number));
    }
    errno = EINVAL;
    return true;
}

int sigaction(int number, const struct sigaction *restrict action, struct sigaction *restrict before)
{
    return action != NULL && refused(number) ? -1 : next_sigaction()(number, action, before);
}

__sighandler_t signal(int number, __sighandler_t handler)
{
    return refused(number) ? SIG_ERR : next_signal()(number, handler);
}

/* The set without what is owned, in `room` when it has to be another. */
static const sigset_t *without_owned(int how, const sigset_t *set, sigset_t *room)
{
    if (set == NULL || how == SIG_UNBLOCK || owner == 0 || owner != getpid()) {
        return set;
    }
    *room = *set;
    for (int i = 1; i < NSIG; i++) {
        if (sigismember(&owned, i) == 1) {
            sigdelset(room, i);
        }
    }
    return room;
}

int sigprocmask(int how, const sigset_t *restrict set, sigset_t *restrict before)
{
    sigset_t room;
    return next_sigprocmask()(how, without_owned(how, set, &room), before);
}

int pthread_sigmask(int how, const sigset_t *restrict set, sigset_t *restrict before)
{
    sigset_t room;
    return next_pthread_sigmask()(how, without_owned(how, set, &room), before);
}

int sigaltstack(const stack_t *restrict stack, stack_t *restrict before)
{
#ifndef KILN_ASAN /* it changes it at the end of a thread */
    if (stack != NULL && has_stack && owner == getpid()) {
        errno = EPERM;
        return -1;
    }
#endif
    return next_sigaltstack()(stack, before);
}

#endif
