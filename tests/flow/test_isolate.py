"""Isolated endpoints (option Isolate): each in a process of its own, with few rights."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from kiln_server import ROOT, build_dir, children_of, exchange, free_port, read_all, read_until, wait_for

HEAD = "#include <kiln.h>\n#include <errno.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
HELLO = HEAD + 'int kiln_run(kiln_context *c, const char *p) { return kiln_printf(c, "hello %s from %d", p, (int)getpid()); }\n'
SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))


def hosts_of(kiln) -> list:
    """Processes of isolated endpoints, children of the supervisor."""
    found = []
    for pid, state in children_of(kiln.pid).items():
        try:
            if state != "Z" and b"--host" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return sorted(found)


def run(body, before=""):
    return f"{HEAD}{before}\nint kiln_run(kiln_context *ctx, const char *path)\n{{\n(void)path;\n{body}\n}}\n"


@pytest.fixture
def isolated(server):
    """isolated(files, **config) starts a server where everything below /i is isolated."""

    def make(files, **config):
        options = {"Isolate": ["/i"], "QuarantineCrashes": 0, "OptimizeEndpoints": False, "LogLevel": "debug", **config}
        kiln = server(options, files)
        kiln.start()
        return kiln

    return make


# ---- what works as in the worker (test_sdk.py runs all of it isolated, too) -----------------------------


def test_rooms_cannot_be_reached_and_say_so(isolated):
    publish = run('return kiln_printf(ctx, "%d", kiln_publish("room", KILN_WS_TEXT, "hi", 2));')
    kiln = isolated({"i/p._c": publish, "p._c": publish})
    assert kiln.get("/p").text == "0"
    assert kiln.get("/i/p").text == "-8"
    kiln.wait_log("an isolated endpoint cannot publish to rooms")


def test_kiln_socket_in_an_isolated_endpoint_is_an_error_that_says_so(isolated):
    socket_endpoint = HEAD + 'void kiln_socket(kiln_ws *ws, const char *path) { (void)path; kiln_ws_close(ws, 1000, ""); }\n'
    kiln = isolated({"i/s._c": socket_endpoint, "i/e._c": HELLO})
    assert kiln.get("/i/s").status == 500
    kiln.wait_log("i/s._c: .*kiln_socket cannot be had in an isolated endpoint")
    assert kiln.get("/i/e").status == 200


def test_it_runs_in_a_process_of_its_own(isolated):
    kiln = isolated({"i/e._c": HELLO, "e._c": HELLO, "i/deep/er/e._c": HELLO})
    inside = kiln.get("/e").text
    assert inside == f"hello /e from {kiln.worker_pid()}"
    assert hosts_of(kiln) == []
    pid = int(kiln.get("/i/e").text.split()[-1])
    assert hosts_of(kiln) == [pid]
    other = int(kiln.get("/i/deep/er/e").text.split()[-1])
    assert hosts_of(kiln) == sorted([pid, other])
    assert int(kiln.get("/i/e").text.split()[-1]) == pid
    kiln.stop()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the endpoint's process")


def test_the_same_compiled_file_runs_isolated_and_not(isolated, tmp_path):
    import subprocess

    source = tmp_path / "e.c"
    source.write_text(HELLO)
    (tmp_path / "www" / "i").mkdir(parents=True)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{ROOT}/plugin-sdk/include", "-o", tmp_path / "www" / "e.so", source], check=True)
    (tmp_path / "www" / "i" / "e.so").write_bytes((tmp_path / "www" / "e.so").read_bytes())
    kiln = isolated({})
    assert kiln.get("/e").text.endswith(str(kiln.worker_pid()))
    assert int(kiln.get("/i/e").text.split()[-1]) in hosts_of(kiln)


def test_parallel_requests_share_its_variables(isolated):
    kiln = isolated(
        {
            "i/count._c": run(
                'kiln_sleep(ctx, 50); return kiln_printf(ctx, "%lld", (long long)kiln_atomic_add(&n, 1));', "static int64_t n;"
            )
        }
    )
    kiln.get("/i/count")
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        answers = [f.result().text for f in [pool.submit(kiln.get, "/i/count") for _ in range(200)]]
    assert sorted(map(int, answers)) == list(range(2, 202))
    assert len(hosts_of(kiln)) == 1


ECHO = run(
    """
    char buffer[10000];
    ssize_t n;
    kiln_content_type(ctx, "application/octet-stream");
    while ((n = kiln_body_read(ctx, buffer, sizeof buffer)) > 0)
        if (kiln_write(ctx, buffer, (size_t)n) != KILN_OK) return KILN_GONE;
    return (int)n;"""
)


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_stream_both_ways(isolated, chunked):
    kiln = isolated({"i/echo._c": ECHO})
    block = bytes(range(256)) * 256
    count = 300  # 20 MB
    with kiln.connect() as s:
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(block) * count}"
        s.sendall(f"POST /i/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{length}\r\n\r\n".encode())

        def feed():
            for _ in range(count):
                s.sendall(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
            if chunked:
                s.sendall(b"0\r\n\r\n")

        feeder = threading.Thread(target=feed)
        feeder.start()
        answer = read_all(s)
        feeder.join()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    plain = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        plain += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    assert bytes(plain) == block * count


def test_a_client_that_does_not_read_holds_up_the_endpoint_and_nobody_else(isolated):
    kiln = isolated(
        {
            "i/much._c": run(
                """
                static char block[65536];
                for (int i = 0; i < 2000; i++) {
                    if (kiln_write(ctx, block, sizeof block) != KILN_OK) return KILN_GONE;
                    kiln_atomic_store(&written, i);
                }
                return 0;""",
                "static int64_t written;",
            ).replace("(void)path;", 'if (kiln_query_get(ctx, "ask")) return kiln_printf(ctx, "%lld", (long long)kiln_atomic_load(&written));')
        }
    )
    assert kiln.get("/i/much?ask=1").text == "0"
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.connect(("127.0.0.1", kiln.port))
        s.sendall(b"GET /i/much HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(s, b"\r\n\r\n")
        seen = [-1]

        def holds():
            now = int(kiln.get("/i/much?ask=1").text)
            same, seen[0] = now == seen[0] and now > 0, now
            return same

        wait_for(holds, "the endpoint to wait for its client")
        assert seen[0] < 500  # blocks of 64 KB; most of it would be many more
        total = 0
        while part := s.recv(1 << 20):
            total += len(part)
    assert total > 1990 * 65536


def test_a_file_goes_out_whole(isolated):
    content = os.urandom(5_000_000)
    kiln = isolated({"i/f._c": run('return kiln_send_file(ctx, ".data.bin", NULL);'), "i/.data.bin": content})
    answer = kiln.get("/i/f")
    assert answer.status == 200 and answer.body == content
    part = kiln.get("/i/f", headers={"Range": "bytes=1000000-1999999"})
    assert part.status == 206 and part.body == content[1000000:2000000]


def test_a_site_has_its_own_error_page_and_default_headers(isolated):
    kiln = isolated(
        {"i/e._c": run('kiln_header_set(ctx, "X-Own", "1"); return 404;'), "error404.html": "<p>our own page</p>"},
        DefaultHeaders={"Server": "Kiln", "X-Default": "yes"},
    )
    answer = kiln.get("/i/e")
    assert answer.status == 404 and "our own page" in answer.text


def test_an_edited_source_gets_a_new_process_and_the_old_one_finishes(isolated, files):
    slow = HEAD + """
    int kiln_run(kiln_context *c, const char *p) { (void)p; kiln_puts(c, "old "); if (!kiln_query_get(c, "wait")) return 0;
        kiln_flush(c);
        while (access(kiln_sprintf(c, "%s/../go", kiln_directory(c)), F_OK) != 0) if (kiln_sleep(c, 5) != KILN_OK) return KILN_GONE;
        return kiln_puts(c, "ended"); }
    void kiln_unload(kiln_module *m) { (void)m; fprintf(stderr, "unloaded\\n"); }
    """
    kiln = isolated({"i/e._c": slow}, IsolateConnect=[])
    with kiln.connect() as s:
        s.sendall(b"GET /i/e?wait=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(s, b"old ")
        files({"i/e._c": HELLO})
        wait_for(lambda: kiln.get("/i/e").text.startswith("hello"), "the new version")
        assert len(hosts_of(kiln)) == 2
        files({"go": "x"})
        assert read_all(s).endswith(b"ended\r\n0\r\n\r\n")
    kiln.wait_log("unloaded")
    wait_for(lambda: len(hosts_of(kiln)) == 1, "the end of the old process")


def test_an_idle_process_ends_and_comes_back(isolated):
    kiln = isolated({"i/e._c": HELLO}, IsolateIdle=0.5)
    first = kiln.get("/i/e").text
    wait_for(lambda: not hosts_of(kiln), "the end of the idle process")
    second = kiln.get("/i/e").text
    assert second.startswith("hello") and second != first


def test_what_cannot_be_loaded_says_why(isolated, files):
    kiln = isolated({"i/e._c": HEAD + "int kiln_load(kiln_module *m) { (void)m; return 7; }\n" + HELLO}, DebugPages=True)
    answer = kiln.get("/i/e")
    assert answer.status == 500 and "kiln_load returned 7" in answer.text
    files({"i/e._c": HEAD + "int kiln_load(kiln_module *m) { (void)m; *(volatile int *)0 = 1; return 0; }\n" + HELLO})
    wait_for(lambda: "in its kiln_load" in kiln.get("/i/e").text, "the crash of kiln_load on the page")
    files({"i/e._c": HELLO})
    wait_for(lambda: kiln.get("/i/e").status == 200, "the version that works")


def test_isolation_by_reload(isolated):
    kiln = isolated({"e._c": HELLO})
    assert int(kiln.get("/e").text.split()[-1]) == kiln.worker_pid()
    kiln.write_config(Isolate=["/e"])
    kiln.reload()
    wait_for(lambda: int(kiln.get("/e").text.split()[-1]) in hosts_of(kiln), "the endpoint in its own process")
    kiln.write_config(Isolate=[])
    kiln.reload()
    wait_for(lambda: int(kiln.get("/e").text.split()[-1]) == kiln.worker_pid(), "the endpoint in the worker")
    wait_for(lambda: not hosts_of(kiln), "the end of its process")


# ---- crashes ---------------------------------------------------------------------------------------------

CRASHES = sorted(p.stem for p in (ROOT / "tests/plugins/crash").glob("*._c") if "/* expect:" in p.read_text())


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_costs_one_request(isolated, name):
    source = (ROOT / "tests/plugins/crash" / f"{name}._c").read_text()
    import platform

    if f"skip on: {platform.machine()}" in source:
        pytest.skip("not on this processor")
    if SANITIZED and "skip on: sanitizers" in source:
        pytest.skip("not under sanitizers")
    # /tmp, where tmpfile() goes, is not its own.
    source = source.replace("tmpfile()", 'fdopen(open(getenv("TMPDIR"), O_TMPFILE | O_RDWR, 0600), "r+")')
    source = source.replace("#include <kiln.h>\n", "#include <kiln.h>\n#include <fcntl.h>\n#include <stdlib.h>\n", 1)
    kiln = isolated({"i/crash._c": source, "i/e._c": HELLO}, DebugPages=True)
    worker = kiln.worker_pid()
    steady = kiln.get("/i/e").text
    answer = kiln.get("/i/crash")
    assert answer.status in (500, 502), answer
    if answer.status == 500:
        assert re.search("crashed", answer.text)
    assert kiln.get("/i/crash").status in (500, 502)
    assert kiln.get("/i/e").text == steady
    assert kiln.worker_pid() == worker
    kiln.wait_log("crashed|was killed by signal")


def test_the_page_of_a_crash_is_that_of_the_worker(isolated):
    source = run("int *p = NULL;\n*p = 1; /* HERE */\nreturn 0;")
    line = source.splitlines().index("*p = 1; /* HERE */") + 1
    kiln = isolated({"i/c._c": source}, DebugPages=True)
    answer = kiln.get("/i/c")
    assert answer.status == 500
    assert "SIGSEGV" in answer.text and f"i/c._c:{line}" in answer.text and "/* HERE */" in answer.text
    kiln.wait_log(rf"error .*c\._c crashed answering GET /i/c: .*c\._c:{line} in kiln_run")


def test_others_in_a_process_that_crashes_finish(isolated, files):
    kiln = isolated(
        {
            "i/e._c": run(
                """
                if (kiln_query_get(ctx, "crash")) *(volatile int *)0 = 1;
                kiln_puts(ctx, "begun "); kiln_flush(ctx);
                while (access(kiln_sprintf(ctx, "%s/../go", kiln_directory(ctx)), F_OK) != 0)
                    if (kiln_sleep(ctx, 5) != KILN_OK) return KILN_GONE;
                return kiln_puts(ctx, "ended");"""
            )
        }
    )
    clients = [kiln.connect() for _ in range(10)]
    for s in clients:
        s.sendall(b"GET /i/e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(s, b"begun ")
    assert kiln.get("/i/e?crash=1").status == 500
    wait_for(lambda: len(hosts_of(kiln)) == 2, "the next process")
    files({"go": "x"})
    for s in clients:
        assert read_all(s).endswith(b"ended\r\n0\r\n\r\n")
        s.close()
    wait_for(lambda: len(hosts_of(kiln)) == 1, "the end of the process that crashed")


def test_a_crash_again_and_again_is_quarantined(isolated):
    kiln = isolated({"i/c._c": run("*(volatile int *)0 = 1; return 0;")}, QuarantineCrashes=3)
    statuses = [kiln.get("/i/c").status for _ in range(3)]
    assert statuses == [500, 500, 500]
    quarantined = wait_for(lambda: (a := kiln.get("/i/c")).status == 503 and a, "quarantine")
    assert int(quarantined.headers["Retry-After"]) > 0
    kiln.wait_log(r"c\._c crashed .* is in quarantine")


def test_killing_the_process_under_load_loses_only_what_had_begun(isolated):
    """kill -9 of the process, again and again: each answer is whole and right or a 502, and those are few."""
    kiln = isolated({"i/e._c": run('kiln_sleep(ctx, 2); return kiln_puts(ctx, "whole");')})
    assert kiln.get("/i/e").text == "whole"
    stop = threading.Event()
    outcomes = []
    clients = 16

    def client():
        connection = kiln.client()
        while not stop.is_set():
            answer = exchange(connection, "GET", "/i/e")
            outcomes.append((answer.status, answer.text if answer.status == 200 else ""))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    kills = 0
    for _ in range(5):
        before = len(outcomes)
        pids = wait_for(lambda: hosts_of(kiln), "a process")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        kills += 1
        wait_for(lambda: len(outcomes) > before + 100, "answers after the kill", 30)
    stop.set()
    for thread in threads:
        thread.join()
    assert {text for status, text in outcomes if status == 200} == {"whole"}
    lost = [status for status, _ in outcomes if status != 200]
    assert set(lost) <= {502} and len(lost) <= kills * clients
    assert kiln.get("/i/e").text == "whole"


# ---- loops -----------------------------------------------------------------------------------------------


def test_a_loop_is_stopped_in_its_process(isolated):
    kiln = isolated({"i/loop._c": run("volatile int i = 1; while (i) i = 1; return 0;")}, RequestTimeout=0.5)
    assert kiln.get("/i/loop").status == 504


def test_a_process_that_does_not_answer_is_killed(isolated):
    """It blocks every signal that could unwind it, in a call that never returns."""
    kiln = isolated(
        {
            "i/hang._c": run(
                """
                sigset_t all; sigfillset(&all); pthread_sigmask(SIG_BLOCK, &all, NULL);
                if (kiln_query_get(ctx, "hang")) for (;;) pause();
                return kiln_printf(ctx, "%d", (int)getpid());""",
                "#include <signal.h>\n#include <pthread.h>",
            )
        },
        RequestTimeout=0.5,
    )
    pid = int(kiln.get("/i/hang").text)
    assert kiln.get("/i/hang?hang=1").status == 504
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process that hangs")
    assert int(kiln.get("/i/hang").text) != pid


# ---- what it may not do -------------------------------------------------------------------------------------

ATTEMPTS = {
    # name: (C that sets `got` to 1 when it succeeded; what stands before)
    "read_passwd": ('got = open("/etc/passwd", O_RDONLY) >= 0;', ""),
    "read_environment_of_init": ('got = open("/proc/1/environ", O_RDONLY) >= 0;', ""),
    "read_environment_of_the_server": (
        'char p[64]; snprintf(p, sizeof p, "/proc/%d/environ", (int)getppid()); got = open(p, O_RDONLY) >= 0;',
        "",
    ),
    "read_beside_its_directory": ('got = open(kiln_sprintf(ctx, "%s/../secret.txt", kiln_directory(ctx)), O_RDONLY) >= 0;', ""),
    "read_by_the_root_of_its_process": ('got = open("/proc/self/root/etc/passwd", O_RDONLY) >= 0;', ""),
    "list_the_root": ('got = open("/", O_RDONLY | O_DIRECTORY) >= 0;', ""),
    "read_the_config": ('got = open(kiln_sprintf(ctx, "%s/../../kiln.json", kiln_directory(ctx)), O_RDONLY) >= 0;', ""),
    "write_beside_its_directory": ('got = open(kiln_sprintf(ctx, "%s/../new._c", kiln_directory(ctx)), O_CREAT | O_WRONLY, 0600) >= 0;', ""),
    "write_in_its_directory": ('got = open(kiln_sprintf(ctx, "%s/new._c", kiln_directory(ctx)), O_CREAT | O_WRONLY, 0600) >= 0;', ""),
    "truncate_its_source": ('got = truncate(kiln_sprintf(ctx, "%s/e._c", kiln_directory(ctx)), 0) == 0;', ""),
    "write_in_tmp": ('got = open("/tmp/kiln-escape", O_CREAT | O_WRONLY, 0600) >= 0;', ""),
    "link": ('got = symlink("/etc/passwd", kiln_sprintf(ctx, "%s/.data/l", kiln_directory(ctx))) == 0;', ""),
    "device": ('got = mknod(kiln_sprintf(ctx, "%s/.data/d", kiln_directory(ctx)), S_IFCHR | 0600, makedev(1, 1)) == 0;',
               "#include <sys/stat.h>\n#include <sys/sysmacros.h>"),
    "connect_out": (
        """int s = socket(AF_INET, SOCK_STREAM, 0); struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(kiln_query(ctx))),
           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}; got = s >= 0 && connect(s, (void *)&a, sizeof a) == 0;""",
        "#include <netinet/in.h>\n#include <sys/socket.h>",
    ),
    "udp": ("got = socket(AF_INET, SOCK_DGRAM, 0) >= 0;", "#include <sys/socket.h>"),
    "unix_socket": ("got = socket(AF_UNIX, SOCK_STREAM, 0) >= 0;", "#include <sys/socket.h>"),
    "netlink": ("got = socket(AF_NETLINK, SOCK_RAW, 0) >= 0;", "#include <sys/socket.h>"),
    "packet": ("got = socket(AF_PACKET, SOCK_RAW, 0) >= 0;", "#include <sys/socket.h>"),
    "ptrace_its_parent": ("got = ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0;", "#include <sys/ptrace.h>"),
    "read_memory_of_its_parent": (
        """char b[8]; struct iovec l = {b, 8}, r = {(void *)0x400000, 8}; got = process_vm_readv(getppid(), &l, 1, &r, 1, 0) >= 0 || errno == EFAULT;""",
        "#define _GNU_SOURCE\n#include <sys/uio.h>",
    ),
    "kill_everybody": ("got = kill(-1, SIGTERM) == 0;", "#include <signal.h>"),
    "kill_its_parent": ("got = kill(getppid(), 0) == 0;", "#include <signal.h>"),
    "fork": ("pid_t p = fork(); if (p == 0) _exit(0); got = p > 0;", ""),
    "vfork_and_exec": ('got = system("true") == 0;', ""),
    "exec": ('got = 0; execl("/bin/true", "true", (char *)0);', ""),
    "mount": ('got = mount("none", "/mnt", "tmpfs", 0, "") == 0;', "#include <sys/mount.h>"),
    "chroot": ('got = chroot("/") == 0;', ""),
    "unshare": ("got = syscall(SYS_unshare, 0x10000000) == 0;", "#include <sys/syscall.h>"),
    "bpf": ("char a[128] = {0}; got = syscall(SYS_bpf, 0, a, sizeof a) >= 0;", "#include <sys/syscall.h>"),
    "keys": ('got = syscall(SYS_add_key, "user", "x", "y", 1, -3) >= 0;', "#include <sys/syscall.h>"),
    "module": ('got = syscall(SYS_init_module, "", 0, "") == 0;', "#include <sys/syscall.h>"),
    "reboot": ("got = syscall(SYS_reboot, 0xfee1dead, 672274793, 0, 0) == 0;", "#include <sys/syscall.h>"),
    "io_uring": ("char p[120] = {0}; got = syscall(425, 4, p) >= 0;", "#include <sys/syscall.h>"),
    "userfaultfd": ("got = syscall(SYS_userfaultfd, 1) >= 0;", "#include <sys/syscall.h>"),
    "memory_file": ('got = syscall(SYS_memfd_create, "x", 0) >= 0;', "#include <sys/syscall.h>"),
    "shared_memory": ("got = shmget(IPC_PRIVATE, 4096, 0600) >= 0;", "#include <sys/shm.h>"),
    "become_root": ("got = setuid(0) == 0 && getuid() == 0 && open(\"/etc/shadow\", O_RDONLY) >= 0;", ""),
    "become_another": ("got = setuid(12345) == 0;", ""),
    "raise_its_limits": (
        "struct rlimit l = {4096, 4096}; got = setrlimit(RLIMIT_NOFILE, &l) == 0;",
        "#include <sys/resource.h>",
    ),
    "set_the_time": ("struct timespec t = {1, 0}; got = clock_settime(CLOCK_REALTIME, &t) == 0;", "#include <time.h>"),
    "core_file": (
        "struct rlimit l; got = getrlimit(RLIMIT_CORE, &l) == 0 && l.rlim_max > 0;",
        "#include <sys/resource.h>",
    ),
    # The bounding set can be emptied by root alone; without capabilities and new privileges it allows nothing.
    "capabilities": (
        'char t[4096] = ""; int f = open("/proc/self/status", O_RDONLY); got = f < 0 || read(f, t, 4000) < 0 || !strstr(t, "CapEff:\\t0000000000000000") '
        '|| (started_by_root && !strstr(t, "CapBnd:\\t0000000000000000")) || !strstr(t, "NoNewPrivs:\\t1") || !strstr(t, "Seccomp:\\t2");',
        f"static const int started_by_root = {int(os.geteuid() == 0)};",
    ),
    "secrets_in_its_environment": ('got = getenv("KILN_TEST_SECRET") != NULL || getenv("HOME") != NULL;', ""),
    "descriptors_of_the_server": (
        """for (int f = 3; f < 400; f++) { char p[64], t[256] = ""; snprintf(p, sizeof p, "/proc/self/fd/%d", f);
           if (readlink(p, t, 255) > 0 && t[0] == '/' && !strstr(t, "memfd:") && strncmp(t, "/proc/", 6) != 0) { got = 1; kiln_puts(ctx, t); } }""",
        "",
    ),
}


def attempts(names):
    """One endpoint for all of them: each is a function."""
    before, table = "#define _GNU_SOURCE\n#include <stdint.h>\n", ""
    for name in names:
        body, includes = ATTEMPTS[name]
        before += includes.replace("#define _GNU_SOURCE\n", "") + "\n"
        table += f'    if (strcmp(path_of(ctx), "{name}") == 0) return report(ctx, try_{name}(ctx));\n'
    code = "".join(f"static int try_{name}(kiln_context *ctx)\n{{\n(void)ctx; int got = 0; errno = 0;\n{ATTEMPTS[name][0]}\nreturn got;\n}}\n" for name in names)
    helpers = """
