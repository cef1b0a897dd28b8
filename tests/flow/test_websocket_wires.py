"""WebSockets over TLS and over HTTP/2 (RFC 8441): endpoints notice no difference. Clients: one of our own that can send
anything (streams of HTTP/2 by python3-h2), python3-websockets, node's ws, wsdump, Chromium."""

import asyncio
import os
import re
import shutil
import ssl
import subprocess
import threading
import time
import zlib

import pytest
import websockets

import browser
from kiln_server import ROOT, build_dir, free_port, wait_for
from websocket import VERSION, cases, frame
from websocket_wires import WIRES, H2Connection, H2Socket, open_socket
from ws_peers import wsdump

SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))

PLUGINS = ROOT / "tests/plugins"
FORMS = ["blocking", "callbacks"]
CARRIED = ["tls", "h2", "h2-tls"]
H2 = ["h2", "h2-tls"]


@pytest.fixture
def make(server):
    def make(**config):
        one = server(config={"DebugPages": True, **config}, tls=True)
        shutil.copy(PLUGINS / "socket._c", one.www / "blocking._c")
        shutil.copy(PLUGINS / "socket_callbacks._c", one.www / "callbacks._c")
        return one.start()

    return make


# ---- the protocol ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire, form", [("tls", "blocking"), ("h2", "blocking"), ("h2", "callbacks"), ("h2-tls", "callbacks")])
def test_every_case_of_the_suite(make, wire, form):
    """tests/unit/ws/cases.def: sections 1 to 7 and more of the public case list, each strict."""
    kiln = make()
    connection = H2Connection(kiln, wire == "h2-tls") if wire in H2 else None
    for name, frames, answers, failure in cases():
        with H2Socket(kiln, f"/{form}", connection=connection) if connection else open_socket(wire, kiln, f"/{form}") as ws:
            if not failure and (not answers or answers[-1][0] != 0x88):
                frames.append(frame(0x88, b"\x03\xe8"))
                answers.append((0x88, b"\x03\xe8"))
            ws.send(b"".join(frames))
            got = []
            while (one := ws.read()) is not None:
                got.append(one)
            if failure:
                assert got and got[-1][0] == 0x88 and got.pop()[1][:2] == failure.to_bytes(2, "big"), name
            for kind in (0x8A, 0x81, 0x82, 0x88):
                assert [f for f in got if f[0] == kind] == [f for f in answers if f[0] == kind], name
            assert len(got) == len(answers), name


@pytest.mark.parametrize("wire", CARRIED)
def test_bytes_one_by_one(make, wire):
    kiln = make()
    for form in FORMS:
        with open_socket(wire, kiln, f"/{form}") as ws:
            for byte in frame(0x01, "κόσ".encode()) + frame(0x89, b"ping") + frame(0x80, "με".encode()):
                ws.send(bytes([byte]))
            assert ws.read() == (0x8A, b"ping")
            assert ws.read_text() == "κόσμε"
            ws.close()


@pytest.mark.parametrize("wire", CARRIED)
def test_frames_in_one_piece_with_the_handshake(make, wire):
    kiln = make()
    messages = b"".join(frame(0x81, str(i).encode()) for i in range(3000))
    for form in FORMS:
        with open_socket(wire, kiln, f"/{form}", first=messages + frame(0x88, b"\x03\xe8")) as ws:
            for i in range(3000):
                assert ws.read_text() == str(i)
            assert ws.read_close() == (1000, "")
            assert ws.read() is None


@pytest.mark.parametrize("wire", CARRIED)
def test_65536_fragments_and_large_messages(make, wire):
    most = 64 if wire == "tls" else 8  # python3-h2 takes its time
    kiln = make(WebSocketMaxMessage=f"{most}M", WebSocketEndpointTimeout=0)
    for form in FORMS:
        with open_socket(wire, kiln, f"/{form}") as ws:
            fragments = (frame((0x02 if i == 0 else 0) | (0x80 if i == 65535 else 0), b"%c" % (i & 127)) for i in range(65536))
            ws.send(b"".join(fragments))
            assert ws.read() == (0x82, bytes(i & 127 for i in range(65536)))
            big = os.urandom(1 << 20) * most
            sender = threading.Thread(target=ws.send, args=(frame(0x82, big),))
            sender.start()
            first, got = ws.read()
            sender.join()
            assert first == 0x82 and got == big
            ws.send(frame(0x82, b"")[:1] + b"\xff" + (most * 1048576 + 1).to_bytes(8, "big") + bytes(4))
            assert ws.read_close()[0] == 1009, "known before a byte of it has come"


