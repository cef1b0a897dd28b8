#include "supervisor/worker_signals.h"

#include "base/check.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int event_fd = -1;

static void on_terminate(int number)
{
    (void)number;
    int saved = errno;
    uint64_t one = 1;
    ssize_t ignored = write(event_fd, &one, sizeof one);
    (void)ignored;
    errno = saved;
}

static void on_other(int number)
{
    (void)number;
}

bool worker_signals_open(void)
{
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd < 0) {
        return false;
    }
    /* From the terminal, or from what an endpoint has set going, or forgot to end with itself: a timer, a limit. A
     * handler, unlike SIG_IGN, is not inherited by programs that are started from here. */
    const int others[] = {SIGINT,  SIGQUIT,   SIGHUP,  SIGUSR1, SIGUSR2, SIGPIPE,
                          SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGXFSZ, SIGIO};
    struct sigaction action = {.sa_handler = on_other, .sa_flags = SA_RESTART | SA_ONSTACK};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        sigaction(others[i], &action, NULL);
    }
    for (int i = SIGRTMIN; i <= SIGRTMAX; i++) {
        sigaction(i, &action, NULL);
    }
    action.sa_handler = on_terminate;
    sigaction(SIGTERM, &action, NULL);
    signal(SIGCHLD, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    return sigprocmask(SIG_SETMASK, &none, NULL) == 0;
}

void worker_signals_close(void)
{
    /* The handler stays: from here on SIGTERM is what is happening anyway. */
    int fd = event_fd;
    event_fd = -1;
    close(fd);
}

int worker_signals_fd(void)
{
    return event_fd;
}

unsigned worker_signals_read(void)
{
    uint64_t count = 0;
    return read(event_fd, &count, sizeof count) == (ssize_t)sizeof count ? (unsigned)count : 0;
}
