#!/usr/bin/env python3
"""make bench: kiln beside nginx, h2o and lighttpd on this machine, in one run.

All servers run at the same time, each with one worker pinned to one core, the load generator
on another. Rounds are short and interleaved, so that a noisy neighbour troubles all alike.
What counts is processor time per request (user and system, of the whole process tree, from
schedstat) and its ratio to nginx in the same round: requests per second swing with
whatever else the machine does. Of the rounds the best ratio stands in the table, the median
beside it, and the ratio of the best seconds of each, which a neighbour can hardly flatter.
Results: bench/results/latest.json, .md and .svg."""

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import cases as cases_module
import report
import servers as servers_module

MANY_FILES = 100_000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="build directory of kiln")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3, help="of load on each server in each case and round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--samples", type=int, default=15, help="of the first request of a C file")
    parser.add_argument("--only", default="", help="cases whose key has one of these words, as hello,idle,first")
    parser.add_argument("--quick", action="store_true", help="one round of one second, fewer samples: does it run at all?")
    parser.add_argument("--ports", default="21500-21599", help="free ones of these are used")
    parser.add_argument("--tmp", default="", help="directory for sites and configs (default: in memory if there is room)")
    parser.add_argument("--keep", action="store_true", help="do not touch bench/results/")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.samples = 1, 1, 4
    options.idle = 1000 if options.quick else 10_000
    options.many = 2_000 if options.quick else MANY_FILES
    return options


def wanted(options, key):
    return not options.only or any(word in key for word in options.only.split(","))


class Bench:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        first, last = (int(p) for p in options.ports.split("-"))
        self.ports = servers_module.free_ports(first, last)
        self.build = (servers_module.ROOT / options.build).resolve()
        self.servers = {}
        self.results = {"load": {}, "idle": {}, "first": {}}

    def prepare(self, load):
        site = self.directory / "site"
        servers_module.write_site(site)
        servers_module.write_certificate(self.directory)
        servers_module.write_endpoints(site)
        peers = servers_module.make_peers(self.directory, site, self.ports)
        kilns = [servers_module.make_kiln(self.build, "kiln", self.directory, site, self.ports)]
        if any("kiln-tcc" in case.kilns for case in load):
            kilns.append(
                servers_module.make_kiln(
                    self.build, "kiln-tcc", self.directory, site, self.ports, {"OptimizeEndpoints": False}
                )
            )
        if any("kiln-many" in case.kilns for case in load):
            many = self.directory / "many"
            print(f"writing {self.options.many} files", flush=True)
            servers_module.write_site(many, self.options.many)
            servers_module.write_endpoints(many)
            kilns.append(servers_module.make_kiln(self.build, "kiln-many", self.directory, many, self.ports))
        for server in peers + kilns:
            self.servers[server.name] = server
            server.start()
        if "kiln-many" in self.servers:
            self.results["index_seconds"] = self.servers["kiln-many"].cpu_seconds()

    def stop(self):
        for server in self.servers.values():
            server.stop()

    def who(self, case):
        peers = ["nginx", "h2o", "lighttpd"] if case.peers else ["nginx"]
        if case.h2 or (case.tls and case.peers):
            peers = ["nginx", "h2o"]  # lighttpd's TLS is a package of its own
        names = list(case.kilns) + peers
        return [self.servers[name] for name in names if name in self.servers]

    def run_load(self, load):
        for case in load:
            for server in self.who(case):
                try:
                    cases_module.check_answer(case, server)
                except OSError as error:
                    sys.exit(f"{server.name}: {error}\n{server.log_tail()}")
        self.settle(load)
        for number, case in itertools.product(range(self.options.rounds), load):
            measured = cases_module.measure_load(case, self.who(case), self.options.seconds, self.options.connections)
            for name, (used, least, rate) in measured.items():
                entry = self.results["load"].setdefault(case.key, {}).setdefault(
                    name, {"cpu_us": [], "least_us": [], "per_second": []}
                )
                entry["cpu_us"].append(used)
                entry["least_us"].append(least)
                entry["per_second"].append(rate)
            line = ", ".join(f"{name} {used:.2f}" for name, (used, _, _) in measured.items())
            print(f"round {number + 1}, {case.title}: {line} us of CPU a request", flush=True)

    def settle(self, load):
        """Every case has been asked for; the background builds of the ._c files have begun and are over."""
        for case in load:
            cases_module.measure_load(case, self.who(case), 1, self.options.connections)
        kilns = [server for name, server in self.servers.items() if name.startswith("kiln")]
        until = time.monotonic() + 10
        while time.monotonic() < until and not any(server.compiles() for server in kilns):
            time.sleep(0.05)
        for server in kilns:
            servers_module.wait_until(lambda server=server: not server.compiles(), "background builds to end", 900)

    def run_idle(self):
        for name in ("nginx", "kiln", "h2o"):
            server = self.servers[name]
            server.stop()
            server.start()
            value = cases_module.measure_idle(server, server.paths["hello"], self.options.idle)
            self.results["idle"][name] = value
            print(f"idle connection: {name} {value:.0f} bytes", flush=True)

    def run_first(self, name, more_files):
        """Not pinned: the compiler is a process of its own and may use the other core. A time on the
        clock, so neighbours are kept out where the system allows it (as root)."""
        site = self.directory / f"{name}-site"
        servers_module.write_site(site, more_files)
        server = servers_module.make_kiln(self.build, name, self.directory, site, self.ports, threads=1)
        self.servers[name] = server
        with undisturbed() as alone:
            server.start(pinned=False)
            new, edited = cases_module.measure_first(server, site, self.options.samples)
        self.results["about"]["undisturbed"] = alone
        server.stop()
        del self.servers[name]
        self.results["first"][name] = {"new": cases_module.spread(new), "edited": cases_module.spread(edited)}
        print(
            f"first request of a ._c, {more_files} more files: new {statistics.median(new):.1f} ms, "
            f"after an edit {statistics.median(edited):.1f} ms (medians)",
            flush=True,
        )


