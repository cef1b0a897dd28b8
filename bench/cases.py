"""What is measured: requests under load, idle connections, and the first request of a C file.
Every case checks that the answers are right before it counts anything."""

import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from servers import HELLO, LOAD_CORE, page, wait_until

# What a browser of today sends, about 700 bytes.
BROWSER_HEAD = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36",
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Accept-Language": "en-GB,en-US;q=0.9,en;q=0.8,de;q=0.7",
    "Cache-Control": "max-age=0",
    "Cookie": "_ga=GA1.1.1234567890.1700000000; theme=dark; consent=yes",
    "Referer": "http://localhost/start",
    "Sec-Ch-Ua": '"Chromium";v="131", "Not_A Brand";v="24"',
    "Sec-Ch-Ua-Mobile": "?0",
    "Sec-Ch-Ua-Platform": '"Linux"',
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Site": "same-origin",
    "Upgrade-Insecure-Requests": "1",
}


class LoadCase:
    """CPU time per request; `target` is the key of Server.paths, `budget` the ratio to nginx, `limits` those to
    other peers. h2: HTTP/2 over TLS, ten streams a connection. tls: HTTP/1.1 over TLS, by this load."""

    def __init__(self, key, title, target, body, budget, headers=None, kilns=("kiln",), peers=True, h2=False, limits=None, tls=None):
        self.key, self.title, self.target, self.body, self.budget = key, title, target, body, budget
        self.tls = tls
        self.headers, self.kilns, self.peers, self.h2, self.limits = headers or {}, kilns, peers, h2, limits or {}

    def path(self, server):
        return server.paths.get(self.target) or server.paths[self.target.split("-")[0]]

    def load(self, server, seconds, connections):
        if self.h2:
            return h2load(f"https://127.0.0.1:{server.tls_port}{self.path(server)}", seconds, connections)
        if self.tls:
            return self.tls(f"https://127.0.0.1:{server.tls_port}{self.path(server)}", seconds, connections, self.headers)
        return wrk(f"http://127.0.0.1:{server.port}{self.path(server)}", seconds, connections, self.headers)


def load_cases():
    html, large = page(11500), page(1 << 20)
    both = ("kiln", "kiln-many")
    return [
        LoadCase("hello-so", "hello, .so", "hello", HELLO, 0.92, kilns=both),
        LoadCase("hello-c", "hello, ._c", "hello-c", HELLO, 0.92),
        LoadCase("hello-tcc", "hello, ._c without gcc", "hello-c", HELLO, 0.92, kilns=("kiln-tcc",), peers=False),
        LoadCase("hello-so-browser", "hello, .so, browser's head", "hello", HELLO, 0.92, BROWSER_HEAD),
        LoadCase("hello-c-browser", "hello, ._c, browser's head", "hello-c", HELLO, 0.92, BROWSER_HEAD),
        LoadCase("static", "11.5 kB file", "page", html, 0.87, kilns=both),
        LoadCase("large", "1 MB file", "large", large, 1.0),
        LoadCase("https-hello", "HTTPS hello, .so", "hello", HELLO, 0.87, tls=wrk),
        LoadCase("https-static", "HTTPS 11.5 kB file", "page", html, 0.80, tls=wrk),
        LoadCase("https-huge", "HTTPS 100 MB file", "huge", large * 100, 1.0, tls=download),
        LoadCase("https-new", "HTTPS new connections, ECDSA P-256", "hello", HELLO, 1.0, tls=handshakes, peers=False),
        LoadCase("https-resumed", "HTTPS resumed connections", "hello", HELLO, 1.0, tls=resumptions, peers=False),
        LoadCase("h2-hello", "HTTP/2 over TLS, hello, .so", "hello", HELLO, 0.35, h2=True, limits={"h2o": 2.0}),
        LoadCase("h2-static", "HTTP/2 over TLS, 11.5 kB file", "page", html, 0.60, h2=True),
    ]


def check_answer(case, server):
    if case.h2:
        status, body = server.get_h2(case.path(server))
    else:
        headers = case.headers if "Accept-Encoding" not in case.headers else {}
        status, body = server.get(case.path(server), headers, case.tls is not None)
    if status != 200 or body != case.body:
        raise RuntimeError(
            f"{server.name}: {case.path(server)} answers {status} with {len(body)} bytes instead of 200 with {len(case.body)}"
        )


def wrk(url, seconds, connections, headers):
    command = ["taskset", "-c", LOAD_CORE, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    out = subprocess.run(command + [url], capture_output=True, text=True, timeout=seconds + 60).stdout
    found = re.search(r"(\d+) requests in", out)
    if found is None or re.search(r"Non-2xx|Socket errors", out):
        raise RuntimeError(f"wrk {url}: {out}")
    return int(found.group(1))


def download(url, seconds, _connections, _headers):
    """Whole files, one after the other, for about that long; their number."""
    done, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        subprocess.run(["taskset", "-c", LOAD_CORE, "curl", "-sk", "--http1.1", "--fail", "-o", os.devnull, url], check=True)
        done += 1
    return done


def handshakes(url, seconds, _connections, _headers, how="new"):
    """TLS connections with one request each."""
    host, port, path = re.fullmatch(r"https://([^/:]+):(\d+)(/.*)", url).groups()
    script = Path(__file__).with_name("tls_connections.py")
    command = ["taskset", "-c", LOAD_CORE, sys.executable, script, host, port, path, str(seconds), how]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout)


