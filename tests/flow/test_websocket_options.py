"""The options of WebSockets' compression, over TCP and in a stream of HTTP/2."""

import shutil
import zlib

import pytest

from kiln_server import ROOT, wait_for
from websocket import frame
from websocket_wires import open_socket

PLUGINS = ROOT / "tests/plugins"
OFFER = ["Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"]
NO_HISTORY = {"server_no_context_takeover", "client_no_context_takeover"}
TEXT = " ".join(str(i * i * 7919) for i in range(700)).encode()  # repeats nothing within itself


@pytest.fixture
def make(server):
    def make(**config):
        one = server(config={"Threads": 1, "WebSocketCompressMin": 10, **config}, tls=True)
        shutil.copy(PLUGINS / "socket_callbacks._c", one.www / "echo._c")
        return one.start()

    return make


def agreed(ws):
    """The parameters of permessage-deflate; None: it was not agreed on."""
    value = ws.headers.get("sec-websocket-extensions")
    if value is None:
        return None
    name, *parameters = [part.strip() for part in value.split(";")]
    assert name == "permessage-deflate"
    return {p for p in parameters if "window_bits" not in p}


def lengths(ws, history):
    """Bytes of the same message's first and second echo."""
    found = []
    inflate = zlib.decompressobj(-15)
    for _ in range(2):
        ws.send(frame(0x82, TEXT))
        first, payload = ws.read()
        assert first == 0xC2
        inflate = inflate if history else zlib.decompressobj(-15)
        assert inflate.decompress(payload + b"\0\0\xff\xff") == TEXT
        found.append(len(payload))
    return found


@pytest.mark.parametrize("wire", ["plain", "h2-tls"])
def test_compression_may_be_forbidden(make, wire):
    kiln = make(WebSocketCompression=False)
    with open_socket(wire, kiln, "/echo", OFFER) as ws:
        assert agreed(ws) is None
        ws.send(frame(0x82, TEXT))
        assert ws.read() == (0x82, TEXT)
        ws.send(frame(0xC2, b"x"))
        assert ws.read_close()[0] == 1002, "the bit means nothing then"
    kiln.write_config(WebSocketCompression=True)
    kiln.reload()
    wait_for(lambda: offered(kiln, wire) is not None, "compression")


@pytest.mark.parametrize("wire", ["plain", "h2-tls"])
def test_short_messages_go_as_they_are(make, wire):
    kiln = make(WebSocketCompressMin=100)
    with open_socket(wire, kiln, "/echo", OFFER) as ws:
        for length, kind in ((99, 0x82), (100, 0xC2)):
            ws.send(frame(0x82, bytes(length)))
            first, payload = ws.read()
            assert first == kind
            assert payload == bytes(99) or zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff") == bytes(100)


def offered(kiln, wire):
    with open_socket(wire, kiln, "/echo", OFFER) as ws:
        return agreed(ws)


@pytest.mark.parametrize("wire", ["plain", "h2-tls"])
def test_without_memory_each_message_is_compressed_by_itself(make, wire):
    kiln = make()
    with open_socket(wire, kiln, "/echo", OFFER) as ws:
        assert agreed(ws) == NO_HISTORY
        first, second = lengths(ws, False)
        assert first == second < len(TEXT)
    kiln.write_config(WebSocketCompressionMemory="16M")
    kiln.reload()
    wait_for(lambda: offered(kiln, wire) == set(), "the memory")


@pytest.mark.parametrize("wire", ["plain", "h2-tls"])
def test_with_memory_messages_refer_to_earlier_ones_until_it_is_used_up(make, wire):
    kiln = make(WebSocketCompressionMemory="1M")
    with open_socket(wire, kiln, "/echo", OFFER) as ws:
        assert agreed(ws) == set()
        first, second = lengths(ws, True)
        assert second < first / 10
        more = []
        while agreed(last := open_socket(wire, kiln, "/echo", OFFER)) == set():
            more.append(last)
            assert len(more) < 100, "of 1 MB each takes some 40 KB"
        assert len(more) > 5 and agreed(last) == NO_HISTORY
        assert len(set(lengths(last, False))) == 1
        for one in [last, *more]:
            one.close()
        wait_for(lambda: offered(kiln, wire) == set(), "what they have given back")
