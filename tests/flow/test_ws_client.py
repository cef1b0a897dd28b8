"""The WebSocket client of libkilnws, by its program `kiln ws`, against independent servers and through proxies."""

import asyncio
import os
import re
import pty
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import zlib

import pytest
import websockets

from kiln_server import ROOT, build_dir
from websocket import RawSocket, frame
from ws_peers import (
    EchoServer, HttpProxy, PythonServer, RawServer, SocksProxy, Threads, accept_head, asked_with, build_program, echo, kiln_ws, read_head,
    wsdump,
)


def server_context(ca, tmp_path, *names, client_ca=None):
    chain, key = ca.pair(*names)
    path = tmp_path / "server.pem"
    path.write_text(chain + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca.cert)
    return context


# ---- a server of python3-websockets ------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["-d"]])
def test_lines_to_and_fro(options):
    async def echo_four(ws):
        for _ in range(4):
            await ws.send(await ws.recv())
        await ws.close(1000)

    with PythonServer(echo_four) as server:
        code, out, err = kiln_ws(*options, "-w", "-1", f"ws://127.0.0.1:{server.port}/", data="eins\nzwei ä\n\nlast".encode())
        assert (code, out.decode(), err) == (0, "eins\nzwei ä\n\nlast\n", "")


def test_bytes_in_pipes_come_back_whole():
    async def swallow_then_answer(ws):
        got = b""
        async for message in ws:
            got += message
            if len(got) >= size:
                await ws.send(got)
                await ws.close(1000)

    size = 8 << 20
    data = os.urandom(1 << 20) * 8
    with PythonServer(swallow_then_answer) as server:
        code, out, err = kiln_ws("-b", "-d", "-w", -1, f"ws://127.0.0.1:{server.port}/", data=data)
        assert code == 0 and out == data, err


