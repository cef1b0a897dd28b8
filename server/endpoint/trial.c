/* DESIGN: code that runs while a module is being loaded runs inside of the dynamic linker, with its
 * lock taken: a crash there could be caught, but no other module could be loaded any more. The linker itself believes
 * what is written in a file, and crashes on one that is damaged. So a module that has constructors, or that Kiln has
 * not made, is first loaded by a child process (tools/try.c). What the child cannot tell, because it has not the
 * server's functions, is left to the guard around dlopen. */
#include "endpoint/endpoint.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exit codes: of kiln-try, and from 126 on of who could not start it or its libraries. */
enum { LOADED = 87, CANNOT_TELL = 88, NOT_STARTED = 126 };

/* kiln-try is installed beside kiln-cc. */
static bool find_program(const struct settings *settings, char *path, size_t size)
{
    const char *slash = settings->helper != NULL ? strrchr(settings->helper, '/') : NULL;
    if (slash == NULL) {
        return false;
    }
    int len = snprintf(path, size, "%.*s/kiln-try", (int)(slash - settings->helper), settings->helper);
    return len > 0 && (size_t)len < size && access(path, X_OK) == 0;
}

bool trial_load(const char *file, bool constructors, const struct settings *settings, struct build_result *result)
{
    char program[PATH_MAX];
    if (!find_program(settings, program, sizeof program)) {
        return true;
    }
    const char *argv[] = {program, file, NULL};
    struct helper_run run = {.argv = argv, .temp_dir = "/tmp", .wall = settings->timeout};
    if (!helper_run(&run)) {
        return true;
    }
    buffer_free(&run.output);
    if (run.stopped) {
        return true;
    }
    if (run.timed_out) {
        result->transient = true;
        build_fail(result, "a constructor of it did not return within %g s (option CompilerTimeout)",
                   settings->timeout);
        return false;
    }
    if (WIFSIGNALED(run.status)) {
        const char *what = constructors ? "a constructor of it crashed" : "it is damaged: the dynamic linker crashed";
        build_fail(result, "%s: %s (SIG%s)", what, strsignal(WTERMSIG(run.status)), sigabbrev_np(WTERMSIG(run.status)));
        return false;
    }
    int code = WEXITSTATUS(run.status);
    if (code != LOADED && code != CANNOT_TELL && code < NOT_STARTED) {
        build_fail(result, "a constructor of it ended the process, with exit code %d", code);
        return false;
    }
    return true;
}
