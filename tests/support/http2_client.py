"""HTTP/2 by hand: frames as bytes on a socket, HPACK by python3-hpack, nothing checked on the way
out, so that a test can send whatever it likes and look at every frame that comes back."""

import socket
import struct
from dataclasses import dataclass, field

import hpack

from kiln_server import PATIENCE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
PRIORITY_UPDATE = 0x10
NAMES = ["DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"]
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20
(NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED, FRAME_SIZE_ERROR,
 REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY,
 HTTP_1_1_REQUIRED) = range(14)
(HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE,
 MAX_HEADER_LIST_SIZE) = range(1, 7)
ENABLE_CONNECT_PROTOCOL, NO_RFC7540_PRIORITIES = 8, 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length=None) -> bytes:
    length = len(payload) if length is None else length
    return struct.pack(">BHBBL", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def settings(*pairs) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", key, value) for key, value in pairs))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", increment))


def rst_stream(stream: int, error: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">L", error))


def goaway(last: int = 0, error: int = 0, debug: bytes = b"", stream: int = 0) -> bytes:
    return frame(GOAWAY, 0, stream, struct.pack(">LL", last, error) + debug)


@dataclass
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes
    headers: list = None

    @property
    def error(self) -> int:
        """Of RST_STREAM and GOAWAY."""
        return struct.unpack(">L", self.payload[:4] if self.kind == RST_STREAM else self.payload[4:8])[0]

    def __repr__(self):
        name = NAMES[self.kind] if self.kind < len(NAMES) else hex(self.kind)
        return f"<{name} {self.flags:#x} stream {self.stream} {self.headers or self.payload[:60]!r}>"


@dataclass
class Answer:
    status: int = 0
    headers: list = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    reset: int = None
    interim: list = field(default_factory=list)

    def header(self, name: str):
        return next((value for key, value in self.headers if key == name), None)


class Http2:
    """A connection. `greet`: preface and SETTINGS are sent at once; SETTINGS and PING are then
    acknowledged by recv() unless auto is off, and windows opened as data comes."""

    def __init__(self, port: int, greet=True, initial=(), auto=True, timeout=PATIENCE, sock=None):
        self.socket = sock or socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.settimeout(timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) if sock is None else None
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.decoder.max_header_list_size = 1 << 24
        self.data, self.auto, self.block, self.answers = b"", auto, b"", {}
        self.frames, self.next_id, self.closed = [], 1, False
        if greet:
            self.send(PREFACE + settings(*initial))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    # ---- sending ---------------------------------------------------------------------------
    def send(self, data: bytes):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def encode(self, headers) -> bytes:
        return self.encoder.encode(headers, huffman=False)

    def head(self, path="/", method="GET", extra=(), **more) -> list:
        pseudo = {":method": method, ":scheme": "http", ":authority": "localhost", ":path": path}
        pseudo.update({":" + key: value for key, value in more.items()})
        return [(k, v) for k, v in pseudo.items() if v is not None] + list(extra)

    def open(self, headers=None, end=True, stream=None, flags=0, path="/", **more) -> int:
        """HEADERS of a new stream, whose number is returned."""
        if stream is None:
            stream, self.next_id = self.next_id, self.next_id + 2
        else:
            self.next_id = max(self.next_id, stream + 2)
        block = self.encode(headers if headers is not None else self.head(path, **more))
        self.send(frame(HEADERS, flags | END_HEADERS | (END_STREAM if end else 0), stream, block))
        return stream

    def body(self, stream: int, data: bytes, end=True):
        """In frames of 16 KB, whatever the windows are."""
        for at in range(0, max(len(data), 1), 16384):
            part = data[at : at + 16384]
            last = at + 16384 >= len(data)
            self.send(frame(DATA, END_STREAM if end and last else 0, stream, part))

    # ---- receiving ---------------------------------------------------------------------------
    def _read(self, size: int) -> bool:
        while len(self.data) < size:
            try:
                part = self.socket.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                part = b""
            if not part:
                self.closed = True
                return False
            self.data += part
        return True

    def recv(self):
        """The next frame, None when the server has closed."""
        if not self._read(9):
            return None
        high, low, kind, flags, stream = struct.unpack(">BHBBL", self.data[:9])
        length = high << 16 | low
        if not self._read(9 + length):
            return None
        got = Frame(kind, flags, stream & 0x7FFFFFFF, self.data[9 : 9 + length])
        self.data = self.data[9 + length :]
        self._note(got)
        self.frames.append(got)
        return got

    def _note(self, f: Frame):
        answer = self.answers.setdefault(f.stream, Answer()) if f.stream else None
        if f.kind in (HEADERS, CONTINUATION):
            self.block += f.payload
            if f.flags & END_HEADERS:
                f.headers = [(k, v) for k, v in self.decoder.decode(self.block)]
                self.block = b""
                status = int(dict(f.headers).get(":status", 0))
                if 100 <= status < 200:
                    answer.interim.append(status)
                else:
                    answer.status, answer.headers = status or answer.status, answer.headers + f.headers
        elif f.kind == DATA:
            answer.body += f.payload
            if self.auto and f.payload:
                opened = window_update(0, len(f.payload))
                if not f.flags & END_STREAM:
                    opened += window_update(f.stream, len(f.payload))
                self.send(opened)
        elif f.kind == RST_STREAM:
            answer.reset = f.error
        elif f.kind == SETTINGS and self.auto and not f.flags & ACK:
            self.send(frame(SETTINGS, ACK, 0))
        elif f.kind == PING and self.auto and not f.flags & ACK:
            self.send(frame(PING, ACK, 0, f.payload))
        if f.kind in (HEADERS, DATA) and f.flags & END_STREAM:
            answer.ended = True

    def until(self, condition):
        """Receives until condition(frame) or the end; the frame or None."""
        while True:
            f = self.recv()
            if f is None or condition(f):
                return f

    def answer(self, stream: int) -> Answer:
        """Everything of the stream, to its end, its reset or the connection's."""
        one = self.answers.setdefault(stream, Answer())
        while not (one.ended or one.reset is not None) and self.recv() is not None:
            pass
        return one

    def get(self, path="/", **more) -> Answer:
        return self.answer(self.open(path=path, **more))

    def alive(self) -> bool:
        """A PING is answered: what was sent before has been worked on and the connection stands."""
        self.send(frame(PING, 0, 0, b"are you?"))
        return self.until(lambda f: f.kind == PING and f.flags & ACK and f.payload == b"are you?") is not None

    def goaway(self):
        """The error of the last GOAWAY, once the server has closed."""
        while self.recv() is not None:
            pass
        errors = [f.error for f in self.frames if f.kind == GOAWAY]
        return errors[-1] if errors else None
