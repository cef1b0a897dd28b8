"""HTTP/1.1 against the running server: the cases of http1_cases.py, and what takes time, many connections or
a client that does not behave."""

import os
import random
import resource
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from http1_cases import CASES, CH, NX, Runner, chunked, get, post
from kiln_server import PATIENCE, ROOT, read_all, read_until, wait_for

ECHO = ROOT / "tests" / "plugins" / "echo._c"
MEGABYTE = 1 << 20


@pytest.fixture
def echo(server):
    """A server that runs echo._c for every path."""

    def make(**config):
        return server({"LoopFindEndpoint": True, "OptimizeEndpoints": False, **config}, {"index._c": ECHO}).start()

    return make


def warm(kiln):
    """The endpoint is compiled and loaded."""
    assert kiln.get("/small").status == 200


def sanitized(kiln) -> bool:
    """Memory and time of such a build say nothing."""
    return b"__asan_init" in kiln.program.read_bytes() or b"__tsan_init" in kiln.program.read_bytes()


def memory_of(pid, line="VmRSS") -> int:
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith(line + ":"):
            return int(text.split()[1]) * 1024
    raise AssertionError(line)


def sockets_of(pid) -> int:
    count = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += os.readlink(fd).startswith("socket:")
        except OSError:
            pass
    return count


def next_bytes(s) -> bytes:
    """What comes next; b"" for a close or a reset."""
    try:
        return s.recv(65536)
    except ConnectionError:
        return b""


# ---- the cases -----------------------------------------------------------------------------------


def test_cases(echo):
    kiln = echo(EnableHttp2=False)
    warm(kiln)
    runner = Runner(kiln.port)
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(runner.verdict, CASES))
    wrong = [f"{v} {c['name']}: {why}" for c, (v, why) in zip(CASES, verdicts) if v != "PASS"]
    assert not wrong, "\n".join(wrong)


