/* Which system calls: a list of those that code needs which computes, reads and writes files, waits, and runs
 * threads. All others are refused with EPERM and not by death, so that a library that only tries one falls
 * back. A list of what is allowed, not of what is known to be dangerous: new system calls stay outside. */
#include "isolate/sandbox.h"

#include "base/sanitize.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SOCK_TYPE_MASK = 0xf };

static const char *const allowed[] = {
    /* files, as far as Landlock lets them */
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "open",
    "openat",
    "openat2",
    "close",
    "close_range",
    "stat",
    "fstat",
    "lstat",
    "newfstatat",
    "statx",
    "statfs",
    "fstatfs",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents",
    "getdents64",
    "lseek",
    "flock",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "fallocate",
    "ftruncate",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "chdir",
    "fchdir",
    "getcwd",
    "umask",
    "fadvise64",
    "readahead",
    "sendfile",
    "copy_file_range",
    "splice",
    "tee",
    "dup",
    "dup2",
    "dup3",
    "pipe",
    "pipe2",
    /* memory */
    "mmap",
    "mprotect",
    "munmap",
    "mremap",
    "madvise",
    "brk",
    "msync",
    "mincore",
    "membarrier",
    /* threads, time, signals of this process */
    "futex",
    "futex_waitv",
    "set_robust_list",
    "get_robust_list",
    "rseq",
    "set_tid_address",
    "exit",
    "exit_group",
    "gettid",
    "sched_yield",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "getpriority",
    "getcpu",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigsuspend",
    "sigaltstack",
    "restart_syscall",
    "pause",
    "nanosleep",
    "clock_nanosleep",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "getitimer",
    "setitimer",
    "alarm",
    "timer_create",
    "timer_settime",
    "timer_gettime",
    "timer_getoverrun",
    "timer_delete",
    /* waiting */
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "eventfd",
    "eventfd2",
    "timerfd_create",
    "timerfd_settime",
    "timerfd_gettime",
    "signalfd",
    "signalfd4",
    /* sockets that it has */
    "socketpair",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "getsockname",
    "getpeername",
    /* what it may know */
    "getpid",
    "getppid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getresuid",
    "getresgid",
    "getgroups",
    "getpgrp",
    "getpgid",
    "getsid",
    "times",
    "getrusage",
    "sysinfo",
    "uname",
    "getrlimit",
    "getrandom",
    "wait4",
    "waitid",
#if defined(KILN_ASAN) || defined(KILN_TSAN)
    "prctl",
    "arch_prctl",
    "personality",
    "prlimit64",
#endif
};

static int allow(scmp_filter_ctx filter, const char *name, unsigned count, const struct scmp_arg_cmp *conditions)
{
    int number = seccomp_syscall_resolve_name(name);
    if (number < 0) {
        return 0; /* not on this processor */
    }
    return seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, number, count, conditions);
}

static int allow_if(scmp_filter_ctx filter, const char *name, struct scmp_arg_cmp condition)
{
    return allow(filter, name, 1, &condition);
}

static struct scmp_arg_cmp is(unsigned argument, scmp_datum_t value)
{
    return (struct scmp_arg_cmp){.arg = argument, .op = SCMP_CMP_EQ, .datum_a = value};
}

static struct scmp_arg_cmp has(unsigned argument, scmp_datum_t mask, scmp_datum_t value)
{
    return (struct scmp_arg_cmp){.arg = argument, .op = SCMP_CMP_MASKED_EQ, .datum_a = mask, .datum_b = value};
}

/* Calls whose arguments decide. */
static int add_conditions(scmp_filter_ctx filter, const struct host_orders *orders)
{
    scmp_datum_t self = (scmp_datum_t)getpid();
    /* Threads, no processes. What clone3 wants lies in memory where no filter looks: without it, the C library
     * takes clone. */
    int result = allow_if(filter, "clone", has(0, CLONE_THREAD, CLONE_THREAD));
    int clone3 = seccomp_syscall_resolve_name("clone3");
    if (clone3 >= 0) {
        result |= seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), clone3, 0);
    }
    /* Signals to itself. */
    static const char *const signals[] = {"kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        result |= allow_if(filter, signals[i], is(0, self));
    }
    static const int controls[] = {PR_SET_NAME,         PR_GET_NAME,       PR_GET_DUMPABLE,   PR_SET_VMA,
                                   PR_GET_NO_NEW_PRIVS, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK, PR_GET_SECCOMP};
    for (size_t i = 0; i < sizeof controls / sizeof controls[0]; i++) {
        result |= allow_if(filter, "prctl", is(0, (scmp_datum_t)controls[i]));
    }
    static const unsigned long requests[] = {FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ};
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        result |= allow_if(filter, "ioctl", is(1, requests[i]));
    }
    /* No owner of a descriptor, who would get its signals. */
    static const int commands[] = {F_DUPFD,      F_GETFD,         F_SETFD,      F_GETFL,     F_SETFL,
                                   F_GETLK,      F_SETLK,         F_SETLKW,     F_OFD_GETLK, F_OFD_SETLK,
                                   F_OFD_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_GET_SEALS};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        result |= allow_if(filter, "fcntl", is(1, (scmp_datum_t)commands[i]));
    }
    /* Of its own threads alone, each for itself. Mode, owner and times of files are no matter of Landlock: they are
     * changed by nobody, but for the times of an open file. */
    static const char *const own[] = {"sched_setaffinity", "sched_setparam", "sched_setscheduler"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        result |= allow_if(filter, own[i], is(0, 0));
    }
    struct scmp_arg_cmp nice[] = {is(0, PRIO_PROCESS), is(1, 0)};
    result |= allow(filter, "setpriority", 2, nice);
    result |= allow_if(filter, "utimensat", is(1, 0));
    /* Sending must not connect. */
    result |= allow_if(filter, "sendto", has(3, MSG_FASTOPEN, 0));
    result |= allow_if(filter, "sendmsg", has(2, MSG_FASTOPEN, 0));
    result |= allow_if(filter, "sendmmsg", has(3, MSG_FASTOPEN, 0));
    /* Limits are read, not set. */
    result |= allow_if(filter, "prlimit64", is(2, 0));
    if (orders->port_count > 0) {
        /* TCP alone, which Landlock restricts to the ports. */
        static const int families[] = {AF_INET, AF_INET6};
        for (size_t i = 0; i < 2; i++) {
            struct scmp_arg_cmp tcp[] = {is(0, (scmp_datum_t)families[i]),
                                         has(1, SOCK_TYPE_MASK, SOCK_STREAM),
                                         {.arg = 2, .op = SCMP_CMP_LE, .datum_a = IPPROTO_TCP}};
            result |= allow(filter, "socket", 3, tcp);
        }
        result |= allow(filter, "connect", 0, NULL);
    }
    return result;
}

bool sandbox_seccomp(const struct host_orders *orders, struct buffer *why)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (filter == NULL) {
        buffer_append_z(why, "no memory for the list of allowed system calls");
        return false;
    }
    int result = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    result |= seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a tree */
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        result |= allow(filter, allowed[i], 0, NULL);
    }
    result |= add_conditions(filter, orders);
    int loaded = result == 0 ? seccomp_load(filter) : result;
    seccomp_release(filter);
    if (loaded != 0) {
        buffer_printf(why, "the list of allowed system calls cannot be set up (seccomp): %s", strerror(-loaded));
        return false;
    }
    return true;
}
