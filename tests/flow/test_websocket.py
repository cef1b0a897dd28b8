"""WebSockets: endpoints in both forms, with a client of our own that can send anything, and with python3-websockets,
curl, node's ws and a headless Chromium."""

import asyncio
import os
import shutil
import socket
import subprocess
import threading
import zlib

import pytest
import websockets

import browser
from kiln_server import ROOT, exchange, read_all, wait_for
from websocket import RawSocket, cases, frame, handshake

PLUGINS = ROOT / "tests/plugins"
FORMS = ["blocking", "callbacks"]


@pytest.fixture
def kiln(server, files):
    return make(server)


def make(server, **config):
    one = server(config={"DebugPages": True, **config})
    shutil.copy(PLUGINS / "socket._c", one.www / "blocking._c")
    shutil.copy(PLUGINS / "socket_callbacks._c", one.www / "callbacks._c")
    return one.start()


def ws_url(kiln, path: str) -> str:
    return kiln.url(path).replace("http:", "ws:")


# ---- the protocol ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_case_of_the_suite_over_the_wire(kiln, form):
    """tests/unit/ws/cases.def again, with sockets, the loop and an endpoint in between."""
    for name, frames, answers, failure in cases():
        with RawSocket(kiln, f"/{form}") as ws:
            if not failure and (not answers or answers[-1][0] != 0x88):
                frames.append(frame(0x88, b"\x03\xe8"))
                answers.append((0x88, b"\x03\xe8"))
            ws.send(b"".join(frames))
            got = []
            while (one := ws.read()) is not None:
                got.append(one)
            if failure:
                assert got and got[-1][0] == 0x88 and got.pop()[1][:2] == failure.to_bytes(2, "big"), name
            # Pings are answered while the endpoint still works on a message.
            for kind in (0x8A, 0x81, 0x82, 0x88):
                assert [f for f in got if f[0] == kind] == [f for f in answers if f[0] == kind], name
            assert len(got) == len(answers), name


@pytest.mark.parametrize("form", FORMS)
def test_bytes_one_by_one(kiln, form):
    with RawSocket(kiln, f"/{form}") as ws:
        ws.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(0x01, "κόσ".encode()) + frame(0x89, b"ping") + frame(0x80, "με".encode()):
            ws.send(bytes([byte]))
        assert ws.read() == (0x8A, b"ping")
        assert ws.read_text() == "κόσμε"
        ws.close()


@pytest.mark.parametrize("form", FORMS)
def test_frames_in_one_piece_with_the_handshake(kiln, form):
    messages = b"".join(frame(0x81, str(i).encode()) for i in range(3000))
    with RawSocket(kiln, f"/{form}", first=messages + frame(0x88, b"\x03\xe8")) as ws:
        for i in range(3000):
            assert ws.read_text() == str(i)
        assert ws.read_close() == (1000, "")
        assert ws.read() is None


@pytest.mark.parametrize("form", FORMS)
def test_65536_fragments_and_large_messages(server, form):
    kiln = make(server, WebSocketMaxMessage="64M", WebSocketEndpointTimeout=0)
    with RawSocket(kiln, f"/{form}") as ws:
        ws.send(b"".join(frame((0x02 if i == 0 else 0) | (0x80 if i == 65535 else 0), b"%c" % (i & 127)) for i in range(65536)))
        assert ws.read() == (0x82, bytes(i & 127 for i in range(65536)))
        big = os.urandom(1 << 20) * 64
        sender = threading.Thread(target=ws.send, args=(frame(0x82, big),))
        sender.start()
        first, got = ws.read()
        sender.join()
        assert first == 0x82 and got == big
        ws.send(frame(0x82, b"")[:1] + b"\xff" + (64 * 1048576 + 1).to_bytes(8, "big") + bytes(4))
        assert ws.read_close()[0] == 1009, "known before a byte of it has come"


@pytest.mark.parametrize("form", FORMS)
def test_long_messages_keep_their_place_between_short_ones(server, form):
    """Long ones are received and sent without the buffers that short ones go through, as far as the kernel takes them."""
    kiln = make(server, WebSocketSendQueue="16M")
    with RawSocket(kiln, f"/{form}") as ws:
        bodies = [os.urandom(n) for n in (5, 40000, 1000000, 7, 70000, 32768, 1, 900000, 300)]
        text = "z\u00fcgig\u20ac" * 50000
        frames = [frame(0x82, body) for body in bodies] + [frame(0x01, text.encode()[:200001]), frame(0x89, b"?"), frame(0x80, text.encode()[200001:])]
        sender = threading.Thread(target=ws.send, args=(b"".join(frames),), daemon=True)
        sender.start()
        sender.join(0.3)  # or until what comes back has filled the sockets: of a long one the rest waits
        got = [ws.read() for _ in range(len(bodies) + 2)]
        got.remove((0x8A, b"?"))  # which need not wait for its turn
        assert got == [(0x82, body) for body in bodies] + [(0x81, text.encode())]
        sender.join()
        ws.close()


