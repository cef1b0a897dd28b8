"""HTTP/2 against the running server: independent clients (curl, nghttp, h2load, python3-h2, Chromium), requests and
answers. Flow control and ends: test_http2_flow.py; frame by frame: test_http2_frames.py."""

import json
import re
import socket
import ssl
import subprocess

import browser
import h2.config
import h2.connection
import h2.events
import pytest

from http2_client import DATA, END_STREAM, NO_ERROR, PREFACE, PROTOCOL_ERROR, RST_STREAM, Http2, rst_stream, settings
from http2_site import BIG, PAGE, STREAMS, site  # noqa: F401
from kiln_server import PATIENCE, wait_for


def curl(kiln, path, *args, prior=True, binary=True):
    command = ["curl", "-s", "--max-time", str(int(PATIENCE)), "--http2-prior-knowledge" if prior else "--http2", *args]
    done = subprocess.run([*command, kiln.url(path)], capture_output=True, timeout=PATIENCE * 2)
    assert done.returncode == 0, done
    return done.stdout if binary else done.stdout.decode()


# ---- independent clients ------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [True, False], ids=["prior-knowledge", "upgrade"])
def test_curl(site, prior):
    kiln = site()
    version = "%{http_version} %{http_code}"
    assert curl(kiln, "/", prior=prior) == PAGE
    assert curl(kiln, "/", "-o/dev/null", "-w", version, prior=prior) == b"2 200"
    assert curl(kiln, "/big.bin", prior=prior) == BIG
    assert curl(kiln, "/big.bin", "-r100-199", prior=prior) == BIG[100:200]
    assert curl(kiln, "/none", "-o/dev/null", "-w", version, prior=prior) == b"2 404"
    head = curl(kiln, "/", "-I", prior=prior, binary=False)
    assert f"content-length: {len(PAGE)}" in head and "HTTP/2 200" in head
    etag = re.search(r"(?m)^etag: (.*?)\r?$", head)[1]
    assert curl(kiln, "/", "-o/dev/null", "-w", version, "-H", f"If-None-Match: {etag}", prior=prior) == b"2 304"
    assert curl(kiln, "/", "--compressed", prior=prior) == PAGE
    assert b"content-encoding: gzip" in curl(kiln, "/", "-I", "-H", "Accept-Encoding: gzip", prior=prior)


def test_curl_uploads(site, tmp_path):
    kiln = site()
    body = tmp_path / "body"
    body.write_bytes(BIG)
    assert curl(kiln, "/s/echo", "--data-binary", f"@{body}") == BIG
    assert curl(kiln, "/s/echo", "--data-binary", f"@{body}", "-H", "Expect: 100-continue") == BIG
    # A body that is on its way is no reason to switch: it is answered by HTTP/1.1.
    assert curl(kiln, "/s/echo", "--data-binary", f"@{body}", prior=False) == BIG


def test_nghttp(site):
    kiln = site()
    command = ["nghttp", "-v", "--no-dep", "-m", "20", kiln.url("/"), kiln.url("/s/flood?n=200000"), kiln.url("/big.bin")]
    out = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE * 2).stdout
    assert out.count(":status: 200") == 60
    upgraded = subprocess.run(["nghttp", "-u", "-v", kiln.url("/")], capture_output=True, text=True, timeout=PATIENCE).stdout
    assert "HTTP Upgrade success" in upgraded and ":status: 200" in upgraded


@pytest.mark.parametrize("path", ["/", "/s", "/s/flood?n=100000", "/big.bin"])
def test_h2load(site, path):
    kiln = site(Http2FrameBurst=100000)
    count = 300 if "big" in path else 3000
    command = ["h2load", "-n", str(count), "-c", "8", "-m", "10", kiln.url(path)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 6).stdout
    assert f"{count} succeeded, 0 failed, 0 errored, 0 timeout" in out, out


