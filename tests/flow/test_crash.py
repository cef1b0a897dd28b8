"""Endpoints that crash (tests/plugins/crash): each costs its own request and nothing else."""

import contextlib
import os
import platform
import re
import signal
import subprocess
import threading

import pytest
from kiln_server import ROOT, build_dir, children_of, processes_marked, read_all, read_until, replace, wait_for
from neighbours import HELLO, PARTS

PLUGINS = ROOT / "tests" / "plugins" / "crash"
INCLUDE = ROOT / "plugin-sdk" / "include"
NAMES = sorted(path.stem for path in PLUGINS.glob("*._c") if "/* expect:" in path.read_text())
SLOW = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { kiln_sleep(c, 100000); return kiln_puts(c, p); }\n"
SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))


def source_of(name):
    return (PLUGINS / f"{name}._c").read_text()


def expected(name):
    return re.search(r"/\* expect: (.*?) \*/", source_of(name))[1]


def place_of(name):
    """(function, line) of the mark HERE."""
    function = None
    for number, text in enumerate(source_of(name).splitlines(), 1):
        found = re.match(r"(?:static )?\w[\w *]*?\**(\w+)\(", text)
        function = found[1] if found else function
        if "/* HERE */" in text:
            return function, number
    return None, None


def plain(html):
    html = re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    return re.sub(r"<[^>]*>", " ", html.replace("&gt;", ">").replace("&lt;", "<").replace("&quot;", '"').replace("&amp;", "&"))


def build_so(source, to, *flags):
    to.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "c", "-std=gnu11", "-O1", "-g", "-fno-inline", "-fno-optimize-sibling-calls", "-fPIC", "-shared",
                    f"-I{INCLUDE}", *flags, "-o", to, source, "-lm"], check=True)


def skip_elsewhere(name):
    if f"skip on: {platform.machine()}" in source_of(name):
        pytest.skip(f"not on {platform.machine()}")
    if SANITIZED and "skip on: sanitizers" in source_of(name):
        pytest.skip("a sanitizer's malloc ends the process itself")


@pytest.fixture
def crashing(server):
    """A server whose quarantine is off unless the test says otherwise."""

    def make(files=None, **config):
        return server({"DebugPages": True, "QuarantineCrashes": 0, "OptimizeEndpoints": False, **config}, files)

    return make


# ---- what the request gets, and what everybody is told ----------------------------------------------------


@pytest.mark.parametrize("where", ["loop", "pool"])
@pytest.mark.parametrize("kind", ["._c", ".so"])
@pytest.mark.parametrize("name", NAMES)
def test_a_crash_is_a_page_with_its_place(crashing, name, kind, where):
    skip_elsewhere(name)
    kiln = crashing({"hello._c": HELLO}, OffloadEndpoints=["/x" + kind] if where == "pool" else [])
    file = kiln.www / ("x" + kind)
    if kind == ".so":
        build_so(PLUGINS / f"{name}._c", file)
    else:
        file.write_text(source_of(name))
    function, line = place_of(name)
    with kiln:
        old = kiln.worker_pid()
        answer = kiln.get("/x" + kind)
        text = plain(answer.text)
        assert answer.status == 500
        assert answer.headers["Cache-Control"] == "no-store"
        assert expected(name) in text
        assert "never sent" not in text or "Stack" in text
        if function is not None:
            shown = f"{name}._c" if kind == ".so" else "x._c"
            assert re.search(rf"{re.escape(shown)}:{line}\s+in\s+{function}\b", text), text
            assert "HERE" in text
            assert re.search(r"\d+\s+kiln_run\s", text) or name == "offloaded", text
            assert "crash_enter" not in text and "call_run" not in text
            kiln.wait_log(rf"error \[{old}\] .*x{re.escape(kind)} crashed answering GET /x{re.escape(kind)}: .*:{line} in {function}: ")
            kiln.wait_log(rf"#\d+ {function} at .*{re.escape(shown)}:{line}")
        kiln.wait_log(rf"worker {old} is replaced: an endpoint crashed")
        wait_for(lambda: old not in children_of(kiln.pid), "the end of the old worker")
        assert kiln.get("/hello._c").text == "hello"
        assert kiln.worker_pid() != old
        assert "was killed" not in kiln.log()