def test_compressed_messages_and_bombs(server):
    kiln = make(server, WebSocketMaxMessage="1M", WebSocketCompressMin=10)
    for form in FORMS:
        with RawSocket(kiln, f"/{form}", ["Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"]) as ws:
            assert ws.headers["sec-websocket-extensions"].startswith("permessage-deflate")
            deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
            text = b"all work and no play " * 1000
            data = (deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH))[:-4]
            ws.send(frame(0x41, data[:10]) + frame(0x89) + frame(0x80, data[10:]))
            assert ws.read() == (0x8A, b"")
            first, payload = ws.read()
            assert first == 0xC1 and zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff") == text
            bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
            bomb = (bomb.compress(bytes(1 << 28)) + bomb.flush(zlib.Z_SYNC_FLUSH))[:-4]
            ws.send(frame(0xC2, bomb))
            assert ws.read_close()[0] == 1009
            assert ws.read() is None
    assert peak_kb(kiln) < 200000


def peak_kb(kiln) -> int:
    with open(f"/proc/{kiln.worker_pid()}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


# ---- independent clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", ["deflate", None])
def test_python_websockets(kiln, form, compression):
    async def talk():
        async with websockets.connect(ws_url(kiln, f"/{form}"), max_size=None, compression=compression) as ws:
            for message in ["", "Hello", "ä" * 70000, b"", b"\x00\xff" * 100000]:
                await ws.send(message)
                assert await ws.recv() == message
            await ws.send(["frag", "ment", "s"])
            assert await ws.recv() == "fragments"
            await (await ws.ping(b"data"))
            for i in range(500):
                await ws.send(f"{i} " * 300)
            for i in range(500):
                assert await ws.recv() == f"{i} " * 300
        assert ws.close_code == 1000

    asyncio.run(talk())


def test_node_ws(kiln):
    node = shutil.which("node")
    if node is None or not os.path.isdir("/usr/share/nodejs/ws"):
        pytest.skip("node-ws is not installed")
    script = """
        const WebSocket = require("/usr/share/nodejs/ws");
        const ws = new WebSocket(process.argv[1], {perMessageDeflate: {threshold: 0}});
        const big = "node ".repeat(50000);
        let got = 0;
        ws.on("open", () => { ws.send("one"); ws.send(Buffer.alloc(100000, 7)); ws.send(big); ws.ping("p"); });
        ws.on("pong", (data) => { got += data.toString() === "p" ? 1 : 100; });
        ws.on("message", (data, binary) => {
            got += data.length;
            if (data.length === big.length) ws.close(3001, "enough");
        });
        ws.on("close", (code, reason) => console.log(got, code));
    """
    for form in FORMS:
        run = subprocess.run([node, "-e", script, ws_url(kiln, f"/{form}")], capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        words = run.stdout.split()
        assert words == ["350004", "3001"], run.stdout + run.stderr


def test_curl_sees_an_upgrade(kiln):
    run = subprocess.run(
        ["curl", "-si", "--http1.1", "-m", "60", "-H", "Upgrade: websocket", "-H", "Connection: Upgrade", "-H", "Sec-WebSocket-Version: 13",
         "-H", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", kiln.url("/blocking/empty")],
        capture_output=True,
        timeout=120,
    )
    assert run.stdout.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in run.stdout
    assert run.stdout.endswith(b"\r\n\r\n\x88\x02\x03\xe8"), "an endpoint that says nothing closes with 1000"


def test_chromium(kiln, tmp_path):
    if browser.program() is None:
        pytest.skip("no Chromium is installed")
    kiln.www.joinpath("page.html").write_text("<p>page</p>")
    with browser.Browser(tmp_path) as page:
        page.open(kiln.url("/page.html"))
        for form in FORMS:
            got = page.run(
                f"""new Promise((done, fail) => {{
                    const ws = new WebSocket("{ws_url(kiln, '/' + form)}");
                    const got = [];
                    ws.binaryType = "arraybuffer";
                    ws.onopen = () => {{ ws.send("Grüße"); ws.send(new Uint8Array(70000)); ws.send("x".repeat(100000)); }};
                    ws.onmessage = (e) => {{
                        got.push(typeof e.data === "string" ? e.data.length : e.data.byteLength);
                        if (got.length === 3) ws.close(3000, "bye");
                    }};
                    ws.onclose = (e) => done([got, e.code, e.wasClean, ws.extensions.split(";")[0]]);
                }})"""
            )
            assert got == [[5, 70000, 100000], 3000, True, "permessage-deflate"]


# ---- the handshake ---------------------------------------------------------------------------------------------


def status_of(kiln, request: bytes) -> int:
    with kiln.connect() as s:
        s.sendall(request)
        s.shutdown(socket.SHUT_WR)
        return int(read_all(s).split()[1])


def test_what_is_no_handshake(kiln):
    good = handshake("/blocking/empty")
    assert status_of(kiln, good) == 101
    assert status_of(kiln, good.replace(b"Version: 13", b"Version: 8")) == 426
    assert status_of(kiln, good.replace(b"ZQ==", b"")) == 400
    assert status_of(kiln, good.replace(b"Connection: Upgrade", b"Connection: close")) == 400
    assert status_of(kiln, good.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")) == 200, "an ordinary request"
    assert status_of(kiln, good.replace(b"Upgrade: websocket", b"Upgrade: h2c")) == 200
    assert status_of(kiln, good.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\nx")) == 400


def test_an_endpoint_of_sockets_only_needs_no_kiln_run(kiln):
    source = "#include <kiln.h>\nvoid kiln_socket(kiln_ws *ws, const char *path)\n{\n    kiln_ws_send_text(ws, path);\n}\n"
    kiln.www.joinpath("only._c").write_text(source)
    wait_for(lambda: kiln.get("/only").status == 426, "the endpoint")
    assert kiln.get("/only").headers["Upgrade"] == "websocket"
    with RawSocket(kiln, "/only") as ws:
        assert ws.read_text() == "/only"
        assert ws.read_close() == (1000, "")


def test_pages_of_other_hosts_are_refused(server):
    kiln = make(server, WebSocketOrigins=["https://friend.org", "https://*.example.net"])
    for origin, status in [
        (f"http://127.0.0.1:{kiln.port}", 101),
        ("https://friend.org", 101),
        ("https://a.example.net", 101),
        ("https://evil.org", 403),
        ("null", 403),
    ]:
        with RawSocket(kiln, "/blocking", [f"Origin: {origin}"]) as ws:
            assert ws.status == status, origin


def test_request_cookies_and_session_at_the_handshake(kiln):
    headers = ["Cookie: name=Ada", "Sec-WebSocket-Protocol: v1, v2"]
    with RawSocket(kiln, "/blocking/handshake?q=1", headers) as ws:
        assert ws.headers["sec-websocket-protocol"] == "v2" and ws.headers["x-hello"] == "there"
        session = ws.headers["set-cookie"].split(";")[0]
        assert ws.read_text() == "1 Ada q=1 -7", "and accepting twice is too late"
        assert ws.read_text() == "1"
        assert ws.read_close()[0] == 1000
    with RawSocket(kiln, "/blocking/handshake?q=2", [f"Cookie: {session}"]) as ws:
        assert "sec-websocket-protocol" not in ws.headers
        assert ws.read_text() == "2 - q=2 0"


def test_an_endpoint_may_refuse(kiln):
    client = kiln.client()
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answer = exchange(client, "GET", "/blocking/refuse", headers=upgrade)
    assert answer.status == 403 and "not you" in answer.text and answer.headers["X-Why"] == "because"
    assert exchange(client, "GET", "/blocking").status == 200, "on the same connection"
    client.close()


def test_no_more_than_are_allowed(server):
    kiln = make(server, MaxConcurrentUpgradedConnections=3)
    sockets = [RawSocket(kiln, f"/{form}") for form in ["blocking", "callbacks", "callbacks"]]
    assert [s.status for s in sockets] == [101] * 3
    with RawSocket(kiln, "/blocking") as refused:
        assert refused.status == 503 and "retry-after" in refused.headers
    sockets[0].close()

    def one_more():
        with RawSocket(kiln, "/blocking") as ws:
            return ws.status == 101

    wait_for(one_more, "room for one more")
    for s in sockets[1:]:
        s.close()


# ---- the blocking form --------------------------------------------------------------------------------------------


def test_close_codes_reach_the_endpoint(kiln):
    with RawSocket(kiln, "/blocking") as ws:
        ws.text("x")
        ws.read()
        ws.close(3456, "because")
    wait_for(lambda: kiln.get("/blocking").text == "0 3456 because|", "the code")
    with RawSocket(kiln, "/blocking") as ws:
        ws.send(frame(0x81, b"last") + frame(0x88))
        assert ws.read_text() == "last", "what came before the close is received"
        assert ws.read() == (0x88, b"")
    wait_for(lambda: kiln.get("/blocking").text == "0 1005 |", "no code")
    with RawSocket(kiln, "/blocking") as ws:
        ws.text("x")
        ws.read()
    wait_for(lambda: kiln.get("/blocking").text == "0 1006 |", "a broken connection")


def test_a_stream_of_bytes(kiln):
    data = os.urandom(300000)
    with RawSocket(kiln, "/blocking/stream") as ws:
        def send():
            at = 0
            for size in [1, 0, 7, 999, 1000, 1001, 65536, 200000]:
                ws.send(frame(0x82, data[at : at + size]))
                at += size
            ws.send(frame(0x02, data[at : at + 10]) + frame(0x80, data[at + 10 :]))

        sender = threading.Thread(target=send)
        sender.start()
        got = b""
        while len(got) < len(data):
            first, payload = ws.read()
            assert first == 0x82
            got += payload
        sender.join()
        assert got == data
        ws.close()


def test_a_message_sent_in_parts(kiln):
    with RawSocket(kiln, "/blocking/parts") as ws:
        assert [ws.read() for _ in range(4)] == [(0x01, b"one, "), (0x89, b"between"), (0x00, b"two, "), (0x80, b"three")]
        assert ws.read_text() == "-7 -5", "another message meanwhile is late, text that is not UTF-8 invalid"
        ws.send(frame(0x8A, b"between"))
        assert ws.read_close() == (4001, "done")
        ws.send(frame(0x88, b"\x0f\xa1"))
        assert ws.read() is None
    wait_for(lambda: kiln.get("/blocking").text == "-1|", "a send after the close")


def test_times(kiln):
    with RawSocket(kiln, "/blocking/times") as ws:
        assert ws.read_text() == "-2 -2 -2"
        ws.text("go on")
        assert ws.read_text() == "go on"
        ws.send(frame(0x89, b"are you there"))
        assert ws.read() == (0x8A, b"are you there"), "while the endpoint sleeps"
        ws.close()
    wait_for(lambda: kiln.get("/blocking").text == "slept -1, then 0|", "the end of its sleep")


def test_from_the_pool(kiln):
    with RawSocket(kiln, "/blocking/offload") as ws:
        ws.text("work")
        assert ws.read_text() == "from the pool: work"
        assert ws.read_close()[0] == 1000


def test_last_words_arrive_although_the_client_is_still_talking(kiln):
    """No reset: what we have sent and the server does not read must not destroy what it has sent."""
    with RawSocket(kiln, "/blocking/last-words", first=frame(0x82, bytes(200000))) as ws:
        assert ws.read() == (0x81, b"x" * 999999)
        assert ws.read_close()[0] == 1000
        ws.send(frame(0x82, bytes(100000)) + frame(0x88, b"\x03\xe8"))
        assert ws.read() is None


def test_a_client_that_never_reads_bounds_what_is_kept_for_it(server):
    kiln = make(server, WebSocketEndpointTimeout=2, LingerTimeout=1)
    before = peak_kb(kiln)
    with RawSocket(kiln, "/blocking/flood"):
        wait_for(lambda: kiln.get("/blocking").text.startswith("-1 after"), "the endpoint's end")
    with RawSocket(kiln, "/blocking") as ws:
        ws.socket.settimeout(1)
        pings = frame(0x89, bytes(125)) * 1000
        try:
            for _ in range(300):  # 40 MB, if they were answered and kept
                ws.send(pings)
        except TimeoutError:
            pass
    assert peak_kb(kiln) - before < 20000


def test_a_socket_that_sends_without_having_to_wait_lets_others_have_their_turn(server):
    """The client does not read: one megabyte after the other is sent until their compressed bytes are as many as may wait.
    Another connection of the same loop is served in between, and not only at the end."""
    kiln = make(server, Threads=1)
    client = kiln.client()
    with RawSocket(kiln, "/blocking/zeros", ["Sec-WebSocket-Extensions: permessage-deflate"]):
        seen = set()
        wait_for(lambda: len(seen.add(exchange(client, "GET", "/blocking").text) or seen) > 5, "several turns of others")
    client.close()


# ---- callbacks --------------------------------------------------------------------------------------------------------


def test_callbacks_of_a_socket(kiln):
    with RawSocket(kiln, "/callbacks") as ws:
        ws.text("hi")
        assert ws.read_text() == "hi"
        ws.text("wait")
        assert ws.read_text() == "-7 1", "nothing waits in a callback, and there is no context"
        ws.close(3000, "bye")
    wait_for(lambda: kiln.get("/callbacks").text == "opened 1, messages 2, closed 1, full 0, last 3000 bye", "close")
    with RawSocket(kiln, "/callbacks") as ws:
        ws.text("close")
        assert ws.read_close() == (4002, "as you wish")
        ws.send(frame(0x88, b"\x0f\xa2"))
        assert ws.read() is None
    wait_for(lambda: kiln.get("/callbacks").text.endswith("closed 2, full 0, last 4002 "), "close")


def test_a_full_queue_and_its_drain(server):
    kiln = make(server, WebSocketSendQueue="256k")
    with RawSocket(kiln, "/callbacks") as ws:
        ws.text("fill")
        blocks = 0
        while (got := ws.read())[0] == 0x82:
            blocks += 1
        assert got == (0x81, b"drained")
        assert blocks >= 12
        assert "full 3" in kiln.get("/callbacks").text
        ws.close()


@pytest.mark.parametrize("order", ["zeros", "publish"])
def test_a_callback_that_sends_without_end_is_stopped(server, order):
    """Though the watchdog never meets it in its own code: then the next call leaves."""
    kiln = make(server, RequestTimeout=1, WebSocketSendQueue="10G")
    worker = kiln.worker_pid()
    deflate = ["Sec-WebSocket-Extensions: permessage-deflate"]
    with RawSocket(kiln, "/callbacks", deflate) as ws, RawSocket(kiln, "/callbacks") as other:
        ws.text(order)
        while (got := ws.read())[0] != 0x88:
            assert got[0] == 0xC2
        assert got[1] == b"\x03\xf3"
        kiln.wait_log("callbacks._c was stopped in a callback of a WebSocket")
        assert kiln.worker_pids() == [worker]
        other.text("still here")
        assert other.read_text() == "still here"
        other.close()


@pytest.mark.parametrize("path, order", [("/callbacks", "crash"), ("/blocking/crash", None)])
def test_a_crash_ends_one_socket(kiln, path, order):
    worker = kiln.worker_pid()
    with RawSocket(kiln, path) as ws, RawSocket(kiln, "/blocking") as other:
        if order:
            ws.text(order)
        else:
            assert ws.read_text() == "now"
        assert ws.read_close()[0] == 1011
        other.text("still here")
        assert other.read_text() == "still here"
        other.close()
    kiln.wait_log(r"segmentation fault")
    wait_for(lambda: kiln.worker_pid() != worker, "a new worker")
    kiln.stop()


def test_a_crash_before_the_handshake_is_answered(kiln):
    with RawSocket(kiln, "/blocking/crash-early") as ws:
        assert ws.status == 500
    kiln.wait_log(r"segmentation fault")


# ---- time, changes, ends -------------------------------------------------------------------------------------------------


def test_silent_clients_are_pinged_and_at_last_closed(server):
    kiln = make(server, WebSocketEndpointTimeout=3, LingerTimeout=1)
    for form in FORMS:
        with RawSocket(kiln, f"/{form}") as ws:
            ws.text("x")
            assert ws.read_text() == "x"
            for _ in range(3):  # as long as it answers
                assert ws.read_frame() == (0x89, b"")
                ws.send(frame(0x8A))
            assert ws.read_frame() == (0x89, b"")
            assert ws.read_frame() == (0x88, b"\x03\xe9no sign of life")
            assert ws.read() is None


def test_the_end_of_the_server_closes_with_1001(server):
    kiln = make(server, ShutdownTimeout=3)
    with RawSocket(kiln, "/blocking") as a, RawSocket(kiln, "/callbacks") as b:
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


def test_a_replaced_worker_closes_with_1012(server):
    kiln = make(server, ShutdownTimeout=3)
    worker = kiln.worker_pid()
    with RawSocket(kiln, "/callbacks") as old:
        old.text("x")
        old.read()
        with RawSocket(kiln, "/blocking/crash-early") as crash:
            assert crash.status == 500
        wait_for(lambda: kiln.worker_pid() != worker, "a new worker")
        with RawSocket(kiln, "/blocking") as new:
            new.text("new")
            assert new.read_text() == "new"
            assert old.read_close() == (1012, "the server restarts")
            new.close()