@contextlib.contextmanager
def undisturbed():
    """This process, and those that it starts meanwhile, before all others; False when not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def quick_disk():
    """Memory, where there is some: making and removing 100,000 files is no part of any figure."""
    shared = "/dev/shm"
    try:
        room = os.statvfs(shared)
    except OSError:
        return None
    return shared if room.f_bavail * room.f_frsize > 1 << 30 else None


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the servers are stopped on the way out
    missing = servers_module.missing_programs()
    if missing:
        sys.exit(f"missing: {' '.join(missing)} (make bench installs the packages)")
    load = [case for case in cases_module.load_cases() if wanted(options, case.key)]
    directory = Path(tempfile.mkdtemp(prefix="kiln-bench-", dir=options.tmp or quick_disk()))
    directory.chmod(0o755)  # workers that become another user read below it
    bench = Bench(options, directory)
    bench.results["about"] = {
        **report.about(bench.build, nginx=["/usr/sbin/nginx", "-v"], h2o=["h2o", "--version"], lighttpd=["/usr/sbin/lighttpd", "-v"]),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "connections": options.connections,
        "idle_connections": options.idle,
        "many": options.many,
    }
    try:
        if load or wanted(options, "idle"):
            bench.prepare(load)
        if load:
            bench.run_load(load)
        if wanted(options, "idle"):
            bench.run_idle()
        bench.stop()
        if wanted(options, "first"):
            bench.run_first("kiln-first", 0)
            bench.run_first("kiln-first-many", options.many)
    finally:
        bench.stop()
        shutil.rmtree(directory, ignore_errors=True)
    rows = report.rows(bench.results)
    print(report.terminal(rows))
    if not options.keep and not options.only and not options.quick:
        report.write(bench.results, rows, servers_module.HERE / "results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
