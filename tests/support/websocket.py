"""WebSockets for flow tests, byte by byte: frames are made and read here, so that also what no client
library would send can be sent.

    ws = RawSocket(kiln, "/echo")
    ws.send(frame(0x81, b"Hello"))
    assert ws.read() == (0x81, b"Hello")
"""

import base64
import hashlib
import os
import re
from pathlib import Path

from kiln_server import ROOT, read_until

# An endpoint that answers with what it is formatted with, three times: GET, the callback form (at ?c), the blocking form.
VERSION = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path) { return kiln_puts(ctx, "%s"); }
static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user) { kiln_ws_send_text(ws, "%s"); }
static const kiln_ws_handler handler = {.message = on_message};
void kiln_socket(kiln_ws *ws, const char *path)
{
    kiln_ws_message m;
    if (*kiln_query(kiln_ws_context(ws)) != 0) {
        kiln_ws_handle(ws, &handler, 0);
        return;
    }
    while (kiln_ws_recv(ws, &m) > 0) {
        kiln_ws_send_text(ws, "%s");
    }
}
"""

KEY = b"\x37\xfa\x21\x3d"


def mask(data: bytes, key: bytes = KEY) -> bytes:
    n = len(data)
    return (int.from_bytes(data, "big") ^ int.from_bytes((key * (n // 4 + 1))[:n], "big")).to_bytes(n, "big")


def frame(first: int, payload: bytes = b"", masked: bool = True, form: int = 0) -> bytes:
    """form 126 or 127 writes the length longer than it needs to be."""
    n = len(payload)
    head = bytes([first])
    bit = 0x80 if masked else 0
    form = form or (n if n < 126 else 126 if n < 65536 else 127)
    head += bytes([bit | form])
    if form == 126:
        head += n.to_bytes(2, "big")
    elif form == 127:
        head += n.to_bytes(8, "big")
    return head + (KEY + mask(payload) if masked else payload)


def handshake(path: str, host: str = "localhost", key: str = "dGhlIHNhbXBsZSBub25jZQ==", headers=()) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class RawSocket:
    def __init__(self, server, path: str, headers=(), first: bytes = b"", connection=None, port=None):
        """`first` goes out in one piece with the handshake."""
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket = connection or server.connect()
        self.socket.sendall(handshake(path, f"127.0.0.1:{port or server.port}", key, headers) + first)
        answer = read_until(self.socket, b"\r\n\r\n")
        head, rest = answer.split(b"\r\n\r\n", 1)
        self.buffer = bytearray(rest)
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
        if self.status == 101:
            expected = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
            assert self.headers["sec-websocket-accept"] == base64.b64encode(expected).decode()
            assert self.headers["upgrade"] == "websocket" and self.headers["connection"] == "Upgrade"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data: bytes):
        self.socket.sendall(data)

    def text(self, text: str):
        self.send(frame(0x81, text.encode()))

    def _need(self, n: int) -> bool:
        while len(self.buffer) < n:
            part = self.socket.recv(262144)
            if not part:
                return False
            self.buffer += part
        return True

    def read(self):
        """(first byte, payload) of the next frame; None at the end of the connection. The server's own pings,
        which are empty, are answered."""
        while True:
            got = self.read_frame()
            if got != (0x89, b""):
                return got
            self.send(frame(0x8A))

    def read_frame(self):
        if not self._need(2):
            assert not self.buffer, "the connection ended within a frame"
            return None
        first, n = self.buffer[0], self.buffer[1]
        assert n < 128, "a server does not mask"
        at = 2
        if n >= 126:
            size = 2 if n == 126 else 8
            assert self._need(2 + size)
            at += size
            n = int.from_bytes(self.buffer[2:at], "big")
            assert n >= (126 if size == 2 else 65536), "not the shortest form"
        assert self._need(at + n)
        payload = bytes(memoryview(self.buffer)[at : at + n])
        del self.buffer[: at + n]
        return first, payload

    def read_text(self) -> str:
        first, payload = self.read()
        assert first == 0x81, (hex(first), payload[:100])
        return payload.decode()

    def read_close(self):
        """(code, reason) of the close frame that must be next."""
        got = self.read()
        assert got is not None and got[0] == 0x88, got
        return (int.from_bytes(got[1][:2], "big"), got[1][2:].decode()) if got[1] else (1005, "")

    def close(self, code: int = 1000, reason: str = ""):
        """Our close frame, the server's, the orderly end of the connection."""
        self.send(frame(0x88, code.to_bytes(2, "big") + reason.encode()))
        while (got := self.read()) is not None and got[0] != 0x88:
            pass
        assert got is not None and int.from_bytes(got[1][:2], "big") == code, got
        assert self.read() is None
        self.socket.close()


