"""Endpoints that use kiln.h: each runs three times, as a coroutine on its loop, (KILN_OFFLOAD) on the thread pool, and
isolated in a process of its own."""

import os
from pathlib import Path

import pytest

from kiln_server import ROOT

HEADER = ROOT / "plugin-sdk" / "include" / "kiln.h"


@pytest.fixture(params=["loop", "pool", "isolated"])
def endpoint(request, server, tmp_path):
    """endpoint(body, ...) starts a server whose /e runs `body` inside kiln_run; `before` stands before it."""
    made = []

    def make(body, before="", config=None, files=None):
        offload = "#define KILN_OFFLOAD\n" if request.param == "pool" else ""
        source = (
            f"{offload}#include <kiln.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n{before}\n"
            f"int kiln_run(kiln_context *ctx, const char *path)\n{{\n(void)path;\n{body}\n}}\n"
        )
        options = {"DebugPages": True, "LogLevel": "debug", "TempDir": str(tmp_path), "OptimizeEndpoints": False}
        if request.param == "isolated":
            options |= {"Isolate": ["/"], "IsolateWrite": ["/"]}
        kiln = server({**options, **(config or {})}, {"e._c": source, **(files or {})})
        kiln.start()
        made.append(kiln)
        return kiln

    return make


def multipart(*parts, boundary="xyz"):
    """(name, filename or None, type or None, bytes) each."""
    body = b""
    for name, filename, kind, content in parts:
        file = f'; filename="{filename}"' if filename is not None else ""
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n'.encode()
        body += f"Content-Type: {kind}\r\n".encode() if kind else b""
        body += b"\r\n" + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def no_temporary_files(kiln):
    """Nothing of the worker is open below the temporary directory but what it always has."""
    fds = Path(f"/proc/{kiln.worker_pid()}/fd")
    links = [os.readlink(fd) for fd in fds.iterdir() if os.path.lexists(fd)]
    return not [link for link in links if "(deleted)" in link and "/memfd:" not in link and "/dev/" not in link]
