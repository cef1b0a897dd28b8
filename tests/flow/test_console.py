"""The terminal that the server was started on: what is shown, and what may be typed there; the same as commands."""

import os
import pty
import re
import select
import signal
import subprocess

import pytest
from kiln_server import free_port, replace, wait_for

CRASH = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)c; (void)p; *(volatile int *)8 = 1; return 0; }\n"
HELLO = '#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; kiln_puts(c, "hello"); return 0; }\n'


class Terminal:
    """A server of the fixture, but started on a terminal of its own."""

    def __init__(self, kiln):
        self.kiln = kiln
        kiln.port = free_port()
        kiln.write_config(HttpPorts=[kiln.port])
        self.seen = b""
        self.code = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ.pop("NO_COLOR", None)
            os.chdir(kiln.base)
            os.execv(kiln.program, kiln.command())

    def read(self) -> bool:
        """What is there; False when nobody holds the terminal any more."""
        while select.select([self.fd], [], [], 0)[0]:
            try:
                self.seen += os.read(self.fd, 65536)
            except OSError:
                return False
        return True

    def wait(self, pattern: bytes, start: int = 0):
        """The match of the pattern in what came after `start` bytes."""

        def look():
            open_still = self.read()
            found = re.search(pattern, self.seen[start:])
            assert found or open_still, f"the terminal was closed without {pattern!r}:\n{self.seen.decode()}"
            return found

        return wait_for(look, f"{pattern!r} on the terminal")

    def type(self, line: str, pattern: bytes):
        """Types the line and waits for the answer behind its echo."""
        start = len(self.seen)
        os.write(self.fd, line.encode() + b"\n")
        return self.wait(pattern, start)

    def end(self) -> int:
        """The exit code of the server, which has been told to end."""
        wait_for(lambda: not self.read() or self._ended(), "the end of the server")
        wait_for(self._ended, "the end of the server")
        self.read()
        return self.code

    def _ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def close(self):
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(server):
    opened = []

    def start(files=None, **config):
        opened.append(Terminal(server(files=files or {"index.html": "hello"}, config=config)))
        opened[-1].wait(rb"Type help" if config.get("Console", True) else rb"Ctrl-C stops\r\n")
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_on_a_terminal_a_line_for_people_and_ctrl_c(terminal):
    """Colour is for terminals; Ctrl-C reaches the whole group, the supervisor alone decides."""
    shown = terminal(LogLevel="debug")
    shown.wait(rb"\nkiln [\d.]+: serving \S+ on http://127\.0\.0\.1:\d+ \(2 threads, 1 file\); Ctrl-C stops\r\n")
    shown.wait(rb"Type help for what may be typed here\.\r\n")
    os.write(shown.fd, b"\x03")
    assert shown.end() == 0
    assert b"\033[32mnotice\033[0m" in shown.seen and b"stopped" in shown.seen
    assert b"a new one starts" not in shown.seen


def test_help_names_every_command_and_answers_mistakes(terminal):
    shown = terminal()
    shown.type("help", rb"Commands:\r\n  status +\S.*\n  endpoints .*\n  reload .*\n  restart .*\n  upgrade .*\n  stop .*\n")
    shown.type("Reload", rb"config reloaded")
    shown.type("relaod", rb"There is no such command; these there are:\r\n  status ")
    shown.type("x" * 500, rb"\n")  # passed over, whatever its beginning says
    shown.type("", rb"\n")
    shown.type("status", rb"kiln [\d.]+, process \d+: serving for \d+ s\r\n")
    shown.type("stop", rb"stops when the running requests have ended")
    assert shown.end() == 0


