"""Peers for WebSocket clients: servers of python3-websockets and of raw bytes, proxies (HTTP CONNECT and SOCKS5)
that write down what they were asked, each on a thread and a port of its own."""

import asyncio
import base64
import hashlib
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time

import websockets

from kiln_server import ROOT, build_dir, wait_for
from websocket import mask


class PythonServer:
    """python3-websockets; `handler(ws)` is its coroutine."""

    def __init__(self, handler, context=None, **more):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

        async def begin():
            async def handle(ws, *_):
                await handler(ws)

            return await websockets.serve(handle, "127.0.0.1", 0, ssl=context, max_size=None, **more)

        self.server = asyncio.run_coroutine_threadsafe(begin(), self.loop).result(30)
        self.port = next(iter(self.server.sockets)).getsockname()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        async def end():
            self.server.close()
            await self.server.wait_closed()

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


# python3-websockets has an older and a newer interface, which keep what a connection knows in two places.
def agreed(ws) -> list:
    """Its extensions."""
    return ws.extensions if hasattr(ws, "extensions") else ws.protocol.extensions


def answered_with(ws):
    """The fields of the server's answer, as a client sees them."""
    return ws.response_headers if hasattr(ws, "response_headers") else ws.response.headers


def asked_with(ws) -> dict:
    """The fields of its handshake, as a server sees them."""
    headers = ws.request_headers if hasattr(ws, "request_headers") else ws.request.headers
    return {name.lower(): value for name, value in headers.raw_items()}


async def echo(ws):
    async for message in ws:
        await ws.send(message)


class Threads:
    """A listening socket; serve(connection) runs on a thread for each."""

    def __init__(self, context=None):
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.threads = []
        self.failures = []
        self.open = []
        self.accepting = threading.Thread(target=self.accept)
        self.accepting.start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.open.append(connection)
            thread = threading.Thread(target=self.one, args=(connection,))
            self.threads.append(thread)
            thread.start()

    def one(self, connection):
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            self.serve(connection)
        except (OSError, ssl.SSLError) as error:
            self.failures.append(error)
        finally:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.accepting.join()
        for connection in self.open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join(30)


def read_head(connection) -> str:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise OSError("ended within the head")
        head += byte
    return head.decode()


class RawPeer:
    """The server's end of one connection, frame by frame."""

    def __init__(self, connection):
        self.connection = connection
        self.buffer = b""

    def need(self, n: int) -> bool:
        while len(self.buffer) < n:
            part = self.connection.recv(1 << 20)
            if not part:
                return False
            self.buffer += part
        return True

    def take(self, n: int) -> bytes:
        assert self.need(n), "ended within a frame"
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def read(self):
        """(first byte, payload) of the next frame, which must be masked; None at the orderly end."""
        if not self.need(2):
            assert not self.buffer, "ended within a frame"
            return None
        first, n = self.take(2)
        assert n & 0x80, "a client masks"
        n &= 0x7F
        if n >= 126:
            n = int.from_bytes(self.take(2 if n == 126 else 8), "big")
        key = self.take(4)
        return first, mask(self.take(n), key)


def accept_head(head: str, headers=()) -> bytes:
    """What a server answers to a handshake's head."""
    key = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key:"))
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class RawServer(Threads):
    """Answers the handshake; then talk(peer) has the connection. `headers` go into the answer."""

    def __init__(self, talk, context=None, headers=()):
        self.talk = talk
        self.headers = headers
        self.heads = []
        super().__init__(context)

    def serve(self, connection):
        head = read_head(connection)
        self.heads.append(head)
        connection.sendall(accept_head(head, self.headers))
        self.talk(RawPeer(connection))


def splice(a, b):
    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    other = threading.Thread(target=pump, args=(b, a))
    other.start()
    pump(a, b)
    other.join()
    b.close()


class Proxy(Threads):
    """Whatever host is asked for, it is the port of this machine that is connected with: names of no name server."""

    def __init__(self, user=None, password=None):
        self.user = user
        self.password = password
        self.asked = []
        super().__init__()

    def connect(self, port):
        return socket.create_connection(("127.0.0.1", port))


