#!/usr/bin/env python3
"""How long a hello endpoint takes while others are slow: 200 clients hammer one that sleeps 1 s with
sleep(3) and one that computes for 1 s. Asked at a steady pace on kept connections, so that a stalled
server is seen as what it is (the time counts from when a request was due). The same is measured
alone first: on a busy machine that is the floor.

    bench/slow_neighbours.py [--seconds 10] [--clients 200] [--rate 200] [--port N]
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELLO = '#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; kiln_printf(c, "hello"); return 0; }\n'
CONNECTIONS = 4


def probe(port, seconds, rate, out):
    """Latencies in ms of one connection's share of the rate."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    pause = CONNECTIONS / rate
    due = time.monotonic()
    until = due + seconds
    while due < until:
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        # On time, or late because the one before took so long: then that wait counts, too.
        began = time.monotonic() if wait > 0 else due
        client.request("GET", "/hello")
        answer = client.getresponse()
        assert answer.status == 200 and answer.read() == b"hello"
        out.append((time.monotonic() - began) * 1e3)
        due += pause


def measure(port, seconds, rate):
    latencies = []
    threads = [threading.Thread(target=probe, args=(port, seconds, rate, latencies)) for _ in range(CONNECTIONS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    latencies.sort()
    at = lambda share: latencies[min(int(len(latencies) * share), len(latencies) - 1)]  # noqa: E731
    return f"p50 {at(0.5):7.2f} ms  p99 {at(0.99):7.2f} ms  max {latencies[-1]:8.2f} ms  ({len(latencies)} requests)"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--port", type=int, default=18080)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        www = Path(base, "www")
        www.mkdir()
        (www / "hello._c").write_text(HELLO)
        for name in ("sleeps", "computes"):
            (www / f"{name}._c").write_text((ROOT / "tests/plugins/compute._c").read_text())
        config = {"HttpPorts": [args.port], "BindAddress": "127.0.0.1", "PidFile": "", "CacheDir": base + "/cache",
                  "SessionsDir": base + "/sess"}
        Path(base, "kiln.json").write_text(json.dumps(config))
        with open(base + "/log", "w") as log:
            kiln = subprocess.Popen([ROOT / "build/kiln", www, f"--config={base}/kiln.json"], stderr=log)
        try:
            while "serving" not in Path(base, "log").read_text():
                time.sleep(0.05)
            measure(args.port, 1, 50)
            for url in ("/sleeps?sleep_ms=1000", "/computes?ms=1000"):  # built and known, as after the first second
                client = http.client.HTTPConnection("127.0.0.1", args.port, timeout=60)
                client.request("GET", url)
                client.getresponse().read()
            time.sleep(2)  # the optimised builds
            print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            print("alone          ", measure(args.port, args.seconds, args.rate), flush=True)
            for name, url in (("others sleep   ", "/sleeps?sleep_ms=1000"), ("others compute ", "/computes?ms=1000")):
                load = subprocess.Popen(
                    ["wrk", "-t1", f"-c{args.clients}", f"-d{int(args.seconds) + 1}", "--timeout", "60",
                     f"http://127.0.0.1:{args.port}{url}"], stdout=subprocess.DEVNULL)
                print(name, "      ", measure(args.port, args.seconds, args.rate), flush=True)
                load.wait()
        finally:
            kiln.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            kiln.send_signal(signal.SIGTERM)
            kiln.wait()


if __name__ == "__main__":
    main()