def test_without_debug_pages_nothing_is_shown(crashing):
    with crashing({"x._c": source_of("null_write")}, DebugPages=False) as kiln:
        answer = kiln.get("/x._c")
        assert answer.status == 500
        for secret in ("SIGSEGV", "null_write", "x._c", "fill", "kiln_run", "struct thing"):
            assert secret not in answer.text
        kiln.wait_log(r"x\._c crashed answering GET /x\._c: segmentation fault")


# ---- nobody else notices -------------------------------------------------------------------------------------


class Knocking:
    """Connects and asks again and again, from before a crash until after; every answer must be whole."""

    def __init__(self, kiln):
        self.kiln = kiln
        self.wrong = []
        self.answers = 0
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(3)]

    def run(self):
        while not self.stop.is_set():
            try:
                answer = self.kiln.get("/hello._c")
                if (answer.status, answer.text) != (200, "hello"):
                    self.wrong.append(repr(answer))
            except OSError as error:
                self.wrong.append(repr(error))
            self.answers += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        wait_for(lambda: self.answers > 3, "the first answers")
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert self.wrong == []


def begin(kiln, path):
    s = kiln.connect()
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    return s


@pytest.mark.parametrize("where", ["loop", "pool"])
@pytest.mark.parametrize("name", ["null_write", "abort", "stack_overflow", "calls__exit"])
def test_requests_in_flight_finish_and_no_connection_is_refused(crashing, name, where):
    kiln = crashing({"hello._c": HELLO, "parts._c": PARTS, "x._c": source_of(name)},
                    OffloadEndpoints=["/x._c", "/parts._c"] if where == "pool" else [])
    with kiln, Knocking(kiln):
        kiln.get("/hello._c")
        old = kiln.worker_pid()
        streams = [begin(kiln, "/parts._c") for _ in range(8)]
        seen = [read_until(s, b"begun ") for s in streams]
        held = kiln.client()  # asks on, on a connection from before the crash
        held.request("GET", "/hello._c")
        held.getresponse().read()
        assert kiln.get("/x._c").status == 500
        kiln.wait_log(r"worker \d+ serves")
        assert wait_for(lambda: [pid for pid in children_of(kiln.pid) if pid != old], "a successor")
        assert old in children_of(kiln.pid)
        (kiln.base / "go").write_text("")
        for s, begun in zip(streams, seen):
            whole = begun + read_all(s)
            assert whole.startswith(b"HTTP/1.1 200 ") and whole.endswith(b"\r\n0\r\n\r\n")
            assert b"begun " in whole and b"ended" in whole
            s.close()
        wait_for(lambda: old not in children_of(kiln.pid), "the end of the old worker")
        assert kiln.get("/hello._c").text == "hello"


def test_a_crash_in_a_stream_cuts_it(crashing):
    source = source_of("null_write").replace('kiln_puts(ctx, "never sent");', 'kiln_puts(ctx, "begun "); kiln_flush(ctx);')
    with crashing({"x._c": source}) as kiln:
        with begin(kiln, "/x._c") as s:
            whole = read_all(s)
        assert b"begun " in whole
        assert not whole.endswith(b"0\r\n\r\n")  # the client sees that something is missing
        kiln.wait_log(r"x\._c crashed answering")


def test_many_at_once(crashing):
    """Every thread crashes while the worker is on its way out."""
    with crashing({"x._c": source_of("null_write"), "hello._c": HELLO}, OffloadEndpoints=["/y._c"]) as kiln:
        with Knocking(kiln):
            answers = []

            def ask():
                for _ in range(5):
                    answers.append(kiln.get("/x._c").status)

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert answers == [500] * 40
        assert "was killed" not in kiln.log()


def crash_and_succeed(kiln, serving):
    """False when it was a worker on its way out that took the request, for which no other one comes."""

    def successor():
        return "once one of" in kiln.log() or len(re.findall(r"worker \d+ serves", kiln.log())) > serving

    assert kiln.get("/x._c").status == 500
    try:
        return wait_for(successor, "a successor", 5)
    except AssertionError:
        return False


