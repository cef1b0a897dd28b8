"""The public case list for libkilnws: in both roles, over plain TCP and TLS, with its ready loop, with a loop of the
program's own and blocking; every case strict."""

import asyncio
import os
import socket
import ssl
import subprocess

import pytest
import websockets
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory, ServerPerMessageDeflateFactory

from kiln_server import ROOT
from websocket import KEY, RawSocket, cases, frame, large_messages, mask, to_and_fro
from ws_peers import EchoServer, PythonServer, RawServer, Running, Threads, accept_head, agreed, build_program, kiln_ws


def server_context(ca, tmp_path):
    chain, key = ca.pair("localhost", "127.0.0.1")
    (tmp_path / "server.pem").write_text(chain + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    return context


# ---- the client's role ------------------------------------------------------------------------------------

CLIENT = r"""
#include <kiln_ws.h>
int main(int argc, char **argv)
{
    kiln_ws *ws = argc > 1 ? kiln_ws_connect(argv[1], &(kiln_ws_options){.insecure = 1, .deflate = argc > 2}) : NULL;
    kiln_ws_message m;
    while (ws != NULL && kiln_ws_recv(ws, &m) > 0) {
        kiln_ws_send(ws, m.type, m.data, m.length);
    }
    kiln_ws_free(ws);
    return ws == NULL;
}
"""


LOOP_CLIENT = r"""
#include <kiln_ws.h>
static kiln_ws_loop *loop;
static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    (void)user;
    kiln_ws_send(ws, m->type, m->data, m->length);
}
static void on_close(kiln_ws *ws, int code, const char *reason, void *user)
{
    (void)code;
    (void)reason;
    *(int *)user = kiln_ws_connections(ws) == 0;
    kiln_ws_loop_stop(loop);
}
static const kiln_ws_handler handler = {.message = on_message, .close = on_close};
int main(int argc, char **argv)
{
    int failed = 1;
    loop = kiln_ws_loop_create();
    if (argc > 1 && kiln_ws_loop_connect(loop, argv[1], &(kiln_ws_options){.insecure = 1, .deflate = argc > 2}, &handler, &failed)) {
        kiln_ws_loop_run(loop);
    }
    kiln_ws_loop_free(loop);
    return failed;
}
"""
FORMS = ["own loop", "blocking", "ready loop"]


@pytest.fixture(scope="module")
def echo_client(tmp_path_factory):
    """echo_client(form, url, deflate) sends everything back until the server has closed; its exit code."""
    where = tmp_path_factory.mktemp("client")
    programs = {}
    for form, text in (("blocking", CLIENT), ("ready loop", LOOP_CLIENT)):
        source = where / f"{form.replace(' ', '_')}.c"
        source.write_text(text)
        programs[form] = build_program(source, source.with_suffix(""))

    def run(form, url, deflate=False):
        if form == "own loop":
            return kiln_ws("--echo", "--insecure", *(["-d"] if deflate else []), "-w", -1, url)[0]
        return subprocess.run([programs[form], url, *(["deflate"] if deflate else [])], timeout=120).returncode

    return run


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_case_of_the_suite_as_a_client(ca, tmp_path, echo_client, tls, form):
    """tests/unit/ws/cases.def in the client's role: the server sends; `kiln ws --echo`, a blocking program or one with the
    ready loop answers."""
    failures = []
    context = server_context(ca, tmp_path) if tls else None

    def talk(peer):
        try:
            name, frames, answers, failure = current[0]
            unmasked = [turn(one) for one in frames]
            if not failure and (not answers or answers[-1][0] != 0x88):
                unmasked.append(frame(0x88, b"\x03\xe8", masked=False))
                answers = [*answers, (0x88, b"\x03\xe8")]
            peer.connection.sendall(b"".join(unmasked))
            got = []
            while (one := peer.read()) is not None:
                got.append(one)
                if one[0] == 0x88 and tls:
                    end_tls(peer.connection)
                    break
                if one[0] == 0x88:
                    peer.connection.shutdown(socket.SHUT_WR)
            if failure:
                assert got and got[-1][0] == 0x88 and got.pop()[1][:2] == failure.to_bytes(2, "big"), (name, got[-3:])
            assert got == answers, (name, got[:3], answers[:3])
        except AssertionError as error:
            failures.append(error)

    current = [None]
    with RawServer(talk, context) as server:
        url = f"{'wss' if tls else 'ws'}://localhost:{server.port}/"
        for case in cases():
            current[0] = case
            echo_client(form, url)
            assert not failures, failures[0]
        assert not [f for f in server.failures if isinstance(f, ConnectionResetError)], "never a reset"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_large_messages_in_frames_and_chops_as_a_client(ca, tmp_path, echo_client, tls, form):
    failures = []

    def talk(peer):
        try:
            for title, pieces, answer in large_messages(masked=False):
                for piece in pieces:
                    peer.connection.sendall(piece)
                assert peer.read() == answer, title
            peer.connection.sendall(frame(0x88, b"\x03\xe8", masked=False))
            assert peer.read() == (0x88, b"\x03\xe8")
            failures.append(None)
        except AssertionError as error:
            failures.append(str(error)[:200])
        if tls:
            end_tls(peer.connection)

    with RawServer(talk, server_context(ca, tmp_path) if tls else None) as server:
        assert echo_client(form, f"{'wss' if tls else 'ws'}://localhost:{server.port}/") == 0
    assert failures == [None] and not server.failures


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_failure_reaches_a_server_that_goes_on_sending(ca, tmp_path, echo_client, tls, form):
    """Never a reset, which would take the close frame from it."""
    closes = []

    def talk(peer):
        peer.connection.sendall(frame(0x83, b"reserved", masked=False) + bytes(65536))
        closes.append(peer.read())
        for _ in range(512):
            peer.connection.sendall(bytes(65536))
        end_tls(peer.connection) if tls else peer.connection.shutdown(socket.SHUT_WR)
        closes.append(tls or peer.read())

    with RawServer(talk, server_context(ca, tmp_path) if tls else None) as server:
        echo_client(form, f"{'wss' if tls else 'ws'}://localhost:{server.port}/")
    assert closes[0][0] == 0x88 and closes[0][1][:2] == b"\x03\xea" and closes[1:] == [tls or None] and not server.failures


@pytest.mark.parametrize("form", FORMS)
def test_the_end_of_tls_that_comes_with_a_message_is_seen(ca, tmp_path, echo_client, form):
    """A message and TLS's closing alert in one segment, and the connection stays: no descriptor tells of the alert, which
    is inside OpenSSL already."""

    def serve(connection):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        inside = context.wrap_bio(incoming, outgoing, server_side=True)

        def until(call):
            while True:
                try:
                    return call()
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(65536))

        until(inside.do_handshake)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += until(lambda: inside.read(65536))
        inside.write(accept_head(head.decode()))
        connection.sendall(outgoing.read())
        inside.write(frame(0x81, b"once", masked=False))
        until(lambda: inside.read(65536))  # the echo: it waits in its loop now
        inside.write(frame(0x81, b"last", masked=False))
        try:
            inside.unwrap()
        except ssl.SSLWantReadError:
            pass
        connection.sendall(outgoing.read())
        while connection.recv(65536):
            pass
        ended.append(1)

    context = server_context(ca, tmp_path)
    ended = []
    with Threads() as server:
        server.serve = serve
        assert echo_client(form, f"wss://localhost:{server.port}/") in (0, 3), "the connection broke, of which `kiln ws` tells"
    assert ended == [1] and not server.failures


