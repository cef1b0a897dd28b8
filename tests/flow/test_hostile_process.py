"""Endpoints that spoil what belongs to the whole worker: signals, limits, descriptors, the process itself. Others do not
notice, or a fresh worker takes over."""

import os
import signal

import pytest
from kiln_server import build_dir, read_all, read_until, wait_for
from neighbours import HELLO, PARTS

SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))
TSAN = "tsan" in str(build_dir())

HEAD = """
#define _GNU_SOURCE
#include <kiln.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
"""
CRASH = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; (void)c; *(volatile int *)0 = 1; return 0; }\n"
OVERFLOW = """
#include <kiln.h>
#include <string.h>
static int deeper(int n) { volatile char b[1000]; memset((char *)b, n, sizeof b); return deeper(n + 1) + b[n % 1000]; }
int kiln_run(kiln_context *c, const char *p) { (void)p; (void)c; return deeper(1); }
"""
# Closes each descriptor whose name in /proc holds the word.
CLOSE = """
static void close_all(const char *word)
{
    char link[64], name[256];
    for (int fd = 0; fd < 300; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, name, sizeof name - 1);
        name[n > 0 ? n : 0] = 0;
        if (n > 0 && strstr(name, word) != NULL) close(fd);
    }
}
"""


def source(body, before=""):
    return f"{HEAD}{before}\nint kiln_run(kiln_context *ctx, const char *path)\n{{\n(void)path;\n{body}\nkiln_puts(ctx, \"done\");\nreturn 0;\n}}\n"


