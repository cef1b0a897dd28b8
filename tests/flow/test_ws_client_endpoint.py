"""kiln_ws_connect inside endpoints: it suspends the coroutine and never the loop."""

import asyncio
import shutil
import socket
import ssl
import threading
from urllib.parse import quote

import pytest

from kiln_server import ROOT, wait_for
from websocket import RawSocket
from ws_peers import HttpProxy, PythonServer, RawServer, SocksProxy, agreed, asked_with, echo


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


EVERY_OPTION = """#include <kiln.h>
#include <stdlib.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    char error[300] = "";
    const char *name = kiln_query_get(ctx, "protocol"), *header = kiln_query_get(ctx, "header");
    const char *protocols[] = {name, NULL}, *headers[] = {header, NULL};
    const char *reconnect = kiln_query_get(ctx, "reconnect"), *timeout = kiln_query_get(ctx, "timeout");
    kiln_ws_options options = {0};
    kiln_ws_message m;
    (void)path;
    options.protocols = protocols;
    options.headers = headers;
    options.origin = kiln_query_get(ctx, "origin");
    options.proxy = kiln_query_get(ctx, "proxy");
    options.ca_file = kiln_query_get(ctx, "ca");
    options.cert_file = kiln_query_get(ctx, "cert");
    options.key_file = kiln_query_get(ctx, "key");
    options.insecure = kiln_query_get(ctx, "insecure") != NULL;
    options.deflate = KILN_WS_DEFLATE;
    options.deflate_min = 1;
    options.connect_timeout = timeout ? atoi(timeout) : 0;
    options.reconnect = reconnect ? atoi(reconnect) : 0;
    options.reconnect_min = 10;
    options.error = error;
    options.error_size = sizeof error;
    kiln_ws *ws = kiln_ws_connect(kiln_query_get(ctx, "url"), &options);
    if (ws == NULL) {
        return kiln_printf(ctx, "error: %s", error);
    }
    kiln_printf(ctx, "%s:", kiln_ws_protocol(ws) ? kiln_ws_protocol(ws) : "-");
    while (kiln_ws_recv(ws, &m) > 0) {
        kiln_printf(ctx, " %.*s", (int)m.length, m.data);
    }
    kiln_printf(ctx, " %d", kiln_ws_close_code(ws));
    kiln_ws_free(ws);
    return 0;
}
"""


@pytest.fixture
def options(kiln):
    (kiln.www / "o._c").write_text(EVERY_OPTION)
    wait_for(lambda: kiln.get("/o?url=none").text.startswith("error"), "the endpoint")
    return lambda **more: kiln.get("/o?" + "&".join(f"{name}={quote(str(value))}" for name, value in more.items())).text


def test_what_is_sent_with_the_handshake(options):
    seen = {}

    async def look(ws):
        seen.update(asked_with(ws))
        await ws.send("compressed" if agreed(ws) else "as it is")
        await ws.close(1000)

    with PythonServer(look, subprotocols=["v9", "v1"]) as peer:
        assert options(url=f"ws://127.0.0.1:{peer.port}/", protocol="v1", header="X-One: 1", origin="http://page") == "v1: compressed 1000"
    assert seen["x-one"] == "1" and seen["origin"] == "http://page"


def test_who_is_at_the_other_end(options, ca, tmp_path):
    chain, key = ca.pair("localhost")
    (tmp_path / "server.pem").write_text(chain + key)
    chain, key = ca.pair("person", client=True)
    (tmp_path / "me.pem").write_text(chain)
    (tmp_path / "me.key").write_text(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    context.load_verify_locations(ca.cert)

    async def greet(ws):
        subject = (ws.transport.get_extra_info("peercert") or {}).get("subject")
        await ws.send(subject[0][0][1] if subject else "nobody")
        await ws.close(1000)

    context.verify_mode = ssl.CERT_OPTIONAL
    with PythonServer(greet, context) as peer, SocksProxy("me", "secret") as socks:
        url = f"wss://localhost:{peer.port}/"
        assert "certificate is not accepted" in options(url=url)
        assert options(url=url, insecure=1) == "-: nobody 1000"
        assert options(url=url, ca=ca.cert) == "-: nobody 1000"
        assert options(url=url, ca=ca.cert, cert=tmp_path / "me.pem", key=tmp_path / "me.key") == "-: person 1000"
        assert "certificate is not accepted" in options(url=url.replace("localhost", "127.0.0.1"), ca=ca.cert)
        assert options(url=url, ca=ca.cert, proxy=f"socks5://me:secret@127.0.0.1:{socks.port}") == "-: nobody 1000"
        assert "user and" in options(url=url, ca=ca.cert, proxy=f"socks5://me:wrong@127.0.0.1:{socks.port}")
        assert socks.asked == [f"localhost:{peer.port}"], "the name is looked up there"


def test_reconnection_and_the_time_for_connecting(options):
    lives = []

    async def die_twice(ws):
        lives.append(1)
        await ws.send(f"life {len(lives)}")
        if len(lives) < 3:
            await asyncio.sleep(0.05)
            ws.transport.abort()
        else:
            await ws.close(1000)

    with PythonServer(die_twice) as peer:
        url = f"ws://127.0.0.1:{peer.port}/"
        assert options(url=url, reconnect=5) == "-: life 1 life 2 life 3 1000"
        lives.clear()
        assert options(url=url) == "-: life 1 1006"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "the time for connecting is over" in options(url=f"ws://127.0.0.1:{silent.getsockname()[1]}/", timeout=200)


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