def test_a_worker_killed_while_it_drains_leaves_nothing(crashing):
    """No other starts after it, which would look for what the dead left behind; and it is no failure of the server."""
    with crashing({"x._c": source_of("null_write"), "hello._c": HELLO, "parts._c": PARTS}, ShutdownTimeout=600) as kiln:
        old = kiln.worker_pid()
        stream = begin(kiln, "/parts._c")
        read_until(stream, b"begun ")
        assert kiln.get("/x._c").status == 500
        new = wait_for(lambda: [pid for pid in kiln.worker_pids() if pid != old], "a successor")
        kiln.wait_log(rf"worker {new[0]} serves")
        assert kiln.get("/hello._c").text == "hello"
        runs = kiln.base / "cache" / "run"
        assert len(os.listdir(runs)) == 2
        (runs / "1-1").mkdir()  # of one that was killed before it had locked its own
        os.kill(old, signal.SIGKILL)
        kiln.wait_log(rf"worker {old} was killed by signal 9 \(Killed\) while it was stopping")
        stream.close()
        wait_for(lambda: len(os.listdir(runs)) == 1, "the end of what was left")
        assert os.listdir(runs)[0].startswith(f"{new[0]}-")
        assert kiln.get("/hello._c").text == "hello"
        kiln.stop(code=0)


def test_workers_that_cannot_end_are_not_piled_up(crashing):
    """Each crash leaves one behind that still has a stream to finish: past 16 the last one serves on."""
    with crashing({"x._c": source_of("null_write"), "hello._c": HELLO, "parts._c": PARTS}, ShutdownTimeout=600) as kiln:
        with Knocking(kiln):
            streams = []
            while "once one of those before it has ended" not in kiln.log():
                serving = len(re.findall(r"worker \d+ serves", kiln.log()))
                streams.append(begin(kiln, "/parts._c"))
                read_until(streams[-1], b"begun ")
                wait_for(lambda: crash_and_succeed(kiln, serving), "a successor")
            assert len(children_of(kiln.pid)) <= 16 <= len(streams)
            last = kiln.worker_pids()[-1]
            assert kiln.get("/x._c").status == 500  # it is caught there, too
            (kiln.base / "go").write_text("")
            for s in streams:
                assert read_all(s).endswith(b"ended\r\n0\r\n\r\n")
                s.close()
            wait_for(lambda: len(kiln.worker_pids()) == 1 and kiln.worker_pids() != [last], "one worker, a new one")
            assert kiln.get("/hello._c").text == "hello"
        assert "was killed" not in kiln.log()


# ---- damage that malloc notices ------------------------------------------------------------------------------------


@pytest.mark.skipif(SANITIZED, reason="sanitizers bring a malloc of their own, which ends the process when it finds damage")
@pytest.mark.parametrize("how", ["loop", "offload", "pool"])
@pytest.mark.parametrize("what", ["twice", "top"])
def test_a_crash_while_the_heap_is_locked(crashing, what, how):
    """Nobody waits for the lock. Where malloc goes on crashing, what that thread had begun is lost; the others go on."""
    kiln = crashing({"hello._c": HELLO, "parts._c": PARTS, "x._c": source_of("heap")}, ShutdownTimeout=600,
                    OffloadEndpoints=["/x._c"] if how == "pool" else [])
    damaged = what == "top"
    with kiln, contextlib.nullcontext() if damaged else Knocking(kiln):
        old = kiln.worker_pid()
        for _ in range(20 if how != "pool" else 0):
            assert kiln.get("/x._c").text == "quick"  # it moves from the pool to the loops
        streams = [begin(kiln, "/parts._c") for _ in range(16)]
        seen = [read_until(s, b"begun ") for s in streams]
        answer = kiln.get(f"/x._c?what={what}&how={how}")
        assert answer.status == 500
        assert ("SIGABRT" in answer.text) == (what == "twice" or how == "offload")
        kiln.wait_log(r"worker \d+ serves")
        (kiln.base / "go").write_text("")
        whole = []
        for s, begun in zip(streams, seen):
            whole.append((begun + read_all(s)).endswith(b"ended\r\n0\r\n\r\n"))
            s.close()
        assert damaged or all(whole)  # all have an end
        kiln.wait_log(rf"x\._c crashed answering GET /x\._c\?what=.*: abort.*; .*x\._c:\d+ in {what}")
        wait_for(lambda: old not in children_of(kiln.pid), "the end of the old worker")
        given_up = "has left the memory of its thread locked or damaged" in kiln.log()
        assert given_up == (what == "top"), kiln.log()
        assert "was killed" not in kiln.log() and "left behind" not in kiln.log()


