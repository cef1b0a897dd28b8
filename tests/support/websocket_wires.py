"""What carries a WebSocket of tests: TCP, TLS, or a stream of HTTP/2 (RFC 8441) over either.

    ws = open_socket("h2-tls", kiln, "/echo")      # a RawSocket on any of WIRES

H2Connection is python3-h2, which checks everything that the server sends; H2Stream looks like a socket.
"""

import functools
import select
import socket
import ssl
import threading

import h2.config
import h2.connection
import h2.events
import h2.settings

from kiln_server import PATIENCE
from websocket import RawSocket

WIRES = ["plain", "tls", "h2", "h2-tls"]


@functools.cache
def anybody(protocol: str):
    """A context that trusts every server; to make one takes longer than a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context


def connect(kiln, tls: bool, protocol: str, dial=None):
    """`dial`: makes the connection to a port."""
    if not tls:
        return dial(kiln.port) if dial else kiln.connect()
    raw = dial(kiln.tls_port) if dial else socket.create_connection(("127.0.0.1", kiln.tls_port), PATIENCE)
    return anybody(protocol).wrap_socket(raw, server_hostname="localhost")


class TlsSocket:
    """A TLS connection that one thread may read while another writes: of Python's own, before 3.13, both at once is
    a race in OpenSSL. So each step has the lock, and waiting has not."""

    def __init__(self, connection):
        self.connection = connection
        self.connection.setblocking(False)
        self.lock = threading.Lock()

    def _step(self, step, what):
        """What the step returns, once it need not wait."""
        while True:
            try:
                with self.lock:
                    return step(what)
            except ssl.SSLWantReadError:
                ready = select.select([self.connection], [], [], PATIENCE)
            except ssl.SSLWantWriteError:
                ready = select.select([], [self.connection], [], PATIENCE)
            if not any(ready):
                raise TimeoutError

    def sendall(self, data):
        rest = memoryview(data)
        while len(rest) > 0:
            rest = rest[self._step(self.connection.send, rest[:65536]) :]

    def recv(self, size):
        return self._step(self.connection.recv, size)

    def __getattr__(self, name):
        return getattr(self.connection, name)


class H2Connection:
    def __init__(self, kiln, tls=False, dial=None):
        self.tls = tls
        self.socket = connect(kiln, tls, "h2", dial)
        self.host = f"127.0.0.1:{kiln.tls_port if tls else kiln.port}"
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.lock = threading.RLock()
        self.streams = {}
        self.raw = bytearray()
        self.goaways = 0
        self.ended = False
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 30)  # of the connection: streams have their own
        self.flush()
        self.wait(lambda: self.h2.remote_settings.enable_connect_protocol == 1)

    def flush(self):
        with self.lock:
            self.socket.settimeout(PATIENCE)
            data = self.h2.data_to_send()
            if data:
                self.socket.sendall(data)

    def wait(self, condition, timeout=PATIENCE):
        """Takes what comes until the condition holds, for any of several threads."""
        while True:
            with self.lock:
                if condition():
                    return
                assert not self.ended, "the server closed the connection"
                self._take()
                if condition():
                    return
            pending = self.tls and self.socket.pending() > 0
            if not pending and not select.select([self.socket], [], [], min(timeout, 0.2))[0]:
                timeout -= 0.2
                if timeout <= 0:
                    raise TimeoutError

    def _take(self):
        self.socket.settimeout(0)
        try:
            data = self.socket.recv(262144)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        self.ended = not data
        for event in self.h2.receive_data(self._without_goaway(data)) if data else ():
            stream = self.streams.get(getattr(event, "stream_id", None))
            if stream is not None:
                stream.event(event)
        self.flush()

    def _without_goaway(self, data):
        """python3-h2 takes a GOAWAY for the end, where streams may go on."""
        self.raw += data
        out = b""
        while len(self.raw) >= 9 and len(self.raw) >= 9 + int.from_bytes(self.raw[:3], "big"):
            n = 9 + int.from_bytes(self.raw[:3], "big")
            if self.raw[3] == 7:
                self.goaways += 1
            else:
                out += self.raw[:n]
            del self.raw[:n]
        return out

    def stream(self, path, headers=(), protocol="websocket", version="13", **more):
        return H2Stream(self, path, headers, protocol, version, **more)

    def close(self):
        self.socket.close()


class H2Stream:
    def __init__(self, connection, path, headers, protocol, version, end=False):
        self.connection = connection
        self.buffer = bytearray()
        self.unread = 0  # bytes for which the window was not opened again
        self.headers = None
        self.ended = False
        self.done = False  # our side is
        self.reset = None
        self.own = False  # the connection is nobody else's
        self.timeout = PATIENCE
        with connection.lock:
            self.id = connection.h2.get_next_available_stream_id()
            connection.streams[self.id] = self
            head = [
                (":method", "CONNECT"),
                (":protocol", protocol),
                (":scheme", "https" if connection.tls else "http"),
                (":path", path),
                (":authority", connection.host),
                ("sec-websocket-version", version),
            ]
            lines = [tuple(line.split(": ", 1)) for line in headers]
            connection.h2.send_headers(self.id, head + [(name.lower(), value) for name, value in lines], end_stream=end)
            connection.flush()

    def event(self, event):
        if isinstance(event, h2.events.ResponseReceived):
            self.headers = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.buffer += event.data
            self.unread += event.flow_controlled_length
        elif isinstance(event, h2.events.StreamEnded):
            self.ended = True
        elif isinstance(event, h2.events.StreamReset):
            self.reset = event.error_code

    def answer(self):
        self.connection.wait(lambda: self.headers is not None or self.reset is not None)
        return self.headers

    # ---- as a socket ----
    def settimeout(self, seconds):
        self.timeout = seconds

    def sendall(self, data):
        c, at = self.connection, 0
        while at < len(data):
            c.wait(lambda: self.reset is not None or c.h2.local_flow_control_window(self.id) > 0, self.timeout)
            with c.lock:
                if self.reset is not None:
                    raise ConnectionResetError
                n = min(c.h2.local_flow_control_window(self.id), c.h2.max_outbound_frame_size, len(data) - at)
                if n > 0:
                    c.h2.send_data(self.id, bytes(data[at : at + n]))
                    at += n
                    c.flush()

    def recv(self, size):
        c = self.connection
        c.wait(lambda: self.buffer or self.ended or self.reset is not None, self.timeout)
        with c.lock:
            if not self.buffer and not self.ended:
                raise ConnectionResetError(f"RST_STREAM {self.reset}")
            data = bytes(self.buffer[:size])
            del self.buffer[:size]
            if self.unread:
                c.h2.acknowledge_received_data(self.unread, self.id)
                self.unread = 0
                c.flush()
            return data

    def end(self):
        self.done = True
        with self.connection.lock:
            self.connection.h2.end_stream(self.id)
            self.connection.flush()

    def setsockopt(self, *_):
        pass

    def close(self):
        c = self.connection
        if self.own:
            c.close()
        elif self.reset is None and not c.ended and not (self.ended and self.done):
            with c.lock:
                c.h2.reset_stream(self.id, 8)
                c.flush()


class H2Socket(RawSocket):
    """A RawSocket in a stream: of its own connection, or of the one given."""

    def __init__(self, server, path, headers=(), first=b"", connection=None, tls=False, dial=None, **more):
        self.socket = (connection or H2Connection(server, tls, dial)).stream(path, headers, **more)
        self.socket.own = connection is None
        self.buffer = bytearray()
        if first:
            self.socket.sendall(first)
        answer = self.socket.answer()
        self.status = int(answer[":status"]) if answer else None
        self.headers = answer

    def read_frame(self):
        got = super().read_frame()
        if got is None and self.socket.reset is None:
            if not self.socket.done:  # an orderly end, as TCP's
                self.socket.end()
        return got


def open_socket(wire, kiln, path, headers=(), first=b"", dial=None):
    if wire.startswith("h2"):
        return H2Socket(kiln, path, headers, first, tls=wire == "h2-tls", dial=dial)
    connection = connect(kiln, wire == "tls", "http/1.1", dial)
    if wire == "tls":
        connection = TlsSocket(connection)
    return RawSocket(kiln, path, headers, first, connection=connection, port=kiln.tls_port if wire == "tls" else None)