static const char *path_of(kiln_context *ctx) { return kiln_path_info(ctx) + 1; }
static int report(kiln_context *ctx, int got) { return kiln_printf(ctx, got ? "SUCCEEDED (%s)" : "refused (%s)", strerror(errno)); }
"""
    return before + HEAD + helpers + code + "int kiln_run(kiln_context *ctx, const char *path)\n{\n    (void)path;\n" + table + "    return 404;\n}\n"


@pytest.fixture(scope="module")
def prison(tmp_path_factory):
    """A server whose endpoint tries what it may not; started once."""
    from kiln_server import Server

    base = tmp_path_factory.mktemp("prison")
    kiln = Server(
        base,
        {"Isolate": ["/i"], "QuarantineCrashes": 0, "OptimizeEndpoints": False, "DebugPages": True},
        {"i/e._c": attempts(ATTEMPTS), "i/.data/": None, "secret.txt": "secret"},
        env={"KILN_TEST_SECRET": "x", "HOME": "/root"},
    )
    kiln.start()
    yield kiln
    kiln.stop()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_escape_is_refused(prison, name):
    if SANITIZED and name in ("become_root",):
        pytest.skip("the sanitizer's own calls are allowed there")
    answer = prison.get(f"/i/e/{name}?{prison.port}")
    assert answer.status == 200 and answer.text.startswith("refused"), answer
    assert prison.get("/i/e/none").status == 404  # everybody is still there
    prison.check_log()


@pytest.mark.parametrize("name", ["read_passwd", "fork", "connect_out", "write_beside_its_directory", "unix_socket", "memory_file", "kill_its_parent"])
def test_the_attempts_succeed_where_nobody_refuses(isolated, name):
    """The same code in the worker: it is the isolation that refuses it."""
    kiln = isolated({"e._c": attempts([name]), "i/": None}, Isolate=[], OffloadEndpoints=["/e"])
    assert kiln.get(f"/e/{name}?{kiln.port}").text.startswith("SUCCEEDED")


def test_it_writes_where_it_may(isolated):
    write = run(
        """
        FILE *f = fopen(kiln_sprintf(ctx, "%s/%s", kiln_directory(ctx), kiln_query(ctx)), "w");
        if (f == NULL) return kiln_printf(ctx, "%s", strerror(errno));
        fputs("written", f);
        fclose(f);
        FILE *t = fopen(kiln_sprintf(ctx, "%s/mine", getenv("TMPDIR")), "w");
        return kiln_puts(ctx, t != NULL ? "ok" : "no temporary file");"""
    )
    kiln = isolated({"i/a/e._c": write, "i/a/.data/": None, "i/b/e._c": write}, IsolateWrite=["/i/b"])
    assert kiln.get("/i/a/e?.data/x").text == "ok"
    assert (kiln.www / "i/a/.data/x").read_text() == "written"
    assert kiln.get("/i/a/e?x").text == "Permission denied"
    assert kiln.get("/i/b/e?x").text == "ok"
    # Others' directories of that name cannot be looked into.
    named = Path(os.environ.get("TMPDIR", "/tmp")).glob("kiln-isolated-*")
    temporary = [p for p in named if os.access(p, os.X_OK) and (p / "mine").exists()]
    assert temporary
    kiln.stop()
    assert not any(p.exists() for p in temporary)


def test_only_the_ports_that_are_allowed(isolated):
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        body, before = ATTEMPTS["connect_out"]
        kiln = isolated(
            {"i/e._c": run(f"int got = 0; {body} return kiln_puts(ctx, got ? \"connected\" : strerror(errno));", before)},
            IsolateConnect=[allowed.getsockname()[1]],
        )
        assert kiln.get(f"/i/e?{allowed.getsockname()[1]}").text == "connected"
        assert kiln.get(f"/i/e?{other.getsockname()[1]}").text == "Permission denied"


@pytest.mark.skipif(SANITIZED, reason="the limit of address space is off there")
def test_memory_is_bounded(isolated):
    kiln = isolated(
        {
            "i/fill._c": run(
                """
                size_t got = 0;
                for (char *p; got < (size_t)4 << 30 && (p = malloc(1 << 20)) != NULL; got += 1 << 20) memset(p, 1, 1 << 20);
                return kiln_printf(ctx, "%zu", got >> 20);"""
            ),
            "i/e._c": HELLO,
        },
        IsolateMemory="256M",
    )
    assert 50 < int(kiln.get("/i/fill").text) < 256
    assert kiln.get("/i/e").status == 200


def test_threads_are_bounded(isolated):
    """A bomb of threads is noticed and its process replaced."""
    kiln = isolated(
        {
            "i/bomb._c": run(
                """
                if (!kiln_query_get(ctx, "bomb")) return kiln_printf(ctx, "%d", (int)getpid());
                pthread_attr_t a; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 65536);
                for (int i = 0; i < 200; i++) { pthread_t t; pthread_create(&t, &a, forever, NULL); }
                return kiln_sleep(ctx, 20000);""",
                "#include <pthread.h>\nstatic void *forever(void *x) { pause(); return x; }",
            )
        },
        IsolateThreads=50,
    )
    pid = int(kiln.get("/i/bomb").text)
    assert kiln.get("/i/bomb?bomb=1").status == 502
    assert int(kiln.get("/i/bomb").text) != pid
    kiln.wait_log("has more threads than IsolateThreads")


def test_descriptors_are_bounded(isolated):
    kiln = isolated(
        {"i/fds._c": run('int n = 0; while (n < 5000 && dup(0) >= 0) n++; return kiln_printf(ctx, "%d", n);')}, IsolateFiles=128
    )
    answer = kiln.get("/i/fds")
    assert answer.status == 200 and int(answer.text) < 128


def test_processor_time_is_bounded(isolated):
    kiln = isolated(
        {"i/cpu._c": run("if (kiln_query_get(ctx, \"burn\")) { clock_t e = clock() + 2 * CLOCKS_PER_SEC; while (clock() < e) kiln_sleep(ctx, 0); }"
                         'return kiln_printf(ctx, "%d", (int)getpid());', "#include <time.h>")},
        IsolateCpu=1,
    )
    pid = int(kiln.get("/i/cpu").text)
    assert kiln.get("/i/cpu?burn=1").status == 200
    wait_for(lambda: int(kiln.get("/i/cpu").text) != pid, "a fresh process")
    kiln.wait_log("as much processor time as IsolateCpu says")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_user_of_its_own(isolated, tmp_path):
    for part in [tmp_path, *tmp_path.parents]:
        if str(part).startswith("/tmp/"):
            part.chmod(0o755)
    source = run('if (kiln_query_get(ctx, "crash")) *(volatile int *)0 = 1;\n'
                 'return kiln_printf(ctx, "%d %d %d", (int)getuid(), (int)getgid(), getgroups(0, NULL));')
    kiln = isolated({"i/e._c": source}, IsolateUser="nobody", DebugPages=True)
    import pwd

    nobody = pwd.getpwnam("nobody")
    assert kiln.get("/i/e").text == f"{nobody.pw_uid} {nobody.pw_gid} 0"
    assert kiln.get("/i/e?crash=1").status == 500
    kiln.wait_log(r"e\._c crashed answering .*e\._c:\d+ in kiln_run")
    kiln.write_config(IsolateUser="no-such-user-here")
    kiln.reload()
    for pid in hosts_of(kiln):
        os.kill(pid, signal.SIGKILL)
    kiln.wait_log("no-such-user-here")


def test_it_lies_below_a_url_or_matches_a_pattern(isolated):
    kiln = isolated({"a/e._c": HELLO, "ab._c": HELLO, "x/slow/e._c": HELLO, "x/e._c": HELLO}, Isolate=["/a/", "*/slow/*._c"])
    worker = kiln.worker_pid()
    inside = {path: int(kiln.get(path).text.split()[-1]) == worker for path in ("/a/e", "/ab", "/x/slow/e", "/x/e")}
    assert inside == {"/a/e": False, "/ab": True, "/x/slow/e": False, "/x/e": True}


# ---- sessions ------------------------------------------------------------------------------------------------


def test_sessions_are_the_servers(isolated):
    count = run(
        """
        int64_t n = 0;
        int result = kiln_session_increment(ctx, "n", 1, &n);
        if (result != KILN_OK) return kiln_printf(ctx, "%d", result);
        return kiln_printf(ctx, "%lld", (long long)n);"""
    )
    kiln = isolated({"i/count._c": count, "count._c": count})
    first = kiln.get("/i/count")
    assert first.text == "1" and first.headers["Cache-Control"] == "no-store"
    cookie = {"Cookie": first.headers["Set-Cookie"].split(";")[0]}
    assert kiln.get("/count", headers=cookie).text == "2"
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        numbers = [int(f.result().text) for f in [pool.submit(kiln.get, "/i/count", cookie) for _ in range(200)]]
    assert sorted(numbers) == list(range(3, 203))


# ---- beside the rest of the server ------------------------------------------------------------------------------


def test_over_http2(isolated, tmp_path):
    import subprocess

    kiln = isolated({"i/echo._c": ECHO, "i/c._c": run("*(volatile int *)0 = 1; return 0;")})
    body = os.urandom(3_000_000)
    (tmp_path / "body").write_bytes(body)
    curl = ["curl", "-sS", "--max-time", "60", "--http2-prior-knowledge"]
    kiln.get("/i/echo")
    answer = subprocess.run([*curl, "--data-binary", f"@{tmp_path / 'body'}", kiln.url("/i/echo")], capture_output=True)
    assert answer.stderr == b"" and answer.stdout == body
    crash = subprocess.run([*curl, "-o", "/dev/null", "-w", "%{http_code} %{http_version}", kiln.url("/i/c")], capture_output=True, text=True)
    assert crash.stdout == "500 2"


def test_an_upgrade_of_the_program_takes_them_along(isolated):
    kiln = isolated({"i/e._c": HELLO})
    before = int(kiln.get("/i/e").text.split()[-1])
    kiln.upgrade()
    after = int(wait_for(lambda: (a := kiln.get("/i/e")).status == 200 and a, "an answer").text.split()[-1])
    assert after != before and hosts_of(kiln) == [after]
    wait_for(lambda: not Path(f"/proc/{before}").exists(), "the end of the old process")