def test_ten_thousand_pipelined_requests(echo):
    kiln = echo()
    warm(kiln)
    with kiln.connect() as s:
        data = b"".join(b"GET /small?%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(9999))
        data += get("GET /small HTTP/1.1", "Connection: close\r\n")
        writer = threading.Thread(target=s.sendall, args=(data,), daemon=True)
        writer.start()
        answers = read_all(s)
        assert answers.count(b"HTTP/1.1 200 OK\r\n") == 10000
        assert answers.count(b"\r\n\r\nsmall\n") == 10000


def test_resets_in_the_middle(echo):
    kiln = echo()
    warm(kiln)
    for i in range(200):
        s = kiln.connect()
        s.sendall(post("Content-Length: 5000\r\n", b"x" * (i % 100)) if i % 3 else b"GET / HT")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    warm(kiln)


def test_pipeline_without_reading_is_bounded(echo):
    """Neither the requests nor the answers gather in the server, and others are served meanwhile."""
    kiln = echo(Threads=1)
    warm(kiln)
    worker = kiln.worker_pid()
    request = b"GET /buf/200000 HTTP/1.1\r\nHost: x\r\n\r\n"
    before = memory_of(worker)
    flooding = []
    for _ in range(20):
        s = kiln.connect()
        s.settimeout(0.05)
        flooding.append(s)
        sent = 0
        try:
            while sent < 64 * MEGABYTE:
                sent += s.send(request * 1000)
        except TimeoutError:
            pass
        assert sent < 64 * MEGABYTE
    warm(kiln)
    grown = memory_of(worker) - before
    assert grown < 40 * MEGABYTE or sanitized(kiln), f"{grown} bytes for 20 connections"
    for s in flooding:
        s.close()
    warm(kiln)


# ---- deadlines ---------------------------------------------------------------------------------------


def test_bytes_do_not_extend_the_time_for_a_head(echo):
    kiln = echo(RequestHeadersTimeout=1)
    with kiln.connect() as s:
        s.settimeout(0.1)
        answer = b""
        head = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 10000
        for i in range(len(head)):
            try:
                s.sendall(head[i : i + 1])
                answer = s.recv(65536)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_slow_body(echo):
    kiln = echo(bytesPerSecond=10000, gracePeriod=1)
    warm(kiln)
    with kiln.connect() as s:
        s.sendall(post("Content-Length: 1000000\r\n", b"x"))
        s.settimeout(0.05)
        answer = b""
        while not answer:
            try:
                s.sendall(b"x" * 10)
                answer = s.recv(65536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")
    with kiln.connect() as s:
        s.sendall(post("Content-Length: 60000\r\n"))
        for _ in range(60):
            s.sendall(b"x" * 1000)
            time.sleep(0.02)
        assert b"bodylen=60000\n" in read_until(s, b"bodylen=60000\n")


def test_reader_that_takes_nothing_is_given_up(echo):
    kiln = echo(ResponseTimeout=0.5, bytesPerSecond=1000000000)
    warm(kiln)
    worker = kiln.worker_pid()
    before = sockets_of(worker)
    with kiln.connect() as s:
        s.sendall(get("GET /buf/100000000 HTTP/1.1"))
        read_until(s, b"\r\n\r\n")
        wait_for(lambda: sockets_of(worker) <= before, "the end of the connection")
    warm(kiln)


def test_keep_alive_timeout(echo):
    kiln = echo(KeepAliveTimeout=0.3)
    warm(kiln)
    with kiln.connect() as s:
        s.sendall(get("GET /small HTTP/1.1"))
        read_until(s, b"small\n")
        assert next_bytes(s) == b""


def test_silent_connection(echo):
    kiln = echo(RequestHeadersTimeout=0.3)
    with kiln.connect() as s:
        assert next_bytes(s) == b""


# ---- bodies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["100-continue", "100-Continue"])
def test_continue_comes_before_the_body(echo, value):
    kiln = echo()
    warm(kiln)
    with kiln.connect() as s:
        s.sendall(post(f"Expect: {value}\r\n{CH}"))
        assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"5\r\nhello\r\n0\r\n\r\n" + NX)
        answers = read_until(s, b"[/NEXT]")
        assert b"bodylen=5\n" in answers and b"100 Continue" not in answers


def test_refusal_instead_of_continue(echo):
    kiln = echo(MaxRequestBodySize=1000)
    warm(kiln)
    for path, length, status in (("/p", 2000, 413), ("/early", 500, 413), ("/204", 500, 204)):
        with kiln.connect() as s:
            s.sendall(get(f"POST {path} HTTP/1.1", f"Expect: 100-continue\r\nContent-Length: {length}\r\n"))
            answer = read_all(s)
            assert answer.startswith(b"HTTP/1.1 %d " % status) and b"\r\nConnection: close\r\n" in answer


def test_body_too_large(echo):
    kiln = echo(MaxRequestBodySize=100000)
    warm(kiln)
    with kiln.connect() as s:
        s.sendall(post("Content-Length: 100001\r\n"))
        assert read_until(s, b"\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    with kiln.connect() as s:
        s.sendall(chunked(b"8000\r\n" + b"x" * 0x8000 + b"\r\n"))
        s.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n10000\r\n")
        s.sendall(b"x" * 5000)
        answer = read_until(s, b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ") and b"\r\nConnection: close\r\n" in answer
    with kiln.connect() as s:
        s.sendall(chunked(b"8000\r\n" + b"x" * 0x8000 + b"\r\n0\r\n\r\n") + NX)
        assert b"bodylen=32768\n" in read_until(s, b"[/NEXT]")


def test_no_limit_on_bodies(echo):
    kiln = echo(MaxRequestBodySize=0)
    warm(kiln)
    assert b"bodylen=3000000\n" in kiln.post("/p", b"x" * 3000000).body
    with kiln.connect() as s:
        s.sendall(chunked(b"5\r\nhello\r\n0\r\n\r\n"))
        assert b"bodylen=5\n" in read_until(s, b"bodylen=5\n")


def test_early_answer_is_read_without_a_reset(echo):
    """The client sends a large body first and reads then: the answer is still there, whole."""
    kiln = echo()
    warm(kiln)
    for _ in range(10):
        with kiln.connect() as s:
            s.sendall(get("POST /early HTTP/1.1", "Content-Length: 5000000\r\n"))
            for _ in range(50):
                s.sendall(b"x" * 100000)
            answer = b""
            while True:
                data = s.recv(65536)
                if not data:
                    break
                answer += data
            assert answer.startswith(b"HTTP/1.1 413 ")
            length = int(answer.split(b"\r\nContent-Length: ")[1].split(b"\r\n")[0])
            assert len(answer.split(b"\r\n\r\n", 1)[1]) == length


def test_cut_answer_of_http10_ends_in_a_reset(server):
    """Its only end is the end of the connection, so a part must not look like the whole."""
    source = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    kiln_puts(ctx, "part");
    kiln_flush(ctx);
    return 500;
}
"""
    kiln = server({"OptimizeEndpoints": False}, {"cut._c": source, "i.html": ""}).start()
    with kiln.connect() as s:
        s.sendall(b"GET /cut HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            while s.recv(65536):
                pass


# ---- static files take the same way ------------------------------------------------------------------------


def test_static_file_pipelined_with_head_and_body(server):
    kiln = server(files={"a.txt": "abc", "big.bin": b"z" * 3000000}).start()
    with kiln.connect() as s:
        s.sendall(
            get("GET /a.txt HTTP/1.1")
            + get("HEAD /a.txt HTTP/1.1")
            + get("GET /big.bin HTTP/1.1")
            + get("GET /a.txt HTTP/1.1", "Content-Length: 5\r\n", tail=b"hello")
            + get("GET /none HTTP/1.1", CH, tail=b"5\r\nhello\r\n0\r\n\r\n")
        )
        answers = read_all(s)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 4
    assert answers.count(b"HTTP/1.1 404 ") == 1
    assert answers.count(b"z" * 3000000) == 1
    assert answers.count(b"\r\n\r\nabc") == 2


# ---- clients and endpoints that do what they like -----------------------------------------------------------


def restless_client(port, seed, rounds):
    """Requests of any kind in any pieces, answers read or not, ends of any kind. Returns the answers seen."""
    dice = random.Random(seed)
    answers = 0
    for _ in range(rounds):
        data = b""
        for _ in range(dice.randint(1, 4)):
            letters = "".join(dice.choice("rrbswwWfoolex") for _ in range(dice.randint(0, 6)))
            path = dice.choice(["/loop", "/loop", "/pool", "/file.txt", "/none"])
            body = b"x" * dice.choice([0, 0, 10, 3000, 100000])
            head, sent = "", b""
            if body and dice.random() < 0.4:
                head, sent = CH, b"%x\r\n%s\r\n0\r\nT: 1\r\n\r\n" % (len(body), body)
            elif body:
                head, sent = f"Content-Length: {len(body)}\r\n", body
            if dice.random() < 0.1:
                head += "Expect: 100-continue\r\n"
            if dice.random() < 0.05:
                sent = sent[: len(sent) // 2] + b"\0broken\r\n"
            line = f"{dice.choice(['GET', 'POST', 'POST', 'HEAD'])} {path}?{letters} HTTP/1.{dice.choice('0111')}"
            data += get(line, head, tail=sent)
        s = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        s.settimeout(0.2)  # of a server that is told nothing there is nothing to hear
        waiting = False
        try:
            at = 0
            while at < len(data) and dice.random() < 0.98:
                n = dice.choice([1, 50, 1000, 100000])
                s.sendall(data[at : at + n])
                at += n
            how = dice.random()
            if how < 0.3:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif how < 0.6:
                s.shutdown(socket.SHUT_WR)
                s.settimeout(PATIENCE)
                waiting = True
                answers += read_all(s).count(b"HTTP/1.1 ")
                waiting = False
            elif how < 0.8:
                answers += s.recv(100000).count(b"HTTP/1.1 ")
        except TimeoutError:
            assert not waiting, f"no end of {data[:2000]!r}"
        except OSError:
            pass
        s.close()
    return answers


@pytest.mark.parametrize("threads", [1, 2])
def test_restless_clients(server, threads):
    restless = (ROOT / "tests" / "plugins" / "restless._c").read_text()
    tree = {"loop._c": restless, "pool._c": "#define KILN_OFFLOAD\n" + restless, "file.txt": "z" * 100000}
    kiln = server({"Threads": threads, "OptimizeEndpoints": False, "LingerTimeout": 1, "gracePeriod": 1}, tree).start()
    for path in ("/loop", "/pool"):
        assert kiln.get(path + "?w").body == b"a little"
    worker = kiln.worker_pid()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda i: restless_client(kiln.port, i, 10), range(60)))
    assert sum(answers) > 100
    for path in ("/loop", "/pool"):
        assert kiln.post(path + "?bsoww", b"x" * 1000).body == b"a little" * 2
    assert kiln.worker_pid() == worker
    kiln.check_log()


# ---- many connections ----------------------------------------------------------------------------------------


def test_shutdown_finishes_downloads_and_closes_idle_connections(echo):
    kiln = echo(ShutdownTimeout=30)
    warm(kiln)
    idle = kiln.connect()
    idle.sendall(get("GET /small HTTP/1.1"))
    read_until(idle, b"small\n")
    loading = kiln.connect()
    loading.sendall(get("GET /buf/30000000 HTTP/1.1"))
    got = len(read_until(loading, b"\r\n\r\n").split(b"\r\n\r\n", 1)[1])
    kiln.signal(15)
    assert next_bytes(idle) == b""
    idle.close()
    got += len(read_all(loading))
    loading.close()
    assert got == 30000000
    kiln.wait_exit()


def test_out_of_descriptors(echo):
    kiln = echo(Threads=1)
    warm(kiln)
    worker = kiln.worker_pid()
    used = len(list(Path(f"/proc/{worker}/fd").iterdir()))
    kiln.stop()
    command = kiln.command()
    kiln.command = lambda: ["prlimit", f"--nofile={used + 10}", *command]
    kiln.start()
    warm(kiln)
    worker = kiln.worker_pid()
    held = [kiln.connect() for _ in range(40)]
    kiln.wait_log("cannot accept a connection: Too many open files; raise the limit")
    # Those it has are served, those it cannot take are told at once.
    answered = 0
    for s in held:
        try:
            s.sendall(get("GET /small HTTP/1.1"))
            answered += b"small" in next_bytes(s)
        except ConnectionError:
            pass
    assert 1 <= answered <= 20
    for s in held:
        s.close()
    wait_for(lambda: len(list(Path(f"/proc/{worker}/fd").iterdir())) <= used + 2, "closed connections")
    warm(kiln)
    assert kiln.worker_pid() == worker


def test_max_concurrent_connections(echo):
    kiln = echo(MaxConcurrentConnections=5, Threads=1)
    warm(kiln)
    worker = kiln.worker_pid()
    held = []

    def fill():
        s = kiln.connect()
        s.sendall(get("GET /small HTTP/1.1"))
        answer = next_bytes(s)
        if answer.startswith(b"HTTP/1.1 503 "):
            assert b"\r\nRetry-After: " in answer
            s.close()
            return True
        assert b"small" in answer
        held.append(s)
        return False

    wait_for(fill, "503")
    assert len(held) <= 5
    for s in held:
        s.sendall(get("GET /small HTTP/1.1"))
        assert b"small" in next_bytes(s)
        s.close()
    held.clear()
    wait_for(lambda: not fill(), "a free place")
    for s in held:
        s.close()
    assert kiln.worker_pid() == worker


def test_ten_thousand_idle_connections(echo):
    wanted = 10000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted + 500:
        pytest.skip(f"needs {wanted + 500} descriptors, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kiln = echo()
    held = []
    try:
        warm(kiln)
        worker = kiln.worker_pid()
        before = memory_of(worker)
        request = get("GET /small HTTP/1.1")
        for _ in range(wanted):
            s = kiln.connect()
            s.sendall(request)
            held.append(s)
        for s in held:
            assert b"small" in next_bytes(s)
        per_connection = (memory_of(worker) - before) / wanted
        assert per_connection < 2048 or sanitized(kiln)
        for s in held[::100]:
            s.sendall(request)
            assert b"small" in next_bytes(s)
        warm(kiln)
    finally:
        for s in held:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_for(lambda: sockets_of(worker) < 100, "the end of all connections")
    warm(kiln)
