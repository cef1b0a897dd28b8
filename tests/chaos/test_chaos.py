"""A load of mixed requests at full speed while something happens to the server again and again: (a) an endpoint
crashes every 100 ms, (b) the worker is killed every second, (c) the config is reloaded every second, (d) an endpoint
is edited every 200 ms, (e) another program takes over every few seconds. The promise:

- Every request is answered whole and right. Under (b) alone those may be lost that were in flight on a killed worker:
  each kill costs at most what all clients together had in flight at any moment (`in_flight_most`).
- No connection is refused, also under (b).
- No increment of a session that was answered is lost, and none is counted twice: answered <= sum <= attempted.
- Nothing is left over: descriptors, processes, memory (within MEMORY_KB), temporary files.

`make test` runs each for 20 s; `make soak SECONDS=600` each for ten minutes, and all five at once. Under
sanitizers (`make test-asan`, `make test-tsan`) they run for SANITIZED_SECONDS, with fewer clients, and memory is not
compared, since the tools keep what was freed. All five at once are for the soak alone, there as well."""

import os
import time

import pytest
from chaos import ALL, PLUGINS, Load, State, start_env
from kiln_server import build_dir, wait_for

SANITIZED = next((name for name in ("asan", "tsan") if name in str(build_dir())), None)
SANITIZED_SECONDS = 6
WARM_UP_SECONDS = 2
SOAK = "KILN_SOAK_SECONDS" in os.environ
SECONDS = float(os.environ.get("KILN_SOAK_SECONDS", SANITIZED_SECONDS if SANITIZED else 20))
CLIENTS = 16 if SANITIZED else 32
# Of a load that deserves the name; under ThreadSanitizer a new worker alone needs most of a second.
ANSWERED_LEAST = {"tsan": 20, "asan": 100}.get(SANITIZED, 1000)
# A worker that lived through it all may be larger than at first by: allocators keep some of what was freed.
MEMORY_KB = 48 * 1024


def site():
    large = bytes(i * 7 + (i >> 8) * 13 & 0xFF for i in range(1 << 20))
    files = {path.name: path for path in PLUGINS.glob("*._c")}
    return files | {"crash_pool._c": PLUGINS / "crash._c", "small.txt": "0123456789abcde\n" * 700, "large.bin": large}


@pytest.fixture
def kiln(server, tmp_path):
    import subprocess

    from kiln_server import ROOT

    kiln = server(
        config={
            "OffloadEndpoints": ["/crash_pool"],
            "QuarantineCrashes": 0,
            "BodyMemoryLimit": 65536,
            "TempDir": str(tmp_path / "tmp"),
            "ShutdownTimeout": 30,
        },
        files=site(),
    )
    start_env(kiln)
    subprocess.run(["gcc", "-x", "c", "-std=gnu11", "-O2", "-fPIC", "-shared", f"-I{ROOT}/plugin-sdk/include", "-o",
                    kiln.www / "hello.so", PLUGINS / "hello._c"], check=True)
    kiln.start()
    for path in ("/hello._c", "/hello.so", "/count", "/echo", "/stream", "/edited"):
        assert kiln.get(path).status == 200
    return kiln


def run_load(kiln, names, seconds):
    """The load's report and the disturbances."""
    disturbances = [ALL[name](kiln) for name in names]
    options = {}
    for one in disturbances:
        options.update(getattr(one, "load_options", {}))
        one.alone = len(names) == 1
    load = Load(kiln, CLIENTS, **options)
    try:
        for one in disturbances:
            one.start()
        time.sleep(seconds)  # how long it goes on: nothing waits for this
        for one in disturbances:
            one.stop()
        return load.stop(), disturbances
    except BaseException:
        load.kill()
        for one in disturbances:
            one.ended.set()
        raise


def check_answers(report, kills):
    assert report["wrong"] == 0, report
    assert report["refused"] == 0, report
    assert report["timed_out"] == 0, report
    assert report["unanswered"] == 0, report
    assert report["lost"] <= kills * report["in_flight_most"], report
    assert report["answered"] > ANSWERED_LEAST, report


def check_sessions(report):
    for session in report["sessions"]:
        assert session["answered"] <= session["final"] <= session["attempted"], report["sessions"]
        assert session["highest"] <= session["final"], report["sessions"]


def check_nothing_left(kiln, before):
    def at_rest():
        nonlocal after
        after = State(kiln)
        return after.supervisor_fds == before.supervisor_fds and len(after.worker_fds) <= len(before.worker_fds)

    after = None
    try:
        wait_for(at_rest, "the descriptors of before")
    except AssertionError:
        assert after.supervisor_fds == before.supervisor_fds
        assert after.worker_fds == before.worker_fds

    def tidy():
        """Compilers may still work on what was edited last; they leave when it is done."""
        nonlocal after
        after = State(kiln)
        return (after.processes == before.processes and len(after.runs) == 1 and after.half_made == []
                and after.temporary == before.temporary and after.sessions == before.sessions)

    try:
        wait_for(tidy, "what there was before")
    except AssertionError:
        assert after.processes == before.processes
        assert len(after.runs) == 1, after.runs
    assert after.temporary == before.temporary == []
    assert after.half_made == []
    assert after.sessions == before.sessions
    if not SANITIZED:
        assert after.worker_kb <= before.worker_kb + MEMORY_KB, (before.worker_kb, after.worker_kb)
        assert after.supervisor_kb <= before.supervisor_kb + 4096, (before.supervisor_kb, after.supervisor_kb)


def disturb(kiln, names):
    warm_up = Load(kiln, CLIENTS)  # buffers, threads, open files and builds that there are from the first load on
    time.sleep(WARM_UP_SECONDS)
    warm_up.stop()
    before = State(kiln)
    report, disturbances = run_load(kiln, names, SECONDS)
    print(names, report, {type(one).__name__: one.acts for one in disturbances})
    kills = sum(one.acts for one in disturbances if type(one) is ALL["kills"])
    check_answers(report, kills)
    check_sessions(report)
    check_nothing_left(kiln, before)
    if "crashes" in names:
        assert report["crashes"] > SECONDS, report
    kiln.stop(code=None if kills > 0 else 0)
    assert not list((kiln.base / "cache" / "run").iterdir())


@pytest.mark.parametrize("name", list(ALL))
def test_load_while(kiln, name):
    disturb(kiln, [name])


@pytest.mark.skipif(not SOAK, reason="all at once in `make soak`")
def test_load_while_everything_happens(kiln):
    disturb(kiln, list(ALL))
