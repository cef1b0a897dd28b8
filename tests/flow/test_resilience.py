"""Nothing that an operator or an endpoint does takes the server away from its clients: another
program takes over in the middle of everything, endpoints that never return or take all memory."""

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from kiln_server import build_dir, exchange, free_port, read_all, read_until, wait_for

PAGE = {"index.html": "hello"}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Load:
    """Clients that ask without pause, half of them on one connection, half on ever new ones, until
    stop(); every failure is kept. check(answer) says what is wrong with it, or None."""

    def __init__(self, kiln, path="/", clients=6, check=None):
        self.kiln = kiln
        self.path = path
        self.check = check or (lambda answer: None if answer.status == 200 else repr(answer))
        self.failures = []
        self.counts = [0] * clients
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]

    def _run(self, number):
        keep = number % 2 == 0
        client = self.kiln.client()
        while not self.ended.is_set() and not self.failures:
            try:
                wrong = self.check(exchange(client, "GET", self.path))
            except Exception as error:
                wrong = f"client {number}, after {self.counts[number]} answers: {error!r}"
            if wrong is not None:
                self.failures.append(wrong)
            self.counts[number] += 1
            if not keep:
                client.close()
        client.close()

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def more(self, answers=50):
        """Waits until that many more were given."""
        seen = sum(self.counts)
        wait_for(lambda: self.failures or (sum(self.counts) >= seen + answers and min(self.counts) > 0), "answers under load")
        assert self.failures == []

    def __exit__(self, kind, value, traceback):
        self.ended.set()
        for t in self.threads:
            t.join()
        if kind is None:
            assert self.failures == []
            assert min(self.counts) > 0


# ---- another program takes over ------------------------------------------------------------


