"""The examples around WebSockets: programs of libkilnws, built and run as their READMEs say, and pages."""

import asyncio
import json
import shutil
import subprocess

import pytest
import websockets

from kiln_server import ROOT, wait_for
from websocket import RawSocket, frame
from ws_peers import HttpProxy, PythonServer, Running, SocksProxy, build_program, echo

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """program("ws-echo/client") compiles it once; the path."""
    where = tmp_path_factory.mktemp("programs")
    made = {}

    def make(name):
        if name not in made:
            made[name] = build_program(EXAMPLES / f"{name}.c", where / name.replace("/", "-"))
        return made[name]

    return make


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)


def test_time(program):
    result = run(program("ws-time/time"))
    assert result.returncode == 0 and result.stdout.startswith("Current time is 1"), result.stderr


def test_echo_plain_and_through_proxies(program):
    client = program("ws-echo/client")
    with Running(program("ws-echo/server"), 0) as server:
        assert run(client, f"ws://localhost:{server.port}/", "hello", "wörld").stdout == "hello\nwörld\n"
        with HttpProxy("u", "p") as http, SocksProxy("u", "p") as socks:
            for proxy in (f"http://u:p@127.0.0.1:{http.port}", f"socks5://u:p@127.0.0.1:{socks.port}"):
                assert run(client, f"ws://far.example:{server.port}/", f"--proxy={proxy}", "x").stdout == "x\n"


def test_echo_with_a_self_signed_certificate(program, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = next(line for line in (EXAMPLES / "ws-echo/README.md").read_text().splitlines() if "openssl req" in line).split()
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    with Running(program("ws-echo/server"), 0, cert, key) as server:
        url = f"wss://localhost:{server.port}/"
        result = run(program("ws-echo/client"), url, f"--ca={cert}", "hello")
        assert result.stdout == "hello\n" and "TLSv1" in result.stderr
        result = run(program("ws-echo/client"), url, "hello")
        assert result.returncode == 1 and "self-signed" in result.stderr


def test_tunnel(program):
    tunnel = program("ws-tunnel/tunnel")
    with Running(program("ws-echo/server"), 0) as server, Running(tunnel, "out", 0, "localhost", server.port) as out:
        with Running(tunnel, "in", 0, f"ws://localhost:{out.port}/") as way_in:
            words = ["through", "x" * 90000]
            assert run(program("ws-echo/client"), f"ws://localhost:{way_in.port}/", *words).stdout.split() == words


def test_relay(program):
    """Texts and bytes pass both ways in order; a close passes with its code and reason; who is not there ends both."""
    size = 3 << 20
    seen = []

    async def left(ws):
        for i in range(8):
            await ws.send(bytes([i]) * size)
        await ws.send("that was all")
        seen.append(await ws.recv())
        await ws.close(4001, "enough")

    async def right(ws):
        for i in range(8):
            assert await ws.recv() == bytes([i]) * size
        seen.append(await ws.recv())
        await ws.send("thanks")
        await ws.wait_closed()
        seen.append((ws.close_code, ws.close_reason))

    relay = program("ws-relay/relay")
    with PythonServer(left) as a, PythonServer(right) as b:
        assert run(relay, f"ws://127.0.0.1:{a.port}/", f"ws://127.0.0.1:{b.port}/").returncode == 0
        wait_for(lambda: len(seen) == 3, "the close on the other side")
    assert seen == ["that was all", "thanks", (4001, "enough")]
    with PythonServer(echo) as b:
        alone = run(relay, "ws://127.0.0.1:1/", f"ws://127.0.0.1:{b.port}/")
        assert alone.returncode == 1 and "refused" in alone.stderr


def test_secret(program):
    secret = program("ws-secret/secret")
    with Running(secret, "serve", 0, "password") as server:
        url = f"ws://localhost:{server.port}/"
        assert run(secret, "ask", url, "password", "hello", "you").stdout == "HELLO\nYOU\n"
        wrong = run(secret, "ask", url, "guess", "hello")
        assert wrong.returncode == 1 and "same password" in wrong.stderr

        async def look():
            async with websockets.connect(url) as ws:
                await ws.send(bytes(16))
                return await ws.recv()

        assert len(asyncio.run(look())) == 16, "both sides send a random value first"


@pytest.fixture
def kiln(server, tmp_path):
    one = server(config={"WebSocketEndpointTimeout": 0})
    for name in ("ticker", "canvas"):
        shutil.copytree(EXAMPLES / name, one.www / name)
    return one.start()


def test_ticker(kiln):
    with RawSocket(kiln, "/ticker/prices") as first, RawSocket(kiln, "/ticker/prices") as second:
        for ws in (first, second):
            assert isinstance(json.loads(ws.read_text())["price"], float)
        for ws in (first, second):
            ws.close()
    assert "prices" in kiln.get("/ticker/").text


def test_canvas(kiln):
    with RawSocket(kiln, "/canvas/players") as first:
        me = int(first.read_text())
        assert first.read() == (0x82, b"")
        with RawSocket(kiln, "/canvas/players") as second:
            other = int(second.read_text())
            assert other != me and second.read() == (0x82, b"")
            second.send(frame(0x82, b"\x01\x10\x00\x20\x00"))
            assert first.read() == (0x82, bytes([other, 1, 16, 0, 32, 0]))
            second.close()
        with RawSocket(kiln, "/canvas/players") as late:
            late.read_text()
            assert late.read() == (0x82, bytes([other, 1, 16, 0, 32, 0])), "what was drawn before"
            late.send(frame(0x82, b"short"[:4]))
            assert late.read_close()[0] == 1003
        first.close()
    assert wait_for(lambda: "canvas" in kiln.get("/canvas/").text, "the page")
