"""What tests/chaos does to a running server while tests/support/load asks it without pause: disturbances, each a
thread that acts at its own pace, and a look at what a server holds (descriptors, processes, memory, files)."""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from kiln_server import MARKER, PATIENCE, ROOT, Adopted, build_dir, children_of, processes_marked, wait_for

PLUGINS = ROOT / "tests" / "plugins" / "chaos"


class Tail:
    """New lines of a growing file; the log of a soak is too long to be read again and again."""

    def __init__(self, path):
        self.path = Path(path)
        self.at = self.path.stat().st_size if self.path.exists() else 0
        self.rest = b""

    def lines(self):
        with open(self.path, "rb") as f:
            f.seek(self.at)
            data = f.read()
        self.at += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def wait(self, pattern, timeout=PATIENCE):
        def look():
            for line in self.lines():
                found = found_in(line)
                if found:
                    return found
            return None

        def found_in(line):
            return re.search(pattern, line)

        return wait_for(look, f"log line {pattern!r}", timeout)


class Load:
    """chaos-load, from its first request until stop(), which returns its report."""

    def __init__(self, kiln, clients=32, crash_ms=0):
        self.process = subprocess.Popen(
            [build_dir() / "chaos-load", f"--port={kiln.port}", f"--site={kiln.www}", f"--clients={clients}",
             f"--crash-ms={crash_ms}", f"--patience-ms={int(PATIENCE * 1000)}"],
            stdout=subprocess.PIPE, text=True)
        self.clients = clients
        line = self.process.stdout.readline()
        assert line == "ready\n", f"chaos-load does not begin: {line!r}, exit code {self.process.wait()}"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        text, _ = self.process.communicate(timeout=PATIENCE * 4)
        assert self.process.returncode == 0, text
        return json.loads(text)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Disturbance:
    """every: seconds between two acts. An exception in one ends the disturbance and fails the test."""

    every = 1.0
    alone = True  # no other disturbance beside it

    def __init__(self, kiln):
        self.kiln = kiln
        self.acts = 0
        self.error = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        due = time.monotonic() + self.every
        try:
            while not self.ended.wait(max(0, due - time.monotonic())):
                self.act()
                due = max(due + self.every, time.monotonic())
        except BaseException as error:  # a thread's exception would go unseen
            self.error = error

    def start(self):
        self.thread.start()

    def stop(self):
        self.ended.set()
        self.thread.join()
        if self.error is not None:
            raise self.error
        self.settle()

    def settle(self):
        """After the last act, while the load still runs."""


class Crashes(Disturbance):
    """(a) An endpoint crash every 100 ms: the load itself asks for them."""

    load_options = {"crash_ms": 100}

    def act(self):
        pass


class Kills(Disturbance):
    """(b) kill -9 of a worker every second."""

    def act(self):
        workers = [pid for pid in children_of(self.kiln.pid) if is_worker(pid)]
        if workers:
            try:
                os.kill(random.choice(workers), signal.SIGKILL)
                self.acts += 1
            except ProcessLookupError:
                pass


class Reloads(Disturbance):
    """(c) Another config and SIGHUP every second."""

    def act(self):
        self.acts += 1
        self.kiln.write_config(DefaultHeaders={"X-Reload": str(self.acts)})
        os.kill(self.kiln.pid, signal.SIGHUP)

    def settle(self):
        self.act()
        wait_for(lambda: self.kiln.get("/small.txt").headers["X-Reload"] == str(self.acts), "the last config")


class Edits(Disturbance):
    """(d) A ._c file changes every 200 ms, by rename or in place; one in seven is broken."""

    every = 0.2

    def __init__(self, kiln):
        super().__init__(kiln)
        self.source = (PLUGINS / "edited._c").read_text()
        self.version = 1

    def write(self, broken=False):
        self.version += 1
        text = re.sub(r"#define VERSION 1 .*", f"#define VERSION {self.version}", self.source)
        if broken:
            text = text.replace("int kiln_run", "int int kiln_run")
        path = self.kiln.www / "edited._c"
        if self.version % 2 == 0:
            new = self.kiln.base / "edited.new"
            new.write_text(text)
            os.rename(new, path)
        else:
            path.write_text(text)

    def act(self):
        self.acts += 1
        # A worker that is new does not have the last good build of the one before: nothing broken then.
        self.write(broken=self.alone and self.acts % 7 == 0)

    def settle(self):
        self.write()
        seen = set()

        def shown():
            seen.add(self.kiln.get("/edited").text.split("\n")[0])
            return f"version {self.version}" in seen

        try:
            wait_for(shown, f"version {self.version}")
        except AssertionError as error:
            raise AssertionError(f"{error}; seen: {seen}") from None