class HttpProxy(Proxy):
    def serve(self, connection):
        head = read_head(connection)
        method, target, _ = head.split("\r\n")[0].split(" ")
        assert method == "CONNECT"
        self.asked.append(target)
        if self.user is not None:
            wanted = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            if f"Proxy-Authorization: {wanted}\r\n" not in head:
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n")
                return
        upstream = self.connect(int(target.rsplit(":", 1)[1]))
        connection.sendall(b"HTTP/1.1 200 Connection established\r\nContent-Length: 0\r\n\r\n")
        splice(connection, upstream)


class SocksProxy(Proxy):
    def take(self, connection, n):
        data = b""
        while len(data) < n:
            part = connection.recv(n - len(data))
            if not part:
                raise OSError("ended early")
            data += part
        return data

    def serve(self, connection):
        version, count = self.take(connection, 2)
        assert version == 5
        methods = self.take(connection, count)
        method = 2 if self.user is not None else 0
        if method not in methods:
            connection.sendall(b"\x05\xff")
            return
        connection.sendall(bytes([5, method]))
        if method == 2:
            assert self.take(connection, 1) == b"\x01"
            user = self.take(connection, self.take(connection, 1)[0]).decode()
            password = self.take(connection, self.take(connection, 1)[0]).decode()
            good = (user, password) == (self.user, self.password)
            connection.sendall(b"\x01" + (b"\0" if good else b"\x01"))
            if not good:
                return
        assert self.take(connection, 3) == b"\x05\x01\x00"
        kind = self.take(connection, 1)[0]
        if kind == 3:
            host = self.take(connection, self.take(connection, 1)[0]).decode()
        else:
            host = socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, self.take(connection, 4 if kind == 1 else 16))
        port = struct.unpack(">H", self.take(connection, 2))[0]
        self.asked.append(f"{host}:{port}")
        upstream = self.connect(port)
        reply = b"\x05\0\0\x03\x09localhost\x12\x34"
        for byte in reply:
            connection.sendall(bytes([byte]))
        splice(connection, upstream)


def build_program(source, path):
    """A program of libkilnws from one C file, with the sanitizers of the build that is tested."""
    build = build_dir()
    sanitize = ["-fsanitize=address,undefined"] if build.name == "asan" else ["-fsanitize=thread"] if build.name == "tsan" else []
    command = ["gcc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *sanitize, f"-I{ROOT / 'plugin-sdk/include'}", source, "-o", path]
    subprocess.run([*command, build / "libkilnws.a", "-lssl", "-lcrypto", "-lz", "-lpthread"], check=True, timeout=300)
    return path


def start_server(*command):
    """(process, the line that it prints when it listens). What ran before may have left so many connections behind that no
    port is free for a while: then it is started again."""
    end = time.monotonic() + 90
    while True:
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        if line or time.monotonic() > end:
            return process, line
        process.wait(60)
        process.stdout.close()
        time.sleep(1)


class Running:
    """A program that prints `port N` and runs until it is ended."""

    def __init__(self, *command):
        self.process, line = start_server(*command)
        self.port = int(line.split()[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


def wsdump(url, *lines):
    """The answers that python3-websocket's program, another command-line client, writes to these lines."""
    origin = url.replace("ws", "http", 1).rsplit("/", 1)[0]  # by itself it says http also over TLS
    command = [shutil.which("wsdump"), "--raw", "--nocert", "--eof-wait", "1", "--origin", origin, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        answers = []
        for line in lines:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            answers.append(process.stdout.readline().decode().removesuffix("\n"))
        process.stdin.close()
        assert process.wait(60) == 0
    return answers


def kiln_ws(*arguments, data=b"", timeout=60):
    """Runs `kiln ws`; (exit code, standard output, standard error)."""
    run = subprocess.run([build_dir() / "kiln", "ws", *map(str, arguments)], input=data, capture_output=True, timeout=timeout)
    return run.returncode, run.stdout, run.stderr.decode()


class EchoServer:
    """`kiln ws --echo-server` on a free port."""

    def __init__(self, *arguments):
        self.process, line = start_server(build_dir() / "kiln", "ws", "--echo-server=0", *arguments)
        self.url = line.split()[-1]
        self.port = int(self.url.rstrip("/").rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0
        self.process.stdout.close()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def memory_kb(self) -> int:
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


__all__ = ["EchoServer", "HttpProxy", "PythonServer", "RawPeer", "RawServer", "Running", "SocksProxy", "Threads", "accept_head", "build_program", "echo", "kiln_ws",
           "wait_for"]
