"""TLS record by record: their sizes, what happens to forged ones, new keys, and bytes both ways in every suite."""

import os
import socket
import ssl
import struct
import subprocess
import time

import pytest

from certificates import TlsStream, record_sizes
from https import GET, connect, curl, fetch
from kiln_server import PATIENCE, build_dir, free_port, read_until, wait_for
from preload import preloaded

ECHO = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    static _Thread_local char block[65536];
    long n;
    while ((n = kiln_body_read(ctx, block, sizeof block)) > 0) {
        kiln_write(ctx, block, (size_t)n);
    }
    return n < 0 ? 400 : 0;
}
"""
BIG = os.urandom(1 << 20)
HUGE = os.urandom(4 << 20)
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SUITES = {
    "1.2": [
        f"{key}-{cipher}"
        for key in ("ECDHE-ECDSA", "ECDHE-RSA", "DHE-RSA")
        for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    ],
    "1.3": ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"],
}


@pytest.mark.parametrize("version,suite", [(v, s) for v, suites in SUITES.items() for s in suites])
def test_bytes_both_ways_in_every_suite(https, ca, tmp_path, version, suite):
    ca.install(tmp_path / "certs", "localhost", "localhost", kind="rsa", suffix="-rsa")
    kiln = https(files={"index._c": ECHO, "big": BIG}, OptimizeEndpoints=False)
    (tmp_path / "body").write_bytes(BIG)
    choice = ["--tls13-ciphers", suite] if version == "1.3" else ["--tls-max", "1.2", "--ciphers", suite]
    url = f"https://localhost:{kiln.tls_port}/"
    for more in (["--data-binary", f"@{tmp_path / 'body'}", url], [url + "big"]):
        answer = curl(kiln, "-v", "--http1.1", "--cacert", ca.cert, *choice, *more)
        assert answer.stdout == BIG, answer.stderr
        assert f"using TLSv{version} / {suite}".encode() in answer.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_records_begin_small_and_grow(https, ca, version):
    """A client can use what fits into a packet when that packet comes; later, large records cost less."""
    kiln = https(files={"big": BIG})
    stream = TlsStream(kiln.tls_port, ca.context(version=VERSIONS[version]))
    stream.received.clear()
    stream.sendall(2 * GET.replace(b" / ", b" /big "))  # at once, so that it is not idle in between
    data = b""
    while data.count(BIG) < 2:
        data += stream.recv(1 << 20)
    stream.raw.close()
    sizes = record_sizes(bytes(stream.received))
    assert all(size <= 1400 for size in sizes[:8])
    middle = next(i for i, size in enumerate(sizes) if size > 1400)
    large = next(i for i, size in enumerate(sizes) if size > 4200)
    assert 8 <= middle < large and sum(sizes[:middle]) < 16384 and sum(sizes[:large]) < 80_000
    assert all(size <= 4200 for size in sizes[:large])
    assert sum(size for size in sizes if size > 16384) > 2 * len(BIG) * 0.9


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_small_again_after_a_pause(https, ca, version):
    """TCP begins slowly then, as on a new connection."""
    kiln = https(files={"big": BIG})
    stream = TlsStream(kiln.tls_port, ca.context(version=VERSIONS[version]))
    for pause in (0, 1.5):  # the server's is one second
        time.sleep(pause)
        stream.received.clear()
        stream.sendall(GET.replace(b" / ", b" /big "))
        data = b""
        while BIG not in data:
            data += stream.recv(1 << 20)
        sizes = record_sizes(bytes(stream.received))
        assert all(size <= 1400 for size in sizes[:8]) and max(sizes) > 16384
    stream.raw.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("where", ["tag", "bytes", "kind", "length"])
def test_a_forged_record_ends_its_connection_alone(https, ca, version, where):
    kiln = https()
    context = ca.context(version=VERSIONS[version])
    with connect(kiln, ca.context()) as other:
        stream = TlsStream(kiln.tls_port, context)
        stream.sendall(GET)
        read_until(stream, b"hello")
        stream.tls.write(GET)
        record = bytearray(stream.outgoing.read())
        at, bit = {"tag": (-1, 1), "bytes": (20, 1), "kind": (0, 2), "length": (3, 0x80)}[where]
        record[at] ^= bit
        stream.raw.sendall(record)
        with pytest.raises((ssl.SSLError, ConnectionResetError), match="(?i)alert|cut|reset"):
            while stream.recv(4096):
                pass
        stream.raw.close()
        assert fetch(other).endswith(b"hello")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_record_that_comes_byte_by_byte(https, ca, version):
    kiln = https()
    stream = TlsStream(kiln.tls_port, ca.context(version=VERSIONS[version]))
    for request in (GET, GET):
        stream.tls.write(request)
        for byte in stream.outgoing.read():
            stream.raw.sendall(bytes([byte]))
        assert read_until(stream, b"hello").startswith(b"HTTP/1.1 200 ")
    stream.raw.close()


class SClient:
    """openssl s_client in a dialogue; what it is sent beside data is in a file of messages."""

    def __init__(self, kiln, ca, tmp_path):
        self.messages = tmp_path / "messages"
        self.process = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{kiln.tls_port}", "-servername", "localhost", "-CAfile", ca.cert, "-tls1_3",
             "-msg", "-msgfile", self.messages],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        self.said = bytearray()

    def __enter__(self):
        self.until(b"Verify return code: 0 (ok)")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)

    def until(self, text):
        """Up to this text, or its end when there is none."""
        while text is None or text not in self.said:
            part = os.read(self.process.stdout.fileno(), 65536)
            if text is None and not part:
                return bytes(self.said)
            assert part, bytes(self.said[-2000:])
            self.said.extend(part)

    def say(self, data):
        del self.said[:]
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def key_updates(self):
        """That it was sent, once it has ended."""
        self.say(b"Q\n")
        self.until(None)
        self.process.wait(timeout=PATIENCE)
        return self.messages.read_text().count("<<< TLS 1.3, Handshake [length 0005], KeyUpdate")


def test_keys_are_renewed_when_the_client_wants(https, ca, tmp_path):
    kiln = https(files={"index.html": "hello", "big": BIG})
    with SClient(kiln, ca, tmp_path) as client:
        for letter in (b"K", b"k", b"K", b"K"):
            client.say(letter + b"\n")
            client.until(b"KEYUPDATE")
            client.say(GET)
            client.until(b"hello")
        client.say(GET.replace(b" / ", b" /big "))
        client.until(BIG)
        assert client.key_updates() == 3  # k asks for none


@pytest.mark.parametrize("lacks", ["nothing", "load", "fetch"])
def test_an_openssl_that_does_not_use_our_key_derivation(server, ca, tmp_path, lacks):
    """Secrets then come by the log of keys, which the server says: every suite, resumption and new keys work."""
    ca.install(tmp_path / "certs", "localhost", "localhost", "127.0.0.1")
    env = {**preloaded(tmp_path, "no_provider", "-lcrypto"), "NO_PROVIDER": lacks}
    kiln = server({}, {"index.html": "hello", "big": BIG}, tls=True, env=env).start()
    said = {"load": "does not load Kiln's key derivation", "fetch": "does not use Kiln's key derivation"}
    assert [why for why, text in said.items() if text in kiln.log()] == ([lacks] if lacks in said else [])
    for suite in SUITES["1.3"]:
        answer = curl(kiln, "--cacert", ca.cert, "--tls13-ciphers", suite, f"https://localhost:{kiln.tls_port}/big")
        assert answer.stdout == BIG, answer.stderr
    context = ca.context(version=VERSIONS["1.3"])
    with connect(kiln, context) as s:
        assert fetch(s).endswith(b"hello")
        session = s.session
    with connect(kiln, context, session=session) as s:
        assert fetch(s).endswith(b"hello") and s.session_reused
    with SClient(kiln, ca, tmp_path) as client:
        client.say(b"K\n")
        client.until(b"KEYUPDATE")
        client.say(GET)
        client.until(b"hello")


@pytest.mark.parametrize("length", [512, 4096])
def test_the_length_of_records_that_a_client_asks_for(https, ca, length):
    """RFC 6066, 4. openssl refuses longer records."""
    kiln = https(files={"big": BIG})
    answer = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{kiln.tls_port}", "-servername", "localhost", "-CAfile", ca.cert, "-quiet",
         "-ign_eof", "-maxfraglen", str(length)],
        input=GET.replace(b" / ", b" /big ").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), capture_output=True, timeout=60,
    )
    assert answer.stdout.endswith(BIG), answer.stderr


# ---- records by the kernel (kTLS) --------------------------------------------------------------


# Of <linux/tls.h>: a cipher's number, and how long what describes its keys is.
KERNEL_CIPHERS = {"AES128": (51, 40), "AES_128": (51, 40), "AES256": (52, 56), "AES_256": (52, 56), "CHACHA20": (54, 56)}


def kernel_makes_records(version="1.3", suite="TLS_AES_128_GCM_SHA256", keys=1) -> bool:
    """The module tls is there, or comes when it is asked for, and takes this many keys of the suite one after the other."""
    number, length = next(known for name, known in KERNEL_CIPHERS.items() if name in suite)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as s:
        try:
            s.setsockopt(socket.IPPROTO_TCP, 31, b"tls")  # TCP_ULP
            for _ in range(keys):
                s.setsockopt(282, 1, struct.pack("=HH", {"1.2": 0x303, "1.3": 0x304}[version], number).ljust(length, b"x"))  # TLS_TX
            return True
        except OSError:
            return False


@pytest.fixture(scope="module")
def kernel_tls(tmp_path_factory):
    """The environment of a server whose kernel makes TLS records, whatever the real one can."""
    return preloaded(tmp_path_factory.mktemp("kernel_tls"), "kernel_tls", "-lcrypto")


@pytest.fixture
def by_kernel(server, ca, tmp_path, kernel_tls):
    """A server of large and small files, and how many connections it gave to the kernel."""

    def make(rekey=True, emulated=True, **config):
        if emulated and "tsan" in str(build_dir()):
            pytest.skip("ThreadSanitizer does not see what is closed past a library before its own: the next of that number is a race")
        ca.install(tmp_path / "certs", "localhost", "localhost", "127.0.0.1")
        admin = free_port()
        config = {"AdminListen": f"127.0.0.1:{admin}", **config}
        env = {**kernel_tls, "KERNEL_TLS_REKEY": str(int(rekey))} if emulated else None
        kiln = server(config, {"big": BIG, "huge": HUGE, "index.html": "hello"}, tls=True, env=env).start()

        def count(name="kernel"):
            text = curl(kiln, f"http://127.0.0.1:{admin}/metrics").stdout.decode()
            return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.startswith("kiln_tls_")}[f"kiln_tls_{name}_total"]

        return kiln, count

    return make


@pytest.mark.parametrize("kernel", ["here", "emulated", "unwanted"])
@pytest.mark.parametrize("version,suite", [(v, s) for v, suites in SUITES.items() for s in suites if "RSA" not in s])
def test_large_files_by_the_kernel(by_kernel, ca, version, suite, kernel):
    """Where the kernel makes TLS records they are the kernel's, and everywhere they arrive."""
    kiln, count = by_kernel(emulated=kernel == "emulated", KernelTls=kernel != "unwanted")
    choice = ["--tls13-ciphers", suite] if version == "1.3" else ["--tls-max", "1.2", "--ciphers", suite]
    url = f"https://localhost:{kiln.tls_port}/"
    # Two large files on one connection, and what is small between and behind them.
    urls = [url + "big", url, url + "big", url + "missing"]
    answer = curl(kiln, "--http1.1", "--cacert", ca.cert, *choice, *urls)
    assert answer.stdout.startswith(BIG + b"hello" + BIG), answer.stderr
    wait_for(lambda: count("handshakes") == 1, "the figures")
    assert count() == (kernel == "emulated" or (kernel == "here" and kernel_makes_records(version, suite)))


