"""A running Kiln for flow tests: writes its config and web directory below one temporary
directory, starts the program under test, waits for conditions instead of sleeping, and
checks at the end that it left nothing behind.

    def test_hello(server, files):
        files({"index.html": "hello"})
        with server() as kiln:
            assert kiln.get("/").body == b"hello"

KILN_BUILD names the build directory (default: build), so that the same tests run against
sanitizer builds. KILN_PORTS="first-last" limits the ports that are tried.
"""

import ctypes
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SANITIZER_REPORT = re.compile(
    r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|SUMMARY: \w+Sanitizer|: runtime error: |internal error: .*check failed"
)
MARKER = "KILN_TEST_ID"
# Sanitized and valgrinded servers are slow; a condition that never comes true is what these bound.
PATIENCE = float(os.environ.get("KILN_TEST_PATIENCE", "60"))


def build_dir() -> Path:
    return (ROOT / os.environ.get("KILN_BUILD", "build")).resolve()


def wait_for(condition, what: str, timeout: float = PATIENCE):
    """Calls condition() until it is true and returns its value."""
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s in vain for: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


class Link:
    """In a tree for write_tree(): a symbolic link."""

    def __init__(self, target):
        self.target = str(target)


def write_tree(root: Path, tree: dict) -> Path:
    """{"a/b.html": "text", "c.bin": b"bytes", "empty/": None, "current": Link("a")}. A file that is there is replaced
    in one step, as careful programs do it: who watches never sees half of it."""
    for name, content in tree.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            if path.is_symlink():
                path.unlink()
            path.symlink_to(content.target)
        elif isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            replace(path, content)
    return root


def replace(path: Path, content):
    """Writes the file beside its place and moves it there."""
    fresh = path.with_name(f".{path.name}.fresh") if path.exists() else path
    fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    fresh.rename(path)


def free_port() -> int:
    """A port outside the range that the kernel gives to clients, free at this moment."""
    first, last = (int(p) for p in os.environ.get("KILN_PORTS", "12000-18999").split("-"))
    for _ in range(1000):
        port = random.randint(first, last)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError(f"no free port in {first}-{last}")


class Response:
    def __init__(self, status: int, reason: str, headers, body: bytes):
        self.status = status
        self.reason = reason
        self.headers = headers  # email.message.Message: case-insensitive, get_all()
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {dict(self.headers)} {self.body[:200]!r}>"