@pytest.mark.parametrize("wire", CARRIED)
def test_compressed_messages_and_bombs(make, wire):
    kiln = make(WebSocketMaxMessage="1M", WebSocketCompressMin=10)
    for form in FORMS:
        with open_socket(wire, kiln, f"/{form}", ["Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"]) as ws:
            assert ws.headers["sec-websocket-extensions"].startswith("permessage-deflate")
            text = b"all work and no play " * 1000
            deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
            data = (deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH))[:-4]
            ws.send(frame(0x41, data[:10]) + frame(0x89) + frame(0x80, data[10:]))
            assert ws.read() == (0x8A, b"")
            first, payload = ws.read()
            assert first == 0xC1 and zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff") == text
            bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
            ws.send(frame(0xC2, (bomb.compress(bytes(1 << 28)) + bomb.flush(zlib.Z_SYNC_FLUSH))[:-4]))
            assert ws.read_close()[0] == 1009
            assert ws.read() is None


# ---- what endpoints do, on every wire --------------------------------------------------------------------------


@pytest.mark.parametrize("wire", CARRIED)
def test_endpoints_notice_nothing(make, wire):
    kiln = make()
    headers = ["Cookie: name=Ada", "Sec-WebSocket-Protocol: v1, v2"]
    with open_socket(wire, kiln, "/blocking/handshake?q=1", headers) as ws:
        assert ws.headers["sec-websocket-protocol"] == "v2" and ws.headers["x-hello"] == "there"
        session = ws.headers["set-cookie"].split(";")[0]
        assert ws.read_text() == "1 Ada q=1 -7"
        assert ws.read_text() == "1"
        assert ws.read_close()[0] == 1000
    with open_socket(wire, kiln, "/blocking/handshake?q=2", [f"Cookie: {session}"]) as ws:
        assert ws.read_text() == "2 - q=2 0"
    with open_socket(wire, kiln, "/blocking/parts") as ws:
        assert [ws.read() for _ in range(4)] == [(0x01, b"one, "), (0x89, b"between"), (0x00, b"two, "), (0x80, b"three")]
        assert ws.read_text() == "-7 -5"
        assert ws.read_close() == (4001, "done")
    with open_socket(wire, kiln, "/blocking/offload") as ws:
        ws.text("work")
        assert ws.read_text() == "from the pool: work"
        assert ws.read_close()[0] == 1000
    with open_socket(wire, kiln, "/callbacks") as a, open_socket(wire, kiln, "/callbacks") as b:
        for ws in (a, b):
            ws.text("room room")
            assert ws.read_text() == "joined 0"
        assert kiln.get("/blocking?publish=everybody").status == 200
        assert {a.read_text(), b.read_text()} == {"everybody"}
        a.close(3000, "bye")
        b.close()


@pytest.mark.parametrize("wire", CARRIED)
def test_last_words_arrive_although_the_client_is_still_talking(make, wire):
    kiln = make()
    with open_socket(wire, kiln, "/blocking/last-words", first=frame(0x82, bytes(60000))) as ws:
        assert ws.read() == (0x81, b"x" * 999999)
        assert ws.read_close()[0] == 1000
        ws.send(frame(0x82, bytes(60000)) + frame(0x88, b"\x03\xe8"))
        assert ws.read() is None


@pytest.mark.parametrize("wire", CARRIED)
def test_a_full_queue_and_its_drain(make, wire):
    kiln = make(WebSocketSendQueue="256k")
    with open_socket(wire, kiln, "/callbacks") as ws:
        ws.text("fill")
        blocks = 0
        while (got := ws.read())[0] == 0x82:
            blocks += 1
        assert got == (0x81, b"drained") and blocks >= 12
        ws.close()