def test_upgrade_under_load_fails_no_request(server):
    hello = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; kiln_printf(c, \"hello\"); return 0; }\n"
    with server(files={"hello._c": hello}) as kiln:
        kiln.get("/hello")
        with Load(kiln, "/hello", check=lambda a: None if a.body == b"hello" else repr(a)) as load:
            for _ in range(3):
                before = kiln.pid
                load.more()
                assert kiln.upgrade() != before
                wait_for(lambda: kiln.pid_file.read_text() == f"{kiln.pid}\n", "the new PID file")
                load.more()
        wait_for(lambda: b"MAINPID=%d\nREADY=1" % kiln.pid in kiln.notified(), "word of the new process")
        assert b"STOPPING=1" not in kiln.notified()
    assert not kiln.pid_file.exists()


def test_upgrade_runs_the_new_file(server, tmp_path):
    """The file is replaced, as a package manager does it; the kept one is deleted."""
    where = tmp_path / "bin"
    where.mkdir()
    for name in ("kiln", "kiln-cc"):
        shutil.copy2(build_dir() / name, where / name)
    kiln = server(files=PAGE, program=where / "kiln").start()
    old = os.stat(f"/proc/{kiln.pid}/exe").st_ino
    shutil.copy2(build_dir() / "kiln", where / "new")
    os.rename(where / "new", where / "kiln")
    assert os.stat(f"/proc/{kiln.pid}/exe").st_ino == old
    kiln.upgrade()
    for pid in (kiln.pid, kiln.worker_pid()):
        assert os.readlink(f"/proc/{pid}/exe") == str(where / "kiln")
    assert kiln.get("/").body == b"hello"
    kiln.stop()


def test_upgrade_finishes_what_the_old_program_has_begun(server, tmp_path):
    go = tmp_path / "go"
    source = """
#include <kiln.h>
#include <unistd.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    kiln_printf(ctx, "first;");
    kiln_flush(ctx);
    while (access("%s", F_OK) != 0) {
        kiln_sleep(ctx, 5);
    }
    kiln_printf(ctx, "last.");
    return 0;
}
"""
    kiln = server(files={"slow._c": source % go}, config={"ShutdownTimeout": 600}).start()
    with kiln.connect() as s:
        s.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        head = read_until(s, b"first;")
        upgraded = threading.Thread(target=kiln.upgrade)
        upgraded.start()
        kiln.wait_log(r"upgraded: process (\d+) serves")
        go.touch()
        assert b"last." in head + read_all(s)
    upgraded.join()
    kiln.stop()


def test_upgrade_takes_the_config_of_now(server):
    kiln = server(files=PAGE).start()
    old, new = kiln.port, free_port()
    kiln.write_config(HttpPorts=[new], DefaultHeaders={"X-Mark": "new"})
    kiln.upgrade()
    kiln.port = new
    assert kiln.get("/").headers["X-Mark"] == "new"
    kiln.port = old
    with pytest.raises(ConnectionRefusedError):
        kiln.connect()
    kiln.stop()


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda kiln: kiln.program.unlink(), r"kiln cannot be started: No such file or directory"),
        (
            lambda kiln: kiln.config_file.write_text("{ nonsense"),
            r"process \d+ ended with exit code 1 before it was ready; its own messages say why",
        ),
        (
            lambda kiln: kiln.write_config(SessionsDir=str(kiln.config_file)),
            r"process \d+ ended with exit code 1 before it was ready: the server cannot start: the session store could not be "
            r"started",
        ),
        (lambda kiln: replace_by(kiln, "#!/bin/sh\nexit 3\n"), r"process \d+ ended with exit code 3 before it was ready"),
        (
            lambda kiln: replace_by(kiln, "#!/bin/sh\nexec sleep 1000\n"),
            r"process \d+ was not ready within UpgradeTimeout \(2 s\)",
        ),
    ],
    ids=["no file", "bad config", "bad sessions", "ends", "hangs"],
)
def test_upgrade_that_fails_changes_nothing(server, tmp_path, change, why):
    where = tmp_path / "bin"
    where.mkdir()
    for name in ("kiln", "kiln-cc"):
        shutil.copy2(build_dir() / name, where / name)
    kiln = server(files=PAGE, program=where / "kiln", config={"UpgradeTimeout": 2 if "UpgradeTimeout" in why else 600}).start()
    worker = kiln.worker_pid()
    client = kiln.client()
    exchange(client, "GET", "/")
    change(kiln)
    kiln.signal(signal.SIGUSR2)
    kiln.wait_log(rf"error \[\d+\] not upgraded: .*{why}.*; process {kiln.pid} goes on serving")
    assert exchange(client, "GET", "/").body == b"hello"
    client.close()
    assert kiln.worker_pid() == worker
    assert int(kiln.pid_file.read_text()) == kiln.pid
    kiln.stop()
    assert not kiln.pid_file.exists()


def replace_by(kiln, script):
    new = kiln.program.with_name("new")
    new.write_text(script)
    new.chmod(0o755)
    os.rename(new, kiln.program)


def test_stop_during_an_upgrade(server, tmp_path):
    where = tmp_path / "bin"
    where.mkdir()
    for name in ("kiln", "kiln-cc"):
        shutil.copy2(build_dir() / name, where / name)
    kiln = server(files=PAGE, program=where / "kiln").start()
    replace_by(kiln, "#!/bin/sh\nexec sleep 1000\n")
    kiln.signal(signal.SIGUSR2)
    kiln.wait_log(r"upgrade: \S+ starts as process (\d+)")
    kiln.stop()
    assert "the upgrade is given up, since the server ends" in kiln.log()


# ---- reload ---------------------------------------------------------------------------------


def test_reload_and_replacement_under_load_fail_no_request(server):
    """Kept connections too: the old worker answers what is on its way before it closes them."""
    with server(files=PAGE) as kiln:
        with Load(kiln, check=lambda a: None if a.body == b"hello" else repr(a)) as load:
            for i in range(5):
                kiln.write_config(DefaultHeaders={"X-Mark": str(i)})
                kiln.reload(r"notice \[\d+\] config reloaded")
                load.more()
            worker = kiln.worker_pid()
            os.kill(worker, signal.SIGTERM)
            wait_for(lambda: not alive(worker), "the end of the first worker")
            load.more()