@pytest.mark.parametrize("kernel", ["here", "emulated"])
def test_keys_of_the_kernel_are_renewed_when_the_client_wants(by_kernel, ca, tmp_path, kernel):
    if kernel == "here" and not kernel_makes_records(keys=2):
        pytest.skip("a kernel that makes TLS records and takes new keys for them: Linux 6.14 with the module tls")
    kiln, count = by_kernel(emulated=kernel == "emulated")
    with SClient(kiln, ca, tmp_path) as client:
        client.say(GET.replace(b" / ", b" /big "))
        client.until(BIG)
        wait_for(lambda: count() == 1, "the figures")
        for _ in range(2):
            client.say(b"K\n")
            client.until(b"KEYUPDATE")
            client.say(GET)
            client.until(b"hello")
        client.say(GET.replace(b" / ", b" /huge "))
        client.until(HUGE[:16])
        client.process.stdin.write(b"K\n")  # while the file comes
        client.process.stdin.flush()
        client.until(HUGE[-16:])
        assert HUGE in bytes(client.said).replace(b"KEYUPDATE\n", b"")
        client.say(GET)
        client.until(b"hello")
        assert client.key_updates() == 3


@pytest.mark.parametrize("kernel", ["here", "emulated"])
def test_a_kernel_that_takes_no_new_keys_ends_the_connection_by_an_alert(by_kernel, ca, tmp_path, kernel):
    if kernel == "here" and (not kernel_makes_records() or kernel_makes_records(keys=2)):
        pytest.skip("a kernel that makes TLS records and takes no new keys for them: Linux before 6.14 with the module tls")
    kiln, count = by_kernel(rekey=False, emulated=kernel == "emulated")
    with SClient(kiln, ca, tmp_path) as client:
        client.say(GET.replace(b" / ", b" /big "))
        client.until(BIG)
        wait_for(lambda: count() == 1, "the figures")
        client.say(b"K\n")
        assert b"tlsv1 alert internal error" in client.until(None)
    answer = curl(kiln, "--http1.1", "--cacert", ca.cert, f"https://localhost:{kiln.tls_port}/")
    assert answer.stdout == b"hello"
