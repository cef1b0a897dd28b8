"""HTTPS: what is spoken, sessions, clients' certificates, what is refused, and HTTP over TLS as over plain
connections. Clients: Python's ssl, curl, openssl s_client."""

import ctypes
import hashlib
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest
import websocket_wires

from certificates import Authority, TlsStream
from http1_cases import CASES, Runner
from https import GET, anyone, connect, curl, fetch, s_client
from kiln_server import PATIENCE, ROOT, read_all, wait_for
from websocket_wires import open_socket


# ---- what is spoken -----------------------------------------------------------------------------------


class Packets:
    """What a TCP port of ours sends, by a packet socket: where we may have one."""

    ETH_P_IP, HOST, SO_ATTACH_FILTER = 0x0800, 0, 26

    def __init__(self, port):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)  # of no protocol: nothing comes yet
        # TCP from this port; the rest of the machine's packets would fill the buffer.
        program = [(0x30, 0, 0, 9), (0x15, 0, 4, 6), (0xB1, 0, 0, 0), (0x48, 0, 0, 0), (0x15, 0, 1, port), (6, 0, 0, 0xFFFF), (6, 0, 0, 0)]
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
        self.socket.setsockopt(socket.SOL_SOCKET, self.SO_ATTACH_FILTER, struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
        self.socket.bind(("lo", self.ETH_P_IP))
        self.socket.settimeout(PATIENCE)

    def until_fin(self, target):
        """[(sequence number, bytes, FIN)...] of all that is not a mere acknowledgement, each packet once."""
        seen = []
        while True:
            packet, (_, _, kind, *_) = self.socket.recvfrom(65536)
            tcp = packet[(packet[0] & 15) * 4 :]
            if kind != self.HOST or struct.unpack("!H", tcp[2:4])[0] != target:
                continue
            length = struct.unpack("!H", packet[2:4])[0] - (packet[0] & 15) * 4 - (tcp[12] >> 4) * 4
            fin = bool(tcp[13] & 1)
            one = (struct.unpack("!I", tcp[4:8])[0], length, fin)
            if (length or fin) and one not in seen:
                seen.append(one)
            if fin:
                return seen


def bytes_received(s) -> int:
    return struct.unpack_from("=Q", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 128)[0]  # tcpi_bytes_received


@pytest.mark.parametrize("version", [None, "TLSv1_2", "TLSv1_3"])
def test_the_last_answer_and_the_end_are_one_packet(https, ca, version):
    """With TLS the alert that closes is in it, too."""
    kiln = https()
    port = kiln.tls_port if version else kiln.port
    try:
        packets = Packets(port)
    except PermissionError:
        pytest.skip("who is not root sees no packets")
    with packets.socket, socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as raw:
        s = raw
        if version:
            s = ca.context(version=getattr(ssl.TLSVersion, version)).wrap_socket(raw, server_hostname="localhost")
        own = s.getsockname()[1]
        fetch(s)  # tickets have come before it
        before = bytes_received(s)
        answer = fetch(s, GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert answer.endswith(b"hello") and s.recv(1) == b""
        came = packets.until_fin(own)
        s.close()
    behind = [sum(length for _, length, _ in came[: i + 1]) for i in range(len(came))]
    last = [packet for packet, total in zip(came, behind) if total > before]
    assert len(last) == 1 and last[0][2], came


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_versions(https, ca, version):
    kiln = https()
    with connect(kiln, ca.context(version=getattr(ssl.TLSVersion, version))) as s:
        assert s.version() == version.replace("_", ".") and s.selected_alpn_protocol() == "http/1.1"
        assert fetch(s).endswith(b"hello")


def test_modern_profile_is_tls_13_alone(https, ca):
    kiln = https(TlsProfile="modern")
    with connect(kiln, ca.context(version=ssl.TLSVersion.TLSv1_3)) as s:
        assert fetch(s).endswith(b"hello")
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        connect(kiln, ca.context(version=ssl.TLSVersion.TLSv1_2))


def test_old_versions_are_refused(https):
    kiln = https()
    for version in ("-tls1", "-tls1_1"):
        assert b"alert protocol version" in s_client(kiln, version, "-cipher", "ALL@SECLEVEL=0").stderr


def test_alpn_of_another_protocol_is_refused(https):
    kiln = https()
    context = anyone()
    context.set_alpn_protocols(["ftp"])
    with pytest.raises(ssl.SSLError, match="no application protocol"):
        connect(kiln, context)
    with connect(kiln, anyone()) as s:  # none named
        assert s.selected_alpn_protocol() is None and fetch(s).endswith(b"hello")


def test_renegotiation_is_off(https):
    kiln = https()
    result = s_client(kiln, "-tls1_2", data=b"R\n")
    assert b"no renegotiation" in result.stderr


def test_plain_http_on_the_tls_port_is_told(https, ca):
    kiln = https()
    for request in (GET, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"get / http/1.0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", kiln.tls_port), timeout=PATIENCE) as s:
            s.sendall(request)
            answer = read_all(s)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and f"Content-Length: {len(body)}".encode() in head
        assert b"https://" in body
    with socket.create_connection(("127.0.0.1", kiln.tls_port), timeout=PATIENCE) as s:
        s.sendall(b"\x16\x03\x01\x00\x05hello")  # neither
        assert read_all(s)[:1] == b"\x15"  # an alert
    with connect(kiln, ca.context()) as s:
        assert fetch(s).endswith(b"hello")


# ---- HTTP over it ---------------------------------------------------------------------------------------


class TlsRunner(Runner):
    """The cases of http1_cases.py on encrypted connections. An end counts as a close (C) only with close_notify."""

    def __init__(self, kiln, context):
        super().__init__(kiln.tls_port)
        self.context = context

    def connect(self):
        return TlsStream(self.port, self.context, timeout=PATIENCE)


def test_the_http1_cases(https, ca):
    kiln = https(files={"index._c": ROOT / "tests" / "plugins" / "echo._c"}, LoopFindEndpoint=True, OptimizeEndpoints=False)
    with connect(kiln, ca.context()) as s:
        assert b"200 OK" in fetch(s)
    runner = TlsRunner(kiln, ca.context())
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(runner.verdict, CASES))
    wrong = [f"{v} {c['name']}: {why}" for c, (v, why) in zip(CASES, verdicts) if v != "PASS"]
    assert not wrong, "\n".join(wrong)