@pytest.mark.parametrize("behind", [False, True], ids=["in its buffer", "behind a running request"])
def test_pipelined_requests_are_answered_before_a_draining_worker_closes(server, tmp_path, behind):
    """Those that had come before the answer that ends the connection."""
    source = """
#include <fcntl.h>
#include <kiln.h>
#include <unistd.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    if (kiln_query_get(ctx, "crash"))
        *(volatile int *)0 = 1;
    close(open(kiln_sprintf(ctx, "%s/../running.%u", kiln_directory(ctx), kiln_remote_port(ctx)), O_CREAT, 0600));
    while (access(kiln_sprintf(ctx, "%s/../go", kiln_directory(ctx)), F_OK) != 0)
        kiln_sleep(ctx, 5);
    return kiln_puts(ctx, "slow");
}
"""
    with server(files=PAGE | {"slow._c": source}, config={"ShutdownTimeout": 600}) as kiln:
        worker = kiln.worker_pid()
        first = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
        post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        more = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + post) * 3
        with kiln.connect() as s, kiln.connect() as watcher:
            watcher.sendall(first)
            s.sendall(first + more if behind else first)
            wait_for(lambda: len(list(kiln.base.glob("running.*"))) == 2, "the running requests")
            idle = kiln.client()
            exchange(idle, "GET", "/")
            assert kiln.get("/slow?crash").status == 500
            assert read_all(idle.sock) == b""  # the old worker has begun to drain
            if not behind:
                s.sendall(more)
            (kiln.base / "go").touch()
            whole = read_all(s)
            assert read_all(watcher).count(b"HTTP/1.1 200 OK") == 1
        assert whole.count(b"HTTP/1.1 200 OK") == 4 and whole.count(b"HTTP/1.1 405 ") == 3, whole
        assert whole.count(b"Connection: close") == 1
        wait_for(lambda: not alive(worker), "the end of the first worker")


# ---- endpoints that never return --------------------------------------------------------------

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
TSAN = "tsan" in os.environ.get("KILN_BUILD", "")


def plugins(*names):
    return {f"{name}._c": PLUGINS / f"{name}._c" for name in names} | {"index.html": "hello"}


def on_the_loops(kiln, path):
    """Asks until it is known as quick and has moved from the pool to the loops."""
    for _ in range(10):
        assert kiln.get(path).body == b"quick"


@pytest.mark.skipif(TSAN, reason="signals wait for a safe point there, and a loop has none")
@pytest.mark.parametrize("place", ["pool", "loop"])
def test_endless_loop_is_stopped_in_its_own_code(server, place):
    with server(files=plugins("loop_forever"), config={"RequestTimeout": 0.5, "DebugPages": True}) as kiln:
        worker = kiln.worker_pid()
        if place == "loop":
            on_the_loops(kiln, "/loop_forever")

        def stopped():
            """A thread that gets no processor time in time cannot be interrupted: then the client has a bare 504."""
            answer = kiln.get("/loop_forever?spin=1")
            assert answer.status == 504
            return "did not return within RequestTimeout" in answer.text and answer

        assert "loop_forever._c" in wait_for(stopped, "the page that tells the place").text
        kiln.wait_log(
            r"error \[\d+\] \S+/loop_forever\._c was stopped answering GET /loop_forever\?spin=1: it did not return within "
            r"RequestTimeout; \S+/loop_forever\._c:\d+ in spin"
        )
        assert kiln.get("/loop_forever").body == b"quick"
        assert kiln.worker_pid() == worker
        assert "is replaced" not in kiln.log()