def peak_kb(kiln) -> int:
    with open(f"/proc/{kiln.worker_pid()}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


@pytest.mark.parametrize("wire", CARRIED)
def test_a_client_that_never_reads_bounds_what_is_kept_for_it(make, wire):
    kiln = make(WebSocketEndpointTimeout=2, LingerTimeout=1, ResponseTimeout=2)
    with open_socket(wire, kiln, "/blocking") as ws:
        ws.text("warm")
        assert ws.read_text() == "warm"
        ws.close()
    before = peak_kb(kiln)
    with open_socket(wire, kiln, "/blocking/flood"):
        wait_for(lambda: kiln.get("/blocking").text.startswith("-1 after"), "the endpoint's end")
    assert peak_kb(kiln) - before < 20000


@pytest.mark.parametrize("wire", CARRIED)
def test_silent_clients_are_pinged_and_at_last_closed(make, wire):
    kiln = make(WebSocketEndpointTimeout=3, LingerTimeout=1)
    with open_socket(wire, kiln, "/callbacks") as ws:
        for _ in range(2):
            assert ws.read_frame() == (0x89, b"")
            ws.send(frame(0x8A))
        assert ws.read_frame() == (0x89, b"")
        assert ws.read_frame() == (0x88, b"\x03\xe9no sign of life")
        assert ws.read() is None


@pytest.mark.parametrize("wire", CARRIED)
def test_the_end_of_the_server_closes_with_1001(make, wire):
    kiln = make(ShutdownTimeout=3)
    with open_socket(wire, kiln, "/blocking") as a, open_socket(wire, kiln, "/callbacks") as b:
        for ws in (a, b):
            ws.text("x")
            ws.read()
        kiln.signal(15)
        a.text("there is time to end")
        assert a.read_text() == "there is time to end"
        a.close()
        assert b.read_close() == (1001, "the server stops")
        b.send(frame(0x88, b"\x03\xe9"))
        assert b.read() is None
    kiln.stop()


@pytest.mark.parametrize("wire", CARRIED)
def test_a_flood_of_pings_is_answered_and_bounded(make, wire):
    """Each is answered while they are read; of a client that reads none of the answers not much is kept, and it is
    heard again when it does read."""
    kiln = make(WebSocketEndpointTimeout=0)
    with open_socket(wire, kiln, "/callbacks") as ws:
        for i in range(20):
            ws.send(frame(0x89, b"%d" % i) * 200)
            for _ in range(200):
                assert ws.read() == (0x8A, b"%d" % i)
    with open_socket(wire, kiln, "/callbacks") as ws:
        ws.text("warm")
        assert ws.read_text() == "warm"
        before = peak_kb(kiln)
        flood = frame(0x89, bytes(125)) * 8000
        for _ in range(24):
            ws.send(flood)
        ws.text("the end")
        while (got := ws.read()) == (0x8A, bytes(125)):
            pass
        assert got == (0x81, b"the end")
        if not SANITIZED:  # the tools keep what was freed
            assert peak_kb(kiln) - before < 4000
        ws.close()


@pytest.mark.parametrize("wire", WIRES)
def test_sockets_survive_a_reload(make, wire):
    kiln = make(WebSocketMaxMessage=1000)
    with open_socket(wire, kiln, "/blocking") as a, open_socket(wire, kiln, "/callbacks") as b:
        kiln.write_config(WebSocketMaxMessage=100)
        kiln.reload()
        wait_for(lambda: refuses_long(kiln, wire), "the new limit")
        for ws in (a, b):
            ws.text("still here")
            assert ws.read_text() == "still here"
            ws.close()


@pytest.mark.parametrize("wire", WIRES)
def test_sockets_survive_what_a_reload_takes_away(make, wire):
    kiln = make()
    with open_socket(wire, kiln, "/blocking") as a, open_socket(wire, kiln, "/callbacks") as b:
        for ws in (a, b):
            ws.text("x")
            assert ws.read_text() == "x"
        elsewhere = {"HttpPorts": [free_port()], "HttpsPorts": [free_port()], "CertDir": str(kiln.base / "other")}
        kiln.write_config(EnableHttp2=False, ForceTLS=True, WebSocketCompression=False, MaxConcurrentUpgradedConnections=1, **elsewhere)
        kiln.reload("config reloaded")
        still_there((a, b), "x")


TICKS = 2.2  # seconds: all sockets of a loop are looked at once in each


def still_there(sockets, answer):
    end = time.monotonic() + TICKS
    while time.monotonic() < end:
        for ws in sockets:
            ws.text("x")
            assert ws.read_text() == answer
        time.sleep(0.1)
    for ws in sockets:
        ws.close()


def refuses_long(kiln, wire):
    with open_socket(wire, kiln, "/blocking") as ws:
        ws.text("x" * 101)
        first, payload = ws.read()
        return first == 0x88 and payload[:2] == (1009).to_bytes(2, "big")


def put_version(kiln, kind, word):
    """/v answers with the word: as source, or as a shared library of gcc's."""
    source = kiln.base / f"{word}.c"
    source.write_text(VERSION % ((word,) * 3))
    if kind == "so":
        command = ["gcc", "-shared", "-fPIC", f"-I{ROOT}/plugin-sdk/include", "-o", source.with_suffix(".so"), source]
        subprocess.run(command, check=True)
    source.with_suffix(".so" if kind == "so" else ".c").rename(kiln.www / {"so": "v.so", "_c": "v._c"}[kind])


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("wire, kind", [*((wire, "_c") for wire in WIRES), ("plain", "so"), ("h2-tls", "so")])
def test_a_new_version_of_the_endpoint(make, wire, kind, close):
    kiln = make(WebSocketCloseOnChange=close)
    put_version(kiln, kind, "old")
    wait_for(lambda: kiln.get("/v").text == "old", "the old version")
    with open_socket(wire, kiln, "/v") as a, open_socket(wire, kiln, "/v?c") as b:
        for ws in (a, b):
            ws.text("?")
            assert ws.read_text() == "old"
        put_version(kiln, kind, "new")
        wait_for(lambda: kiln.get("/v").text == "new", "the new version")
        if close:
            for ws in (a, b):
                assert ws.read_close() == (1012, "the endpoint has changed")
        else:
            still_there((a, b), "old")  # the code that they began with
    with open_socket(wire, kiln, "/v") as ws:
        ws.text("?")
        assert ws.read_text() == "new"
        ws.close()


# ---- HTTP/2 alone ------------------------------------------------------------------------------------------------


def test_many_sockets_and_requests_on_one_connection(make):
    kiln = make()
    c = H2Connection(kiln)
    sockets = [H2Socket(kiln, f"/{FORMS[i % 2]}", connection=c) for i in range(20)]
    for i, ws in enumerate(sockets):
        ws.send(frame(0x81, b"%d " % i * 20000))
    for i, ws in reversed(list(enumerate(sockets))):
        assert ws.read_text() == f"{i} " * 20000
    sockets[0].socket.close()  # RST_STREAM
    wait_for(lambda: kiln.get("/blocking").text == "0 1006 |", "the broken one's end")
    for ws in sockets[1:]:
        ws.text("still here")
        assert ws.read_text() == "still here"
        ws.send(frame(0x88, b"\x03\xe8"))
        assert ws.read_close()[0] == 1000
        assert ws.read() is None, "END_STREAM"
        assert ws.socket.reset is None
    c.close()


@pytest.mark.parametrize("form", FORMS)
def test_the_ends_of_a_stream(make, form):
    kiln = make(LingerTimeout=1)
    c = H2Connection(kiln)
    with H2Socket(kiln, f"/{form}", connection=c) as ws:
        ws.text("x")
        ws.socket.end()  # as a TCP FIN without a close frame
        assert ws.read_text() == "x", "what came before the end is answered"
        assert ws.socket.recv(1) == b"", "then its own end"
    with H2Socket(kiln, f"/{form}", connection=c) as ws:
        ws.send(frame(0x88, b"\x03\xe8"))
        assert ws.read_close()[0] == 1000
        assert ws.socket.recv(1) == b""
        c.wait(lambda: ws.socket.reset is not None)  # we never end our side: after LingerTimeout it is done for us
        assert ws.socket.reset == 0, "NO_ERROR"
    with H2Socket(kiln, f"/{form}", connection=c) as ws:
        ws.text("the connection has not suffered")
        assert ws.read_text() == "the connection has not suffered"
    c.close()


def test_a_socket_that_is_not_read_does_not_stop_the_others(make):
    kiln = make(WebSocketSendQueue="256k")
    c = H2Connection(kiln)
    slow = H2Socket(kiln, "/callbacks", connection=c)
    slow.text("fill")
    with H2Socket(kiln, "/blocking", connection=c) as ws:
        for i in range(50):
            ws.send(frame(0x82, bytes(10000)))
            assert ws.read() == (0x82, bytes(10000))
    blocks = 0
    while (got := slow.read())[0] == 0x82:
        blocks += 1
    assert got == (0x81, b"drained") and blocks >= 12
    c.close()


def test_what_is_no_handshake(make):
    kiln = make(MaxConcurrentUpgradedConnections=1)
    kiln.www.joinpath("page.html").write_text("page")
    kiln.www.joinpath("plain._c").write_text("#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { return kiln_puts(c, p); }\n")
    wait_for(lambda: kiln.get("/plain").status == 200 and kiln.get("/page.html").status == 200, "the files")
    c = H2Connection(kiln)

    def status(path, **more):
        return int(c.stream(path, more.pop("headers", ()), **more).answer()[":status"])

    assert status("/page.html") == 400, "a 200 would open a tunnel"
    assert status("/plain") == 400
    assert status("/") == 404
    assert status("/blocking", version="8") == 426
    assert status("/blocking", protocol="connect-ip") == 501
    assert status("/blocking", end=True) == 400
    assert status("/blocking", headers=["Content-Length: 5"]) == 400
    assert status("/blocking", headers=["Origin: https://evil.org"]) == 403
    assert status("/blocking/refuse") == 403
    with H2Socket(kiln, "/blocking", connection=c) as ws:
        assert ws.status == 200
        assert status("/blocking") == 503
    c.close()


def test_a_crash_before_the_handshake_is_answered(make):
    kiln = make()
    with H2Socket(kiln, "/blocking/crash-early") as ws:
        assert ws.status == 500
    kiln.wait_log(r"segmentation fault")


# ---- independent clients --------------------------------------------------------------------------------------------


def anyone():
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("form", FORMS)
def test_python_websockets_over_tls(make, form):
    kiln = make()

    async def talk():
        url = f"wss://127.0.0.1:{kiln.tls_port}/{form}"
        async with websockets.connect(url, max_size=None, ssl=anyone()) as ws:
            for message in ["", "Hello", "ä" * 70000, b"", b"\x00\xff" * 1000000]:
                await ws.send(message)
                assert await ws.recv() == message
            await (await ws.ping(b"data"))
        assert ws.close_code == 1000

    asyncio.run(talk())


def test_node_ws_over_tls(make):
    kiln = make()
    node = shutil.which("node")
    if node is None or not os.path.isdir("/usr/share/nodejs/ws"):
        pytest.skip("node-ws is not installed")
    script = """
        const WebSocket = require("/usr/share/nodejs/ws");
        const ws = new WebSocket(process.argv[1], {perMessageDeflate: {threshold: 0}, rejectUnauthorized: false});
        const big = "node ".repeat(50000);
        let got = 0;
        ws.on("open", () => { ws.send("one"); ws.send(Buffer.alloc(100000, 7)); ws.send(big); });
        ws.on("message", (data) => {
            got += data.length;
            if (data.length === big.length) ws.close(3001, "enough");
        });
        ws.on("close", (code) => console.log(got, code));
    """
    for form in FORMS:
        url = f"wss://127.0.0.1:{kiln.tls_port}/{form}"
        run = subprocess.run([node, "-e", script, url], capture_output=True, text=True, timeout=60)
        assert run.stdout.split() == ["350003", "3001"], run.stdout + run.stderr


@pytest.mark.parametrize("form", FORMS)
def test_wsdump(make, form):
    if shutil.which("wsdump") is None:
        pytest.skip("python3-websocket is not installed")
    kiln = make()
    for url in (f"ws://127.0.0.1:{kiln.port}/{form}", f"wss://127.0.0.1:{kiln.tls_port}/{form}"):
        assert wsdump(url, "grüße", "x" * 3000, "end") == ["grüße", "x" * 3000, "end"]


@pytest.mark.parametrize("protocols", [["h2", "http/1.1"], ["http/1.1"]])
def test_chromium_over_tls(make, tmp_path, protocols):
    """On a connection whose SETTINGS announce it, Chromium sends its WebSocket through a stream."""
    if browser.program() is None:
        pytest.skip("no Chromium is installed")
    h2 = "h2" in protocols
    kiln = make(EnableHttp2=h2, Logging=True, AccessLog="access.log")
    kiln.www.joinpath("page.html").write_text("<p>page</p>")
    with browser.Browser(tmp_path, "--ignore-certificate-errors") as page:
        page.open(f"https://localhost:{kiln.tls_port}/page.html")
        for form in FORMS:
            got = page.run(
                f"""new Promise((done, fail) => {{
                    const ws = new WebSocket("wss://" + location.host + "/{form}");
                    const got = [];
                    ws.binaryType = "arraybuffer";
                    ws.onopen = () => {{ ws.send("Grüße"); ws.send(new Uint8Array(70000)); ws.send("x".repeat(1000000)); }};
                    ws.onmessage = (e) => {{
                        got.push(typeof e.data === "string" ? e.data.length : e.data.byteLength);
                        if (got.length === 3) ws.close(3000, "bye");
                    }};
                    ws.onclose = (e) => done([got, e.code, e.wasClean, ws.extensions.split(";")[0]]);
                }})"""
            )
            assert got == [[5, 70000, 1000000], 3000, True, "permessage-deflate"]
    log = kiln.base / "access.log"
    line = r'"CONNECT /blocking HTTP/2" 200' if h2 else r'"GET /blocking HTTP/1.1" 101'
    wait_for(lambda: log.exists() and re.search(line, log.read_text()), "how it came")