class Python:
    """python3-h2 as the client: it checks everything that the server sends."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.answers = {}
        self.flush()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def request(self, path, method="GET", body=None, trailers=None, headers=(), end=True):
        stream = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost"), *headers]
        self.h2.send_headers(stream, head, end_stream=end and body is None)
        self.answers[stream] = {"body": b"", "done": False, "interim": []}
        self.flush()
        if body is not None:
            self.send(stream, body, trailers)
        return stream

    def send(self, stream, body, trailers=None):
        while body:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(body))
            if room > 0:
                self.h2.send_data(stream, body[:room])
                body = body[room:]
                self.flush()
            else:
                self.step()
        self.h2.send_headers(stream, trailers, end_stream=True) if trailers else self.h2.end_stream(stream)
        self.flush()

    def step(self):
        data = self.socket.recv(65536)
        assert data, "the server closed the connection"
        for event in self.h2.receive_data(data):
            answer = self.answers.get(getattr(event, "stream_id", None))
            if isinstance(event, h2.events.ResponseReceived):
                answer["headers"] = dict(event.headers)
            elif isinstance(event, h2.events.InformationalResponseReceived):
                answer["interim"].append(dict(event.headers)[":status"])
            elif isinstance(event, h2.events.TrailersReceived):
                answer["trailers"] = dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                answer["body"] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.PingAckReceived):
                self.heard = True
            elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                answer["done"] = True
                answer["reset"] = isinstance(event, h2.events.StreamReset)
        self.flush()

    def until_heard(self):
        """The server has taken all that was sent."""
        self.heard = False
        self.h2.ping(b"are you?")
        self.flush()
        while not self.heard:
            self.step()

    def wait(self, stream):
        while not self.answers[stream]["done"]:
            self.step()
        return self.answers[stream]


def test_python_h2(site):
    kiln = site()
    client = Python(kiln.port)
    streams = [client.request("/"), client.request("/big.bin"), client.request("/s/flood?n=300000")]
    upload = client.request("/s/echo", "POST", BIG[:300000])
    assert client.wait(streams[0])["body"] == PAGE
    assert client.wait(streams[1])["body"] == BIG
    assert client.wait(streams[2])["body"] == b"x" * 300000
    assert client.wait(upload)["body"] == BIG[:300000]
    told = client.wait(client.request("/s", "POST", b"12345", trailers=[("x-sum", "abc")]))
    assert b"body 5 trailer abc" in told["body"]
    head = client.wait(client.request("/big.bin", "HEAD"))
    assert head["headers"]["content-length"] == str(len(BIG)) and head["body"] == b""
    expects = client.wait(client.request("/s/echo", "POST", b"now", headers=[("expect", "100-continue")]))
    assert expects["interim"] == ["100"] and expects["body"] == b"now"


def test_100_continue_is_for_who_reads(site):
    kiln = site(MaxRequestBodySize=1000)
    client = Python(kiln.port)
    for path, more, status in (("/", [], "405"), ("/none", [], "404"), ("/s/status?n=403", [], "403"), ("/s/echo", [("content-length", "5000")], "413")):
        answer = client.wait(client.request(path, "POST", headers=[("expect", "100-continue"), *more], end=False))
        assert answer["headers"][":status"] == status and answer["interim"] == [], path


# Takes memory without pause from "begun" until the file `go` is there, and looks whether anybody else wrote there.
TAKES_MEMORY = """#include <kiln.h>
#include <string.h>
#include <unistd.h>
enum { MOST = 400000, SIZE = 24 };
int kiln_run(kiln_context *ctx, const char *path)
{
    static char *all[MOST];
    const char *go = kiln_sprintf(ctx, "%s/../go", kiln_directory(ctx));
    int count = 0, whole = 0;
    (void)path;
    kiln_puts(ctx, "begun ");
    kiln_flush(ctx);
    while (count < MOST && (count % 1000 != 0 || access(go, F_OK) != 0)) {
        memset(all[count++] = kiln_alloc(ctx, SIZE), 'm', SIZE);
        for (volatile int i = 0; i < 500; i++) {
        }
    }
    for (int i = 0; i < count; i++) {
        whole += memcmp(all[i], "mmmmmmmmmmmmmmmmmmmmmmmm", SIZE) == 0;
    }
    kiln_body(ctx, NULL);
    for (int i = 0; i < 60; i++) {
        const char *value = kiln_trailer(ctx, kiln_sprintf(ctx, "x-%d", i));
        whole += value != NULL && strcmp(value, kiln_sprintf(ctx, "value %d", i)) == 0;
    }
    return kiln_puts(ctx, whole == count + 60 ? "whole" : "damaged");
}
"""


@pytest.mark.parametrize("where", ["pool", "isolated"])
def test_trailers_that_come_while_an_endpoint_works_on_another_thread(server, where):
    config = {"OptimizeEndpoints": False, "OffloadEndpoints": ["/m"], "Isolate": ["/m"] if where == "isolated" else []}
    kiln = server(config, {"m._c": TAKES_MEMORY}).start()
    client = Python(kiln.port)
    stream = client.request("/m", "POST", end=False)
    while b"begun " not in client.answers[stream]["body"]:
        client.step()
    client.send(stream, b"body", [(f"x-{i}", f"value {i}") for i in range(60)])
    client.until_heard()
    (kiln.base / "go").write_text("")
    assert client.wait(stream)["body"] == b"begun whole"


SENDS_TRAILERS = """
#include <kiln.h>
#include <string.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    int size = path[strlen(path) - 1] - '0';
    kiln_trailer_add(ctx, "X-Sum", "abc");
    for (int i = 0; i < size * 100; i++) {
        kiln_printf(ctx, "%01000d", i);
    }
    return kiln_trailer_add(ctx, "X-Late", "7");
}
"""


@pytest.mark.parametrize("isolated", [False, True])
def test_trailers_of_an_answer(server, isolated):
    """Behind a body of many frames, of one, of none; not of HEAD."""
    kiln = server({"OptimizeEndpoints": False, "Isolate": ["/t"] if isolated else []}, {"t._c": SENDS_TRAILERS}).start()
    client = Python(kiln.port)
    streams = [client.request(f"/t/{size}") for size in (5, 1, 0)]
    for stream, size in zip(streams, (500000, 100000, 0)):
        told = client.wait(stream)
        assert len(told["body"]) == size
        assert told["trailers"] == {"x-sum": "abc", "x-late": "7"} and told["headers"]["trailer"] == "X-Sum, X-Late"[: 13 if size < 65536 else 5]
        assert not told["reset"]
    told = client.wait(client.request("/t/1", "HEAD"))
    assert told["headers"][":status"] == "200" and "trailers" not in told
    shown = subprocess.run(["nghttp", "-nv", f"http://127.0.0.1:{kiln.port}/t/0"], capture_output=True, text=True, check=True)
    assert "x-sum: abc" in shown.stdout


# ---- requests ---------------------------------------------------------------------------------------


def test_what_an_endpoint_sees(site):
    kiln = site()
    with Http2(kiln.port) as c:
        extra = [("cookie", "a=1"), ("x-one", "1"), ("cookie", "b=2"), ("cookie", "c=3"), ("x-two", "2")]
        text = c.get("/s/a?q=1", authority="Example.COM:80", extra=extra).body.decode()
    lines = text.splitlines()
    assert lines[0] == "GET /s/a?q=1 example.com:80 HTTP/2"
    assert lines[1:] == ["cookie=a=1; b=2; c=3", "x-one=1", "x-two=2"]


def test_access_log_and_limits(site, tmp_path):
    log = tmp_path / "access.log"
    kiln = site(Logging=True, AccessLog=str(log), MaxRequestBodySize=1000, MaxHeaderSize=2048, MaxUriLength=200, MaxHeaderCount=20)
    with Http2(kiln.port) as c:
        assert c.get("/").status == 200
        assert c.get("/?" + "x" * 300).status == 414
        assert c.get("/", extra=[("x", "y" * 3000)]).status == 431
        assert c.get("/", extra=[(f"x{i}", "") for i in range(30)]).status == 431
        declared = c.open(path="/s/echo", method="POST", extra=[("content-length", "2000")], end=False)
        assert c.answer(declared).status == 413
        unknown = c.open(path="/s", method="POST", end=False)
        c.body(unknown, b"z" * 1500)
        answer = c.answer(unknown)
        assert answer.status == 200 and b"body" not in answer.body  # the endpoint says what it does with it
        assert c.get("/s", method="TRACE").status == 405
        assert c.get("/../../etc/passwd").status == 400
        assert c.alive()
    wait_for(lambda: log.exists() and b"TRACE /s" in log.read_bytes(), "the access log")
    text = log.read_text()
    assert f'"GET / HTTP/2" 200 {len(PAGE)}' in text
    assert ' HTTP/2" 414 ' in text and ' HTTP/2" 431 ' in text and '"POST /s/echo HTTP/2" 413 ' in text


@pytest.mark.parametrize(
    "authority, outcome",
    [("bad host", "reset"), ("a/b", "reset"), ("", "reset"), ("a@b", 400), ("x:99999", 400), ("[::1", 400), ("a,b", 400)],
)
def test_hosts_that_are_none(site, authority, outcome):
    """What cannot be an authority is malformed (RFC 9113 8.3.1); what is one of nobody's is answered."""
    kiln = site()
    with Http2(kiln.port) as c:
        answer = c.get("/", authority=authority)
        assert (answer.status, answer.reset) == ((0, PROTOCOL_ERROR) if outcome == "reset" else (outcome, None))
        assert c.get("/").status == 200  # the others are not harmed