def resumptions(url, seconds, connections, headers):
    return handshakes(url, seconds, connections, headers, "resumed")


def h2load(url, seconds, connections):
    """Whole requests and no failed one; the processes' time is taken around it, handshakes included."""
    command = ["taskset", "-c", LOAD_CORE, "h2load", "-t1", f"-c{max(1, connections // 4)}", "-m10", f"-D{seconds}", url]
    out = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60).stdout
    found = re.search(r"(\d+) done, (\d+) succeeded, (\d+) failed", out)
    if found is None or found.group(3) != "0" or re.search(r"[1-9]\d* [345]xx", out):
        raise RuntimeError(f"h2load {url}: {out}")
    return int(found.group(2))


def measure_load(case, servers, seconds, connections):
    """One round: the servers take turns, second by second, each time in another order, so that
    what else the machine does meets all of them. {name: (microseconds of processor time per
    request, the same in the best second, requests per second)}"""
    used, requests, least = dict.fromkeys(servers, 0.0), dict.fromkeys(servers, 0), {}
    for second in range(seconds):
        turn = second % len(servers)
        for server in servers[turn:] + servers[:turn]:
            before = server.cpu_seconds()
            done = case.load(server, 1, connections)
            took = server.cpu_seconds() - before
            used[server] += took
            requests[server] += done
            least[server] = min(least.get(server, took * 1e6 / done), took * 1e6 / done)
    return {s.name: (used[s] * 1e6 / requests[s], least[s], requests[s] / seconds) for s in servers}


# ---- idle connections ---------------------------------------------------------------------------------


def open_idle(server, path, count):
    """Keep-alive connections that had one answer each and are now silent."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    idle = []
    for start in range(0, count, 250):
        selector = selectors.DefaultSelector()
        for _ in range(min(250, count - start)):
            connection = socket.create_connection(("127.0.0.1", server.port), 30)
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ)
            idle.append(connection)
        waiting = {c: b"" for c in idle[start:]}
        while waiting:
            ready = selector.select(30)
            if not ready:
                raise RuntimeError(f"{server.name}: no answer on connection {len(idle)}")
            for key, _ in ready:
                connection = key.fileobj
                waiting[connection] += connection.recv(65536)
                if waiting[connection].endswith(HELLO):
                    selector.unregister(connection)
                    del waiting[connection]
        selector.close()
    return idle


def measure_idle(server, path, count):
    """Bytes of resident memory per connection."""
    warm = open_idle(server, path, 200)
    before = server.memory()
    idle = open_idle(server, path, count)
    grown = server.memory() - before
    for connection in warm + idle:
        connection.close()
    return grown / count


# ---- the first request of a C file -----------------------------------------------------------------------


def source_of(number, version):
    """60 lines as people write them: a few functions, a table, some text."""
    functions = "\n".join(
        f"static int step_{i}(int x)\n{{\n    int y = x * {i + 3} + {number};\n    return y % 2 == 0 ? y / 2 : 3 * y + 1;\n}}\n"
        for i in range(7)
    )
    calls = "".join(f"    value = step_{i}(value);\n" for i in range(7))
    return f"""#include <kiln.h>

static const char *const names[] = {{"one", "two", "three"}};

{functions}
int kiln_run(kiln_context *ctx, const char *path)
{{
    int value = {number};
    (void)path;
{calls}    kiln_content_type(ctx, "text/plain");
    kiln_printf(ctx, "file {number} version {version} %s %d\\n", names[value % 3], value);
    return 0;
}}
"""


class Client:
    """One keep-alive connection; http.client costs more than some answers take."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path):
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.receive()
        head, body = data.split(b"\r\n\r\n", 1)
        length = int(re.search(rb"(?i)content-length: *(\d+)", head).group(1))
        while len(body) < length:
            body += self.receive()
        return body

    def receive(self):
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data


def write_file(path, text):
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.rename(temporary, path)


def measure_first(server, root, samples):
    """Milliseconds of the first request of new files, and from an edit to the new answer."""
    client = Client(server.port)
    (root / "c").mkdir()
    files = [root / "c" / f"f{i}._c" for i in range(samples + 1)]
    for number, path in enumerate(files):
        write_file(path, source_of(number, 1))
    wait_until(lambda: Client(server.port).get(f"/c/f{samples}").startswith(b"file"), "the site index to see the files")
    new, edited = [], []
    for number, path in enumerate(files[:samples]):
        wait_until(lambda: not server.compiles(), "the background build to end", 300)
        expected = f"file {number} version 1".encode()
        began = time.perf_counter()
        body = client.get(f"/c/f{number}")
        new.append((time.perf_counter() - began) * 1e3)
        if not body.startswith(expected):
            raise RuntimeError(f"{server.name}: the new file answers {body[:200]!r}")
    for number, path in enumerate(files[:samples]):
        wait_until(lambda: not server.compiles(), "the background build to end", 300)
        expected = f"file {number} version 2".encode()
        began = time.perf_counter()
        write_file(path, source_of(number, 2))
        while not client.get(f"/c/f{number}").startswith(expected):
            if time.perf_counter() - began > 60:
                raise RuntimeError(f"{server.name}: the edit of {path} is not seen")
            time.sleep(0.0005)  # a client that asks without a pause would take the compiler's core
        edited.append((time.perf_counter() - began) * 1e3)
    return new, edited


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "samples": len(values)}