def test_quarantine_is_shown(terminal):
    shown = terminal({"bad._c": CRASH, "good._c": HELLO, "\x1b[31m._c": HELLO}, QuarantineCrashes=2, QuarantineTime=3600)
    kiln = shown.kiln
    assert kiln.get("/good").body == b"hello"
    assert kiln.get("/%1b%5b31m").status in (200, 400, 404)
    assert kiln.get("/bad").status == 500
    # A fresh worker may run it once more before it hears of the quarantine.
    wait_for(lambda: kiln.get("/bad").status == 503, "quarantine")

    def look():
        return re.search(rb"(\S+)/bad\._c crashed [2-9] times; it is run again in (59|60) min, or when its file changes\r\n",
                         shown.type("status", rb"process[^$]*worker \d+: [^$]*\n")[0])

    wait_for(look, "the endpoint in quarantine")
    wait_for(lambda: re.search(rb" [2-9] +0 +35\d\d s  \S+/bad\._c\r\n", shown.type("endpoints", rb"hits [^$]*bad\._c\r\n")[0]),
             "the endpoint in the list")
    wait_for(lambda: re.search(rb"\n +1 +\d+ +0 +0 +0 s  \S+/good\._c\r\n",
                               shown.type("endpoints", rb"hits [^$]*good\._c\r\n")[0]), "the other endpoint")
    assert b"\x1b[31m._c" not in shown.seen
    replace(kiln.www / "bad._c", HELLO)
    wait_for(lambda: kiln.get("/bad").body == b"hello", "the mended file runs")
    wait_for(lambda: b", 0 in quarantine" in shown.type("status", rb"process[^$]*worker \d+: [^$]*\n")[0], "the end of the quarantine")
    shown.type("stop", rb"stops when")
    assert shown.end() == 0


def test_restart_replaces_the_worker_and_refuses_nobody(terminal):
    shown = terminal()
    before = wait_for(lambda: re.search(rb"worker (\d+): serving", shown.type("status", rb"process[^$]*worker [^$]*\n")[0]),
                      "a worker that serves")[1]
    with shown.kiln.connect() as held:
        shown.type("restart", rb"worker \d+ serves")
        held.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert held.recv(65536).startswith(b"HTTP/1.1 200")
    wait_for(lambda: (now := re.findall(rb"worker (\d+): serving", shown.type("status", rb"process[^$]*worker [^$]*\n")[0]))
             and now != [before], "another worker alone")
    assert shown.kiln.get("/").body == b"hello"
    shown.type("stop", rb"stops when")
    assert shown.end() == 0


def test_reload_takes_the_new_config(terminal):
    shown = terminal()
    shown.kiln.write_config(DefaultHeaders={"X-New": "yes"})
    shown.type("reload", rb"config reloaded")
    wait_for(lambda: shown.kiln.get("/").headers["X-New"] == "yes", "the new header")
    shown.kiln.config_file.write_text('{"Threds": 2}')
    shown.type("reload", rb"config not reloaded: the server goes on")
    assert b"Threads" in shown.seen
    assert shown.kiln.get("/").headers["X-New"] == "yes"
    os.write(shown.fd, b"\x03")
    assert shown.end() == 0


def test_the_end_of_input_ends_the_console_alone(terminal):
    shown = terminal()
    os.write(shown.fd, b"\x04")
    fds = f"/proc/{shown.pid}/fd"

    def terminals():
        try:
            return sum(os.readlink(f"{fds}/{fd}").startswith("/dev/pts/") for fd in os.listdir(fds))
        except FileNotFoundError:  # one was closed meanwhile
            return None

    wait_for(lambda: terminals() == 3, "the console's own descriptor is closed")
    assert shown.kiln.get("/").body == b"hello"
    os.write(shown.fd, b"\x03")
    assert shown.end() == 0


def test_it_is_an_option(terminal):
    shown = terminal(Console=False)
    os.write(shown.fd, b"stop\n")
    assert shown.kiln.get("/").body == b"hello"
    os.write(shown.fd, b"\x03")
    assert shown.end() == 0
    assert b"Type help" not in shown.seen and b"stops when" not in shown.seen


