"""The admin listener: where it listens, and who may ask."""

import json
import os
import re
import socket
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from kiln_server import PATIENCE, ROOT, free_port, read_all, wait_for
from admin_client import Admin, Watch


# ---- who may ask ----------------------------------------------------------------------------------


def test_foreign_hosts_are_refused(admin):
    kiln, tell = admin(config={"AdminHosts": ["monitor.example"]})
    for good in ("localhost", f"localhost:{tell.where}", "127.0.0.1", "127.9.9.9:1", "[::1]:80", "LocalHost", "monitor.example:9180"):
        assert tell.request("/status", headers={"Host": good}).status == 200, good
    for bad in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "[2001:db8::1]", "",
                "localhost:80:evil", "localhost:evil", "::1", "monitor.example.org", "[127.0.0.1]", "localhost, evil"):
        answer = tell.request("/status", headers={"Host": bad})
        assert answer.status == 403 and b"workers" not in answer.body, bad
    assert tell.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert tell.raw(b"GET /health HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert tell.raw(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_bodies_keep_nobody_busy(admin):
    kiln, tell = admin()
    chunk = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5;" + b"a" * 40000
    for head in (b"GET /status", b"POST /status", b"DELETE /status"):
        try:
            answer = tell.raw(head + b" HTTP/1.1\r\n" + chunk)
        except ConnectionError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 405 ")
    assert tell.request("/health").status == 200


def test_connections_have_a_number_and_a_time(admin):
    kiln, tell = admin(config={"AdminConnections": 4, "AdminTimeout": 1})
    held = [socket.create_connection(("127.0.0.1", tell.where), timeout=PATIENCE) for _ in range(4)]
    for s in held:
        s.sendall(b"GET /health HT")
    assert tell.request("/health").status == 200  # once one of them has had its time
    for s in held:
        assert read_all(s) == b""
        s.close()
    with socket.create_connection(("127.0.0.1", tell.where), timeout=PATIENCE) as slow:
        ended = threading.Event()
        thread = threading.Thread(target=lambda: (read_all(slow), ended.set()))
        thread.start()

        def trickle():
            try:
                slow.sendall(b"x")
            except OSError:
                pass
            return ended.is_set()

        wait_for(trickle, "a connection that trickles is closed")
        thread.join()


# ---- where it listens ------------------------------------------------------------------------------------


def test_socket_file(server, tmp_path):
    path = tmp_path / "admin.sock"
    kiln = server(files={"index.html": "page"}, config={"AdminListen": f"unix:{path}"}).start()
    tell = Admin(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert tell.ready()
    assert tell.request("/status", headers={"Host": "anything"}).status == 200
    done = subprocess.run(["curl", "-sf", "--unix-socket", path, "http://localhost/health"], capture_output=True, timeout=60)
    assert json.loads(done.stdout) == {"healthy": True}
    kiln.write_config(AdminSocketMode="0660")
    kiln.reload()
    wait_for(lambda: stat.S_IMODE(path.stat().st_mode) == 0o660, "the new mode")
    kiln.upgrade()
    wait_for(tell.ready, "the new server is ready")
    assert path.is_socket()
    kiln.stop()
    assert not path.exists()


def test_a_dead_socket_file_gives_way_and_a_live_one_does_not(server, tmp_path):
    path = tmp_path / "admin.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with server(files={"index.html": "page"}, config={"AdminListen": f"unix:{path}"}):
        assert Admin(path).ready()
        other = server(files={"index.html": "page"}, base="other", config={"AdminListen": f"unix:{path}"})
        other.start(wait=False)
        other.wait_exit(code=1)
        assert f"cannot listen on unix:{path} (AdminListen): it is in use" in other.log()
        assert Admin(path).ready()
    path.write_text("a file")
    refused = server(files={"index.html": "page"}, base="third", config={"AdminListen": f"unix:{path}"})
    refused.start(wait=False)
    refused.wait_exit(code=1)
    assert "no socket" in refused.log() and path.read_text() == "a file"


def test_a_taken_port_is_an_error_unless_optional(server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        kiln = server(files={"index.html": "page"}, config={"AdminListen": f"127.0.0.1:{port}"})
        kiln.start(wait=False)
        kiln.wait_exit(code=1)
        assert f"cannot listen on 127.0.0.1:{port} (AdminListen): it is in use" in kiln.log()
        with server(files={"index.html": "page"}, base="other",
                    config={"AdminListen": f"127.0.0.1:{port}", "AdminListenOptional": True}) as kiln:
            assert re.search(rf"warning.*127\.0\.0\.1:{port}.*in use.*going on without it", kiln.log())
            assert kiln.get("/").status == 200


def test_make_run_has_it(server):
    """As `make run` starts the server, at an address that is taken: a warning."""
    line = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    given = re.search(r"exec \S+/kiln (.*)", line)[1].split()
    assert "--AdminListen=127.0.0.1:9180" in given
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = [a.replace("9180", str(taken.getsockname()[1])) for a in given if a.startswith("--Admin")]
        with server(files={"index.html": "page"}, args=arguments) as kiln:
            assert "going on without it" in kiln.log()
            assert kiln.get("/").status == 200


def test_only_this_machine_unless_allowed(server, tmp_path):
    for address in ("0.0.0.0:9180", "192.0.2.1:9180", "[::]:9180", "[2001:db8::1]:9180"):
        kiln = server(files={"index.html": "page"}, config={"AdminListen": address})
        kiln.start(wait=False)
        kiln.wait_exit(code=1)
        assert "can be reached from other machines" in kiln.log() and "AdminAllowRemote" in kiln.log()
    with server(files={"index.html": "page"}, base="open",
                config={"AdminListen": "0.0.0.0:0", "AdminAllowRemote": True}) as kiln:
        tell = Admin(int(kiln.wait_log(r"admin listener on http://0\.0\.0\.0:(\d+)/")[1]))
        assert tell.request("/health", headers={"Host": "192.0.2.1:9180"}).status == 200
        assert tell.request("/health", headers={"Host": "evil.example"}).status == 403


def test_bad_addresses_are_named(server):
    for address in ("127.0.0.1", "127.0.0.1:99999", "unix:relative.sock", "example.com:9180", "unix:/" + "x" * 200):
        kiln = server(files={"index.html": "page"}, config={"AdminListen": address})
        kiln.start(wait=False)
        kiln.wait_exit(code=1)
        assert "AdminListen" in kiln.log() and "127.0.0.1:9180" in kiln.log(), address


def test_reload_moves_it_and_keeps_it_when_the_new_place_is_bad(admin, tmp_path):
    kiln, tell = admin()
    worker = kiln.worker_pid()
    other, path = free_port(), tmp_path / "admin.sock"
    kiln.write_config(AdminListen=f"127.0.0.1:{other}")
    kiln.reload()
    wait_for(Admin(other).ready, "the new place")
    assert kiln.worker_pid() == worker
    with pytest.raises(ConnectionRefusedError):
        tell.request("/health")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for bad in (f"127.0.0.1:{taken.getsockname()[1]}", "192.0.2.1:9180", "nonsense"):
            kiln.write_config(AdminListen=bad)
            kiln.reload(expect="config not reloaded: the server goes on")
            assert Admin(other).ready()
    kiln.write_config(AdminListen=f"unix:{path}")
    kiln.reload()
    assert Admin(path).ready()
    kiln.write_config(AdminListen="")
    kiln.reload()
    wait_for(lambda: not path.exists(), "the end of the socket file")
    kiln.write_config(AdminListen=f"127.0.0.1:{other}")
    kiln.reload()
    assert Admin(other).status()["server"]["reloads"] == 4


def test_reloads_refuse_no_request(admin):
    kiln, tell = admin()
    with Watch(tell) as watch:
        for n in range(5):
            kiln.reload()
            wait_for(lambda: watch.wrong or watch.total("kiln_config_reloads_total") > n, "the reload is counted")


def test_upgrade_keeps_the_counters_and_refuses_no_request(admin):
    kiln, tell = admin(config={"QuarantineCrashes": 0})
    for _ in range(7):
        kiln.get("/hello")
    kiln.get("/crash")
    tell.wait_endpoint("hello._c", hits=7)
    wait_for(lambda: tell.status()["totals"]["requests"] >= 8, "all are counted")
    with Watch(tell) as watch:
        for n in range(1, 4):
            kiln.upgrade()
            wait_for(lambda: tell.status()["pid"] == kiln.pid, "the new supervisor answers")
            kiln.get("/hello")
            tell.wait_endpoint("hello._c", hits=7 + n)
        wait_for(lambda: watch.wrong or watch.total("kiln_requests_total") >= 11, "all are counted")
    assert tell.endpoint("crash._c")["crashes"] == 1
    assert tell.endpoint("hello._c")["hits"] == 10


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_rights_of_the_worker_do_not_matter(admin, tmp_path):
    for directory in (tmp_path, *tmp_path.parents):
        if directory == Path("/tmp"):
            break
        directory.chmod(0o755)
    kiln, tell = admin(config={"User": "nobody", "SessionStore": "memory"})
    kiln.get("/index.html")  # no endpoint: the compiler may lie in a home directory that is closed to this user
    wait_for(lambda: tell.status()["totals"]["requests"] >= 1, "the worker's count")
    worker = tell.status()["workers"][0]
    assert worker["memory_bytes"] > 0
    assert os.stat(f"/proc/{worker['pid']}").st_uid != 0