def test_unread_body_ends_the_stream_only(site):
    kiln = site()
    with Http2(kiln.port) as c:
        stream = c.open(path="/", method="POST", end=False)
        c.body(stream, b"x" * 1000, end=False)
        answer = c.answer(stream)
        assert answer.status == 405 and answer.ended
        f = c.until(lambda f: f.kind == RST_STREAM and f.stream == stream)
        assert f.error == NO_ERROR
        assert c.get("/").status == 200


def test_cut_answer_is_a_reset(site):
    kiln = site()
    with Http2(kiln.port) as c:
        answer = c.get("/s/cut")
        assert answer.reset == 2 and not answer.ended
        assert c.get("/").status == 200


def test_events(site):
    kiln = site()
    with Http2(kiln.port) as c:
        stream = c.open(path="/s/events?n=5")
        f = c.until(lambda f: f.kind == DATA and b"data: 0" in f.payload)
        assert not f.flags & END_STREAM
        assert c.answer(stream).body.count(b"data: ") == 5


# Sends an event; the next one when the file `go` is there.
TWO_EVENTS = """#include <kiln.h>
#include <unistd.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    const char *go = kiln_sprintf(ctx, "%s/../go", kiln_directory(ctx));
    (void)path;
    kiln_sse_begin(ctx);
    kiln_sse_send(ctx, NULL, "1", "first");
    while (access(go, F_OK) != 0) {
        kiln_sleep(ctx, 5);
    }
    return kiln_sse_send(ctx, NULL, "2", "second");
}
"""