def test_in_the_background_nothing_is_read(server):
    """A shell's job with '&': what is typed is the shell's, and the server is not stopped by the terminal."""
    kiln = server(files={"index.html": "hello"})
    kiln.port = free_port()
    kiln.write_config(HttpPorts=[kiln.port])
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(kiln.base)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.execv(kiln.program, kiln.command())
        line = b""
        while not line.endswith(b"end\n"):
            line += os.read(0, 1)  # the shell
        os.kill(child, signal.SIGTERM)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if b"status\n" in line else 99)
    seen = b""

    def served():
        nonlocal seen
        if select.select([fd], [], [], 0)[0]:
            seen += os.read(fd, 65536)
        return b"Ctrl-C stops" in seen

    wait_for(served, "the server's line")
    for _ in range(20):
        os.write(fd, b"status\n")
        assert kiln.get("/").body == b"hello"  # neither stopped nor busy
    os.write(fd, b"end\n")
    status = None

    def ended():
        nonlocal seen, status
        if select.select([fd], [], [], 0)[0]:
            try:
                seen += os.read(fd, 65536)
            except OSError:
                pass
        if status is None:
            done, code = os.waitpid(pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
        return status is not None

    wait_for(ended, "the end of shell and server")
    os.close(fd)
    assert status == 0, seen
    assert b"serving for" not in seen


# ---- kiln NAME -----------------------------------------------------------------------------


def run(kiln, *arguments):
    return subprocess.run([kiln.program, *arguments, f"--config={kiln.config_file}"], capture_output=True, text=True, cwd=kiln.base)


def test_commands_ask_the_running_server(server):
    with server(files={"bad._c": CRASH, "index.html": "hello"}, config={"QuarantineCrashes": 1, "QuarantineTime": 3600}) as kiln:
        assert kiln.get("/bad").status == 500
        told = wait_for(lambda: (now := run(kiln, "status")).returncode == 0 and "in quarantine: " in now.stdout and now.stdout, "quarantine")
        assert f"process {kiln.pid}: serving for" in told and "/bad._c crashed 1 times; it is run again in " in told
        wait_for(lambda: re.search(r" 1 +0 +3\d\d\d s  \S+/bad\._c\n", run(kiln, "endpoints").stdout), "the crash in the list")

        kiln.write_config(DefaultHeaders={"X-New": "yes"})
        done = run(kiln, "reload")
        assert (done.returncode, done.stdout) == (0, "the new config is taken over\n")
        wait_for(lambda: kiln.get("/").headers["X-New"] == "yes", "the new header")

        worker = kiln.worker_pids()
        assert run(kiln, "restart").returncode == 0
        wait_for(lambda: len(now := kiln.worker_pids()) == 1 and now[0] not in worker, "another worker alone")
        assert kiln.get("/").body == b"hello"

        good = kiln.config_file.read_text()
        kiln.config_file.write_text(good.replace('"Threads"', '"Threds"'))
        # Who asks must read the same file to find the server; it is named here.
        done = subprocess.run([kiln.program, "reload", f"--PidFile={kiln.pid_file}"], capture_output=True, text=True, cwd="/")
        assert done.returncode == 1
        assert re.search(r'kiln\.json:\d+: "Threds": .*Threads', done.stdout), done.stdout
        assert done.stdout.endswith("config not reloaded: the server goes on with the one it has\n")
        kiln.config_file.write_text(good)

        done = run(kiln, "stop")
        assert (done.returncode, done.stdout) == (0, "stops when the running requests have ended\n")
        kiln.wait_exit()
        done = run(kiln, "status")
        assert done.returncode == 1 and "no server runs here" in done.stderr


def test_the_command_that_upgrades(server):
    with server(files={"index.html": "hello"}) as kiln:
        before = kiln.pid

        def ask():
            done = run(kiln, "upgrade")
            assert done.returncode == 0 and "the log says" in done.stdout

        kiln.upgrade(ask)
        assert kiln.pid != before
        assert kiln.get("/").body == b"hello"
        assert f"process {kiln.pid}: " in run(kiln, "status").stdout
        assert run(kiln, "stop").returncode == 0
        kiln.wait_exit()
