"""10,000 WebSockets at once on every wire, of which 1,000 talk: what an idle one holds, and that all are heard and end."""

import os
import resource
import shutil

import pytest

from http2_client import Http2
from kiln_server import ROOT, build_dir, wait_for
from websocket import RawSocket, frame
from websocket_wires import WIRES, connect

WANTED = 10000
A_CONNECTION = 100  # streams of HTTP/2
WARM = 1000  # what the first ones make, all later ones share
SPARE = 2000
IDLE_BYTES = {"plain": 614, "tls": 3900, "h2": 5600, "h2-tls": 5600}
SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))  # each allocation is larger there


@pytest.fixture
def kiln(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < WANTED + SPARE:
        pytest.skip(f"only {hard} descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, WANTED + SPARE), hard))
    unlimited = dict.fromkeys(["MaxConcurrentUpgradedConnections", "MaxConcurrentConnections", "HandshakesPerAddress", "HandshakeRate"], 0)
    one = server(config={"WebSocketEndpointTimeout": 600, "Backlog": 4096, **unlimited}, tls=True)
    shutil.copy(ROOT / "tests/plugins/socket_callbacks._c", one.www / "callbacks._c")
    yield one.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- many of a kind: say() and hear() of each tenth, close() of all ---------------------------------------------------


class Connections:
    """One each. Those that stay silent need no client's side of TLS: the connection alone is kept, as a descriptor."""

    def __init__(self, kiln, tls):
        self.kiln, self.tls = kiln, tls
        self.active, self.idle = [], []
        self.session = None

    def open(self, count):
        for i in range(count):
            ws = self._one()
            if i % 10 == 0:
                self.active.append(ws)
            else:
                self.idle.append(ws.socket.detach())

    def _one(self):
        connection = connect(self.kiln, self.tls, "http/1.1")
        return RawSocket(self.kiln, "/callbacks", connection=connection, port=self.kiln.tls_port if self.tls else None)

    def say(self, text):
        for ws in self.active:
            ws.text(text)

    def hear(self, text):
        for ws in self.active:
            assert ws.read_text() == text

    def close(self):
        for ws in self.active:
            ws.socket.close()
        for fd in self.idle:
            os.close(fd)


class Streams:
    """A hundred in each connection of HTTP/2."""

    def __init__(self, kiln, tls):
        self.kiln, self.tls = kiln, tls
        self.connections = []

    def open(self, count):
        for _ in range(count // A_CONNECTION):
            c = Http2(self.kiln.port, sock=connect(self.kiln, self.tls, "h2"))
            head = c.head("/callbacks", "CONNECT", [("sec-websocket-version", "13")], protocol="websocket")
            streams = [c.open(head, end=False) for _ in range(A_CONNECTION)]
            assert c.until(lambda _: all(stream in c.answers and c.answers[stream].status for stream in streams))
            assert {c.answers[stream].status for stream in streams} == {200}
            self.connections.append((c, streams[::10]))

    def say(self, text):
        for c, streams in self.connections:
            for stream in streams:
                c.answers[stream].body = b""
                c.body(stream, frame(0x81, text.encode()), end=False)

    def hear(self, text):
        wanted = frame(0x81, text.encode(), masked=False)
        for c, streams in self.connections:
            assert c.until(lambda _: all(len(c.answers[stream].body) >= len(wanted) for stream in streams))
            assert {c.answers[stream].body for stream in streams} == {wanted}

    def close(self):
        for c, _ in self.connections:
            c.socket.close()


def anonymous_bytes(kiln):
    with open(f"/proc/{kiln.worker_pid()}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


@pytest.mark.parametrize("wire", WIRES)
def test_10000_idle_sockets_and_1000_active_ones(kiln, wire):
    many = (Streams if wire.startswith("h2") else Connections)(kiln, wire.endswith("tls"))
    many.open(WARM)
    before = anonymous_bytes(kiln)
    many.open(WANTED - WARM)
    each = (anonymous_bytes(kiln) - before) / (WANTED - WARM)
    print(f"{each:.0f} bytes for an idle socket")
    assert each <= IDLE_BYTES[wire] or SANITIZED, f"{each} bytes for an idle socket"
    for text in ("active", "and again"):
        many.say(text)
        many.hear(text)
    many.close()
    wait_for(lambda: f"closed {WANTED}" in kiln.get("/callbacks").text, "their ends")