def end_tls(connection):
    """shutdown() of Python's would let the next read see the records themselves."""
    try:
        connection.unwrap()
    except (OSError, ValueError):
        pass


def turn(one: bytes) -> bytes:
    """A frame of cases() with its masking the other way round."""
    first, second = one[0], one[1]
    n = second & 0x7F
    at = 2 + (2 if n == 126 else 8 if n == 127 else 0)
    if second & 0x80:
        return bytes([first, n]) + one[2:at] + mask(one[at + 4 :], one[at : at + 4])
    return bytes([first, n | 0x80]) + one[2:at] + KEY + mask(one[at:], KEY)


# ---- the server's role ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["loop", "loop tls", "blocking", "blocking tls"])
def echo_server(request, ca, tmp_path_factory):
    """Plain or TLS, on one thread with the ready loop or on a thread for each; connect() is a socket to it."""
    where = tmp_path_factory.mktemp("server")
    tls = request.param.endswith("tls")
    chain, key = ca.pair("localhost", "127.0.0.1")
    (where / "c.pem").write_text(chain)
    (where / "k.pem").write_text(key)
    if request.param.startswith("loop"):
        server = EchoServer(*([f"--cert={where / 'c.pem'}", f"--key={where / 'k.pem'}"] if tls else []))
    else:
        program = build_program(ROOT / "examples/ws-echo/server.c", where / "server")
        server = Running(program, 0, *([where / "c.pem", where / "k.pem"] if tls else []))
    context = ssl.create_default_context(cafile=ca.cert) if tls else None
    plain = server.connect
    server.connect = lambda: context.wrap_socket(plain(), server_hostname="localhost") if tls else plain()
    server.context = context
    server.url = f"{'wss' if tls else 'ws'}://localhost:{server.port}/"
    with server:
        yield server


