"""Rooms: what is published arrives, in its order, and those that do not take it harm nobody."""

import shutil
import socket
import struct
import zlib

import pytest

from kiln_server import ROOT, exchange, wait_for
from preload import preloaded
from websocket import RawSocket, frame

PLUGINS = ROOT / "tests/plugins"


@pytest.fixture
def kiln(server):
    return make(server)


def make(server, env=None, **config):
    one = server(config=config, env=env)
    shutil.copy(PLUGINS / "socket._c", one.www / "blocking._c")
    shutil.copy(PLUGINS / "socket_callbacks._c", one.www / "callbacks._c")
    return one.start()


def test_rooms_across_threads_and_from_requests(server):
    kiln = make(server, Threads=3, WebSocketCompressMin=100)
    deflate = ["Sec-WebSocket-Extensions: permessage-deflate"]
    sockets = [RawSocket(kiln, "/callbacks", deflate if i % 3 == 0 else ()) for i in range(30)]
    for ws in sockets:
        ws.text("room room")
    assert {ws.read_text() for ws in sockets} == {"joined 0"}
    assert kiln.get("/blocking?publish=everybody").status == 200
    assert {ws.read_text() for ws in sockets} == {"everybody"}
    sockets[0].text("say room from one")
    assert {ws.read_text() for ws in sockets[1:]} == {"from one"}
    assert kiln.get("/blocking?publish=" + "long" * 500).status == 200
    for i, ws in enumerate(sockets):
        first, payload = ws.read()
        if i % 3 == 0 and first == 0xC1:  # compressed when it was published on a loop
            payload = zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")
        assert payload == b"long" * 500
    sockets[1].text("leave room")
    assert sockets[1].read_text() == "left 0"
    sockets[1].text("leave room")
    assert sockets[1].read_text() == "left -6"
    sockets[2].close()
    for i in range(200):
        assert kiln.get(f"/blocking?publish={i}").status == 200
    for ws in [sockets[0], *sockets[3:]]:
        for i in range(200):
            assert ws.read_text() == str(i), "in their order"
    sockets[1].text("alone")
    assert sockets[1].read_text() == "alone"
    for ws in [*sockets[:2], *sockets[3:]]:
        ws.close()


def test_what_one_publishes_arrives_in_its_order_whatever_the_rooms(kiln):
    """All in one packet, so that the loops of the subscribers get much of it at once."""
    words = [f"say {'one' if i % 3 else 'two'} {i}" for i in range(500)]
    with RawSocket(kiln, "/callbacks") as publisher:
        subscribers = [RawSocket(kiln, "/callbacks") for _ in range(20)]
        for ws in subscribers:
            for room in ("one", "two"):
                ws.text("room " + room)
                assert ws.read_text() == "joined 0"
        publisher.send(b"".join(frame(0x81, word.encode()) for word in words))
        for ws in subscribers:
            assert [ws.read_text() for _ in words] == [str(i) for i in range(500)]
            ws.close()


def test_subscribers_that_break_off_in_the_middle_harm_nobody(kiln):
    reset = struct.pack("ii", 1, 0)
    with RawSocket(kiln, "/callbacks") as publisher:
        subscribers = [RawSocket(kiln, "/callbacks") for _ in range(60)]
        for ws in subscribers:
            ws.text("room one")
            assert ws.read_text() == "joined 0"
        for i, ws in enumerate(subscribers):
            if i % 3:
                ws.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                ws.socket.close()
            publisher.send(frame(0x81, b"say one %d" % i) * 3)
        for ws in subscribers[::3]:
            assert [ws.read_text() for _ in range(180)] == [str(i // 3) for i in range(180)]
            ws.close()
        wait_for(lambda: "closed 60" in kiln.get("/callbacks").text, "their ends")


def test_a_subscriber_that_does_not_read_is_closed(server):
    kiln = make(server, WebSocketSendQueue="64k", LingerTimeout=1, ResponseTimeout=1)
    with RawSocket(kiln, "/callbacks") as slow, RawSocket(kiln, "/callbacks") as quick:
        for ws in (slow, quick):
            ws.text("room room")
            assert ws.read_text() == "joined 0"
        client = kiln.client()
        rounds = 0
        while "closed 1" not in kiln.get("/callbacks").text:
            assert exchange(client, "GET", "/blocking?publish=" + "x" * 4000).status == 200
            assert quick.read_text() == "x" * 4000
            rounds += 1
            assert rounds < 20000
        client.close()
        quick.text("fine")
        assert quick.read_text() == "fine"
        quick.close()


@pytest.mark.parametrize("deflate", [False, True])
def test_what_is_published_in_the_midst_of_a_message_follows_it(server, deflate):
    kiln = make(server, WebSocketCompressMin=100)
    inflate = zlib.decompressobj(-15)
    with RawSocket(kiln, "/blocking/unended", ["Sec-WebSocket-Extensions: permessage-deflate"] if deflate else ()) as ws:
        first, begin = ws.read_frame()
        assert first == (0x41 if deflate else 0x01)
        words = [str(i) * (1 if i % 3 else 1500) for i in range(100)]
        for word in words:
            assert kiln.get("/blocking?publish=" + word).status == 200
        ws.text("go on")
        first, end = ws.read_frame()
        assert first == 0x80
        assert (inflate.decompress(begin + end + b"\0\0\xff\xff") if deflate else begin + end) == b"begin, end"
        for word in words:
            first, payload = ws.read()
            if first == 0xC1:
                payload = inflate.decompress(payload + b"\0\0\xff\xff")
            assert payload == word.encode()
        ws.close()


@pytest.mark.parametrize("length, most", [(1, 2000), (4000, 20)])
def test_what_waits_for_the_end_of_a_message_is_bounded(server, length, most):
    kiln = make(server, WebSocketSendQueue="64k")
    with RawSocket(kiln, "/blocking/unended") as ws:
        assert ws.read_frame() == (0x01, b"begin, ")
        client = kiln.client()
        for _ in range(most):
            assert exchange(client, "GET", "/blocking?publish=" + "x" * length).status == 200
        assert ws.read_close() == (1013, "too slow")
        client.close()
        ws.send(frame(0x88, b"\x03\xf5"))
        assert ws.read() is None
    wait_for(lambda: kiln.get("/blocking").text.startswith("1013"), "the endpoint to see it")


def test_each_message_is_compressed_once_however_many_receive_it(server, tmp_path):
    counted = tmp_path / "deflate"
    kiln = make(server, {**preloaded(tmp_path, "count_deflate", "-lz"), "COUNT_DEFLATE": str(counted)}, Threads=1, WebSocketCompressMin=10)
    sockets = [RawSocket(kiln, "/callbacks", ["Sec-WebSocket-Extensions: permessage-deflate"]) for _ in range(40)]
    for ws in sockets:
        ws.text("room room")
        ws.read()
    text = b"tell everybody " * 10
    before = int.from_bytes(counted.read_bytes(), "little")
    with RawSocket(kiln, "/callbacks") as publisher:
        publisher.text("say room " + text.decode())
        for ws in sockets:
            first, payload = ws.read()
            assert first == 0xC1 and zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff") == text
            ws.close()
    assert 0 < int.from_bytes(counted.read_bytes(), "little") - before < 5