# ---- other places where an endpoint's code runs ---------------------------------------------------------------


def test_deferred_functions(crashing):
    source = r"""
#include <kiln.h>
#include <stdio.h>
static void crash(void *arg)
{
    *(volatile int *)arg = 1;
}
static void mark(void *arg)
{
    fclose(fopen(arg, "w"));
}
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    kiln_defer(ctx, mark, kiln_sprintf(ctx, "%s/../marked", kiln_directory(ctx)));
    if (kiln_query_get(ctx, "now") != NULL)
        crash(NULL);
    kiln_defer(ctx, crash, NULL);
    return kiln_puts(ctx, "fine");
}
"""
    with crashing({"x._c": source}) as kiln:
        assert kiln.get("/x._c?now").status == 500
        kiln.wait_log(r"x\._c crashed answering")
        kiln.wait_log(r"worker \d+ serves")
        answer = kiln.get("/x._c")  # the answer was complete before
        assert answer.text == "fine"
        kiln.wait_log(r"x\._c crashed in a function that it gave to kiln_defer: .*:6 in crash")
        assert not (kiln.base / "marked").exists()  # nothing of its code runs after a crash


LOADS = r"""
#include <kiln.h>
#include <stdlib.h>
#ifdef CONSTRUCTOR
__attribute__((constructor)) static void before(void) { volatile int *volatile p = 0; *p = 1; }
#endif
#ifdef LOAD
int kiln_load(kiln_module *module)
{
    (void)module;
    volatile int *volatile p = 0;
    return *p; /* HERE */
}
#endif
#ifdef UNLOAD
void kiln_unload(kiln_module *module)
{
    (void)module;
    abort();
}
#endif
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    return kiln_puts(ctx, "runs");
}
"""


def test_a_crash_in_kiln_load_is_a_load_error(crashing):
    with crashing({"x._c": "#define LOAD" + LOADS, "hello._c": HELLO}) as kiln:
        with Knocking(kiln):
            old = kiln.worker_pid()
            answer = kiln.get("/x._c")
            assert answer.status == 500
            assert "crashed in its kiln_load: segmentation fault (SIGSEGV): read from address 0x0" in plain(answer.text)
            assert re.search(r"x\._c:12\b", plain(answer.text)) and "HERE" in answer.text
            kiln.wait_log(rf"worker {old} is replaced")
            wait_for(lambda: old not in children_of(kiln.pid), "the end of the old worker")
            replace(kiln.www / "x._c", LOADS)
            assert wait_for(lambda: kiln.get("/x._c").text == "runs", "the mended one")


def test_a_crash_in_kiln_unload_is_logged(crashing):
    with crashing({"x._c": "#define UNLOAD" + LOADS}) as kiln:
        assert kiln.get("/x._c").text == "runs"
        replace(kiln.www / "x._c", LOADS)
        kiln.wait_log(r"x\._c crashed in its kiln_unload: abort")
        kiln.wait_log(r"worker \d+ serves")
        assert kiln.get("/x._c").text == "runs"
        assert "was killed" not in kiln.log()


@pytest.mark.parametrize("kind", ["._c", ".so"])
def test_a_crash_in_a_constructor_costs_no_worker(crashing, tmp_path, kind):
    kiln = crashing({"hello._c": HELLO})
    source = kiln.base / "x.c"
    source.write_text("#define CONSTRUCTOR" + LOADS)
    if kind == "._c":
        (kiln.www / "x._c").write_text(source.read_text())
    else:
        build_so(source, kiln.www / "x.so")
    with kiln:
        old = kiln.worker_pid()
        answer = kiln.get("/x" + kind)
        assert answer.status == 500
        assert "constructor" in plain(answer.text) and "SIGSEGV" in plain(answer.text), plain(answer.text)
        assert kiln.get("/hello._c").text == "hello"
        assert kiln.worker_pid() == old
        source.write_text(LOADS)
        if kind == "._c":
            replace(kiln.www / "x._c", LOADS)
        else:
            build_so(source, kiln.base / "new.so")
            os.replace(kiln.base / "new.so", kiln.www / "x.so")
        assert wait_for(lambda: kiln.get("/x" + kind).text == "runs", "the mended one")


