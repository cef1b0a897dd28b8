"""For the soak alone: 100,000 idle WebSockets, as many of them as descriptors allow, of which each hundredth talks all
the while."""

import os
import resource
import shutil
import socket
import time

import pytest

from kiln_server import PATIENCE, ROOT, build_dir, wait_for
from websocket import RawSocket

SECONDS = float(os.environ.get("KILN_SOAK_SECONDS", 0))
WANTED = 100000
A_CLIENT = 10000  # connections from one address: its ports are some 28,000, and those of earlier runs rest
SPARE = 2000
IP_BIND_ADDRESS_NO_PORT = 24  # <linux/in.h>
IDLE_BYTES = 614
SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))


@pytest.fixture
def allowed():
    """Raises the limit as far as it may be; how many sockets that allows."""
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED + SPARE, max(hard, WANTED + SPARE)))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, WANTED + SPARE), hard))
    yield min(WANTED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, before[1])))


def connect(kiln, i):
    one = socket.socket()
    one.settimeout(PATIENCE)
    one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)  # else each bind() searches for a port that nobody has
    one.bind((f"127.0.1.{1 + i // A_CLIENT}", 0))
    one.connect(("127.0.0.1", kiln.port))
    return RawSocket(kiln, "/echo", connection=one)


def anonymous_bytes(kiln):
    with open(f"/proc/{kiln.worker_pid()}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


@pytest.mark.skipif(SECONDS == 0, reason="100,000 sockets in `make soak`")
def test_100000_idle_sockets(server, allowed):
    kiln = server(config={"MaxConcurrentUpgradedConnections": 0, "MaxConcurrentConnections": 0, "WebSocketEndpointTimeout": 0, "Backlog": 4096})
    shutil.copy(ROOT / "tests/plugins/socket_callbacks._c", kiln.www / "echo._c")
    kiln.start()
    sockets = [connect(kiln, i) for i in range(1000)]
    before = anonymous_bytes(kiln)
    sockets += [connect(kiln, i) for i in range(1000, allowed)]
    each = (anonymous_bytes(kiln) - before) / (allowed - 1000)
    assert each <= IDLE_BYTES or SANITIZED, f"{each} bytes for an idle socket"
    until = time.monotonic() + SECONDS
    while True:
        for ws in sockets[::100]:
            ws.text("active")
        for ws in sockets[::100]:
            assert ws.read_text() == "active"
        if time.monotonic() >= until:
            break
    for ws in sockets:
        ws.text("and all of them")
    for ws in sockets:
        assert ws.read_text() == "and all of them"
        ws.socket.close()
    wait_for(lambda: f"closed {allowed}" in kiln.get("/echo").text, "their ends")
    print(f"{allowed} sockets, {each:.0f} bytes each")
