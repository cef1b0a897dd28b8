"""Sections 9, 10, 12 and 13 of the public case list for endpoints, in both forms, over plain TCP and TLS (1 to 7 are in
test_websocket.py and test_websocket_wires.py), and that wrong text is found at its first wrong byte, on every wire."""

import asyncio
import shutil
import zlib

import pytest
import websockets
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from kiln_server import ROOT
from websocket import frame, large_messages, to_and_fro
from websocket_wires import WIRES, anybody, open_socket
from ws_peers import answered_with

PLUGINS = ROOT / "tests/plugins"
FORMS = ["blocking", "callbacks"]


@pytest.fixture
def make(server):
    def make(**config):
        one = server(config={"OptimizeEndpoints": False, "WebSocketEndpointTimeout": 0, **config}, tls=True)
        shutil.copy(PLUGINS / "socket._c", one.www / "blocking._c")
        shutil.copy(PLUGINS / "socket_callbacks._c", one.www / "callbacks._c")
        return one.start()

    return make


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wire", ["plain", "tls"])
def test_large_messages_in_frames_and_chops(make, wire, form):
    kiln = make()
    with open_socket(wire, kiln, f"/{form}") as ws:
        for title, pieces, answer in large_messages(masked=True):
            for piece in pieces:
                ws.send(piece)
            assert ws.read() == answer, title
        ws.close()


# Python's zlib does not compress with a window of 256 bytes; it reads such.
WINDOWS = [{"server_max_window_bits": s, "client_max_window_bits": c} for s, c in zip([None, *range(8, 16)], [True, *range(15, 8, -1), True])]
TAKEOVERS = [
    {"server_no_context_takeover": s, "client_no_context_takeover": c, "client_max_window_bits": True} for s in (False, True) for c in (False, True)
]


@pytest.mark.parametrize("memory", ["0", "16M"])
@pytest.mark.parametrize("tls", [False, True])
def test_compressed_messages(make, tls, memory):
    """Against an independent implementation, which takes each agreement at its word."""
    kiln = make(WebSocketCompressMin=1, WebSocketCompressionMemory=memory)

    async def talk(form, parameters):
        url = f"{'wss' if tls else 'ws'}://127.0.0.1:{kiln.tls_port if tls else kiln.port}/{form}"
        more = {"ssl": anybody("http/1.1")} if tls else {}
        extension = ClientPerMessageDeflateFactory(**parameters)
        async with websockets.connect(url, compression=None, extensions=[extension], max_size=None, **more) as ws:
            agreed = answered_with(ws)["Sec-WebSocket-Extensions"]
            for side in ("server", "client"):
                bits, no_takeover = parameters.get(f"{side}_max_window_bits"), f"{side}_no_context_takeover"
                assert bits in (None, True, 15) or f"{side}_max_window_bits={bits}" in agreed
                assert no_takeover in agreed or (memory != "0" and not parameters.get(no_takeover))
            await to_and_fro(ws)
        assert ws.close_code == 1000

    for form in FORMS:
        for parameters in WINDOWS + TAKEOVERS:
            asyncio.run(talk(form, parameters))


def unfinished(data: bytes, upto: int) -> bytes:
    """A text frame of which only this much of its payload is sent."""
    whole = frame(0x81, data)
    return whole[: len(whole) - len(data) + upto]


WRONG = {
    "no character": unfinished(b"ok\xff" + bytes(90), 3),
    "a surrogate": unfinished(b"ok\xed\xa0" + bytes(90), 4),
    "too long a form": unfinished(b"ok\xf0\x80" + bytes(90), 4),
    "beyond the last": unfinished(b"ok\xf4\x90" + bytes(90), 4),
    "in a fragment": frame(0x01, b"ok\xff"),
    "across fragments": frame(0x01, b"ok\xe2") + frame(0x00, b"\x82\x28"),
    "in a long message": unfinished(b"ok\xff" + bytes(1000000), 10),
    "late in a long message": unfinished(b"a" * 200000 + b"\xff" + bytes(1000000), 200001),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wire", WIRES)
def test_wrong_text_fails_at_its_first_wrong_byte(make, wire, form):
    """What has come is wrong already: nothing is waited for."""
    kiln = make()
    for title, data in WRONG.items():
        with open_socket(wire, kiln, f"/{form}") as ws:
            ws.send(data)
            assert ws.read_close()[0] == 1007, title
    with open_socket(wire, kiln, f"/{form}", ["Sec-WebSocket-Extensions: permessage-deflate"]) as ws:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        ws.send(frame(0x41, deflate.compress(b"ok\xff" + b"a" * 100) + deflate.flush(zlib.Z_SYNC_FLUSH)))
        assert ws.read_close()[0] == 1007, "compressed, and not the last fragment"


@pytest.mark.parametrize("failure", [1002, 1007, 1009])
@pytest.mark.parametrize("wire, size", [("plain", 64 << 20), ("tls", 32 << 20), ("h2", 4 << 20), ("h2-tls", 4 << 20)])
def test_a_failure_reaches_a_client_that_goes_on_sending(make, wire, size, failure):
    """Never a reset, which would take the close frame from it."""
    kiln = make(WebSocketMaxMessage="1M")
    first = {1002: frame(0x82, b"x", masked=False), 1007: frame(0x81, b"\xff"), 1009: frame(0x82, bytes((1 << 20) + 1))[:14]}[failure]
    for form in FORMS:
        with open_socket(wire, kiln, f"/{form}") as ws:
            ws.send(first + bytes(65536))
            assert ws.read_close()[0] == failure
            for _ in range(size >> 16):
                ws.send(bytes(65536))
            assert ws.read() is None