class Stream:
    """One answer that began before, and ends when it is asked to."""

    def __init__(self, kiln):
        self.socket = kiln.connect()
        self.socket.sendall(b"GET /parts HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(self.socket, b"begun ")
        self.go = kiln.base / "go"

    def ends_whole(self):
        self.go.write_text("")
        return b"ended" in read_all(self.socket)


@pytest.fixture(params=["loop", "pool"])
def spoiled(request, server):
    """spoiled(body) starts a server whose /x does that."""

    def make(body, before="", **config):
        options = {"DebugPages": True, "QuarantineCrashes": 0, "OptimizeEndpoints": False, "Threads": 1, **config}
        options["OffloadEndpoints"] = ["/x"] if request.param == "pool" else []
        return server(options, {"x._c": source(body, before), "hello._c": HELLO, "crash._c": CRASH, "overflow._c": OVERFLOW, "parts._c": PARTS,
                                "index.html": "index"}).start()

    return make


# ---- signals: what catches crashes stays the server's ----------------------------------------------------

SIGNALS = {
    "signal": 'if (signal(SIGSEGV, SIG_DFL) != SIG_ERR) return 404;',
    "sigaction": 'struct sigaction a = {.sa_handler = SIG_IGN}; if (sigaction(SIGSEGV, &a, NULL) == 0) return 404;',
    "pthread_sigmask": "sigset_t s; sigfillset(&s); pthread_sigmask(SIG_BLOCK, &s, NULL);",
    "sigprocmask": "sigset_t s; sigfillset(&s); sigprocmask(SIG_SETMASK, &s, NULL);",
    "sigaltstack": "stack_t s = {.ss_flags = SS_DISABLE}; if (sigaltstack(&s, NULL) == 0) return 404;",
}


@pytest.mark.parametrize("how", SIGNALS)
def test_the_next_crash_is_caught_whatever_was_done_to_signals(spoiled, how):
    if SANITIZED and how == "sigaltstack":
        pytest.skip("a sanitizer has stacks of its own")
    if TSAN:
        pytest.skip("ThreadSanitizer stands before these functions itself")
    kiln = spoiled(SIGNALS[how])
    stream = Stream(kiln)
    for _ in range(3):
        assert kiln.get("/x").body == b"done"
    assert kiln.get("/overflow").status == 500
    assert kiln.get("/crash").status == 500
    assert stream.ends_whole()
    assert "was killed" not in kiln.log()


@pytest.mark.skipif(TSAN, reason="ThreadSanitizer stands before these functions itself")
def test_a_mask_leaves_other_signals_blocked(spoiled):
    kiln = spoiled("""
        sigset_t s, before; sigemptyset(&s); sigaddset(&s, SIGUSR1); sigaddset(&s, SIGSEGV);
        pthread_sigmask(SIG_BLOCK, &s, &before); pthread_sigmask(SIG_SETMASK, NULL, &s); pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!sigismember(&s, SIGUSR1) || sigismember(&s, SIGSEGV)) return 404;""")
    assert kiln.get("/x").body == b"done"


ALARMS = {
    "alarm": "alarm(1); if (kiln_sleep(ctx, 1500) != KILN_OK) return 404;",
    "profiling": """struct itimerval t = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}}; setitimer(ITIMER_PROF, &t, NULL); setitimer(ITIMER_VIRTUAL, &t, NULL);
                    for (volatile long i = 0; i < 30000000; i++) {} setitimer(ITIMER_PROF, &off, NULL); setitimer(ITIMER_VIRTUAL, &off, NULL);""",
    "others": "raise(SIGIO); raise(SIGXCPU); raise(SIGXFSZ); raise(SIGRTMIN); raise(SIGRTMAX); raise(SIGUSR1); raise(SIGHUP);",
}


@pytest.mark.parametrize("what", ALARMS)
def test_signals_that_an_endpoint_set_going_end_nobody(spoiled, what):
    kiln = spoiled(ALARMS[what])
    worker = kiln.worker_pid()
    assert kiln.get("/x").body == b"done"
    assert kiln.get("/hello").body == b"hello"
    assert kiln.worker_pids() == [worker]


# ---- processes and threads -------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["kiln_sleep(ctx, 10)", "kiln_flush(ctx)", "kiln_wait_fd(ctx, 0, KILN_READ, 1000)", 'kiln_session_set(ctx, "a", "b")'])
def test_a_child_that_waits_by_the_sdk_is_no_second_server(spoiled, call):
    kiln = spoiled(f"pid_t p = fork(); if (p == 0) {{ {call}; for (;;) pause(); }} int s = 0; waitpid(p, &s, 0); if (!WIFEXITED(s)) return 404;")
    assert kiln.get("/x").body == b"done"
    assert kiln.get("/hello").body == b"hello"


@pytest.mark.parametrize("call", ["exit(3)", "_exit(3)", "quick_exit(3)"])
def test_exit_in_a_thread_of_an_endpoint_ends_that_thread(spoiled, call):
    kiln = spoiled("pthread_t t; if (pthread_create(&t, NULL, thread, NULL) != 0) return 404; pthread_join(t, NULL);",
                   f"static void *thread(void *unused) {{ (void)unused; {call}; return NULL; }}")
    worker = kiln.worker_pid()
    assert kiln.get("/x").body == b"done"
    assert kiln.get("/hello").body == b"hello"
    assert kiln.worker_pids() == [worker]
    kiln.wait_log(r"exit\(\) in a thread that an endpoint made")


# ---- what belongs to the process -------------------------------------------------------------------------


def served_anew(kiln, worker, why):
    """Another worker serves."""
    kiln.wait_log(why)
    wait_for(lambda: kiln.worker_pids() and worker not in kiln.worker_pids(), "the end of the old worker")
    assert kiln.get("/hello").body == b"hello"
    assert kiln.get("/").body == b"index"


@pytest.mark.parametrize("limit, value", [("RLIMIT_NOFILE", 3), ("RLIMIT_AS", 1 << 20), ("RLIMIT_FSIZE", 0)])
def test_a_limit_that_was_lowered_does_not_stay(spoiled, limit, value):
    if SANITIZED and limit == "RLIMIT_AS":
        pytest.skip("a sanitizer needs its address space")
    kiln = spoiled(f"struct rlimit l; getrlimit({limit}, &l); l.rlim_cur = {value}; if (setrlimit({limit}, &l) != 0) return 404;")
    worker = kiln.worker_pid()
    assert kiln.get("/x").body == b"done"
    kiln.wait_log(rf"an endpoint has lowered {limit} of the whole worker to {value}: it is put back")
    assert kiln.get("/hello").body == b"hello"
    assert kiln.worker_pids() == [worker]


def test_a_limit_that_cannot_be_put_back_costs_the_worker(spoiled):
    uid = "if (setuid(getuid() == 0 ? 65534 : getuid()) != 0) return 404;" if os.geteuid() == 0 else ""
    kiln = spoiled(uid + "struct rlimit l = {3, 3}; if (setrlimit(RLIMIT_NOFILE, &l) != 0) return 404;")
    worker = kiln.worker_pid()
    assert kiln.get("/x").body == b"done"
    served_anew(kiln, worker, rf"worker {worker} is replaced: an endpoint has lowered RLIMIT_NOFILE of the whole worker to 3")


def test_the_umask_is_put_back(spoiled):
    kiln = spoiled("umask(0777);")
    assert kiln.get("/x").body == b"done"
    kiln.wait_log("an endpoint has changed the umask of the whole worker to 0777: it is put back")


@pytest.mark.parametrize("body, why", [('if (chroot("/proc") != 0) return 404;', "root directory"), ("if (setuid(65534) != 0) return 404;", "user")])
def test_a_worker_that_is_elsewhere_or_somebody_else_is_replaced(spoiled, body, why):
    if os.geteuid() != 0:
        pytest.skip("root alone can")
    kiln = spoiled(body)
    worker = kiln.worker_pid()
    assert kiln.get("/x").body == b"done"
    served_anew(kiln, worker, f"worker {worker} is replaced: an endpoint has changed the {why} of the whole worker")


# ---- descriptors that are not its own --------------------------------------------------------------------


def ask(kiln):
    """It may get no answer: its connection may be among what it closes."""
    try:
        kiln.get("/x", timeout=5)
    except OSError:
        pass


def test_a_worker_that_cannot_wait_for_anything_ends(spoiled):
    kiln = spoiled('close_all("eventpoll");', CLOSE)
    worker = kiln.worker_pid()
    ask(kiln)
    served_anew(kiln, worker, "loop 1 cannot wait any more")


def test_a_worker_that_does_not_listen_any_more_is_replaced(spoiled):
    before = "static void close_listeners(void) { for (int fd = 3; fd < 300; fd++) { int on = 0; socklen_t n = sizeof on;\
              if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) == 0 && on) close(fd); } }"
    kiln = spoiled("close_listeners();", before)
    worker = kiln.worker_pid()
    ask(kiln)
    served_anew(kiln, worker, f"worker {worker} is replaced: an endpoint has closed sockets that the worker listens on")


def test_a_worker_that_has_lost_the_supervisor_is_replaced_at_once(spoiled):
    kiln = spoiled("close(3);")
    worker = kiln.worker_pid()
    ask(kiln)
    served_anew(kiln, worker, f"worker {worker} is replaced: it has closed its control socket|the supervisor is gone")


# ---- a process that does nothing -------------------------------------------------------------------------


def test_a_worker_that_was_stopped_is_replaced(spoiled):
    kiln = spoiled("raise(SIGSTOP);", WorkerSilence=2, ShutdownTimeout=1)
    worker = kiln.worker_pid()
    with kiln.connect() as victim:
        victim.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        kiln.wait_log(rf"worker {worker} is replaced: it has said nothing for 2 seconds \(WorkerSilence\)")
        wait_for(lambda: worker not in kiln.worker_pids(), "the end of the stopped worker")
    assert kiln.get("/hello").body == b"hello"


def test_the_end_of_a_worker_that_was_replaced_does_not_spoil_the_end_of_the_server(spoiled):
    """Both at once: the supervisor hears of the worker's end only when it is to end itself."""
    kiln = spoiled("raise(SIGSTOP);", WorkerSilence=2, ShutdownTimeout=60)
    worker = kiln.worker_pid()
    with kiln.connect() as victim:
        victim.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        kiln.wait_log(rf"worker {worker} is replaced: it has said nothing for 2 seconds \(WorkerSilence\)")
        kiln.wait_log(r"worker (?!%d)\d+ serves" % worker)
        os.kill(kiln.pid, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        os.kill(kiln.pid, signal.SIGTERM)
        os.kill(kiln.pid, signal.SIGCONT)
    kiln.wait_exit(0)


def test_a_worker_that_speaks_is_not(spoiled):
    kiln = spoiled("if (kiln_sleep(ctx, 4000) != KILN_OK) return 404;", WorkerSilence=2)
    worker = kiln.worker_pid()
    assert kiln.get("/x").body == b"done"
    assert kiln.worker_pids() == [worker]
