"""The admin listener: what the server tells of itself, whatever its workers do."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

from kiln_server import PATIENCE, build_dir, replace, wait_for
from prometheus_text import parse
from admin_client import CRASH, HELLO, PAGES, worker_states, Watch


# ---- pages ------------------------------------------------------------------------------------


def test_off_unless_configured(server):
    with server(files={"index.html": "page"}) as kiln:
        assert "admin listener" not in kiln.log()
        listening = re.findall(r"socket:\[(\d+)\]", " ".join(os.readlink(f"/proc/{kiln.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{kiln.pid}/fd")))
        with open("/proc/net/tcp") as table:
            ours = [line.split() for line in table if line.split()[9] in listening and line.split()[3] == "0A"]
        assert [int(fields[1].split(":")[1], 16) for fields in ours] == [kiln.port]


def test_each_page(admin):
    kiln, tell = admin()
    for page in PAGES:
        answer = tell.request(page)
        assert answer.status == 200, page
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("Access-Control-Allow-Origin") is None
    assert json.loads(tell.request("/health").body) == {"healthy": True}
    assert json.loads(tell.request("/ready").body) == {"ready": True}
    assert tell.request("/metrics").getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert tell.request("/status?x=1").getheader("Content-Type") == "application/json"
    for page in PAGES:
        assert page in tell.request("/").body.decode().split()
    with urllib.request.urlopen(f"http://localhost:{tell.where}/ready", timeout=PATIENCE) as answer:
        assert answer.status == 200
    done = subprocess.run(["curl", "-sf", f"http://127.0.0.1:{tell.where}/health"], capture_output=True, timeout=60)
    assert json.loads(done.stdout) == {"healthy": True}


def test_head_other_methods_and_other_paths(admin):
    kiln, tell = admin()
    for page in PAGES:
        answer = tell.request(page, "HEAD")
        assert answer.status == 200 and answer.body == b"" and int(answer.getheader("Content-Length")) > 0
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"):
        answer = tell.request("/status", method)
        assert answer.status == 405 and answer.getheader("Allow") == "GET, HEAD", method
    assert tell.request("/status", "POST", body=b"x=1").status == 405
    for path in ("/nothing", "/status/", "//status", "/STATUS", "/%2e%2e/etc/passwd"):
        assert tell.request(path).status == 404, path


def test_status_says_what_happened(admin):
    kiln, tell = admin(config={"Threads": 3})
    for _ in range(5):
        assert kiln.get("/hello").body == b"hello"
    endpoint = tell.wait_endpoint("hello._c", hits=5)
    assert endpoint.pop("loads") in (1, 2)  # where gcc is installed, its build follows that of tcc
    assert endpoint == {"file": str(kiln.www / "hello._c"), "hits": 5, "builds": 1, "builds_failed": 0,
                        "crashes": 0, "timeouts": 0, "refused": 0, "quarantine_seconds": 0}

    def all_told():
        status = tell.status()
        loops = status["workers"][0].get("loops") or []
        return (status["totals"]["requests"], status["totals"]["responses_2xx"], sum(loop["requests"] for loop in loops)) == (5, 5, 5) and status

    status = wait_for(all_told, "five requests")
    version = subprocess.run([build_dir() / "kiln", "--version"], capture_output=True, text=True).stdout.split()[1]
    assert (status["version"], status["pid"], status["state"], status["ready"]) == (version, kiln.pid, "serving", True)
    assert abs(status["started"] + status["server"]["uptime_seconds"] - time.time()) < 3600
    (worker,) = status["workers"]
    assert worker["pid"] == kiln.worker_pid() and worker["state"] == "serving"
    assert worker["requests"] == 5 and worker["memory_bytes"] > 1 << 20 and worker["uptime_seconds"] > 0
    assert [loop["loop"] for loop in worker["loops"]] == [0, 1, 2]
    assert all(0 <= loop["lag_seconds"] < PATIENCE for loop in worker["loops"])
    with kiln.connect():
        wait_for(lambda: tell.status()["workers"][0]["connections"] == 1, "the connection is seen")
    assert tell.status()["totals"]["responses_2xx"] == 5


def test_metrics_are_well_formed_and_the_same(admin, tmp_path):
    name = 'a "quoted\\ name\n_ü.so'
    kiln, tell = admin(files={"hello._c": HELLO, name: "no module"})
    (kiln.www / os.fsdecode(b"not \xff utf-8.so")).write_bytes(b"no module")
    kiln.get("/hello")
    kiln.get("/a%20%22quoted%5C%20name%0A_%C3%BC.so")
    wait_for(lambda: kiln.get("/not%20%FF%20utf-8.so").status == 500, "the new file is seen")
    wait_for(lambda: len(tell.status()["endpoints"]) == 3, "all endpoints are told")
    tell.wait_endpoint(name, builds_failed=1)

    def at_rest():
        """Figures come once a second: nothing may have come between the two."""
        before = tell.status()
        families, _ = parse(tell.request("/metrics").body.decode())
        status = tell.status()
        return (before["totals"], before["endpoints"]) == (status["totals"], status["endpoints"]) and (families, status)

    families, status = wait_for(at_rest, "figures of the same moment")
    assert families["kiln_build_info"] == {(("version", status["version"]),): 1}
    files = {dict(labels)["file"] for labels in families["kiln_endpoint_hits_total"]}
    assert files == {e["file"] for e in status["endpoints"]}
    assert {os.path.basename(f) for f in files} == {"hello._c", name, "not \ufffd utf-8.so"}
    failed = families["kiln_endpoint_builds_failed_total"]
    assert failed[(("file", str(kiln.www / name)),)] >= 1
    for key, value in status["totals"].items():
        family = next(f for f in (f"kiln_{key}_total", f"kiln_{key}") if f in families)
        assert families[family].keys() == {()}
    assert families["kiln_requests_total"][()] == status["totals"]["requests"]
    assert families["kiln_workers"][(("state", "serving"),)] == 1
    for family in ("kiln_loop_lag_seconds", "kiln_loop_requests_total"):
        assert len(families[family]) == 2
    if shutil.which("promtool"):
        text = tell.request("/metrics").body
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---- whatever workers do -------------------------------------------------------------------------------


def test_a_stopped_worker_is_seen_to_be_silent(admin):
    kiln, tell = admin()
    worker = kiln.worker_pid()
    wait_for(lambda: "loops" in tell.status()["workers"][0] and tell.status()["workers"][0]["loops"], "figures")
    os.kill(worker, signal.SIGSTOP)
    try:
        wait_for(lambda: tell.status()["workers"][0]["figures_age_seconds"] > 2.5, "its figures are old")
        for page in PAGES:
            assert tell.request(page).status == 200
        assert tell.metrics()["kiln_worker_figures_age_seconds"][(("worker", str(worker)),)] > 2.5
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_for(lambda: tell.status()["workers"][0]["figures_age_seconds"] < 1, "it tells again")


def test_blocked_loops_have_a_growing_lag(admin, tmp_path):
    """All loops blocked by code that they run themselves; the time it takes is ended by the test."""
    go = tmp_path / "go"
    source = f"""