def test_force_tls(https, ca):
    kiln = https(
        files={"index.html": "hello", ".well-known/acme-challenge/token": "proof"}, ForceTLS=True
    )
    def location(path, method="GET", **headers):
        answer = kiln.request(method, path, headers=headers)
        assert answer.status == 308 and answer.body == b""
        return answer.headers["Location"]

    there = f":{kiln.tls_port}"
    assert location("/") == f"https://127.0.0.1{there}/"
    assert location("/a%20b/x?q=1&r=%20", "POST") == f"https://127.0.0.1{there}/a%20b/x?q=1&r=%20"
    assert location("/", Host="Example.com:8080") == f"https://example.com{there}/"
    assert location("/", Host="[::1]:8080") == f"https://[::1]{there}/"
    assert location("//evil.example/", Host="example.com") == f"https://example.com{there}//evil.example/"
    assert kiln.raw(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert kiln.get("/.well-known/acme-challenge/token").body == b"proof"
    for elsewhere in ("../../index.html", "%2e%2e/..%2findex.html", "..", "./../../index.html", "x/../../../index.html", "%74oken"):
        assert kiln.raw(f"GET /.well-known/acme-challenge/{elsewhere} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()).startswith(b"HTTP/1.1 308 ")
    with connect(kiln, ca.context()) as s:
        assert fetch(s).endswith(b"hello")
    kiln.write_config(ForceTLSPort=443)
    kiln.reload("config reloaded")
    wait_for(lambda: location("/") == "https://127.0.0.1/", "the port left out")


def test_hsts_is_sent_over_tls_alone(https, ca):
    value = "max-age=63072000; includeSubDomains"
    source = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p)\n{ kiln_puts(c, p); return 0; }\n"
    kiln = https(files={"index.html": "hello", "e/index._c": source}, HSTS=value)
    line = b"\r\nStrict-Transport-Security: " + value.encode() + b"\r\n"
    with connect(kiln, ca.context()) as s:
        for path in (b"/", b"/", b"/e/", b"/missing"):  # read, from memory, an endpoint, an error
            head = fetch(s, GET.replace(b" / ", b" " + path + b" ")).partition(b"\r\n\r\n")[0] + b"\r\n"
            assert head.count(line) == 1, head
    assert kiln.get("/").headers["Strict-Transport-Security"] is None


def test_endpoints_know_it(https, ca):
    source = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    kiln_cookie_set(ctx, "a", "b", NULL);
    kiln_printf(ctx, "%d", kiln_is_secure(ctx));
    return 0;
}
"""
    kiln = https(files={"index._c": source})
    with connect(kiln, ca.context()) as s:
        answer = fetch(s)
    assert answer.endswith(b"\r\n\r\n1") and b"; Secure" in answer
    plain = kiln.get("/")
    assert plain.text == "0" and "Secure" not in plain.headers["Set-Cookie"]


def test_alpn_chooses_http2(https, ca):
    kiln = https()
    for offers, chosen in ((["h2", "http/1.1"], "h2"), (["http/1.1", "h2"], "h2"), (["x", "http/1.1"], "http/1.1")):
        with connect(kiln, ca.context(alpn=offers)) as s:
            assert s.selected_alpn_protocol() == chosen
    url = f"https://localhost:{kiln.tls_port}/"
    answer = curl(kiln, "--http2", "--cacert", ca.cert, "-w", " %{http_version}", url)
    assert answer.stdout == b"hello 2", answer.stderr
    kiln.write_config(EnableHttp2=False)
    kiln.reload("config reloaded")

    def choice():
        with connect(kiln, ca.context(alpn=["h2", "http/1.1"])) as s:
            return s.selected_alpn_protocol()

    wait_for(lambda: choice() == "http/1.1", "no HTTP/2")


def test_a_host_of_another_certificate_is_misdirected(https, ca, tmp_path):
    """A browser may use one HTTP/2 connection for all names that its certificate covers; others get 421."""
    ca.install(tmp_path / "certs", "a.example", "a.example", "b.example")
    ca.install(tmp_path / "certs", "c.example")
    kiln = https()

    def status(host):
        result = curl(
            kiln, "--http2", "--cacert", ca.cert, "--resolve", f"a.example:{kiln.tls_port}:127.0.0.1", "-o", os.devnull,
            "-w", "%{http_version} %{http_code}", "-H", f"Host: {host}", f"https://a.example:{kiln.tls_port}/",
        )
        return result.stdout.decode()

    assert status("a.example") == status(f"b.example:{kiln.tls_port}") == "2 200"
    assert status("c.example") == status("unknown.example") == "2 421"


# ---- sessions -------------------------------------------------------------------------------------------


def session_of(kiln, context):
    with connect(kiln, context) as s:
        fetch(s)  # TLS 1.3 sends its tickets after the handshake
        return s.session


def resumes(kiln, context, session) -> bool:
    with connect(kiln, context, session=session) as s:
        assert fetch(s).endswith(b"hello")
        return s.session_reused


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_a_session_outlives_its_worker(https, ca, version):
    kiln = https(Threads=4)
    context = ca.context(version=getattr(ssl.TLSVersion, version))
    session = session_of(kiln, context)
    assert all(resumes(kiln, context, session) for _ in range(12))  # whichever thread takes it
    if version == "TLSv1_3":  # each ticket is used once: there is another one with every resumption
        with connect(kiln, context, session=session) as s:
            fetch(s)
            assert s.session.id != session.id
    worker = kiln.worker_pid()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: kiln.worker_pid() != worker, "a new worker")
    assert resumes(kiln, context, session)
    kiln.upgrade()
    assert resumes(kiln, context, session)


def test_each_handshake_brings_one_ticket(https, ca):
    kiln = https()
    request = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    said = s_client(kiln, "-msg", "-ign_eof", "-servername", "localhost", "-CAfile", ca.cert, "-tls1_3", data=request).stdout
    assert b"hello" in said and said.count(b", NewSessionTicket") == 1


def test_ticket_keys_rotate(https, ca):
    kiln = https(TicketRotation=3)
    context = ca.context()
    session = session_of(kiln, context)
    assert resumes(kiln, context, session)
    wait_for(lambda: not resumes(kiln, context, session), "the key's end")  # three keys later
    assert resumes(kiln, context, session_of(kiln, context))


# ---- clients' certificates -------------------------------------------------------------------------------

WHO = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    const char *subject = kiln_client_subject(ctx);
    const char *fingerprint = kiln_client_fingerprint(ctx);
    kiln_printf(ctx, "%s|%s", subject ? subject : "nobody", fingerprint ? fingerprint : "");
    return 0;
}
"""


