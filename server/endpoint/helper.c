/* DESIGN: helpers (kiln-cc, and gcc or clang under kiln-cc's limits) are started with posix_spawn:
 * the server has threads and may be large, so it never forks. Each helper leads a process group,
 * which is killed as a whole when its time is over, when the server stops, and also when it has
 * ended, for what it may have left behind. kiln-cc sets the limits of memory, processor and file
 * size on itself before it looks at the source.
 * One kiln-cc is started ahead and waits for its command on standard input, so that a first
 * request does not pay for the start of a process. It is still a fresh process per build. */
#include "endpoint/build.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OUTPUT_MAX = 1024 * 1024 };

static void drop_warm(void);

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Readable while helpers must not run. */
static int stop_fd = -1;

static void make_stop_fd(void)
{
    stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void helpers_stop(void)
{
    pthread_once(&once, make_stop_fd);
    uint64_t one = 1;
    (void)!write(stop_fd, &one, sizeof one);
    drop_warm();
}

void helpers_allow(void)
{
    pthread_once(&once, make_stop_fd);
    uint64_t count;
    (void)!read(stop_fd, &count, sizeof count);
}

static double monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The child sees no more of our environment than compilers need. */
static int spawn(const char *const *argv, const char *temp_dir, int in_fd, int out_fd, pid_t *pid)
{
    char path[1024];
    char temp[PATH_MAX + 16];
    const char *ours = getenv("PATH");
    snprintf(path, sizeof path, "PATH=%s", ours != NULL ? ours : "/usr/local/bin:/usr/bin:/bin");
    snprintf(temp, sizeof temp, "TMPDIR=%s", temp_dir);
    char language[] = "LC_ALL=C";
    char *const environment[] = {path, temp, language, NULL};

    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&actions) != 0) {
        return ENOMEM;
    }
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    if (in_fd >= 0) {
        posix_spawn_file_actions_adddup2(&actions, in_fd, 0);
    } else {
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    }
    for (int fd = 1; fd <= 3; fd++) {
        posix_spawn_file_actions_adddup2(&actions, out_fd, fd);
    }
    /* An endpoint's descriptors may be inheritable: a helper that kept the other end of its socket
     * open would hide from it that its peer has closed. */
    posix_spawn_file_actions_addclosefrom_np(&actions, 4);
    posix_spawn_file_actions_addchdir_np(&actions, "/");
    int error = posix_spawn(pid, argv[0], &actions, &attributes, (char *const *)argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Reads what there is. False at the end of the output. */
static bool drain(int fd, struct buffer *output)
{
    char block[16384];
    for (;;) {
        ssize_t n = read(fd, block, sizeof block);
        if (n > 0) {
            if (output->len + (size_t)n <= OUTPUT_MAX) {
                buffer_append(output, block, (size_t)n);
            }
            continue;
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        return n < 0 && errno == EAGAIN;
    }
}

static void watch_child(struct helper_run *run, int out, int child)
{
    double deadline = monotonic() + run->wall;
    bool open_output = true;
    for (;;) {
        double left = deadline - monotonic();
        if (left <= 0) {
            run->timed_out = true;
            return;
        }
        struct pollfd fds[3] = {
            {.fd = child, .events = POLLIN},
            {.fd = stop_fd, .events = POLLIN},
            {.fd = open_output ? out : -1, .events = POLLIN},
        };
        if (poll(fds, 3, (int)fmin(left * 1000 + 1, 60000)) < 0 && errno != EINTR) {
            return;
        }
        if (open_output && fds[2].revents != 0) {
            open_output = drain(out, &run->output);
            if (!open_output && child < 0) {
                return; /* no pidfd on this kernel: the end of the output is the end */
            }
        }
        if (fds[1].revents != 0) {
            run->stopped = true;
            return;
        }
        if (fds[0].revents != 0) {
            drain(out, &run->output);
            return;
        }
    }
}

/* Descriptors 0 to 3 of the child must not be one of ours that is copied to them. */
static int above_standard(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    close(fd);
    return high;
}

struct child {
    pid_t pid;
    int out; /* what it writes to 1, 2 and 3 */
    int in; /* its standard input, -1: none */
};

/* An errno, or 0. */
static int start_child(const char *const *argv, const char *temp_dir, bool with_input, struct child *child)
{
    int out[2];
    int in[2] = {-1, -1};
    if (pipe2(out, O_CLOEXEC) != 0) {
        return errno;
    }
    /* A socket: writing to a child that has died gives an error instead of a signal. */
    if (with_input && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0) {
        int error = errno;
        close(out[0]);
        close(out[1]);
        return error;
    }
    int child_out = above_standard(out[1]);
    int child_in = with_input ? above_standard(in[1]) : -1;
    int error = child_out < 0 || (with_input && child_in < 0) ? EMFILE
                                                              : spawn(argv, temp_dir, child_in, child_out, &child->pid);
    if (child_out >= 0) {
        close(child_out);
    }
    if (child_in >= 0) {
        close(child_in);
    }
    if (error != 0) {
        close(out[0]);
        if (with_input) {
            close(in[0]);
        }
        return error;
    }
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    child->out = out[0];
    child->in = in[0];
    return 0;
}

static int reap(struct child *child)
{
    int status = 0;
    while (waitpid(child->pid, &status, 0) < 0) {
        if (errno != EINTR) {
            break;
        }
    }
    close(child->out);
    if (child->in >= 0) {
        close(child->in);
    }
    return status;
}

static void kill_group(pid_t pid)
{
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL); /* it may not lead its group yet */
}

/* ---- the one that waits ------------------------------------------------------------------------ */

static pthread_mutex_t warm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct child warm; /* pid 0: none */
static char *warm_program;

void helper_warm_up(const char *program)
{
    pthread_once(&once, make_stop_fd);
    const char *const argv[] = {program, "wait", NULL};
    struct pollfd stop = {.fd = stop_fd, .events = POLLIN};
    pthread_mutex_lock(&warm_lock);
    if (warm.pid == 0 && poll(&stop, 1, 0) == 0) {
        free(warm_program);
        warm_program = strdup(program);
        if (warm_program == NULL || start_child(argv, "/tmp", true, &warm) != 0) {
            warm.pid = 0;
        }
    }
    pthread_mutex_unlock(&warm_lock);
}

static void drop_warm(void)
{
    pthread_mutex_lock(&warm_lock);
    if (warm.pid != 0) {
        kill_group(warm.pid);
        reap(&warm);
        warm.pid = 0;
    }
    free(warm_program);
    warm_program = NULL;
    pthread_mutex_unlock(&warm_lock);
}

/* Gives the command to the helper that waits. False when there is none, or it has died. */
static bool take_warm(const char *const *argv, struct child *child)
{
    pthread_mutex_lock(&warm_lock);
    bool taken = warm.pid != 0 && strcmp(warm_program, argv[0]) == 0;
    if (taken) {
        *child = warm;
        warm.pid = 0;
    }
    pthread_mutex_unlock(&warm_lock);
    if (!taken) {
        return false;
    }
    struct buffer text = BUFFER_EMPTY;
    for (size_t i = 1; argv[i] != NULL; i++) {
        buffer_append(&text, argv[i], strlen(argv[i]) + 1);
    }
    size_t sent = 0;
    while (!text.failed && sent < text.len) {
        ssize_t n = send(child->in, text.data + sent, text.len - sent, MSG_NOSIGNAL);
        if (n <= 0 && errno != EINTR) {
            break;
        }
        sent += n > 0 ? (size_t)n : 0;
    }
    bool told = !text.failed && sent == text.len && shutdown(child->in, SHUT_WR) == 0;
    buffer_free(&text);
    if (!told) {
        kill_group(child->pid);
        reap(child);
    }
    return told;
}

/* ---- a run ---------------------------------------------------------------------------------------- */

bool helper_run(struct helper_run *run)
{
    pthread_once(&once, make_stop_fd);
    run->output = BUFFER_EMPTY;
    run->timed_out = run->stopped = false;
    run->status = 0;
    struct child child = {.pid = 0, .out = -1, .in = -1};
    run->spawn_error = 0;
    if (!run->may_wait || !take_warm(run->argv, &child)) {
        run->spawn_error = start_child(run->argv, run->temp_dir, false, &child);
    }
    if (run->spawn_error != 0) {
        return false;
    }
    int pidfd = pidfd_open(child.pid, 0);
    watch_child(run, child.out, pidfd);
    if (pidfd >= 0 || run->timed_out || run->stopped) {
        kill_group(child.pid);
    }
    if (pidfd >= 0) {
        close(pidfd);
    }
    run->status = reap(&child);
    return true;
}

const char *helper_death(const struct helper_run *run, const struct settings *settings, char *text, size_t size)
{
    if (run->stopped) {
        return "the server is stopping";
    }
    int sig = WIFSIGNALED(run->status) ? WTERMSIG(run->status) : 0;
    if (run->timed_out || sig == SIGALRM || sig == SIGXCPU) {
        snprintf(text, size, "the compiler took longer than %g s (option CompilerTimeout) and was stopped",
                 settings->timeout);
        return text;
    }
    if (sig == 0) {
        return NULL;
    }
    if (sig == SIGXFSZ) {
        return "the built object would be larger than 64 MB";
    }
    if (sig == SIGKILL) {
        return "the compiler was killed; the system may be short of memory";
    }
    snprintf(text, size, "the compiler crashed (%s) on this source", strsignal(sig));
    return text;
}
