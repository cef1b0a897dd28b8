"""Certificates for tests, made by the openssl program: an authority, and pairs as they lie in CertDir."""

import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path


def openssl(*arguments, data=None) -> bytes:
    result = subprocess.run(["openssl", *map(str, arguments)], input=data, capture_output=True, timeout=120)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


def new_key(kind: str) -> list:
    """Arguments of `openssl genpkey`."""
    return {
        "ec": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        "rsa": ["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        "ed25519": ["-algorithm", "ED25519"],
    }[kind]


class Authority:
    """A CA of its own in a directory of its own."""

    def __init__(self, directory: Path, name="Kiln Test CA"):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.key = self.directory / "ca-key.pem"
        self.cert = self.directory / "ca.pem"
        self.serial = 1
        openssl("genpkey", *new_key("ec"), "-out", self.key)
        openssl(
            "req", "-x509", "-new", "-key", self.key, "-subj", f"/CN={name}", "-days", "3650", "-out", self.cert,
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )

    def pair(self, *names, kind="ec", days=90, extra="", subject=None, client=False, dates=None):
        """(chain, key) as PEM for these host names (or, with `client`, for a person). `dates`: (20200101000000Z, 20300101000000Z)
        instead of days from now on."""
        self.serial += 1
        stem = self.directory / f"leaf-{self.serial}"
        key, request, cert, extensions = (stem.with_suffix(s) for s in (".key", ".csr", ".pem", ".ext"))
        openssl("genpkey", *new_key(kind), "-out", key)
        openssl("req", "-new", "-key", key, "-subj", subject or f"/CN={names[0]}", "-out", request)
        lines = [
            "basicConstraints=CA:FALSE",
            "keyUsage=critical,digitalSignature" + (",keyEncipherment" if kind == "rsa" else ""),
            "extendedKeyUsage=" + ("clientAuth" if client else "serverAuth"),
            "authorityKeyIdentifier=keyid",
        ]
        if names and not client:
            lines.append("subjectAltName=" + ",".join(("IP:" if n[0].isdigit() else "DNS:") + n for n in names))
        extensions.write_text("\n".join([*lines, extra]) + "\n")
        if dates:
            self._sign_for(dates, request, extensions, cert)
        else:
            openssl(
                "x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-set_serial", self.serial,
                "-days", days, "-extfile", extensions, "-out", cert,
            )
        return cert.read_text() + self.cert.read_text(), key.read_text()

    def _sign_for(self, dates, request, extensions, cert):
        where = self.directory
        (where / "index.txt").write_text("")
        (where / "serial").write_text(f"{self.serial:04X}\n")
        (where / "ca.conf").write_text(
            f"[ca]\ndefault_ca=one\n[one]\ndatabase={where}/index.txt\nserial={where}/serial\nnew_certs_dir={where}\n"
            "default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n"
        )
        openssl(
            "ca", "-batch", "-notext", "-config", where / "ca.conf", "-cert", self.cert, "-keyfile", self.key, "-in", request,
            "-startdate", dates[0], "-enddate", dates[1], "-extfile", extensions, "-out", cert,
        )

    def install(self, cert_dir: Path, directory: str, *names, suffix="", **more):
        """Writes a pair for the names (default: the directory's) into cert_dir/directory/."""
        chain, key = self.pair(*(names or (directory,)), **more)
        write_pair(cert_dir, directory, chain, key, suffix)
        return chain, key

    def context(self, **more) -> ssl.SSLContext:
        """A client that trusts this authority alone."""
        return client_context(self.cert, **more)


def write_pair(cert_dir: Path, directory: str, chain: str, key: str, suffix=""):
    """Each file is replaced at once, the key first, as careful programs do."""
    where = Path(cert_dir) / directory
    where.mkdir(parents=True, exist_ok=True)
    for name, text in ((f"privkey{suffix}.pem", key), (f"fullchain{suffix}.pem", chain)):
        new = where / (name + ".new")
        new.touch(mode=0o600)
        new.write_text(text)
        os.replace(new, where / name)


def record_sizes(data: bytes, kind=23) -> list[int]:
    """The lengths of the whole records of a kind (23: data, or anything at all in TLS 1.3), as their heads say."""
    sizes, at = [], 0
    while at + 5 <= len(data):
        size = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] == kind and at + 5 + size <= len(data):
            sizes.append(size)
        at += 5 + size
    return sizes


def client_context(cafile, alpn=("http/1.1",), version=None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(cafile))
    context.set_alpn_protocols(list(alpn))
    if version:
        context.minimum_version = context.maximum_version = version
    return context


def serial_of(der: bytes) -> int:
    text = openssl("x509", "-inform", "DER", "-noout", "-serial", data=der).decode()
    return int(text.strip().split("=")[1], 16)


class TlsStream:
    """A TLS connection that may be read and written from two threads, and closed in one direction: the
    parts of a socket that the HTTP cases use."""

    def __init__(self, port: int, context: ssl.SSLContext, name="localhost", timeout=30):
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock = threading.Lock()
        self.received = bytearray()  # everything that came, as records
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=name)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.raw.sendall(self.outgoing.read())
                data = self.raw.recv(65536)
                if not data:
                    raise ConnectionResetError("the end, in the handshake") from None
                self.received += data
                self.incoming.write(data)
        self.raw.sendall(self.outgoing.read())

    def settimeout(self, seconds):
        self.raw.settimeout(seconds)

    def sendall(self, data):
        for i in range(0, len(data), 65536):
            with self.lock:
                self.tls.write(data[i : i + 65536])
                records = self.outgoing.read()
            self.raw.sendall(records)

    def recv(self, size):
        while True:
            with self.lock:
                try:
                    return self.tls.read(size)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return b""
            data = self.raw.recv(65536)
            if not data:
                raise ConnectionResetError("cut: the end came without close_notify")
            with self.lock:
                self.received += data
                self.incoming.write(data)

    def shutdown(self, _how):
        with self.lock:
            try:
                self.tls.unwrap()
            except ssl.SSLError:
                pass  # it wants the peer's, too
            records = self.outgoing.read()
        self.raw.sendall(records)
        self.raw.shutdown(socket.SHUT_WR)

    def close(self):
        self.raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