FORKS = r"""
#include <kiln.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    int status = 0;
    const char *how = kiln_query(ctx);
    pid_t child = fork();
    if (child == 0) {
        if (strcmp(how, "exit") == 0)
            exit(7);
        if (strcmp(how, "_exit") == 0)
            _exit(7);
        if (strcmp(how, "crash") == 0)
            *(volatile int *)NULL = 1;
        return 0;
    }
    waitpid(child, &status, 0);
    return kiln_printf(ctx, "%d %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}
"""


@pytest.mark.parametrize("where", ["loop", "pool"])
def test_a_child_of_an_endpoint_ends_as_a_child(crashing, where):
    with crashing({"x._c": FORKS}, OffloadEndpoints=["/x._c"] if where == "pool" else []) as kiln:
        worker = kiln.worker_pid()
        assert kiln.get("/x._c?exit").text == "7 0"
        assert kiln.get("/x._c?_exit").text == "7 0"
        assert kiln.get("/x._c?crash").text == "-1 11"
        assert kiln.get("/x._c?return").text == "1 0"  # it must not go on as a second server
        assert kiln.worker_pid() == worker
        assert "is replaced" not in kiln.log()


def test_exit_codes_of_the_server_stay_its_own(crashing):
    """The server's own calls of exit are nobody's crash."""
    with crashing({"hello._c": HELLO}) as kiln:
        assert kiln.get("/hello._c").text == "hello"
        kiln.stop()
        assert "call of exit" not in kiln.log()


# ---- nothing stays ------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_crash(crashing):
    with crashing({"x._c": source_of("null_write"), "hello._c": HELLO}) as kiln:

        def workers():
            return children_of(kiln.pid)

        def descriptors(pid):
            return len(os.listdir(f"/proc/{pid}/fd"))

        def crash():
            old = kiln.worker_pid()
            assert kiln.get("/x._c").status == 500
            wait_for(lambda: old not in workers() and len(workers()) == 1, "one new worker")
            assert kiln.get("/hello._c").text == "hello"

        crash()
        before = descriptors(kiln.pid)
        for _ in range(3):
            crash()
        wait_for(lambda: descriptors(kiln.pid) == before, f"{before} descriptors, as before")
        wait_for(lambda: len(list((kiln.base / "cache" / "run").iterdir())) == 1, "one directory of private builds")
        worker = kiln.worker_pid()
        assert set(processes_marked(kiln.mark)) >= {kiln.pid, worker}
    assert not list((kiln.base / "cache" / "run").iterdir())


# ---- quarantine -----------------------------------------------------------------------------------------------------


def crash_until_quarantine(kiln, path, most=20):
    statuses = []
    for _ in range(most):
        answer = kiln.get(path)
        statuses.append(answer.status)
        if answer.status == 503:
            return answer, statuses
    raise AssertionError(f"never in quarantine: {statuses}\n{kiln.log()}")


@pytest.mark.parametrize("where", ["loop", "pool"])
def test_quarantine_until_the_file_changes(crashing, where):
    kiln = crashing({"x._c": source_of("null_write"), "hello._c": HELLO}, QuarantineCrashes=3, QuarantineTime=1000,
                    OffloadEndpoints=["/x._c"] if where == "pool" else [])
    with kiln:
        answer, statuses = crash_until_quarantine(kiln, "/x._c")
        assert statuses[:3] == [500, 500, 500]
        assert 900 < int(answer.headers["Retry-After"]) <= 1000
        kiln.wait_log(r"x\._c crashed 3 times within 60 s and is in quarantine")
        crashes = statuses.count(500)
        wait_for(lambda: len(re.findall(r"x\._c crashed answering", kiln.log())) == crashes, "the crashes in the log")
        # A worker that starts now knows it, and does not run it even once.
        kiln.wait_log(r"worker \d+ serves")
        wait_for(lambda: len(children_of(kiln.pid)) == 1, "the end of the workers that were replaced")
        old = kiln.worker_pid()
        os.kill(old, 9)
        wait_for(lambda: kiln.worker_pid() != old, "another worker")
        for _ in range(5):
            assert kiln.get("/x._c").status == 503
        assert kiln.get("/hello._c").text == "hello"
        assert len(re.findall(r"x\._c crashed answering", kiln.log())) == crashes
        assert len(re.findall(r"is in quarantine", kiln.log())) == 1
        # A version that does not build shows its error and frees nothing.
        replace(kiln.www / "x._c", "int broken(")
        wait_for(lambda: kiln.get("/x._c").status == 500, "the build error")
        replace(kiln.www / "x._c", HELLO)
        wait_for(lambda: kiln.get("/x._c").text == "hello", "the mended one")
        kiln.wait_log(r"x\._c is run again after its quarantine: its source has changed")
        assert len(re.findall(r"is run again", kiln.log())) == 1