def processes_marked(mark: str) -> dict:
    """Every process, {pid: state letter and name}, that inherited the mark in its environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{MARKER}={mark}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            stat = (entry / "stat").read_text()
            name, rest = stat[stat.index("(") + 1 :].rsplit(")", 1)
            found[int(entry.name)] = f"{rest.split()[0]} {name}"
        except OSError:
            continue
    return found


class Adopted:
    """What Popen offers, for a process that a child of ours left to us when it ended: it becomes
    our child if we are a subreaper then."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode = None

    @staticmethod
    def subreaper(on: bool):
        ctypes.CDLL(None, use_errno=True).prctl(36, int(on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER

    def poll(self):
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Its parent lives still, or it has gone to somebody else.
                if not os.path.exists(f"/proc/{self.pid}"):
                    self.returncode = -1
                return self.returncode
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        deadline = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def children_of(pid: int) -> dict:
    """{pid: state letter} of its children, zombies included."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        fields = stat.rsplit(")", 1)[1].split()
        if int(fields[1]) == pid:
            found[int(entry.name)] = fields[0]
    return found


class Server:
    """layout "single": kiln DIR; "backend": --backend=DIR (DIR/<host>/...); "static": --webPath=DIR;
    None: the config says it."""

    def __init__(self, base: Path, config=None, files=None, args=(), layout="single", env=None, program=None, tls=False):
        self.base = Path(base)
        self.www = self.base / "www"
        self.www.mkdir(parents=True, exist_ok=True)
        self.layout = layout
        self.tls = tls
        self.args = list(args)
        self.extra_env = dict(env or {})
        self.program = Path(program) if program else build_dir() / "kiln"
        self.config_file = self.base / "kiln.json"
        self.pid_file = self.base / "kiln.pid"
        self.log_file = self.base / "stderr.log"
        self.process = None
        self.port = 0
        self.tls_port = 0
        self.mark = uuid.uuid4().hex
        self.options = {
            "BindAddress": "127.0.0.1",
            "Threads": 2,
            "PidFile": str(self.pid_file),
            "SessionsDir": str(self.base / "sess"),
            "CacheDir": str(self.base / "cache"),
            "CertDir": str(self.base / "certs"),
            "ShutdownTimeout": 10,
        }
        self.options.update(config or {})
        if files:
            write_tree(self.www, files)

    # ---- life -------------------------------------------------------------------------
    def write_config(self, **changes):
        """Changes options and writes the file (the running server sees it at its next reload)."""
        self.options.update(changes)
        self.config_file.write_text(json.dumps(self.options, indent=2) + "\n")

    def command(self) -> list:
        where = {"single": [str(self.www)], "backend": [f"--backend={self.www}"], "static": [f"--webPath={self.www}"]}
        return [str(self.program), *where.get(self.layout, []), f"--config={self.config_file}", *self.args]

    def start(self, wait=True):
        if not self.program.exists():
            raise AssertionError(f"{self.program} is missing: run make first")
        for attempt in range(5):
            ports = self.options.get("HttpPorts")
            chosen = ports[0] if ports else free_port()
            self.port = chosen
            self.write_config(HttpPorts=ports or [chosen], **self._tls_options())
            self._spawn()
            if not wait:
                return self
            try:
                self.wait_ready()
                return self
            except AssertionError:
                # Somebody else took the port between the probe and the bind.
                taken = self.process.poll() is not None and "in use" in self.log()
                if not ports:
                    del self.options["HttpPorts"]
                if self.tls:
                    del self.options["HttpsPorts"]
                if ports or not taken or attempt == 4:
                    self.kill()
                    raise
        return self

    def _tls_options(self):
        """With tls=True: a port for HTTPS, and certificates in base/certs/."""
        if not self.tls:
            return {}
        if "HttpsPorts" not in self.options:
            self.tls_port = free_port()
        return {"HttpsPorts": self.options.get("HttpsPorts", [self.tls_port])}

    def _spawn(self):
        notify = self.base / "notify"
        if notify.exists():
            notify.unlink()
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Socket addresses are short; temporary directories are not.
        here = os.open(self.base, os.O_PATH)
        self._notify.bind(f"/proc/self/fd/{here}/notify")
        os.close(here)
        os.chmod(notify, 0o777)
        self._notify.setblocking(False)
        self._notified = b""
        env = dict(os.environ, **{MARKER: self.mark, "NOTIFY_SOCKET": str(notify)})
        if len(str(notify)) > 100:
            # Too long for the server, too: an abstract name carries it there.
            self._notify.close()
            self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._notify.bind("\0kiln-test-" + self.mark)
            self._notify.setblocking(False)
            env["NOTIFY_SOCKET"] = "@kiln-test-" + self.mark
        env.update(self.extra_env)
        with open(self.log_file, "ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.base,
                env=env,
                start_new_session=True,
            )

    def notified(self) -> bytes:
        """Everything the server told its service manager so far."""
        while True:
            try:
                self._notified += self._notify.recv(4096) + b"\n"
            except BlockingIOError:
                return self._notified

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"kiln ended with {self.process.returncode} before it was ready:\n{self.log()}")
            return b"READY=1" in self.notified()

        try:
            wait_for(ready, "READY=1 from kiln")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def reload(self, expect=r"notice .*config"):
        """SIGHUP, and waits for the line that says what came of it."""
        seen = len(self.log())
        self.signal(signal.SIGHUP)
        return self.wait_log(expect, start=seen)

    def upgrade(self, ask=None):
        """SIGUSR2, or what `ask` does, and waits until another process has taken over; that one is the server then."""
        Adopted.subreaper(True)
        seen = len(self.log())
        if ask is not None:
            ask()
        else:
            self.signal(signal.SIGUSR2)
        heir = int(self.wait_log(r"notice \[\d+\] upgraded: process (\d+) serves", start=seen)[1])
        assert self.process.wait(timeout=PATIENCE) == 0, self.log()
        Adopted.subreaper(False)
        self.process = Adopted(heir)
        return heir

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, code=0):
        """SIGTERM; the exit code (None: any), the sanitizers' silence and an empty house are asserted."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        self.wait_exit(code)

    def wait_exit(self, code=0):
        try:
            self.process.wait(timeout=PATIENCE + 15)
        except subprocess.TimeoutExpired:
            text = self.log()
            self.kill()
            raise AssertionError(f"kiln did not stop:\n{text}") from None
        text = self.log()
        returned = self.process.returncode
        self.process = None
        self._notify.close()
        left = {}

        def gone():
            left.clear()
            left.update(processes_marked(self.mark))
            return not left

        try:
            wait_for(gone, "the end of every process of kiln")
        except AssertionError:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"kiln left processes behind: {left}\n{text}") from None
        assert code is None or returned == code, f"kiln's exit code is {returned}, expected {code}:\n{text}"
        self.check_log()

    def check_log(self):
        """No sanitizer report and no failed internal check so far."""
        report = SANITIZER_REPORT.search(self.log())
        assert report is None, f"sanitizer report or failed check:\n{self.log()}"

    def kill(self):
        """Whatever is left, at once; for clean-up after a failure."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            if not isinstance(self.process, Adopted):
                self.process.wait()
        self.process = None
        for pid in processes_marked(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def __enter__(self):
        if self.process is None:
            self.start()
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.stop()
        else:
            self.kill()

    # ---- looking ------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """What this run wrote to stderr and stdout."""
        data = self.log_file.read_bytes() if self.log_file.exists() else b""
        return data[getattr(self, "_log_start", 0) :].decode(errors="replace")

    def wait_log(self, pattern: str, start: int = 0, timeout: float = PATIENCE):
        """The match of the pattern in the log after `start` characters, once it is there."""
        try:
            return wait_for(lambda: re.search(pattern, self.log()[start:]), f"log line {pattern!r}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def worker_pids(self) -> list:
        """The supervisor's children whose command line says that they are workers; several while some drain."""
        found = []
        for pid, state in sorted(children_of(self.pid).items()):
            try:
                if state != "Z" and b"--worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
            except OSError:
                continue
        return found

    def worker_pid(self) -> int:
        return wait_for(self.worker_pids, "a worker process")[0]

    # ---- talking -------------------------------------------------------------------------
    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def connect(self, timeout: float = PATIENCE) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def client(self, timeout: float = PATIENCE) -> http.client.HTTPConnection:
        """One kept-alive connection for several requests (see exchange())."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method: str, path: str, body=None, headers=None, timeout: float = PATIENCE) -> Response:
        client = self.client(timeout)
        try:
            return exchange(client, method, path, body, headers)
        finally:
            client.close()

    def get(self, path: str, headers=None, **more) -> Response:
        return self.request("GET", path, headers=headers, **more)

    def head(self, path: str, headers=None, **more) -> Response:
        return self.request("HEAD", path, headers=headers, **more)

    def post(self, path: str, body=b"", headers=None, **more) -> Response:
        return self.request("POST", path, body, headers, **more)

    def raw(self, data: bytes, timeout: float = PATIENCE, half_close: bool = False) -> bytes:
        """Sends the bytes on a new connection and returns everything until the server closes."""
        with self.connect(timeout) as s:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            return read_all(s)


def exchange(client: http.client.HTTPConnection, method: str, path: str, body=None, headers=None) -> Response:
    client.request(method, path, body=body, headers=dict(headers or {}))
    answer = client.getresponse()
    return Response(answer.status, answer.reason, answer.headers, answer.read())


def read_all(s: socket.socket) -> bytes:
    data = bytearray()
    while True:
        try:
            part = s.recv(65536)
        except ConnectionResetError:
            return bytes(data)
        if not part:
            return bytes(data)
        data += part


def read_until(s: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        part = s.recv(65536)
        assert part, f"connection closed before {end!r}; got {data!r}"
        data += part
    return data