@pytest.mark.parametrize("place", ["pool", "loop"])
@pytest.mark.parametrize("how, status", [("wait", 504), ("polite", 200), ("ignore", 504)])
def test_calls_end_when_the_time_is_over(server, how, status, place):
    with server(files=plugins("sleep_forever"), config={"RequestTimeout": 0.5}) as kiln:
        worker = kiln.worker_pid()
        if place == "loop":
            on_the_loops(kiln, "/sleep_forever")
        answer = kiln.get(f"/sleep_forever?how={how}")
        assert answer.status == status
        assert status == 504 or answer.body == b"no luck"
        # Between two waits it is not waiting, when the time is over at that moment.
        told = "(waits longer than|did not return within)" if how == "ignore" else "waits longer than"
        kiln.wait_log(rf"sleep_forever\._c {told} RequestTimeout answering GET /sleep_forever\?how={how}")
        assert kiln.get("/").body == b"hello"
        assert kiln.worker_pid() == worker


@pytest.mark.parametrize("place", ["pool", "loop"])
def test_answer_that_has_begun_is_cut_when_the_time_is_over(server, place):
    with server(files=plugins("sleep_forever"), config={"RequestTimeout": 0.5}) as kiln:
        if place == "loop":
            on_the_loops(kiln, "/sleep_forever")
        answer = kiln.raw(b"GET /sleep_forever?how=calls HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ") and not answer.endswith(b"0\r\n\r\n")
        kiln.wait_log(r"sleep_forever\._c was stopped answering GET /sleep_forever\?how=calls: it did not return within")
        assert kiln.get("/").body == b"hello"


def test_sleep_in_the_library_is_interrupted(server):
    with server(files=plugins("sleep_forever"), config={"RequestTimeout": 0.5}) as kiln:
        on_the_loops(kiln, "/sleep_forever")
        assert kiln.get("/sleep_forever?how=once").status == 504  # stopped at its next call
        assert "is replaced" not in kiln.log()


@pytest.mark.parametrize("place", ["pool", "loop"])
def test_worker_is_replaced_when_an_endpoint_hangs_in_a_library(server, place):
    config = {"RequestTimeout": 0.5, "ShutdownTimeout": 0.5, "Threads": 1}
    with server(files=plugins("sleep_forever"), config=config) as kiln:
        worker = kiln.worker_pid()
        if place == "loop":
            on_the_loops(kiln, "/sleep_forever")
            with kiln.connect() as s:
                s.sendall(b"GET /sleep_forever?how=library HTTP/1.1\r\nHost: x\r\n\r\n")
                kiln.wait_log(r"worker \d+ serves")
                assert kiln.get("/").body == b"hello"
        else:
            assert kiln.get("/sleep_forever?how=library").status == 504
            assert kiln.get("/").body == b"hello"
        kiln.wait_log(r"sleep_forever\._c does not return after RequestTimeout and cannot be stopped where it is")
        kiln.wait_log(rf"worker {worker} is replaced: an endpoint does not return")
        wait_for(lambda: not alive(worker), "the end of the first worker")
        assert kiln.get("/").body == b"hello"


