/* exit(), _exit(), quick_exit() and pthread_exit() as endpoints see them. The program stands
 * before the C library in the order in which modules are linked, and exports these names
 * (exports.list), so calls from endpoints and from libraries that they use come here. While
 * endpoint code runs, the call ends the request (crash.h); in a thread that an endpoint made it ends
 * that thread; everybody else gets the C library's own. errx() and others call the C library's
 * exit() from inside; its handlers are run first of all, and one of ours lands from there.
 *
 * A child that an endpoint forked ends without the server's exit handlers: they would wait
 * for threads that it does not have. */
#include "endpoint/exit_calls.h"

#include "endpoint/crash.h"
#include "observe/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *next(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (function == NULL) {
        abort();
    }
    return function;
}

/* The C library has taken it off its list by now, and holds no lock. */
static void at_exit(int code, void *unused)
{
    (void)code;
    (void)unused;
    if (crash_guard_now != NULL && !crash_is_child()) {
        exit_calls_watch();
        crash_leave("exit()");
    }
}

void exit_calls_watch(void)
{
    on_exit(at_exit, NULL);
}

/* The server ends by its first thread alone, so another was made by an endpoint, and has no guard. */
static void end_foreign_thread(const char *call)
{
    if (!crash_is_foreign_thread()) {
        return;
    }
    log_error("%s in a thread that an endpoint made, which would have ended the server: that thread ends", call);
    __attribute__((noreturn)) void (*real)(void *); /* sanitizers forget this stack then */
    *(void **)&real = next("pthread_exit");
    real(NULL);
}

void exit(int code)
{
    crash_leave("exit()");
    end_foreign_thread("exit()");
    if (crash_is_child()) {
        fflush(NULL);
        _exit(code);
    }
    void (*real)(int);
    *(void **)&real = next("exit");
    real(code);
    __builtin_unreachable();
}

void _exit(int code)
{
    crash_leave("_exit()");
    end_foreign_thread("_exit()");
    void (*real)(int);
    *(void **)&real = next("_exit");
    real(code);
    __builtin_unreachable();
}

void _Exit(int code)
{
    _exit(code);
}

void quick_exit(int code)
{
    crash_leave("quick_exit()");
    end_foreign_thread("quick_exit()");
    void (*real)(int);
    *(void **)&real = next("quick_exit");
    real(code);
    __builtin_unreachable();
}

void pthread_exit(void *value)
{
    crash_leave("pthread_exit()");
    void (*real)(void *);
    *(void **)&real = next("pthread_exit");
    real(value);
    __builtin_unreachable();
}
