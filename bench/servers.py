"""The servers under measurement: what they serve, how each is started, and looking at them
from outside (processor time, memory, an answer)."""

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HELLO = b"Hello there! Path: /hello\n"
SERVER_CORE, LOAD_CORE = "0", "1"

HELLO_SOURCE = """\
#include <kiln.h>

int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    kiln_content_type(ctx, "text/plain");
    kiln_printf(ctx, "Hello there! Path: %s\\n", "/hello");
    return 0;
}
"""


def missing_programs():
    return [name for name in ("nginx", "h2o", "lighttpd", "wrk", "h2load", "openssl", "curl", "taskset") if not shutil.which(name, path=search_path())]


def search_path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def wait_until(condition, what, seconds=60):
    """Waits for a condition, never for a time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds} s in vain for: {what}")
        time.sleep(0.005)


def free_ports(first, last):
    """Yields one after the other, each once."""
    for port in range(first, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise RuntimeError(f"no free port in {first}-{last}")


# ---- what is served ------------------------------------------------------------------------------


def page(size):
    """HTML-like text that does not compress to nothing."""
    line = "<p>%08x the quick brown fox jumps over the lazy dog, and kilns burn hot.</p>\n"
    text = "".join(line % (i * 2654435761 & 0xFFFFFFFF) for i in range(size // 60))
    return text[:size].encode()


def write_site(directory: Path, more_files=0):
    directory.mkdir(parents=True)
    (directory / "hello.txt").write_bytes(HELLO)
    (directory / "page.html").write_bytes(page(11500))
    (directory / "large.bin").write_bytes(page(1 << 20))
    (directory / "huge.bin").write_bytes(page(1 << 20) * 100)
    for i in range(0, more_files, 100):
        folder = directory / "files" / f"{i // 100:04d}"
        folder.mkdir(parents=True)
        for k in range(min(100, more_files - i)):
            (folder / f"document-{k:02d}.html").write_bytes(b"<p>one of many</p>\n")


def write_endpoints(directory: Path):
    """hello-so and hello-c answer the same; only kiln looks at them."""
    source = directory.parent / "hello.c"
    source.write_text(HELLO_SOURCE)
    built = directory.parent / "hello.so"
    subprocess.run(
        ["gcc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-Wl,-Bsymbolic", f"-I{ROOT}/plugin-sdk/include", "-o", built, source],
        check=True,
    )
    shutil.move(built, directory / "hello-so.so")
    (directory / "hello-c._c").write_text(HELLO_SOURCE)


def write_certificate(directory: Path):
    """ECDSA, signed by itself, as CertDir has it; all servers use the same."""
    own = directory / "certs" / "localhost"
    own.mkdir(parents=True)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", own / "privkey.pem", "-out", own / "fullchain.pem"],
        check=True, capture_output=True,
    )
    for name in ("privkey.pem", "fullchain.pem"):
        (own / name).chmod(0o644)  # for servers that become another user
    return own


# ---- a running server ----------------------------------------------------------------------------------


class Server:
    def __init__(self, name, port, command, directory, paths):
        self.name, self.port, self.command, self.directory, self.paths = name, port, command, directory, paths
        self.process = None

    def start(self, pinned=True):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        command = ["taskset", "-c", SERVER_CORE, *self.command] if pinned else self.command
        self.log = open(self.directory / f"{self.name}.log", "ab")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            env={**os.environ, "PATH": search_path()},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        )
        wait_until(self.answers, f"{self.name} on port {self.port}; see {self.log.name}")

    def answers(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with status {self.process.returncode}: {self.log_tail()}")
        try:
            return self.get(self.paths["page"])[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def log_tail(self):
        return Path(self.log.name).read_text(errors="replace")[-2000:]

    def stop(self):
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
        self.process = None

    def get(self, path, headers=None, tls=False):
        if tls:
            anyone = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection("127.0.0.1", self.tls_port, timeout=30, context=anyone)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get_h2(self, path):
        command = ["curl", "-sk", "--http2", "-w", "%{http_version} %{http_code}", f"https://127.0.0.1:{self.tls_port}{path}"]
        out = subprocess.run(command, capture_output=True, timeout=30).stdout
        version, status = out[-5:].split()
        if version != b"2":
            raise RuntimeError(f"{self.name}: no HTTP/2 on port {self.tls_port}")
        return int(status), out[:-5]

    def processes(self):
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    todo += [int(c) for c in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
            except OSError:
                pass
        return found

    def compiles(self):
        """A helper is at work on an endpoint (one that waits for work is not)."""
        for pid in self.processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            name = os.path.basename(words[0])
            if name in (b"gcc", b"clang", b"cc1", b"as", b"ld", b"collect2") or (name == b"kiln-cc" and words[1] != b"wait"):
                return True
        return False

    def cpu_seconds(self):
        """User and system time of every thread of the process tree, to the nanosecond."""
        total = 0
        for pid in self.processes():
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
            except OSError:
                pass
        return total / 1e9

    def memory(self):
        """Resident bytes of the process tree."""
        total = 0
        for pid in self.processes():
            try:
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
            except OSError:
                pass
        return total


def from_template(name, ports, directory, root, command, paths):
    port, tls_port = next(ports), next(ports)
    own = directory / name
    own.mkdir()
    own.chmod(0o777)  # as root, some become another user before they write their files
    text = (HERE / "peers" / f"{name}.conf.in").read_text()
    for key, value in (
        ("{PORT}", str(port)), ("{TLS_PORT}", str(tls_port)), ("{DIR}", str(own)), ("{ROOT}", str(root)),
        ("{CERT}", str(directory / "certs" / "localhost")),
    ):
        text = text.replace(key, value)
    config = own / f"{name}.conf"
    config.write_text(text)
    server = Server(name, port, [part.replace("{CONFIG}", str(config)) for part in command], own, paths)
    server.tls_port = tls_port
    return server


def make_peers(directory, root, ports):
    files = {"page": "/page.html", "large": "/large.bin", "huge": "/huge.bin"}
    return [
        from_template("nginx", ports, directory, root, ["nginx", "-e", "stderr", "-c", "{CONFIG}"], {"hello": "/hello", **files}),
        from_template("h2o", ports, directory, root, ["h2o", "-c", "{CONFIG}"], {"hello": "/hello.txt", **files}),
        from_template("lighttpd", ports, directory, root, ["lighttpd", "-D", "-f", "{CONFIG}"], {"hello": "/hello.txt", **files}),
    ]


def make_kiln(build, name, directory, root, ports, options=None, threads=1):
    port, tls_port = next(ports), next(ports)
    own = directory / name
    own.mkdir()
    config = own / "kiln.json"
    config.write_text(
        json.dumps(
            {
                "HttpPorts": [port],
                "HttpsPorts": [tls_port],
                "CertDir": str(directory / "certs"),
                "HandshakeRate": 0,
                "BindAddress": "127.0.0.1",
                "SiteDir": str(root),
                "Threads": threads,
                "CacheDir": str(own / "cache"),
                "SessionsDir": str(own / "sess"),
                "PidFile": str(own / "kiln.pid"),
                "KeepAliveTimeout": 600,
                **(options or {}),
            },
            indent=1,
        )
    )
    paths = {"hello": "/hello-so", "hello-c": "/hello-c", "page": "/page.html", "large": "/large.bin", "huge": "/huge.bin"}
    server = Server(name, port, [str(build / "kiln"), f"--config={config}"], own, paths)
    server.tls_port = tls_port
    return server
