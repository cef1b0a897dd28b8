"""Isolated endpoints: what they may not do."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from kiln_server import ROOT, wait_for
from isolated_endpoint import HEAD, HELLO, SANITIZED, hosts_of, run


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


# ---- an old kernel ---------------------------------------------------------------------------------------------------------


def test_without_landlock_it_is_refused_until_the_option_allows_it(server):
    """The prison's other walls stand: seccomp still forbids to fork."""
    source = run(
        """int file = open("/etc/passwd", O_RDONLY);
           pid_t child = fork();
           if (child == 0) _exit(0);
           return kiln_printf(ctx, "reads %d, forks %d", file >= 0, child > 0);"""
    )
    kiln = server({"Isolate": ["/i"], "QuarantineCrashes": 0, "OptimizeEndpoints": False}, {"i/e._c": source, "own._c": HELLO})
    command = kiln.command()
    kiln.command = lambda: [sys.executable, str(ROOT / "tests/support/without_landlock.py"), *command]
    kiln.start()
    assert kiln.get("/own").status == 200
    assert kiln.get("/i/e").status == 500
    kiln.wait_log(r"error .*i/e\._c: .*this kernel has no Landlock, so that it can read every file .* set IsolateWithoutLandlock")
    kiln.write_config(IsolateWithoutLandlock=True)
    kiln.reload()
    wait_for(lambda: kiln.get("/i/e").text == "reads 1, forks 0", "the option")
    kiln.wait_log(r"warning .*/i run with less isolation \(IsolateWithoutLandlock\): this kernel has no Landlock")
