"""A client of the admin listener, and a server that has one."""

import http.client
import json
import socket
import threading

import pytest
from kiln_server import PATIENCE, read_all, wait_for
from prometheus_text import parse

HELLO = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)p; kiln_printf(c, \"hello\"); return 0; }\n"
CRASH = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { (void)c; (void)p; *(volatile int *)8 = 1; return 0; }\n"
PAGES = ["/", "/health", "/ready", "/status", "/metrics"]


class Admin:
    """A client of the admin listener at host:port or at the path of a socket."""

    def __init__(self, where):
        self.where = where

    def connection(self):
        if isinstance(self.where, int):
            return http.client.HTTPConnection("127.0.0.1", self.where, timeout=PATIENCE)
        client = http.client.HTTPConnection("localhost", timeout=PATIENCE)
        client.sock = socket.socket(socket.AF_UNIX)
        client.sock.settimeout(PATIENCE)
        client.sock.connect(str(self.where))
        return client

    def request(self, path, method="GET", headers=None, body=None):
        client = self.connection()
        try:
            client.request(method, path, headers=headers or {}, body=body)
            answer = client.getresponse()
            answer.body = answer.read()
            return answer
        finally:
            client.close()

    def raw(self, data):
        with socket.create_connection(("127.0.0.1", self.where), timeout=PATIENCE) as s:
            s.sendall(data)
            return read_all(s)

    def status(self):
        answer = self.request("/status")
        assert answer.status == 200
        return json.loads(answer.body)

    def metrics(self):
        answer = self.request("/metrics")
        assert answer.status == 200
        return parse(answer.body.decode())[0]

    def ready(self):
        answer = self.request("/ready")
        body = json.loads(answer.body)
        assert body["ready"] == (answer.status == 200)
        assert answer.status in (200, 503)
        return body["ready"]

    def endpoint(self, name):
        found = [e for e in self.status()["endpoints"] if e["file"].endswith("/" + name)]
        assert len(found) <= 1
        return found[0] if found else None

    def wait_endpoint(self, name, **figures):
        """Until these figures of it have at least these values."""

        def there():
            endpoint = self.endpoint(name)
            return endpoint and all(endpoint[k] >= v for k, v in figures.items()) and endpoint

        return wait_for(there, f"{name} has {figures}")


@pytest.fixture
def admin(server):
    """(kiln, admin) of a server with AdminListen, started."""

    def make(files=None, config=None, **more):
        kiln = server(files=files or {"hello._c": HELLO, "crash._c": CRASH, "index.html": "page"},
                      config={"AdminListen": "127.0.0.1:0", **(config or {})}, **more).start()
        return kiln, Admin(port_of(kiln))

    return make


def port_of(kiln, start=0):
    return int(kiln.wait_log(r"admin listener on http://127\.0\.0\.1:(\d+)/", start=start)[1])


def worker_states(status):
    return {w["pid"]: w["state"] for w in status["workers"]}


class Watch:
    """Reads /metrics without pause and notes every counter that goes back, and every refusal. What
    belongs to one worker alone ends with it."""

    def __init__(self, tell):
        self.tell = tell
        self.last = {}
        self.wrong = []
        self.count = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.ended.is_set() and not self.wrong:
            try:
                families, counters = parse(self.tell.request("/metrics").body.decode())
            except Exception as error:
                self.wrong.append(f"after {self.count} answers: {error!r}")
                return
            now = {(name, labels): value for name in counters for labels, value in families[name].items()}
            for key, value in self.last.items():
                if now.get(key, value if "worker" in dict(key[1]) else -1) < value:
                    self.wrong.append(f"{key} went from {value} to {now.get(key)}")
            self.last = now
            self.count += 1

    def total(self, name):
        return self.last.get((name, ()), 0)

    def __enter__(self):
        self.thread.start()
        wait_for(lambda: self.count > 0 or self.wrong, "the first answer")
        return self

    def __exit__(self, kind, value, traceback):
        self.ended.set()
        self.thread.join()
        if kind is None:
            assert self.wrong == []
