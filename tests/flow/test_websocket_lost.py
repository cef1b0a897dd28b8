"""Clients that vanish without a word, and lively ones that say nothing, on every wire: they are noticed in the time that
the options say, the endpoint learns of it, and neither memory nor a descriptor stays."""

import shutil
import threading

import pytest

from cable import Cable, NoCable
from kiln_server import ROOT, build_dir, wait_for
from websocket import frame
from websocket_wires import WIRES, open_socket

PLUGINS = ROOT / "tests/plugins"
SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))
BLOCK = "x" * 4000


@pytest.fixture
def make(server):
    def make(**config):
        one = server(config={"DebugPages": True, "BindAddress": "0.0.0.0", **config}, tls=True)
        shutil.copy(PLUGINS / "socket._c", one.www / "blocking._c")
        shutil.copy(PLUGINS / "socket_callbacks._c", one.www / "callbacks._c")
        return one.start()

    return make


@pytest.fixture
def cable():
    try:
        with Cable() as one:
            yield one
    except NoCable as e:
        pytest.skip(str(e))


def clients(cable):
    """TCP connections to the client that are somebody's; the kernel's rest of those that were closed is nobody's."""
    far = "".join(f"{int(part):02X}" for part in reversed(cable.client.split(".")))
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    return sum(row[2].startswith(far) and row[9] != "0" for row in rows)


def anonymous_bytes(kiln):
    with open(f"/proc/{kiln.worker_pid()}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_that_vanishes_is_noticed(make, cable, wire):
    kiln = make(WebSocketEndpointTimeout=2, LingerTimeout=1, KeepAliveTimeout=2)
    sockets = [open_socket(wire, kiln, path, dial=cable.dial) for path in ("/blocking", "/callbacks")]
    for ws in sockets:
        ws.text("here I am")
        assert ws.read_text() == "here I am"
    assert clients(cable) == 2
    cable.cut()
    wait_for(lambda: "closed 1," in kiln.get("/callbacks").text, "the end of the callbacks")
    assert kiln.get("/callbacks").text.endswith("last 1006 ")
    wait_for(lambda: kiln.get("/blocking").text == "0 1006 |", "the end of the blocking endpoint")
    wait_for(lambda: clients(cable) == 0, "the end of the connections")


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_that_vanishes_while_a_room_talks_to_it(make, cable, wire):
    """What waits for it is bounded by WebSocketSendQueue, not by how long it takes to notice."""
    kiln = make(WebSocketEndpointTimeout=600, WebSocketSendQueue="256k", LingerTimeout=1, ResponseTimeout=2, KeepAliveTimeout=2)
    ws = open_socket(wire, kiln, "/callbacks", dial=cable.dial)
    ws.text("room room")
    assert ws.read_text() == "joined 0"
    before = anonymous_bytes(kiln)
    cable.cut()
    rounds = 0
    while "closed 1," not in kiln.get("/callbacks").text:
        assert kiln.get("/blocking?publish=" + BLOCK).status == 200
        rounds += 1
        assert rounds < 5000
    assert anonymous_bytes(kiln) - before < 4 << 20 or SANITIZED
    wait_for(lambda: clients(cable) == 0, "the end of the connection")


@pytest.mark.parametrize("wire", WIRES)
def test_parts_of_a_message_are_none(make, wire):
    """Who sends a message byte by byte has not sent one."""
    kiln = make(WebSocketTimeout=2, WebSocketEndpointTimeout=600)
    for form in ("blocking", "callbacks"):
        with open_socket(wire, kiln, f"/{form}") as ws:
            ws.text("x")
            assert ws.read_text() == "x"
            closed = threading.Thread(target=lambda: told.append(ws.read_close()))
            told = []
            closed.start()
            for byte in frame(0x82, bytes(1000)):
                ws.send(bytes([byte]))
                closed.join(0.05)
                if told:
                    break
            assert told == [(1001, "no message for too long")]


@pytest.mark.parametrize("pings", [2, 0, 600])
@pytest.mark.parametrize("wire", WIRES)
def test_sockets_without_messages_are_closed(make, wire, pings):
    """WebSocketTimeout: being alive is not enough. With the server's pings, and without any."""
    kiln = make(WebSocketTimeout=2, WebSocketEndpointTimeout=pings)
    for form in ("blocking", "callbacks"):
        with open_socket(wire, kiln, f"/{form}") as ws:
            ws.text("x")
            assert ws.read_text() == "x"
            assert ws.read_close() == (1001, "no message for too long")
            ws.send(frame(0x88, b"\x03\xe9"))
            assert ws.read() is None