def test_every_case_of_the_suite_as_a_server(echo_server):
    for name, frames, answers, failure in cases():
        with RawSocket(echo_server, "/") as ws:
            if not failure and (not answers or answers[-1][0] != 0x88):
                frames.append(frame(0x88, b"\x03\xe8"))
                answers.append((0x88, b"\x03\xe8"))
            ws.send(b"".join(frames))
            got = []
            while (one := ws.read_frame()) is not None:
                got.append(one)
            if failure:
                assert got and got[-1][0] == 0x88 and got.pop()[1][:2] == failure.to_bytes(2, "big"), name
            assert got == answers, name


def test_large_messages_in_frames_and_chops_of_all_sizes(echo_server):
    with RawSocket(echo_server, "/") as ws:
        for title, pieces, answer in large_messages(masked=True):
            for piece in pieces:
                ws.send(piece)
            assert ws.read() == answer, title
        ws.close()


DEFLATE = [
    {},
    {"server_no_context_takeover": True, "client_no_context_takeover": True},
    {"server_no_context_takeover": True},
    {"client_no_context_takeover": True},
    {"server_max_window_bits": 9, "client_max_window_bits": 9},
    {"server_max_window_bits": 15, "client_max_window_bits": 15, "server_no_context_takeover": True},
]
@pytest.mark.parametrize("parameters", DEFLATE, ids=lambda p: ",".join(p) or "usual")
def test_compressed_messages_as_a_server(echo_server, parameters):
    """Sections 12 and 13, against an independent implementation."""

    async def talk():
        extension = ClientPerMessageDeflateFactory(**{"client_max_window_bits": True, **parameters})
        async with websockets.connect(echo_server.url, ssl=echo_server.context, compression=None, extensions=[extension], max_size=None) as ws:
            assert agreed(ws)
            await to_and_fro(ws)
        assert ws.close_code == 1000

    asyncio.run(talk())


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("parameters", DEFLATE, ids=lambda p: ",".join(p) or "usual")
def test_compressed_messages_as_a_client(ca, tmp_path, echo_client, parameters, tls):
    seen = []

    async def talk(ws):
        assert agreed(ws)
        await to_and_fro(ws)
        seen.append("all")
        await ws.close(1000)

    context = server_context(ca, tmp_path) if tls else None
    with PythonServer(talk, context, compression=None, extensions=[ServerPerMessageDeflateFactory(**parameters)]) as server:
        url = f"{'wss' if tls else 'ws'}://127.0.0.1:{server.port}/"
        for form in FORMS:
            assert echo_client(form, url, deflate=True) == 0, form
    assert len(seen) == len(FORMS)
