#!/usr/bin/env python3
"""Runs the flow tests: tests/flow.py BUILD [what pytest takes]

These tests start real servers, watch real files and count real processes, on whatever machine there is. A few that fail are
run again, three times each and with nothing beside them: one that fails then fails the run. One that does not is named at
the end as unsteady, with what it said the first time further up; it is to be mended. KILN_TEST_STRICT=1: no second chance."""

import json
import os
import subprocess
import sys

FEW = 5
AGAIN = 3


def pytest(build, arguments):
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={build}/pytest", *arguments]).returncode


def failed_tests(build):
    try:
        with open(f"{build}/pytest/v/cache/lastfailed", encoding="utf-8") as file:
            return sorted(json.load(file))
    except FileNotFoundError:
        return []


def main():
    build = os.path.abspath(sys.argv[1])
    os.environ["KILN_BUILD"] = build
    status = pytest(build, ["--cache-clear", "tests/flow", "tests/chaos", *sys.argv[2:]])
    names = failed_tests(build)
    if status != 1 or not names or len(names) > FEW or os.environ.get("KILN_TEST_STRICT"):
        return status
    for turn in range(AGAIN):
        print(f"\n{len(names)} failed; again, alone ({turn + 1} of {AGAIN}):", *names, sep="\n  ", flush=True)
        status = pytest(build, names)
        if status != 0:
            return status
    print("\nUNSTEADY: failed in the whole run, passed three times alone:", *names, sep="\n  ")
    return 0


sys.exit(main())