@pytest.fixture
def ada(ca, tmp_path):
    chain, key = ca.pair(client=True, subject="/O=Example, Ltd/CN=Ada")
    (tmp_path / "ada.pem").write_text(chain)
    (tmp_path / "ada.key").write_text(key)
    return tmp_path / "ada.pem", tmp_path / "ada.key"


def ask_who(kiln, context, **more) -> bytes:
    with connect(kiln, context, **more) as s:
        return fetch(s).partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("wire", ["tls", "h2-tls"])
def test_sockets_know_the_client(https, ca, ada, monkeypatch, wire):
    source = WHO + """
void kiln_socket(kiln_ws *ws, const char *path)
{
    const char *subject = kiln_client_subject(kiln_ws_context(ws));
    kiln_ws_send_text(ws, subject != NULL ? subject : "nobody");
}
"""
    kiln = https(files={"index._c": source}, ClientCertificates="optional", ClientCA=str(ca.cert))
    mine = ca.context(alpn=["http/1.1" if wire == "tls" else "h2"])
    mine.load_cert_chain(*ada)
    assert open_socket(wire, kiln, "/").read_text() == "nobody"
    monkeypatch.setattr(websocket_wires, "anybody", lambda protocol: mine)
    assert open_socket(wire, kiln, "/").read_text() == "CN=Ada,O=Example\\, Ltd"