class Upgrades(Disturbance):
    """(e) SIGUSR2 every three seconds: another supervisor and worker take over."""

    every = 3.0

    def __init__(self, kiln):
        super().__init__(kiln)
        self.failed = 0
        Adopted.subreaper(True)

    def act(self):
        kiln = self.kiln
        tail = Tail(kiln.log_file)
        kiln.signal(signal.SIGUSR2)
        found = tail.wait(r"notice \[\d+\] upgraded: process (\d+) serves|error \[\d+\] not upgraded: (.*)", PATIENCE * 2)
        if found[2] is not None:
            assert not self.alone, found[2]
            self.failed += 1
            return
        old = kiln.process
        kiln.process = Adopted(int(found[1]))
        code = old.wait(timeout=PATIENCE * 2)  # 0 when nobody else ends workers
        assert code == 0 or not self.alone, f"the old supervisor ended with exit code {code}"
        self.acts += 1

    def settle(self):
        Adopted.subreaper(False)


# In the order in which they end when they were all at once.
ALL = {"upgrades": Upgrades, "kills": Kills, "crashes": Crashes, "reloads": Reloads, "edits": Edits}


# ---- what a server holds --------------------------------------------------------------------------


def is_worker(pid):
    try:
        return b"--worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def descriptors(pid):
    """Names of what it has open, without the numbers that differ from process to process."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(re.sub(r"[0-9a-f]{6,}|\d+", "N", os.readlink(f"/proc/{pid}/fd/{fd}")))
        except OSError:
            pass
    return sorted(found)


def memory_kb(pid):
    """Of its own: pages of files that it maps belong to nobody."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise LookupError(f"process {pid} has ended")
    return int(found[1])


def files_below(directory):
    return sorted(os.path.relpath(os.path.join(where, name), directory) for where, _, names in os.walk(directory) for name in names)


class State:
    """Of a server at rest: one worker, no connection of a client."""

    def __init__(self, kiln):
        self.kiln = kiln
        wait_for(self.processes_are_seen, "a single worker")
        self.runs = sorted(p.name for p in (kiln.base / "cache" / "run").iterdir())
        self.temporary = files_below(kiln.base / "tmp")
        self.half_made = [name for part in ("record", "object") for name in files_below(kiln.base / "cache" / part)
                          if not re.fullmatch(r"[0-9a-f]{64}(\.so)?", name)]
        self.sessions = files_below(kiln.base / "sess")

    def processes_are_seen(self):
        """False while there is another number of workers than one, or when it ended while it was looked at."""
        workers = self.workers()
        if len(workers) != 1:
            return False
        try:
            self.worker = workers[0]
            self.supervisor_fds = descriptors(self.kiln.pid)
            self.worker_fds = descriptors(self.worker)
            self.processes = sorted(name.split(" ", 1)[1] for name in processes_marked(self.kiln.mark).values())
            self.supervisor_kb = memory_kb(self.kiln.pid)
            self.worker_kb = memory_kb(self.worker)
        except (OSError, LookupError):
            return False
        return True

    def workers(self):
        return [pid for pid, state in children_of(self.kiln.pid).items() if is_worker(pid) or state == "Z"]


def start_env(kiln):
    """Temporary files go where the test can count them."""
    (kiln.base / "tmp").mkdir(exist_ok=True)
    kiln.extra_env["TMPDIR"] = str(kiln.base / "tmp")


__all__ = ["ALL", "MARKER", "PLUGINS", "Load", "State", "Tail", "start_env"]
