"""kiln_ws_connect inside endpoints: it suspends the coroutine and never the loop."""

import asyncio
import shutil
import ssl
import threading
from urllib.parse import quote

import pytest

from kiln_server import ROOT, wait_for
from websocket import RawSocket
from ws_peers import HttpProxy, PythonServer, RawServer, SocksProxy, echo


@pytest.fixture
def kiln(server, files):
    one = server(config={"Threads": 1, "WebSocketEndpointTimeout": 0})
    shutil.copy(ROOT / "tests/plugins/ws_client._c", one.www / "c._c")
    (one.www / "plain.txt").write_text("plain")
    return one.start()


def ask(kiln, url, text="hi", **more):
    query = "".join(f"&{name}={quote(str(value))}" for name, value in more.items())
    return kiln.get(f"/c?url={quote(url)}&text={quote(text)}{query}")


def test_an_endpoint_talks_to_another_server(kiln):
    with PythonServer(echo) as peer:
        for host in ("127.0.0.1", "localhost"):
            answer = ask(kiln, f"ws://{host}:{peer.port}/", "wörd")
            assert (answer.status, answer.text) == (200, "got wörd\nclosed 1000\n")
        assert ask(kiln, f"ws://localhost:{peer.port}/", "x", pool=1).text == "got x\nclosed 1000\n"


def test_tls_and_proxies(kiln, ca, tmp_path):
    chain, key = ca.pair("far.example")
    (tmp_path / "server.pem").write_text(chain + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    with PythonServer(echo, context) as peer, HttpProxy("me", "secret") as http, SocksProxy() as socks:
        url = f"wss://far.example:{peer.port}/"
        for proxy in (f"http://me:secret@127.0.0.1:{http.port}", f"socks5://127.0.0.1:{socks.port}"):
            assert ask(kiln, url, ca=ca.cert, proxy=proxy).text == "got hi\nclosed 1000\n"
        answer = ask(kiln, url, proxy=f"socks5://127.0.0.1:{socks.port}")
        assert answer.status == 502 and "certificate is not accepted" in answer.text


def test_failures_are_told(kiln):
    assert "Connection refused" in ask(kiln, "ws://127.0.0.1:1/").text
    assert "no.such.invalid" in ask(kiln, "ws://no.such.invalid/").text
    assert "scheme" in ask(kiln, "gopher://x/").text


def test_a_peer_that_takes_nothing_is_given_up(kiln):
    done = threading.Event()
    with RawServer(lambda peer: done.wait(60)) as server:
        answer = ask(kiln, f"ws://127.0.0.1:{server.port}/", much=1)
        done.set()
        assert answer.text == "-1 the peer does not answer pings"  # KILN_GONE
    assert kiln.get("/plain.txt").text == "plain"


def test_the_loop_goes_on_while_endpoints_wait(kiln):
    asked = threading.Semaphore(0)
    answer = threading.Event()

    async def when_allowed(ws):
        message = await ws.recv()
        asked.release()
        await asyncio.to_thread(answer.wait)
        await ws.send(message)
        await ws.wait_closed()

    with PythonServer(when_allowed) as peer:
        got = []
        waiting = [threading.Thread(target=lambda i=i: got.append(ask(kiln, f"ws://localhost:{peer.port}/", str(i)).text)) for i in range(5)]
        for thread in waiting:
            thread.start()
        for _ in waiting:
            assert asked.acquire(timeout=60), "five endpoints of one thread wait side by side"
        assert kiln.get("/plain.txt").text == "plain"
        answer.set()
        for thread in waiting:
            thread.join(60)
        assert sorted(got) == [f"got {i}\nclosed 1000\n" for i in range(5)]


def test_what_is_not_freed_goes_with_the_request(kiln):
    codes = []

    async def note(ws):
        try:
            async for _ in ws:
                pass
        finally:
            codes.append(ws.close_code)

    with PythonServer(note) as peer:
        for _ in range(3):
            assert ask(kiln, f"ws://127.0.0.1:{peer.port}/", abandon=1).status == 204
        wait_for(lambda: len(codes) == 3, "the connections end")
        assert codes == [1001] * 3


def test_a_bridge_of_two_sockets(kiln):
    with PythonServer(echo) as peer:
        with RawSocket(kiln, f"/c?url={quote(f'ws://127.0.0.1:{peer.port}/')}") as ws:
            for text in ("one", "two", "x" * 100000):
                ws.text(text)
                assert ws.read_text() == text
            ws.close()
    with RawSocket(kiln, f"/c?url={quote(f'ws://127.0.0.1:{peer.port}/')}") as ws:
        assert ws.status == 502