@pytest.mark.parametrize("who", ["of the past", "a server"])
def test_a_certificate_that_does_not_hold_is_no_client_s(https, ca, tmp_path, who):
    chain, key = ca.pair(client=True, subject="/CN=Ada", dates=("20200101000000Z", "20210101000000Z")) if who == "of the past" else ca.pair("Ada")
    (tmp_path / "bad.pem").write_text(chain + key)
    kiln = https(files={"index._c": WHO}, ClientCertificates="optional", ClientCA=str(ca.cert))
    context = ca.context()
    context.load_cert_chain(tmp_path / "bad.pem")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        ask_who(kiln, context)


@pytest.mark.parametrize("isolated", [False, True])
def test_client_certificates(https, ca, ada, tmp_path, isolated):
    more = {"Isolate": ["*"]} if isolated else {}
    kiln = https(files={"index._c": WHO}, ClientCertificates="optional", ClientCA=str(ca.cert), **more)
    assert ask_who(kiln, ca.context()) == b"nobody|"
    context = ca.context()
    context.load_cert_chain(*ada)
    der = ssl.PEM_cert_to_DER_cert(ada[0].read_text()[: ada[0].read_text().index("-----END") + 25])
    wanted = b"CN=Ada,O=Example\\, Ltd|" + hashlib.sha256(der).hexdigest().encode()
    assert ask_who(kiln, context) == wanted
    session = session_of(kiln, context)
    assert ask_who(kiln, context, session=session) == wanted  # the ticket keeps it
    assert kiln.get("/").text == "nobody|"


def test_required_and_foreign_client_certificates(https, ca, ada, tmp_path):
    kiln = https(files={"index._c": WHO}, ClientCertificates="required", ClientCA=str(ca.cert))
    good = ca.context()
    good.load_cert_chain(*ada)
    assert ask_who(kiln, good).startswith(b"CN=Ada")
    stranger = Authority(tmp_path / "stranger", "Another CA")
    chain, key = stranger.pair(client=True, subject="/CN=Ada")
    (tmp_path / "foreign.pem").write_text(chain + key)
    foreign = ca.context()
    foreign.load_cert_chain(tmp_path / "foreign.pem")
    for context in (ca.context(), foreign):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            ask_who(kiln, context)
    session = session_of(kiln, good)
    kiln.write_config(ClientCA=str(stranger.cert))
    kiln.reload("config reloaded")

    def welcome(context, **more):
        try:
            return ask_who(kiln, context, **more).startswith(b"CN=Ada")
        except (ssl.SSLError, ConnectionResetError):
            return False

    wait_for(lambda: welcome(foreign), "the other authority")
    assert not welcome(good, session=session)  # what another authority vouched for is not resumed


# ---- from outside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["intermediate", "modern"])
def test_sslscan_finds_nothing(https, ca, tmp_path, profile):
    ca.install(tmp_path / "certs", "localhost", "localhost", kind="rsa", suffix="-rsa")
    kiln = https(TlsProfile=profile, HandshakeRate=0)
    found = subprocess.run(
        ["sslscan", "--no-colour", "--xml=-", "--sni-name=localhost", f"127.0.0.1:{kiln.tls_port}"], capture_output=True, timeout=300
    )
    scan = ElementTree.fromstring(found.stdout).find("ssltest")
    enabled = {p.get("type") + p.get("version") for p in scan.findall("protocol") if p.get("enabled") == "1"}
    assert enabled == ({"tls1.3"} if profile == "modern" else {"tls1.2", "tls1.3"})
    renegotiation = scan.find("renegotiation")
    assert renegotiation is None or (renegotiation.get("secure") == "1" or renegotiation.get("supported") == "0")
    compression = scan.find("compression")
    assert compression is None or compression.get("supported") == "0"
    assert all(h.get("vulnerable") == "0" for h in scan.findall("heartbleed"))
    ciphers = scan.findall("cipher")
    assert ciphers and all(c.get("strength") in ("strong", "acceptable") and int(c.get("bits")) >= 128 for c in ciphers)
    assert not any(re.search(r"CBC|RC4|3DES|MD5|-SHA$|NULL|EXP|anon", c.get("cipher")) for c in ciphers)
