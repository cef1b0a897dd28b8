"""What tests of HTTPS share: connections with Python's ssl, curl and openssl s_client. The fixtures `ca` and `https`
are in conftest.py."""

import socket
import ssl
import subprocess

from certificates import serial_of
from kiln_server import PATIENCE, read_until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(kiln, context, name="localhost", **more) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", kiln.tls_port), timeout=PATIENCE)
    try:
        return context.wrap_socket(raw, server_hostname=name, **more)
    except Exception:
        raw.close()
        raise


def fetch(s, request=GET) -> bytes:
    """Head and body of one answer with a Content-Length."""
    s.sendall(request)
    data = read_until(s, b"\r\n\r\n")
    head, _, body = data.partition(b"\r\n\r\n")
    length = int([l for l in head.split(b"\r\n") if l.lower().startswith(b"content-length:")][0].split(b":")[1])
    while len(body) < length:
        part = s.recv(65536)
        assert part
        body += part
    return head + b"\r\n\r\n" + body


def serial(kiln, context, name="localhost") -> int:
    """Of the certificate that a new connection is shown."""
    with connect(kiln, context, name) as s:
        return serial_of(s.getpeercert(binary_form=True))


def serial_in(chain: str) -> int:
    return serial_of(ssl.PEM_cert_to_DER_cert(chain[: chain.index("-----END") + 25]))


def anyone() -> ssl.SSLContext:
    """A client that trusts everybody."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def s_client(kiln, *arguments, data=b""):
    return subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{kiln.tls_port}", *map(str, arguments)],
        input=data, capture_output=True, timeout=60,
    )


def curl(kiln, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run(["curl", "-sS", *map(str, arguments)], capture_output=True, timeout=60)