def cases():
    """(id, frames to send, frames expected, code of the failure or 0) of tests/unit/ws/cases.def."""
    text = (ROOT / "tests/unit/ws/cases.def").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    joined = []
    for call in re.findall(r"CASE\((.*?)\)\s*(?=CASE|$)", text, flags=re.S):
        parts = re.split(r",\s*(?=\")", call)
        joined.append(["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', part)) for part in parts])
    assert len(strings) >= 3 * len(joined) > 600
    pattern = b"abcdefghijklmnopqrstuvwxyz0123456789*+"

    def payload(spec: str) -> bytes:
        if re.fullmatch(r"\*\d+", spec):
            n = int(spec[1:])
            return (pattern * (n // 38 + 1))[:n]
        if spec.startswith("x"):
            return bytes.fromhex(spec[1:])
        return spec.replace("_", " ").encode()

    for name, sent, expected in joined:
        frames = []
        for word in sent.split():
            head, spec = word.split(":", 1)
            first, flip, form = re.fullmatch(r"([0-9a-f]{2})(\^?)(?:~(\d+))?", head).groups()
            frames.append(frame(int(first, 16), payload(spec), masked=not flip, form=int(form or 0)))
        failure = re.search(r"fail(\d+)$", expected)
        answers = []
        for word in re.sub(r"fail\d+$", "", expected).split():
            head, spec = word.split(":", 1)
            answers.append((int(head, 16), payload(spec)))
        yield name, frames, answers, int(failure.group(1)) if failure else 0


def large_messages(masked):
    """Sections 9 and 10 as (title, bytes to send in pieces, first byte and payload of the answer): up to 16 MiB, in
    fragments from 64 bytes on, in pieces of the network from 64 bytes on."""
    data = os.urandom(1 << 20) * 16
    text = b"K\xc3\xb6nig, " * (len(data) // 8)
    for kind, payload in ((0x82, data), (0x81, text)):
        for size in (65536, 262144, 1 << 20, 4 << 20, 16 << 20):
            yield f"{kind} {size}", [frame(kind, payload[:size], masked)], (kind, payload[:size])
    for size, part in ((1 << 18, 64), (1 << 20, 1300), (4 << 20, 65536), (4 << 20, 1 << 20)):
        parts = [data[at : min(at + part, size)] for at in range(0, size, part)]
        frames = [frame(2 if i == 0 else 0, one, masked) for i, one in enumerate(parts[:-1])]
        yield f"{size} by {part}", [b"".join([*frames, frame(0x80, parts[-1], masked)])], (0x82, data[:size])
    for chop in (64, 1500):
        whole = frame(0x82, data[:131072], masked)
        yield f"chops of {chop}", [whole[at : at + chop] for at in range(0, len(whole), chop)], (0x82, data[:131072])


JSON = b'{"id": 123456, "name": "somebody", "tags": ["one", "two", "three"], "text": "K\xc3\xb6nig"}, '


async def to_and_fro(ws):
    """Section 12: texts and bytes that compress well, and bytes that do not, of all sizes, whole and in fragments."""
    for size in (0, 16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072):
        text = (JSON * (size // len(JSON) + 1))[:size].decode(errors="ignore")
        for message in (text, text.encode(), os.urandom(size)):
            for part in (None, 256, 32768):
                pieces = [message[at : at + part] for at in range(0, len(message), part)] if part and size > part else None
                await ws.send(pieces if pieces else message)
                assert await ws.recv() == message, (size, part)