#include <kiln.h>
#include <unistd.h>
int kiln_run(kiln_context *ctx, const char *path)
{{
    (void)path;
    if (kiln_query_get(ctx, "block") != NULL) {{
        while (access("{go}", F_OK) != 0) {{
            usleep(1000);
        }}
    }}
    return 0;
}}
"""
    kiln, tell = admin(files={"block._c": source}, config={"Threads": 1, "BlockingThreshold": 60000, "RequestTimeout": 0})
    asked, offloaded, now = 0, -1, 0
    while now == 0 or now != offloaded:  # until it has shown that it is quick
        assert asked < 1000
        offloaded = now
        for _ in range(20):
            kiln.get("/block")
        asked += 20
        now = wait_for(lambda: (t := tell.status()["totals"])["requests"] == asked and t, "all are counted")["requests_offloaded"]
    thread = threading.Thread(target=kiln.get, args=("/block?block=1",))
    thread.start()

    def lag():
        return tell.status()["workers"][0]["loops"][0]["lag_seconds"]

    try:
        first = wait_for(lambda: lag() > 1 and lag(), "the lag of the blocked loop")
        second = wait_for(lambda: lag() > first + 1 and lag(), "it grows")
        assert tell.status()["workers"][0]["figures_age_seconds"] < second + PATIENCE
        assert tell.ready()
        assert tell.metrics()["kiln_loop_lag_seconds"]
    finally:
        go.write_text("")
    thread.join()
    wait_for(lambda: lag() < first, "the loop is quick again")


def test_counters_only_grow_while_workers_crash_and_are_killed(admin):
    kiln, tell = admin(config={"QuarantineCrashes": 0})
    with Watch(tell) as watch:
        for n in range(1, 4):
            for _ in range(10):
                kiln.get("/hello")
            assert kiln.get("/crash").status == 500
            wait_for(lambda: watch.wrong or watch.total("kiln_workers_started_total") >= n + 1, "the successor")
            wait_for(lambda: len(tell.status()["workers"]) == 1, "the old worker has ended")
            tell.wait_endpoint("hello._c", hits=10 * n)  # told at its end, whenever that came
            tell.wait_endpoint("crash._c", crashes=n)
        assert tell.status()["totals"]["crashes"] == 3 and tell.status()["server"]["workers_lost"] == 0
        for n in range(1, 3):
            for _ in range(10):
                kiln.get("/hello")
            tell.wait_endpoint("hello._c", hits=30 + 10 * n)
            wait_for(lambda: watch.wrong or watch.total("kiln_requests_total") >= 33 + 10 * n, "all requests are counted")
            os.kill(kiln.worker_pid(), signal.SIGKILL)
            wait_for(lambda: watch.wrong or watch.total("kiln_workers_lost_total") >= n, "the death is seen")
            wait_for(tell.ready, "another worker serves")
        wait_for(lambda: watch.wrong or watch.total("kiln_requests_total") >= 53, "all requests are counted")
    assert tell.endpoint("hello._c")["loads"] >= 4


def test_replacement_is_seen(admin):
    """A request that the old worker still answers holds it."""
    source = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; kiln_printf(c, \"a\"); kiln_flush(c); kiln_sleep(c, 60000); return 0; }\n"
    kiln, tell = admin(files={"slow._c": source, "crash._c": CRASH, "hello._c": HELLO}, config={"ShutdownTimeout": 60})
    old = kiln.worker_pid()
    client = kiln.client()
    client.request("GET", "/slow")
    held = client.getresponse()
    assert kiln.get("/crash").status == 500
    states = wait_for(lambda: len(tell.status()["workers"]) == 2 and "serving" in worker_states(tell.status()).values()
                      and worker_states(tell.status()).get(old) == "draining" and worker_states(tell.status()),
                      "the old worker drains while the new one serves")
    assert sorted(states.values()) == ["draining", "serving"] and tell.ready()
    assert tell.metrics()["kiln_workers"][(("state", "draining"),)] == 1
    held.close()
    client.close()
    wait_for(lambda: list(worker_states(tell.status()).values()) == ["serving"], "the old worker ends")


def test_quarantine_is_shown(admin):
    kiln, tell = admin(config={"QuarantineCrashes": 1, "QuarantineTime": 3600})
    assert tell.status()["server"]["endpoints_quarantined"] == 0
    assert kiln.get("/crash").status == 500
    endpoint = tell.wait_endpoint("crash._c", crashes=1, quarantine_seconds=1)
    assert 3600 - 600 < endpoint["quarantine_seconds"] <= 3600
    wait_for(lambda: kiln.get("/crash").status == 503, "quarantine")
    tell.wait_endpoint("crash._c", refused=1)
    metrics = tell.metrics()
    label = (("file", str(kiln.www / "crash._c")),)
    assert 3000 < metrics["kiln_endpoint_quarantine_seconds"][label] <= 3600
    assert metrics["kiln_endpoints_quarantined"][()] == 1
    assert metrics["kiln_endpoint_quarantine_seconds"].get((("file", str(kiln.www / "hello._c")),), 0) == 0
    replace(kiln.www / "crash._c", HELLO)
    wait_for(lambda: kiln.get("/crash").body == b"hello", "the mended file runs")
    wait_for(lambda: tell.status()["server"]["endpoints_quarantined"] == 0, "its quarantine is over")
    assert tell.endpoint("crash._c")["quarantine_seconds"] == 0
    assert tell.endpoint("crash._c")["crashes"] == 1


def test_builds_and_timeouts_are_shown(admin):
    endless = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)c; (void)p; for (volatile int i = 0;; i++) { } }\n"
    kiln, tell = admin(files={"bad._c": "int nothing\n", "endless._c": endless}, config={"RequestTimeout": 0.3})
    assert kiln.get("/bad").status == 500
    tell.wait_endpoint("bad._c", builds=1, builds_failed=1)
    assert tell.status()["totals"]["builds_failed"] == 1
    replace(kiln.www / "bad._c", HELLO)
    wait_for(lambda: kiln.get("/bad").body == b"hello", "the mended file runs")
    endpoint = tell.wait_endpoint("bad._c", builds=2, loads=1, hits=1)
    assert endpoint["builds_failed"] == 1
    assert kiln.get("/endless").status == 504
    tell.wait_endpoint("endless._c", timeouts=1)


def test_the_number_of_endpoints_shown_is_an_option(admin):
    names = [f"e{i}" for i in range(18)]
    kiln, tell = admin(files={f"{name}._c": HELLO for name in names}, config={"AdminEndpoints": 17, "OptimizeEndpoints": False})
    for name in names:
        assert kiln.get(f"/{name}").body == b"hello"
    wait_for(lambda: tell.status()["totals"]["requests"] == 18, "all are counted")
    wait_for(lambda: len(tell.status()["endpoints"]) == 17, "all but one")
    kiln.write_config(AdminEndpoints=16)
    kiln.reload()
    wait_for(lambda: len(tell.status()["endpoints"]) == 16, "one less")


def test_ready_is_false_while_the_server_drains(admin):
    source = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; kiln_printf(c, \"a\"); kiln_flush(c); kiln_sleep(c, 60000); return 0; }\n"
    kiln, tell = admin(files={"slow._c": source}, config={"ShutdownTimeout": 60})
    client = kiln.client()
    client.request("GET", "/slow")
    held = client.getresponse()
    kiln.signal(signal.SIGTERM)
    wait_for(lambda: not tell.ready(), "not ready")
    assert json.loads(tell.request("/ready").body)["why"] == "draining"
    assert tell.request("/health").status == 200
    assert tell.status()["state"] == "draining" and list(worker_states(tell.status()).values()) == ["draining"]
    held.close()
    client.close()
    kiln.wait_exit()


def test_ready_is_false_while_no_worker_serves(admin):
    kiln, tell = admin()
    wait_for(tell.ready, "ready")
    assert tell.metrics()["kiln_ready"][()] == 1
    # Killed as soon as it serves, until the pauses before a new one are long enough to be seen.
    def killed():
        status = tell.status()
        for worker in status["workers"]:
            try:
                os.kill(worker["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not tell.ready()

    wait_for(killed, "a moment without a worker")
    assert tell.request("/health").status == 200
    wait_for(tell.ready, "ready again")
