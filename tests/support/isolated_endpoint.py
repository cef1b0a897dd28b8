"""Servers with isolated endpoints (option Isolate)."""

from pathlib import Path

import pytest
from kiln_server import build_dir, children_of

HEAD = "#include <kiln.h>\n#include <errno.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
HELLO = HEAD + 'int kiln_run(kiln_context *c, const char *p) { return kiln_printf(c, "hello %s from %d", p, (int)getpid()); }\n'
SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))


def hosts_of(kiln) -> list:
    """Processes of isolated endpoints, children of the supervisor."""
    found = []
    for pid, state in children_of(kiln.pid).items():
        try:
            if state != "Z" and b"--host" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return sorted(found)


def run(body, before=""):
    return f"{HEAD}{before}\nint kiln_run(kiln_context *ctx, const char *path)\n{{\n(void)path;\n{body}\n}}\n"


@pytest.fixture
def isolated(server):
    """isolated(files, **config) starts a server where everything below /i is isolated."""

    def make(files, **config):
        options = {"Isolate": ["/i"], "QuarantineCrashes": 0, "OptimizeEndpoints": False, "LogLevel": "debug", **config}
        kiln = server(options, files)
        kiln.start()
        return kiln

    return make