def test_a_server_of_node():
    node = shutil.which("node")
    if node is None or not os.path.isdir("/usr/share/nodejs/ws"):
        pytest.skip("node-ws is not installed")
    script = """
        const {WebSocketServer} = require("/usr/share/nodejs/ws");
        const server = new WebSocketServer({port: 0, host: "127.0.0.1", maxPayload: 1 << 27, perMessageDeflate: {threshold: 0}});
        server.on("listening", () => console.log(server.address().port));
        server.on("connection", (ws, request) => {
            let pongs = 0;
            ws.on("pong", () => pongs++);
            ws.ping("are you there");
            ws.on("message", (data, binary) => {
                if (data.toString() === "what?") {
                    const end = () => { ws.send(`${ws.extensions} ${request.url} ${pongs}`); ws.close(3001, "enough"); };
                    pongs > 0 ? end() : ws.once("pong", end);
                } else {
                    ws.send(data, {binary});
                }
            });
        });
    """
    data = os.urandom(1 << 20) * 3
    with subprocess.Popen([node, "-e", script], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = f"ws://127.0.0.1:{int(server.stdout.readline())}/path?q"
            for more, extension in (["-d"], "permessage-deflate"), ([], ""):
                code, out, err = kiln_ws(*more, "-w", -1, url, data="grüße\n\nwhat?\n".encode())
                assert out.decode() == f"grüße\n\n{extension} /path?q 1\n"
                assert code == 3 and "closed with 3001: enough" in err
                code, out, err = kiln_ws("-b", *more, "-w", 5, url, data=data)
                assert (code, out) == (0, data), err
        finally:
            server.kill()


def test_headers_subprotocol_origin_and_user_are_sent():
    seen = {}

    async def look(ws):
        seen.update(asked_with(ws))
        seen["path"] = ws.path if hasattr(ws, "path") else ws.request.path
        await ws.send(ws.subprotocol)

    with PythonServer(look, subprotocols=["v9", "v1"]) as server:
        code, out, _ = kiln_ws("-H", "X-One: 1", "-s", "v1", "-s", "v2", "-o", "http://page", "-w", -1, f"ws://me:se%20cret@127.0.0.1:{server.port}/a/b?c=d#e")
    assert (code, out) == (0, b"v1\n"), "the one that both know"
    assert seen["x-one"] == "1" and seen["origin"] == "http://page" and seen["path"] == "/a/b?c=d"
    assert seen["authorization"] == "Basic bWU6c2UgY3JldA==" and seen["host"] == f"127.0.0.1:{server.port}"


def test_closing_codes_become_exit_codes():
    async def close_by_path(ws):
        await ws.send("last word")
        path = ws.path if hasattr(ws, "path") else ws.request.path
        await ws.close(int(path[1:]), "because")

    with PythonServer(close_by_path) as server:
        for wanted, status in ((1000, 0), (1001, 0), (1011, 3), (4000, 3)):
            code, out, err = kiln_ws("-w", -1, f"ws://127.0.0.1:{server.port}/{wanted}")
            assert (code, out) == (status, b"last word\n"), "the last message before a close is not lost"
            assert (f"closed with {wanted}: because" in err) == (status != 0)


def test_pings_are_told_and_lines_with_a_slash_are_commands():
    async def echo_then_close(ws):
        await ws.send(await ws.recv())
        try:
            await asyncio.wait_for(ws.recv(), 1)  # pings are answered meanwhile
        except asyncio.TimeoutError:
            await ws.close(1000)

    with PythonServer(echo_then_close) as server:
        code, out, err = kiln_ws("--slash", f"ws://127.0.0.1:{server.port}/", data=b"/ping abc\nword\n/close 3000 enough\n")
        assert code == 3 and "closed with 3000" in err
        code, out, err = kiln_ws("-P", "0.01", "-w", "-1", "-v", "-t", f"ws://127.0.0.1:{server.port}/", data=b"word\n")
        assert code == 0 and out == b"word\n" and "pong after" in err and "handshake" in err and "status 101" in err


class Terminal:
    """`kiln ws` as a person has it: what is typed, and what stands on the screen."""

    def __init__(self, *arguments):
        self.fd, inside = pty.openpty()
        self.process = subprocess.Popen([build_dir() / "kiln", "ws", *arguments], stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
        os.close(inside)
        self.screen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.fd)

    def type(self, text):
        os.write(self.fd, text.encode())

    def see(self, text):
        """Waits until it stands there; what was before it is forgotten."""
        while text.encode() not in self.screen:
            ready, _, _ = select.select([self.fd], [], [], 60)
            assert ready, f"no {text!r} in {self.screen!r}"
            self.screen += os.read(self.fd, 65536)
        self.screen = self.screen.split(text.encode(), 1)[1]


def test_in_a_terminal():
    with PythonServer(echo) as server:
        with Terminal(f"ws://127.0.0.1:{server.port}/") as terminal:
            terminal.see("Connected.")
            terminal.type("grüße\n")
            terminal.see("< grüße\r\n")
            terminal.type("/ping\n")
            terminal.see("pong after")
            terminal.type("/close 77\n")
            terminal.see("a code is from 1000")
            terminal.type("last\x04\x04")  # without a newline, then the end of the input
            terminal.see("< last\r\n")
            terminal.see("closed with 1000")
            assert terminal.process.wait(60) == 0


def test_bytes_are_shown_to_a_person_as_numbers():
    async def send_bytes(ws):
        await ws.send(bytes(range(40)))
        await ws.close(4000, "enough")

    with PythonServer(send_bytes) as server:
        with Terminal(f"ws://127.0.0.1:{server.port}/") as terminal:
            terminal.see("< 40 bytes: 00 01 02")
            terminal.see("...")
            terminal.see("closed with 4000: enough")
            assert terminal.process.wait(60) == 3


def test_reconnection():
    lives = []

    async def die_twice(ws):
        lives.append(1)
        await ws.send(f"life {len(lives)}")
        if len(lives) < 3:
            ws.transport.abort()
        else:
            await ws.close(1000)

    with PythonServer(die_twice) as server:
        url = f"ws://127.0.0.1:{server.port}/"
        code, out, err = kiln_ws("--reconnect=5", "-w", -1, url)
        assert code == 0 and out.splitlines()[-1] == b"life 3", err
        assert len(lives) == 3


def test_what_is_closed_is_not_taken_for_the_socket():
    """A first descriptor that is closed is the number of whatever is opened next."""
    with EchoServer() as server:
        for closed, status in (("<&-", 0), (">&-", 3), ("<&- >&- 2>&-", 3)):
            run = subprocess.run(f"exec {build_dir() / 'kiln-ws'} -x hello -w 0.1 {server.url} {closed}", shell=True, stdin=subprocess.DEVNULL,
                                 capture_output=True, timeout=60)
            assert (run.returncode, run.stderr) == (status, b""), closed
            assert run.stdout == (b"hello\n" if status == 0 else b"")


def test_an_output_that_is_full_or_gone_ends_it():
    with EchoServer() as server, open("/dev/full", "wb") as full:
        run = subprocess.run([build_dir() / "kiln", "ws", "-x", "hello", "-w", "-1", server.url], stdin=subprocess.DEVNULL, stdout=full, timeout=60)
        assert run.returncode == 3
        with subprocess.Popen([build_dir() / "kiln", "ws", "-x", "1", "-w", "-1", server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"1\n"
            process.stdout.close()
            process.stdin.write(b"2\n")
            process.stdin.flush()
            assert process.wait(60) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_closes_in_order(number):
    codes = []

    async def listen(ws):
        await ws.send("here")
        async for _ in ws:
            pass
        codes.append(ws.close_code)

    with PythonServer(listen) as server:
        with subprocess.Popen([build_dir() / "kiln", "ws", f"ws://127.0.0.1:{server.port}/"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"here\n"
            process.send_signal(number)
            assert process.wait(60) == 128 + number
    assert codes == [1000]


def test_an_echo_waits_for_a_server_that_does_not_read():
    """So nothing is lost, and its memory is bounded: what the server sends waits in the kernel, then in the server."""
    message = os.urandom(1 << 20)
    counts = []

    def talk(peer):
        sender = threading.Thread(target=peer.connection.sendall, args=(frame(0x82, message, masked=False) * 64,))
        sender.start()
        end = time.monotonic() + 0.3  # it does not read meanwhile; any time is right
        while time.monotonic() < end and sender.is_alive():
            time.sleep(0.01)
        for _ in range(64):
            assert peer.read() == (0x82, message)
            counts.append(1)
        sender.join()
        peer.connection.sendall(frame(0x88, b"\x03\xe8", masked=False))
        peer.read()

    with RawServer(talk) as server:
        code, _, err = kiln_ws("--echo", "-q", "-w", -1, f"ws://127.0.0.1:{server.port}/")
        assert (code, err) == (0, "")
    assert len(counts) == 64


# ---- what cannot be connected ------------------------------------------------------------------------------------


def test_refusals_are_told_in_words():
    class Server(Threads):
        def serve(self, connection):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536)
            connection.sendall(self.text)

    with Server() as server:
        for text, why in (
            (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403 Forbidden"),
            (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", "Sec-WebSocket-Accept is wrong"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
            (b"", "without an answer"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40000 + b"\r\n\r\n", "longer than 32 KB"),
        ):
            server.text = text
            code, out, err = kiln_ws(f"ws://127.0.0.1:{server.port}/")
            assert (code, out) == (1, b"") and why in err, err
    code, _, err = kiln_ws(f"ws://127.0.0.1:{server.port}/")
    assert code == 1 and "Connection refused" in err


@pytest.mark.parametrize("pieces", [1, 300])
def test_interim_answers_are_not_the_answer(pieces):
    """RFC 9110, 15.2: any number of them may come, in any pieces; an endless number is an answer that is too long."""
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"

    class Server(Threads):
        def serve(self, connection):
            answer = interim * self.times + accept_head(read_head(connection)) + frame(0x81, b"hello", masked=False) + frame(0x88, b"\x03\xe8", masked=False)
            for at in range(0, len(answer), len(answer) // pieces):
                connection.sendall(answer[at : at + len(answer) // pieces])
            while connection.recv(4096):
                pass

    with Server() as server:
        server.times = 3
        code, out, err = kiln_ws(f"ws://127.0.0.1:{server.port}/")
        assert (code, out) == (0, b"hello\n"), err
        server.times = 1000
        code, out, err = kiln_ws(f"ws://127.0.0.1:{server.port}/")
        assert (code, out) == (1, b"") and "longer than 32 KB" in err, err


def test_a_server_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, _, err = kiln_ws("--connect-timeout=0.2", f"ws://127.0.0.1:{silent.getsockname()[1]}/")
    assert code == 1 and "no answer of the server: the time for connecting is over" in err


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["http2://x/"], "scheme"),
        (["ws://"], "host is missing"),
        (["ws://x:70000/"], "port"),
        (["ws://x/a b"], "blank"),
        (["-H", "no colon", "ws://x/"], "colon is missing"),
        (["-H", "Host: x", "ws://x/"], "belongs to"),
        (["-H", "A: b\r\nC: d", "ws://x/"], "forbidden character"),
        (["-s", "a,b", "ws://x/"], "subprotocol"),
        (["--proxy=ftp://p/", "ws://x/"], "proxy's scheme"),
        ([], "which URL?"),
        (["--wait=x", "ws://x/"], "no number"),
    ],
)
def test_wrong_arguments(arguments, why):
    code, _, err = kiln_ws(*arguments)
    assert code == 2 and why in err, err


def test_help_teaches():
    code, out, _ = kiln_ws("--help")
    assert code == 0
    for word in (b"Examples", b"--proxy", b"--echo-server", b"--bench", b"--deflate", b"--timing"):
        assert word in out


# ---- TLS -------------------------------------------------------------------------------------------------------


def test_certificates_are_verified(ca, tmp_path):
    with PythonServer(echo, server_context(ca, tmp_path, "localhost", "127.0.0.1")) as server:
        for host in ("localhost", "127.0.0.1"):
            assert kiln_ws("-1", f"--ca={ca.cert}", "-x", "hi", f"wss://{host}:{server.port}/")[:2] == (0, b"hi\n")
        code, out, err = kiln_ws("-1", "-x", "hi", f"wss://localhost:{server.port}/")
        assert (code, out) == (1, b"") and "certificate is not accepted" in err
        assert kiln_ws("-1", "--insecure", "-x", "hi", f"wss://localhost:{server.port}/")[:2] == (0, b"hi\n")
        code, _, err = kiln_ws("-1", f"--ca={ca.cert}", "--server-name=other.example", f"wss://localhost:{server.port}/")
        assert code == 1 and "certificate is not accepted" in err
        code, _, err = kiln_ws("-1", f"--ca={tmp_path / 'absent.pem'}", f"wss://localhost:{server.port}/")
        assert code == 1 and "absent.pem" in err


def test_client_certificate(ca, tmp_path):
    chain, key = ca.pair("person", client=True)
    (tmp_path / "me.pem").write_text(chain)
    (tmp_path / "me.key").write_text(key)
    with PythonServer(echo, server_context(ca, tmp_path, "localhost", client_ca=ca)) as server:
        url = f"wss://localhost:{server.port}/"
        mine = [f"--cert={tmp_path / 'me.pem'}", f"--key={tmp_path / 'me.key'}"]
        assert kiln_ws("-1", f"--ca={ca.cert}", *mine, "-x", "hi", url)[:2] == (0, b"hi\n")
        assert kiln_ws("-1", f"--ca={ca.cert}", "-x", "hi", url)[:2] == (1, b"")


def test_what_breaks_later_is_not_the_certificate(ca, tmp_path):
    """An accepted one that nobody has verified: what happens afterwards has other reasons."""

    class Server(Threads):
        def serve(self, connection):
            connection.recv(65536)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset

    with Server(server_context(ca, tmp_path, "localhost")) as server:
        code, _, err = kiln_ws("--insecure", f"wss://localhost:{server.port}/")
    assert code == 1 and "reset" in err and "certificate" not in err, err


# ---- proxies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, scheme", [(HttpProxy, "http"), (SocksProxy, "socks5"), (SocksProxy, "socks5h")])
def test_proxies(ca, tmp_path, kind, scheme):
    with PythonServer(echo) as plain, PythonServer(echo, server_context(ca, tmp_path, "far.example")) as tls:
        with kind() as proxy:
            address = f"--proxy={scheme}://127.0.0.1:{proxy.port}"
            assert kiln_ws("-1", "-x", "hi", address, f"ws://far.example:{plain.port}/")[:2] == (0, b"hi\n")
            assert kiln_ws("-1", "-x", "hi", address, f"--ca={ca.cert}", f"wss://far.example:{tls.port}/")[:2] == (0, b"hi\n")
            assert proxy.asked == [f"far.example:{plain.port}", f"far.example:{tls.port}"], "names are looked up there"
        with kind("me", "p:w@") as proxy:
            good = f"--proxy={scheme}://me:p%3Aw%40@127.0.0.1:{proxy.port}"
            assert kiln_ws("-1", "-x", "hi", good, f"ws://far.example:{plain.port}/")[:2] == (0, b"hi\n")
            for wrong in (f"--proxy={scheme}://me:wrong@127.0.0.1:{proxy.port}", f"--proxy={scheme}://127.0.0.1:{proxy.port}"):
                code, out, err = kiln_ws("-1", "-x", "hi", wrong, f"ws://far.example:{plain.port}/")
                assert (code, out) == (1, b"") and "user and" in err and "wrong" not in err


class HostileProxy(Threads):
    """Sends `parts` one after the other, then whatever more() gives for ever."""

    def __init__(self, parts=(), more=None):
        self.parts, self.more = parts, more
        super().__init__()

    def serve(self, connection):
        connection.recv(65536)
        for part in self.parts:
            connection.sendall(part)
        while self.more is not None:
            connection.sendall(self.more)


@pytest.mark.parametrize(
    "scheme, parts, more, why",
    [
        ("http", [], b"HTTP/1.1 100 Continue\r\n\r\n" * 40000, "no answer of the proxy: the time for connecting is over"),
        ("http", [b"HTTP/1.1 200 OK\r\nX: "], b"y" * 65536, "the proxy's answer is too long"),
        ("http", [bytes([b]) for b in b"HTTP/1.1 502 Bad\r\n\r\n"], None, "the proxy refuses the connection: 502 Bad"),
        ("http", [b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 X\r\n"], None, "that nobody can have sent"),
        ("http", [b"SSH-2.0-x\r\n"], None, "the proxy's answer is not HTTP"),
        ("http", [b"HTTP/1.1 2"], None, "the proxy closed the connection without an answer"),
        ("socks5", [b"\x05"], None, "the proxy closed the connection without an answer"),
        ("socks5", [b"\x05\x01"], None, "a method that was not offered"),
        ("socks5", [b"\x04\x00"], None, "does not speak SOCKS5"),
        ("socks5", [b"\x05\x00", b"\x05\x05\x00\x01"], None, "the proxy cannot connect: the connection was refused"),
        ("socks5", [b"\x05\x00", b"\x05\x00\x00\x09\x00"], None, "not SOCKS5"),
        ("socks5", [b"\x05\x00\x05\x00\x00\x01" + bytes(6) + b"x"], b"x" * 65536, "that nobody can have sent"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_proxies_that_are_hostile(scheme, parts, more, why):
    with HostileProxy(parts, more) as proxy:
        code, out, err = kiln_ws("--connect-timeout=1.5", f"--proxy={scheme}://127.0.0.1:{proxy.port}", "ws://far.example/")
    assert (code, out) == (1, b"") and why in err, err


# ---- the protocol, against a raw server -----------------------------------------------------------------------------


def test_a_compression_bomb_is_cut_off():
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = (bomb.compress(bytes(1 << 28)) + bomb.flush(zlib.Z_SYNC_FLUSH))[:-4]
    codes = []

    def talk(peer):
        peer.connection.sendall(frame(0xC2, bomb, masked=False))
        while (one := peer.read()) is not None:
            codes.append(int.from_bytes(one[1][:2], "big"))
            peer.connection.shutdown(socket.SHUT_WR)

    with RawServer(talk, headers=["Sec-WebSocket-Extensions: permessage-deflate"]) as server:
        code, out, err = kiln_ws("-d", "--max-message=1000000", "-w", -1, f"ws://127.0.0.1:{server.port}/")
        assert (code, out) == (3, b"") and "1009" in err
    assert codes == [1009]


def test_large_messages_and_the_limit():
    big = os.urandom(1 << 20) * 64

    async def send_big(ws):
        await ws.send(big)
        await ws.close(1000)

    with PythonServer(send_big, compression=None) as server:
        code, out, err = kiln_ws("-w", -1, f"ws://127.0.0.1:{server.port}/")
        assert code == 0 and out == big, err
        code, out, err = kiln_ws("-w", -1, "--max-message=67108863", f"ws://127.0.0.1:{server.port}/")
        assert (code, out) == (3, b"") and "1009" in err


# ---- the echo server: the library in the server's role -------------------------------------------------------------------


def raw(server, path="/", headers=(), connection=None):
    return RawSocket(server, path, headers, connection=connection)


@pytest.fixture(scope="module")
def echo_server():
    with EchoServer() as server:
        yield server


def test_python_node_and_curl_as_clients(echo_server):
    async def talk():
        async with websockets.connect(f"ws://127.0.0.1:{echo_server.port}/", max_size=None) as ws:
            for message in ["", "Hello", "ä" * 70000, b"", os.urandom(3000000)]:
                await ws.send(message)
                assert await ws.recv() == message
            await (await ws.ping(b"data"))
        assert ws.close_code == 1000

    asyncio.run(talk())
    page = subprocess.run(["curl", "-s", "-m", "30", f"http://127.0.0.1:{echo_server.port}/"], capture_output=True)
    assert b"echo server" in page.stdout
    if shutil.which("node") and os.path.isdir("/usr/share/nodejs/ws"):
        script = """
            const ws = new (require("/usr/share/nodejs/ws"))(process.argv[1], {perMessageDeflate: {threshold: 0}});
            ws.on("open", () => { ws.send("one"); ws.send(Buffer.alloc(100000, 7)); });
            let got = 0;
            ws.on("message", data => { got += data.length; if (got === 100003) ws.close(3001); });
            ws.on("close", code => console.log(got, code));
        """
        run = subprocess.run(["node", "-e", script, f"ws://127.0.0.1:{echo_server.port}/"], capture_output=True, text=True, timeout=60)
        assert run.stdout.split() == ["100003", "3001"], run.stderr


def test_wsdump_as_a_client(echo_server):
    if shutil.which("wsdump") is None:
        pytest.skip("python3-websocket is not installed")
    assert wsdump(echo_server.url, "grüße", "x" * 3000) == ["grüße", "x" * 3000]


def test_a_client_that_never_reads_costs_bounded_memory():
    with EchoServer("--max-message=1048576") as server:
        with raw(server) as ws:
            ws.socket.settimeout(60)
            message = frame(0x82, bytes(1 << 20))
            try:
                for _ in range(200):
                    ws.send(message)
            except OSError:
                pass  # closed with 1008, and cut off after that
        assert build_dir().name != "build" or server.memory_kb() < 500000, "64 MiB may wait, not 200"
        with raw(server) as ws:
            pings = frame(0x89, b"x" * 125) * 1000
            ws.socket.setblocking(False)
            sent = 0
            while sent < 64 << 20:
                try:
                    sent += ws.socket.send(pings)
                except BlockingIOError:
                    break
            with raw(server) as other:
                other.text("still here")
                assert other.read_text() == "still here"


def test_bench_and_many_connections(echo_server):
    code, out, err = kiln_ws("--bench", "--connections=200", "--messages=4000", f"ws://127.0.0.1:{echo_server.port}/", timeout=120)
    assert code == 0 and b"4000 messages of 20 bytes over 200 connections" in out, err


QUIET = """\
#include <kiln.h>
void kiln_socket(kiln_ws *ws, const char *path)
{
    kiln_ws_message m;
    (void)path;
    for (int left = ECHOES; kiln_ws_recv(ws, &m) > 0; left--) {
        if (left > 0) {
            kiln_ws_send(ws, m.type, m.data, m.length);
        }
    }
}
"""


@pytest.mark.parametrize("echoes", [0, 3])
def test_a_bench_against_one_that_sends_nothing_back_ends_and_says_so(server, echoes):
    with server(files={"quiet._c": QUIET.replace("ECHOES", str(echoes))}) as kiln:
        url = kiln.url("/quiet").replace("http:", "ws:")
        code, out, err = kiln_ws("--bench", "--connections=2", "--messages=100", "--timeout=1", url)
        assert (code, out) == (3, b""), err
        said = re.search(r"[0-2] of 2 connections are open, (\d) of 100 messages came back, and then nothing for 1 s: is it an echo server\?", err)
        assert said and int(said[1]) <= 2 * echoes, err


def test_the_load_of_the_figures_is_a_client_of_the_library(ca, tmp_path):
    """bench/ws_load.c: echoes, plain and over TLS, a stream, and compressed connections that are held."""
    load = build_program(ROOT / "bench/ws_load.c", tmp_path / "ws_load")
    (tmp_path / "server.pem").write_text("".join(ca.pair("localhost")))
    with EchoServer() as plain, EchoServer(f"--cert={tmp_path / 'server.pem'}") as tls:

        def run(server, mode, *words):
            with subprocess.Popen([load, mode, str(server.port), "/", *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout.readline() == "ready\n"
                process.stdin.close()
                out = process.stdout.read()
                assert process.wait(60) == 0
                return out.split()

        assert int(run(plain, "echo", 300, 20, 0.2)[0]) > 0
        assert int(run(plain, "echo", 3, 1 << 20, 0.2)[0]) > 0
        assert int(run(tls, "echo", 20, 20, 0.2, "tls")[0]) > 0
        assert float(run(plain, "stream", 8192, 8 << 20)[0]) == pytest.approx(8.389, abs=0.001)
        assert run(plain, "listen", 20, 0, "hello") == ["0"]
        assert run(plain, "idle", 20, 2000) == []


def test_half_a_handshake_and_garbage_end_alone(echo_server):
    for bytes_ in (b"GET / HTTP/1.1\r\nHost: x\r\n", b"\x16\x03\x01\x02\x00", b"POST / HTTP/1.1\r\n\r\n", b"A" * 70000):
        with echo_server.connect() as connection:
            try:
                connection.sendall(bytes_)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(65536)
            except OSError:
                answer = b""
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


def test_wss_echo_with_a_self_signed_certificate(ca, tmp_path):
    chain, key = ca.pair("localhost")
    (tmp_path / "c.pem").write_text(chain)
    (tmp_path / "k.pem").write_text(key)
    with EchoServer(f"--cert={tmp_path / 'c.pem'}", f"--key={tmp_path / 'k.pem'}") as server:
        data = os.urandom(1 << 20)
        code, out, err = kiln_ws("-b", "-d", f"--ca={ca.cert}", "-w", 5, server.url, data=data)
        assert (code, out) == (0, data), err
        assert server.url.startswith("wss://")