def test_events_come_when_they_happen(server):
    kiln = server({"OptimizeEndpoints": False}, {"e._c": TWO_EVENTS}).start()
    client = Python(kiln.port)
    answer = client.answers[client.request("/e")]
    while b"data: first" not in answer["body"]:
        client.step()
    assert answer["headers"]["content-type"].startswith("text/event-stream")
    (kiln.base / "go").write_text("")
    while not answer["done"]:
        client.step()
    assert b"id: 2" in answer["body"] and b"data: second" in answer["body"]


BOTH_WAYS = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    char piece[4096];
    long n;
    (void)path;
    while ((n = kiln_body_read(ctx, piece, sizeof piece)) > 0) {
        kiln_write(ctx, piece, (size_t)n);
        kiln_flush(ctx);
    }
    return 0;
}
"""


def test_both_ways_at_once(server):
    """The answer to each piece of the body is waited for before the next is sent."""
    kiln = server({"OptimizeEndpoints": False}, {"e._c": BOTH_WAYS}).start()
    client = Python(kiln.port)
    stream = client.request("/e", "POST", end=False)
    sent = b""
    for i in range(20):
        client.h2.send_data(stream, b"%d " % i * 1000)
        client.flush()
        sent += b"%d " % i * 1000
        while len(client.answers[stream]["body"]) < len(sent):
            client.step()
    client.send(stream, b"")
    assert client.wait(stream)["body"] == sent


# ---- upgrade ---------------------------------------------------------------------------------------------------


def upgrade(kiln, settings_value="AAMAAABkAAQAAP__", connection="Upgrade, HTTP2-Settings", extra="", method="GET", path="/", body=b""):
    s = kiln.connect()
    s.sendall(
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nUpgrade: h2c\r\n"
        f"HTTP2-Settings: {settings_value}\r\n{extra}\r\n".encode()
        + body
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += s.recv(1)
    return s, head


def test_upgrade(site):
    kiln = site()
    s, head = upgrade(kiln)
    assert head.startswith(b"HTTP/1.1 101 ") and b"Upgrade: h2c" in head
    with Http2(kiln.port, sock=s) as c:
        answer = c.answer(1)
        assert answer.status == 200 and answer.body == PAGE
        c.next_id = 3
        assert c.get("/").body == PAGE


@pytest.mark.parametrize("body, switched", [(b"", True), (b"hello", False)])
def test_upgrade_with_a_body(site, body, switched):
    """A body that is to come keeps the connection at HTTP/1.1 (RFC 9110 7.8: to ignore Upgrade is always right)."""
    kiln = site()
    s, head = upgrade(kiln, method="POST", path="/s/echo", extra=f"Content-Length: {len(body)}\r\n", body=body)
    assert head.startswith(b"HTTP/1.1 101 " if switched else b"HTTP/1.1 200 ")
    if switched:
        with Http2(kiln.port, sock=s) as c:
            assert c.answer(1).status == 200
    else:
        with s:
            assert s.recv(len(body)) == body


@pytest.mark.parametrize(
    "wrong",
    [
        {"settings_value": "!!!"},
        {"settings_value": "AAMAAABkAA"},
        {"connection": "Upgrade"},
        {"connection": "HTTP2-Settings"},
        {"extra": "HTTP2-Settings: AAMAAABk\r\n"},
    ],
    ids=["not-base64", "half-a-setting", "not-listed", "no-upgrade", "two-settings"],
)
def test_upgrade_that_is_not_quite_right(site, wrong):
    kiln = site()
    s, head = upgrade(kiln, **wrong)
    with s:
        assert head.startswith(b"HTTP/1.1 200 ")


def test_switched_off(site):
    kiln = site(EnableHttp2=False)
    answer = kiln.raw(PREFACE + settings())
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert curl(kiln, "/", "-o/dev/null", "-w", "%{http_version}", prior=False) == b"1.1"


# ---- neighbours ------------------------------------------------------------------------------------------------


def test_bad_streams_do_not_harm_others(site):
    kiln = site()
    with Http2(kiln.port) as c:
        good = c.open(path="/s/sleep?n=300")
        bad = [
            c.open(c.head() + [("Upper", "x")]),
            c.open(c.head() + [("connection", "close")]),
            c.open([(":method", "GET"), (":path", "/")]),
            c.open(c.head(), end=False),
            c.open(path="/s/cut"),
        ]
        c.send(rst_stream(bad[3]))
        assert c.answer(good).status == 204
        assert c.answer(bad[0]).reset == 1 and c.answer(bad[1]).reset == 1 and c.answer(bad[2]).reset == 1


def test_clients_that_leave(site):
    kiln = site()
    for _ in range(20):
        c = Http2(kiln.port)
        c.open(path="/s/flood?n=10000000")
        c.open(path="/big.bin")
        c.open(path="/s/echo", method="POST", end=False)
        c.recv()
        c.socket.close()
    with Http2(kiln.port) as c:
        assert c.get("/").status == 200


# ---- over TLS -------------------------------------------------------------------------------------------------


GIF = bytes.fromhex("47494638396101000100800000ff0000ffffff21f90401000000002c00000000010001000002024401003b")


def over_tls(kiln, protocols=("h2",)):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", kiln.tls_port), PATIENCE), server_hostname="localhost")


@pytest.fixture
def secure_site(server):
    def make(files=None, **config):
        site = {"s._c": STREAMS, "index.html": PAGE, "big.bin": BIG, **(files or {})}
        return server({"OptimizeEndpoints": False, **config}, site, tls=True).start()

    return make


def test_streams_over_tls(secure_site):
    kiln = secure_site()
    with Http2(kiln.tls_port, sock=over_tls(kiln)) as c:
        streams = [c.open(path="/big.bin", scheme="https") for _ in range(3)]
        upload = c.open(path="/s/echo", method="POST", scheme="https", end=False)
        c.body(upload, b"u" * 60000)
        assert all(c.answer(stream).body == BIG for stream in streams)
        assert c.answer(upload).body == b"u" * 60000


def test_h2load_over_tls(secure_site):
    kiln = secure_site(Http2FrameBurst=100000)
    for path, count in (("/s", 2000), ("/", 2000), ("/big.bin", 100)):
        url = f"https://127.0.0.1:{kiln.tls_port}{path}"
        out = subprocess.run(["h2load", "-n", str(count), "-c", "8", "-m", "10", url], capture_output=True, text=True, timeout=PATIENCE * 6).stdout
        assert f"{count} succeeded, 0 failed, 0 errored, 0 timeout" in out and "Application protocol: h2" in out, out


def test_no_prior_knowledge_over_tls(secure_site):
    """With TLS the handshake says which protocol it is, and nothing else does (RFC 9113 3.2)."""
    kiln = secure_site()
    with over_tls(kiln, ["http/1.1"]) as s:
        s.sendall(PREFACE + settings())
        assert s.recv(100).startswith(b"HTTP/1.1 505 ")


@pytest.mark.skipif(browser.program() is None, reason="there is no Chromium")
def test_a_page_with_200_images_in_a_browser(secure_site, tmp_path):
    page = "<!DOCTYPE html><title>many</title>" + "".join(f'<img src="img/{i}.gif">' for i in range(200))
    log = tmp_path / "access.log"
    files = {"many.html": page, **{f"img/{i}.gif": GIF for i in range(200)}}
    kiln = secure_site(files, Logging=True, AccessLog=str(log))
    url = f"https://localhost:{kiln.tls_port}/many.html"
    with browser.Browser(tmp_path) as tab:
        tab.call("Security.setIgnoreCertificateErrors", ignore=True)
        tab.open(url)
        tab.wait("[...document.images].filter(i => i.complete && i.naturalWidth == 1).length == 200")
        tab.wait("performance.getEntriesByType('resource').length >= 200")
        protocols = json.loads(
            tab.run(
                "JSON.stringify([...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
                ".filter(e => !e.name.endsWith('favicon.ico')).map(e => e.nextHopProtocol))"
            )
        )
        assert len(protocols) == 201 and set(protocols) == {"h2"}
    wait_for(lambda: log.read_text().count(".gif HTTP/2\" 200 ") == 200, "200 lines of HTTP/2 in the access log")