def test_quarantine_is_handed_to_the_next_program(crashing):
    with crashing({"x._c": source_of("null_write")}, QuarantineCrashes=2, QuarantineTime=1000) as kiln:
        _, statuses = crash_until_quarantine(kiln, "/x._c")
        wait_for(lambda: len(re.findall(r"x\._c crashed answering", kiln.log())) == statuses.count(500), "the crashes in the log")
        kiln.upgrade()
        for _ in range(3):
            assert kiln.get("/x._c").status == 503
        assert len(re.findall(r"x\._c crashed answering", kiln.log())) == statuses.count(500)
        replace(kiln.www / "x._c", HELLO)
        wait_for(lambda: kiln.get("/x._c").text == "hello", "the mended one")
        kiln.wait_log(r"x\._c is run again after its quarantine: its source has changed")


def test_quarantine_ends_with_an_include(crashing):
    kiln = crashing({"inner.h": "#define VALUE 0\n", "x._c": '#include <kiln.h>\n#include "inner.h"\n'
                     "int kiln_run(kiln_context *c, const char *p) { (void)p; return VALUE ? kiln_puts(c, \"mended\") : *(volatile int *)0; }\n"},
                    QuarantineCrashes=1, QuarantineTime=1000)
    with kiln:
        answer, statuses = crash_until_quarantine(kiln, "/x._c")
        kiln.wait_log(r"worker \d+ serves")
        replace(kiln.www / "inner.h", "#define VALUE 1\n")
        wait_for(lambda: kiln.get("/x._c").text == "mended", "the mended one")
        kiln.wait_log(r"is run again after its quarantine: its source has changed")


def test_quarantine_passes_with_time(crashing):
    kiln = crashing({"x._c": source_of("null_write")}, QuarantineCrashes=2, QuarantineTime=2)
    with kiln:
        answer, statuses = crash_until_quarantine(kiln, "/x._c")
        assert answer.headers["Retry-After"] in ("1", "2")
        wait_for(lambda: kiln.get("/x._c").status == 500, "another try")
        kiln.wait_log(r"x\._c is run again after its quarantine: the time has passed")
        crash_until_quarantine(kiln, "/x._c")
        wait_for(lambda: len(re.findall("is in quarantine", kiln.log())) >= 2, "the second quarantine")


def test_quarantine_of_a_crash_in_kiln_load(crashing):
    kiln = crashing({"x._c": "#define LOAD" + LOADS}, QuarantineCrashes=2, QuarantineTime=1000)
    with kiln:
        wait_for(lambda: kiln.get("/x._c").status in (500, 503) and "is in quarantine" in kiln.log(), "the quarantine")
        crashes = len(re.findall(r"crashed in its kiln_load", kiln.log()))
        wait_for(lambda: kiln.get("/x._c").headers["Retry-After"] is not None or kiln.get("/x._c").status == 500, "the answer")
        replace(kiln.www / "x._c", LOADS)
        wait_for(lambda: kiln.get("/x._c").text == "runs", "the mended one")
        assert len(re.findall(r"crashed in its kiln_load: [^\n]*; ", kiln.log())) <= crashes + 2


def test_quarantine_off(crashing):
    with crashing({"x._c": source_of("null_write")}, QuarantineCrashes=0) as kiln:
        assert [kiln.get("/x._c").status for _ in range(8)] == [500] * 8
        assert "in quarantine" not in kiln.log()
