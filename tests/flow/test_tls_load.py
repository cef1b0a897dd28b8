"""HTTPS with many, slow and large: nobody waits for somebody else."""

import contextlib
import http.client
import os
import resource
import socket
import ssl

import pytest

from http2_client import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, frame, settings
from https import GET, anyone, connect, fetch
from kiln_server import PATIENCE, build_dir, read_until, wait_for

SANITIZED = any(name in str(build_dir()) for name in ("asan", "tsan"))


# ---- who takes his time -----------------------------------------------------------------------------------


def silent(kiln, count):
    return [socket.create_connection(("127.0.0.1", kiln.tls_port), timeout=PATIENCE) for _ in range(count)]


def test_unfinished_handshakes_are_limited_per_address(https, ca):
    kiln = https(HandshakesPerAddress=5, HandshakeTimeout=600)
    with connect(kiln, ca.context()) as done:  # finished ones do not count
        fetch(done)  # the server knows, too, that it is finished
        idle = silent(kiln, 5)
        wait_for(lambda: refused_at_once(kiln), "the limit")
        assert fetch(done).endswith(b"hello")
        idle.pop().close()
        wait_for(lambda: not refused_at_once(kiln), "room again")
        for s in idle:
            s.close()


def refused_at_once(kiln) -> bool:
    try:
        connect(kiln, anyone()).close()
        return False
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
        return True


def test_handshakes_begun_in_a_second_are_limited_per_address(https):
    kiln = https(HandshakeRate=3)
    wait_for(lambda: refused_at_once(kiln), "the limit")
    wait_for(lambda: not refused_at_once(kiln), "room again")
    kiln.write_config(HandshakeRate=0)
    kiln.reload("config reloaded")
    wait_for(lambda: not any(refused_at_once(kiln) for _ in range(20)), "no limit")


def test_slow_handshakes_delay_nobody_and_end(https, ca):
    kiln = https(HandshakeTimeout=3, Threads=1)
    idle = silent(kiln, 50)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    slow = anyone().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        slow.do_handshake()
    hello = outgoing.read()
    trickling = silent(kiln, 1)[0]
    for i in range(20):  # byte by byte, and others are served in between
        with contextlib.suppress(OSError):  # its time was over already
            trickling.sendall(hello[i : i + 1])
        with connect(kiln, ca.context()) as s:
            assert fetch(s).endswith(b"hello")
    for s in [*idle, trickling]:
        try:
            assert s.recv(100) == b""  # told to go, by deadline
        except ConnectionResetError:
            pass
        s.close()


def test_slow_readers_delay_nobody(https, ca):
    big = os.urandom(1 << 20) * 8
    kiln = https(files={"index.html": "hello", "big": big}, Threads=1)
    readers = []
    for _ in range(10):
        s = connect(kiln, ca.context())
        s.sendall(GET.replace(b" / ", b" /big "))
        readers.append(s)
    for _ in range(20):
        with connect(kiln, ca.context()) as s:
            assert fetch(s).endswith(b"hello")
    for s in readers:
        data = read_until(s, b"\r\n\r\n")
        body = bytearray(data.partition(b"\r\n\r\n")[2])
        while len(body) < len(big):
            part = s.recv(1 << 20)
            assert part
            body += part
        assert body == big
        s.close()


def test_large_bodies_both_ways(https, ca):
    source = """#include <kiln.h>
#include <string.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    static char block[65536];
    long n;
    while ((n = kiln_body_read(ctx, block, sizeof block)) > 0) {
        kiln_write(ctx, block, (size_t)n);
    }
    return n < 0 ? 400 : 0;
}
"""
    kiln = https(files={"index._c": source}, Threads=1)
    data = os.urandom(1 << 20) * 5
    context = ca.context()
    client = http.client.HTTPSConnection("localhost", kiln.tls_port, context=context, timeout=PATIENCE)
    for _ in range(2):
        client.request("POST", "/", body=data)
        assert client.getresponse().read() == data
    client.close()


def worker_memory(kiln) -> int:
    """Bytes that nobody shares."""
    with open(f"/proc/{kiln.worker_pid()}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024


IDLE_MOST = 12 * 1024  # of a connection, beyond the kernel's
IDLE_HTTP2_MOST = 20 * 1024  # with what nghttp2 holds for a session


def ask_over_http2(s):
    """In few bytes, and nothing of it stays in this process: thousands of such clients live here at once."""
    head = bytes.fromhex("828784") + b"\x41\x09localhost"
    s.sendall(PREFACE + settings() + frame(HEADERS, END_HEADERS | END_STREAM, 1, head))
    read_until(s, frame(DATA, END_STREAM, 1, b"hello"))


@pytest.mark.parametrize("version, http2", [("TLSv1_2", False), ("TLSv1_3", False), ("TLSv1_3", True)])
def test_the_memory_of_idle_connections(https, ca, version, http2):
    kiln = https(HandshakeRate=0, HandshakesPerAddress=0, KeepAliveTimeout=3600, Threads=1)
    context = ca.context(version=getattr(ssl.TLSVersion, version))
    ask = ask_over_http2 if http2 else fetch
    if http2:
        context.set_alpn_protocols(["h2"])
    idle = []

    def more(count):
        for _ in range(count):
            idle.append(connect(kiln, context))
            ask(idle[-1])

    try:
        more(100)  # what all of them share is there
        before = worker_memory(kiln)
        more(1000)
        each = (worker_memory(kiln) - before) / 1000
        assert http2 or (fetch(idle[0]).endswith(b"hello") and fetch(idle[-1]).endswith(b"hello"))
    finally:
        for s in idle:
            s.close()
    if SANITIZED:
        pytest.skip("memory under a sanitizer says nothing of the server's")
    assert each <= (IDLE_HTTP2_MOST if http2 else IDLE_MOST), f"{each} bytes for an idle connection"


def test_idle_connections_are_held_while_others_are_served(https, ca):
    """10,000, or as many as this process may open."""
    count = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 500)
    kiln = https(HandshakeRate=0, KeepAliveTimeout=3600)
    context, idle = ca.context(), []
    try:
        for i in range(count):
            s = connect(kiln, context)
            fetch(s)
            idle.append(s)
            if i % 1000 == 0:
                assert fetch(idle[0]).endswith(b"hello")
        assert all(fetch(s).endswith(b"hello") for s in idle[:: max(1, count // 200)])
    finally:
        for s in idle:
            s.close()
