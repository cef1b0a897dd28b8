#!/usr/bin/env python3
"""What isolation costs: processor time per request of the same endpoint in the worker and in a process of its
own (option Isolate), and the time that one request takes alone. Both are asked in turns, so that what else
the machine does falls on both; the figure is user and system time of the whole process tree over the
requests that wrk counted. Writes bench/results/isolate.md.

    bench/isolate.py [--seconds 3] [--rounds 3] [--connections 64] [--port N]
"""

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "#include <kiln.h>\n#include <string.h>\n"
ENDPOINTS = {
    "hello, 5 bytes": HEAD + 'int kiln_run(kiln_context *c, const char *p) { (void)p; return kiln_puts(c, "hello"); }\n',
    "11.5 kB": HEAD + "int kiln_run(kiln_context *c, const char *p) { (void)p; char b[11500]; memset(b, 'x', sizeof b); return kiln_write(c, b, sizeof b); }\n",
    "1 MB, streamed": HEAD
    + "int kiln_run(kiln_context *c, const char *p) { (void)p; char b[16384]; memset(b, 'x', sizeof b); for (int i = 0; i < 64; i++) "
    "if (kiln_write(c, b, sizeof b)) return KILN_GONE; return 0; }\n",
    "session, one increment": HEAD
    + 'int kiln_run(kiln_context *c, const char *p) { (void)p; int64_t n; kiln_session_increment(c, "n", 1, &n); return kiln_printf(c, "%lld", (long long)n); }\n',
}


def tree(root):
    """The process and everything below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, new = {root}, {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found |= new
    return found


def cpu_ns(root):
    total = 0
    for pid in tree(root):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue
    return total


def load(port, path, seconds, connections, headers):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", *[f"-H{h}" for h in headers], f"http://127.0.0.1:{port}{path}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise SystemExit(f"wrong answers from {path}:\n{out}")
    return int(re.search(r"(\d+) requests in", out)[1])


def alone(port, path, count):
    """Median milliseconds of one request after another."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        client.request("GET", path)
        client.getresponse().read()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def cookie(port, path):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.request("GET", path)
    answer = client.getresponse()
    answer.read()
    given = answer.getheader("Set-Cookie")
    return ["Cookie: " + given.split(";")[0]] if given else []


def measure(args, port, pid):
    rows = []
    for number, name in enumerate(ENDPOINTS):
        best = {}
        for _ in range(args.rounds):
            for place in ("here", "there"):
                path = f"/{place}/e{number}"
                headers = cookie(port, path)
                before = cpu_ns(pid)
                requests = load(port, path, args.seconds, args.connections, headers)
                used = (cpu_ns(pid) - before) / requests / 1000
                best[place] = min(best.get(place, used), used)
        waits = {place: alone(port, f"/{place}/e{number}", 300) for place in ("here", "there")}
        rows.append((name, best["here"], best["there"], waits["here"], waits["there"]))
        print(f"{name:24} {best['here']:8.1f} us {best['there']:8.1f} us  x {best['there'] / best['here']:.2f}", flush=True)
    return rows


def write(rows, args):
    lines = [
        "# The price of isolation",
        "",
        f"Made by `bench/isolate.py`: {args.connections} connections, best of {args.rounds} rounds of {args.seconds} s each, in turns. Processor",
        "time per request, of the server's whole process tree; and the time of one request when nothing else is asked.",
        "",
        "| answer | worker, us | isolated, us | ratio | alone, worker, ms | alone, isolated, ms |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {n} | {a:.1f} | {b:.1f} | {b / a:.2f} | {c:.2f} | {d:.2f} |" for n, a, b, c, d in rows]
    (ROOT / "bench/results/isolate.md").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--port", type=int, default=18080)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        for place in ("here", "there"):
            for number, source in enumerate(ENDPOINTS.values()):
                path = Path(base, "www", place, f"e{number}._c")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source)
        config = {"HttpPorts": [args.port], "BindAddress": "127.0.0.1", "PidFile": "", "CacheDir": base + "/cache",
                  "SessionsDir": base + "/sess", "Isolate": ["/there"], "Threads": 1}
        Path(base, "kiln.json").write_text(json.dumps(config))
        with open(base + "/log", "w") as log:
            kiln = subprocess.Popen([ROOT / args.build / "kiln", base + "/www", f"--config={base}/kiln.json"], stderr=log)
        try:
            while "serving" not in Path(base, "log").read_text():
                if kiln.poll() is not None:
                    raise SystemExit(Path(base, "log").read_text())
                time.sleep(0.05)
            for place in ("here", "there"):
                for number in range(len(ENDPOINTS)):
                    load(args.port, f"/{place}/e{number}", 1, 4, [])
            time.sleep(3)  # the optimised builds
            write(measure(args, args.port, kiln.pid), args)
        finally:
            kiln.send_signal(signal.SIGTERM)
            kiln.wait()


if __name__ == "__main__":
    main()
