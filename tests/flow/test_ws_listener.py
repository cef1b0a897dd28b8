"""libkilnws in the server's role: what kiln_ws_listen_options say, with a thread for each connection and with the ready loop."""

import asyncio
import socket
import ssl

import pytest
import websockets

from kiln_server import PATIENCE, read_all, wait_for
from websocket import RawSocket, handshake
from ws_peers import Running, build_program

PROGRAM = r"""
#include <kiln_ws.h>
#include <stdio.h>
#include <string.h>

static void say_who(kiln_ws *ws)
{
    const char *protocol = kiln_ws_protocol(ws);
    kiln_ws_printf(ws, "%s", protocol != NULL ? protocol : "-");
}

static void serve(kiln_ws *ws, void *user)
{
    kiln_ws_message m;
    (void)user;
    say_who(ws);
    while (kiln_ws_recv(ws, &m) > 0) {
        kiln_ws_send(ws, m.type, m.data, m.length);
    }
}

static void on_open(kiln_ws *ws, void *user)
{
    (void)user;
    say_who(ws);
}

static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    (void)user;
    kiln_ws_send(ws, m->type, m->data, m->length);
}

static const kiln_ws_handler handler = {.open = on_open, .message = on_message};

/* server.pem client-ca.pem handshake_timeout: "-" and 0 for none */
int main(int argc, char **argv)
{
    if (argc < 5) {
        return 2;
    }
    int timeout = 0;
    sscanf(argv[4], "%d", &timeout);
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){
        .address = "127.0.0.1",
        .cert_file = argv[2][0] != '-' ? argv[2] : NULL,
        .client_ca_file = argv[3][0] != '-' ? argv[3] : NULL,
        .handshake_timeout = timeout,
        .protocols = (const char *const[]){"v2", "v1", NULL},
        .origins = (const char *const[]){"https://friend.org", "https://*.example.net", NULL},
        .page = "<p>a page",
        .connections = 3,
    });
    if (listener == NULL) {
        return 1;
    }
    printf("port %d\n", kiln_ws_listener_port(listener));
    fflush(stdout);
    if (strcmp(argv[1], "threads") == 0) {
        return kiln_ws_listener_serve(listener, serve, NULL);
    }
    kiln_ws_loop *loop = kiln_ws_loop_create();
    return loop == NULL || kiln_ws_loop_listen(loop, listener, &handler, NULL) != KILN_OK || kiln_ws_loop_run(loop) != KILN_OK;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    where = tmp_path_factory.mktemp("listener")
    (where / "listener.c").write_text(PROGRAM)
    return build_program(where / "listener.c", where / "listener")


@pytest.fixture(params=["threads", "loop"])
def listener(request, program):
    """listener(certificate, authority of clients, milliseconds for the handshake)."""
    made = []

    def make(cert="-", client_ca="-", timeout=0):
        made.append(Running(program, request.param, cert, client_ca, timeout))
        return made[-1].__enter__()

    yield make
    for one in made:
        one.__exit__(None, None, None)


def test_subprotocols_by_the_servers_liking(listener):
    server = listener()
    for offered, chosen in (("v1, v2", "v2"), ("v1", "v1"), ("v9, v1", "v1"), ("v9", None)):
        with RawSocket(server, "/", [f"Sec-WebSocket-Protocol: {offered}"]) as ws:
            assert ws.headers.get("sec-websocket-protocol") == chosen
            assert ws.read_text() == (chosen or "-")
            ws.close()


def test_pages_of_other_hosts(listener):
    server = listener()
    for origin, status in (
        (f"http://127.0.0.1:{server.port}", 101),
        ("https://friend.org", 101),
        ("https://a.example.net", 101),
        ("https://example.net", 403),
        ("http://friend.org", 403),
        ("https://evil.org", 403),
        ("null", 403),
    ):
        with RawSocket(server, "/", [f"Origin: {origin}"]) as ws:
            assert ws.status == status, origin


def answer(server, request):
    with server.connect() as s:
        s.sendall(request)
        s.shutdown(socket.SHUT_WR)
        return read_all(s)


def test_what_is_no_handshake_is_answered_as_http_has_it(listener):
    server = listener()
    page = answer(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert page.startswith(b"HTTP/1.1 200 ") and page.endswith(b"\r\n\r\n<p>a page")
    good = handshake("/")
    wrong = answer(server, good.replace(b"Version: 13", b"Version: 8"))
    assert wrong.startswith(b"HTTP/1.1 426 ") and b"\r\nSec-WebSocket-Version: 13\r\n" in wrong
    assert answer(server, good.replace(b"ZQ==", b"")).startswith(b"HTTP/1.1 400 ")
    assert answer(server, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_more_than_are_allowed_wait(listener):
    server = listener()
    sockets = [RawSocket(server, "/") for _ in range(3)]
    assert {ws.read_text() for ws in sockets} == {"-"}
    with server.connect() as fourth:
        fourth.sendall(handshake("/"))
        sockets[1].text("the others are served")
        assert sockets[1].read_text() == "the others are served"
        fourth.settimeout(0.3)
        with pytest.raises(TimeoutError):
            fourth.recv(1)
        sockets[0].close()
        fourth.settimeout(PATIENCE)
        assert fourth.recv(12) == b"HTTP/1.1 101"
    for ws in sockets[1:]:
        ws.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_handshake_that_takes_too_long_is_ended(listener, ca, tmp_path, tls):
    (tmp_path / "server.pem").write_text("".join(ca.pair("localhost")))
    server = listener(tmp_path / "server.pem" if tls else "-", timeout=300)
    for first in (b"", b"\x16\x03\x01" if tls else b"GET / HTTP/1.1\r\n"):
        with server.connect() as s:
            s.settimeout(8)  # usually it has 10 seconds
            s.sendall(first)
            assert s.recv(1000) == b"", first


def test_clients_must_show_a_certificate(listener, ca, tmp_path):
    (tmp_path / "server.pem").write_text("".join(ca.pair("localhost")))
    (tmp_path / "me.pem").write_text("".join(ca.pair("person", client=True)))
    server = listener(tmp_path / "server.pem", ca.cert)

    async def talk(context):
        async with websockets.connect(f"wss://localhost:{server.port}/", ssl=context) as ws:
            return await ws.recv()

    mine = ssl.create_default_context(cafile=ca.cert)
    with pytest.raises((OSError, websockets.InvalidMessage, websockets.ConnectionClosed)):
        asyncio.run(talk(mine))
    mine.load_cert_chain(tmp_path / "me.pem")
    assert asyncio.run(talk(mine)) == "-"