@pytest.mark.parametrize("place", ["pool", "loop"])
@pytest.mark.parametrize("how", ["ignore", "calls", "library"])
def test_endpoint_that_never_returns_does_not_hold_up_the_end(server, how, place):
    """Its client has left, it has all the time, and it does not care."""
    config = {"RequestTimeout": 0, "ShutdownTimeout": 0.5}
    kiln = server(files=plugins("sleep_forever"), config=config).start()
    if place == "loop":
        on_the_loops(kiln, "/sleep_forever")
    with kiln.connect() as s:
        s.sendall(f"GET /sleep_forever?how={how} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        kiln.wait_log("never returns")
    kiln.stop()


def test_time_is_per_endpoint(server):
    files = {"a._c": PLUGINS / "sleep_forever._c", "b._c": PLUGINS / "sleep_forever._c"}
    config = {"RequestTimeout": 0, "EndpointTimeouts": {"/a": 0.3, "*/c._c": 7}}
    with server(files=files, config=config) as kiln:
        with kiln.connect() as s:
            s.sendall(b"GET /b?how=wait HTTP/1.1\r\nHost: x\r\n\r\n")
            assert kiln.get("/a?how=wait").status == 504
            kiln.write_config(EndpointTimeouts={"/b": 0.3})
            kiln.reload(r"notice \[\d+\] config reloaded")
            assert kiln.get("/b?how=wait").status == 504


def test_slow_endpoint_is_known_before_it_delays_a_loop(server):
    """The first requests of a build run on the pool; the slow ones never see a loop."""
    with server(files=plugins("compute"), config={"Threads": 1}) as kiln:
        assert kiln.get("/compute?sleep_ms=2000").body == b"done"
        kiln.wait_log(r"compute\._c runs on the thread pool from now on: it took \d+ ms in one go")
        with kiln.connect() as s:
            s.sendall(b"GET /compute?sleep_ms=5000 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert kiln.get("/").body == b"hello"
            s.setblocking(False)
            with pytest.raises(BlockingIOError):
                s.recv(1)  # hello came first, on the only loop


def test_files_do_not_wait_for_endpoints_on_the_pool(server, tmp_path):
    big = os.urandom(3_000_000)
    config = {"PoolThreads": 1, "OffloadEndpoints": ["/compute"]}
    with server(files=plugins("compute") | {"big.bin": big}, config=config) as kiln:
        with kiln.connect() as s:
            s.sendall(b"GET /compute?sleep_ms=5000 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert kiln.get("/big.bin").body == big
            s.setblocking(False)
            with pytest.raises(BlockingIOError):
                s.recv(1)


# ---- memory ---------------------------------------------------------------------------------------


def test_request_that_takes_too_much_memory(server):
    with server(files=plugins("eat_memory"), config={"RequestMemoryLimit": "1M"}) as kiln:
        assert kiln.get("/eat_memory?request=1").status == 500
        kiln.wait_log(
            r"error \[\d+\] \S+/eat_memory\._c needed more memory than RequestMemoryLimit \(1048576 bytes\) "
            r"answering GET /eat_memory\?request=1"
        )
        assert kiln.get("/eat_memory").body == b"quick"
        assert kiln.log().count("RequestMemoryLimit") == 1


@pytest.mark.skipif("san" in os.environ.get("KILN_BUILD", ""), reason="sanitizers need memory of their own")
@pytest.mark.parametrize(
    "option, limit, why",
    [
        ("WorkerMemoryLimit", "100M", r"it uses \d+ MB of memory, more than WorkerMemoryLimit \(100 MB\)"),
        ("WorkerMemoryGrowth", "50M", r"its memory has grown by \d+ MB, more than WorkerMemoryGrowth \(50 MB\)"),
    ],
)
def test_worker_that_grows_too_large_is_replaced(server, option, limit, why):
    with server(files=plugins("eat_memory"), config={option: limit}) as kiln:
        worker = kiln.worker_pid()
        # The first look at its size was taken.
        kiln.get("/eat_memory")
        with Load(kiln, check=lambda a: None if a.body == b"hello" else repr(a)) as load:
            load.more()
            wait_for(lambda: kiln.get("/eat_memory?leak=20").body == b"quick" and "is replaced" in kiln.log(), "a replacement")
            kiln.wait_log(rf"warning \[\d+\] worker {worker} is replaced: {why}\n")
            wait_for(lambda: not alive(worker), "the end of the first worker")
            load.more()
        assert kiln.worker_pid() != worker


def test_worker_is_replaced_after_its_number_of_requests(server):
    with server(files=PAGE, config={"MaxRequestsPerWorker": 100}) as kiln:
        with Load(kiln, check=lambda a: None if a.body == b"hello" else repr(a)) as load:
            kiln.wait_log(r"is replaced: it has served \d+ requests \(MaxRequestsPerWorker is 100\)\n")
            kiln.wait_log(r"worker \d+ serves")
            load.more()
