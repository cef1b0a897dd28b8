"""The life of the server's processes: start, signals, a worker that dies, reload, logs, end."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from kiln_server import PATIENCE, build_dir, children_of, exchange, free_port, processes_marked, read_all, read_until, wait_for
from process_facts import PAGE, alive, lines_of, pid_on_file


# ---- start -------------------------------------------------------------------------------


def test_start_says_what_is_served_and_writes_the_pid_file(server):
    with server(files=PAGE) as kiln:
        line = kiln.wait_log(rf"notice \[\d+\] kiln [\d.]+ serving (\S+) on (\S+) \((\d+) threads?, 1 file\)\n")
        assert line[1] == str(kiln.www)
        assert line[2] == f"http://127.0.0.1:{kiln.port}"
        assert line[3] == "2"
        assert pid_on_file(kiln) == kiln.pid
        assert kiln.worker_pid() != kiln.pid
    assert not kiln.pid_file.exists()


def test_one_thread_for_each_loop(server):
    with server(files=PAGE, config={"Threads": 3}) as kiln:
        names = [(p / "comm").read_text().strip() for p in Path(f"/proc/{kiln.worker_pid()}/task").iterdir()]
        assert sorted(n for n in names if n.startswith("loop")) == ["loop 0", "loop 1", "loop 2"]


def congestion_of(port: int, peer: int) -> str:
    """Which congestion control the server's side of a connection has."""
    out = subprocess.run(["ss", "-Htin", f"sport = :{port} and dport = :{peer}"], capture_output=True, text=True, check=True).stdout
    return re.search(r"\b(bbr|reno|cubic)\b", out)[1]


@pytest.mark.skipif(Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip() != "bbr", reason="this machine does not pace")
@pytest.mark.skipif(shutil.which("ss") is None, reason="no ss")
@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_the_kernel_does_not_pace_what_stays_on_the_machine(server, address):
    with server(files=PAGE, config={"BindAddress": address}) as kiln:
        client = kiln.client()
        assert exchange(client, "GET", "/").status == 200
        assert congestion_of(kiln.port, client.sock.getsockname()[1]) == "reno"


def test_port_in_use_names_the_port_and_its_holder(server):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        kiln = server(files=PAGE, config={"HttpPorts": [port]}).start(wait=False)
        kiln.process.wait(timeout=PATIENCE)
        assert kiln.process.returncode == 1
        assert re.search(
            rf"kiln: cannot listen on port {port} \(127\.0\.0\.1\): it is in use by \S+ \(process {os.getpid()}\); "
            r"stop that program, or choose another port with --httpPort=N or HttpPorts\n",
            kiln.log(),
        )
        assert not kiln.pid_file.exists()
        kiln.kill()


def test_unknown_address_is_explained(server):
    kiln = server(files=PAGE, config={"BindAddress": "192.0.2.1", "HttpPorts": [free_port()]}).start(wait=False)
    assert kiln.process.wait(timeout=PATIENCE) == 1
    assert "this machine does not have that address; correct BindAddress" in kiln.log()
    kiln.kill()


def test_all_addresses_serve_both_families(server):
    with server(files=PAGE, config={"BindAddress": ""}) as kiln:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as s:
                s.connect((host, kiln.port))
                s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert read_all(s).endswith(b"\r\n\r\nhello")
        assert f"http://localhost:{kiln.port}" in kiln.log()


def test_several_ports(server):
    ports = [free_port(), free_port()]
    with server(files=PAGE, config={"HttpPorts": ports}) as kiln:
        for port in ports:
            kiln.port = port
            assert kiln.get("/").body == b"hello"


def test_second_server_with_the_same_pid_file_is_refused(server):
    with server(files=PAGE) as first:
        second = server(files=PAGE, base="other", config={"PidFile": str(first.pid_file), "HttpPorts": [free_port()]})
        second.start(wait=False)
        assert second.process.wait(timeout=PATIENCE) == 1
        assert f"running already (process {first.pid})" in second.log()
        second.kill()
        assert pid_on_file(first) == first.pid


def test_pid_file_left_by_a_crash_does_not_matter(server, tmp_path):
    kiln = server(files=PAGE)
    kiln.pid_file.write_text("1\n")
    with kiln:
        assert pid_on_file(kiln) == kiln.pid


def test_pid_file_that_is_a_link_is_not_followed(server, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    kiln = server(files=PAGE)
    kiln.pid_file.symlink_to(victim)
    with kiln:
        assert "cannot write PidFile" in kiln.log()
    assert victim.read_text() == "precious"


def test_worker_argument_is_not_for_people():
    done = subprocess.run([build_dir() / "kiln", "--worker"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "run kiln without it" in done.stderr


# ---- end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signal_ends_cleanly(server, number):
    kiln = server(files=PAGE).start()
    kiln.signal(number)
    kiln.wait_exit(0)
    assert not kiln.pid_file.exists()
    with pytest.raises(ConnectionRefusedError):
        kiln.connect()


def test_idle_connection_does_not_hold_up_the_end(server):
    kiln = server(files=PAGE, config={"ShutdownTimeout": 600, "LingerTimeout": 600}).start()
    client = kiln.client()
    exchange(client, "GET", "/")
    kiln.stop()
    client.close()


SLOW = """
#include <kiln.h>
#include <unistd.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    kiln_printf(ctx, "first;");
    kiln_flush(ctx);
    while (access("%s", F_OK) != 0) {
        if (kiln_sleep(ctx, 5) != KILN_OK) {
            return 0;
        }
    }
    kiln_printf(ctx, "last.");
    return 0;
}
"""


def test_running_request_is_finished_before_the_end(server, tmp_path):
    go = tmp_path / "go"
    kiln = server(files={"slow._c": SLOW % go}, config={"ShutdownTimeout": 600}).start()
    with kiln.connect() as s:
        s.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        head = read_until(s, b"first;")
        kiln.write_config(DefaultHeaders={"X-Mark": "new"})
        kiln.reload(r"notice \[\d+\] config reloaded")
        kiln.signal(signal.SIGTERM)
        wait_for(lambda: refused(kiln), "the end of listening")
        go.touch()
        assert b"last." in head + read_all(s)
    kiln.wait_exit(0)


def test_handler_that_ignores_the_end_does_not_hold_it_up(server, tmp_path):
    """It sleeps in C on a pool thread, and nobody can unwind it."""
    source = SLOW.replace("kiln_sleep(ctx, 5) != KILN_OK", "usleep(1000000) == 12345") % (tmp_path / "never")
    kiln = server(files={"stuck._c": source}, config={"ShutdownTimeout": 0.1, "OffloadEndpoints": ["/stuck"]}).start()
    with kiln.connect() as s:
        s.sendall(b"GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n")
        read_until(s, b"first;")
        kiln.stop()
    assert "left behind at the end" in kiln.log()


def test_second_signal_ends_at_once(server):
    kiln = server(files=PAGE, config={"ShutdownTimeout": 600, "Threads": 1}).start()
    with kiln.connect() as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")  # a request that never becomes whole
        kiln.get("/")
        kiln.signal(signal.SIGTERM)
        wait_for(lambda: refused(kiln), "the end of listening")
        kiln.signal(signal.SIGTERM)
        kiln.wait_exit(0)


def refused(kiln):
    try:
        kiln.connect().close()
        return False
    except ConnectionResetError:
        return False  # it stood in the queue of a socket that was closed just now
    except ConnectionRefusedError:
        return True


def test_shutdown_timeout_cuts_what_does_not_end(server):
    kiln = server(files=PAGE, config={"ShutdownTimeout": 0.2, "Threads": 1}).start()
    with kiln.connect() as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        kiln.get("/")  # answered by the same loop, behind it
        kiln.stop()
        read_all(s)  # ends: it was closed, whatever was said before
    assert "the time to stop is over: closing 1 connections" in kiln.log()


def test_service_manager_is_told(server):
    kiln = server(files=PAGE).start()
    assert b"READY=1" in kiln.notified()
    assert b"NOTIFY_SOCKET=" not in Path(f"/proc/{kiln.worker_pid()}/environ").read_bytes()
    kiln.signal(signal.SIGTERM)
    wait_for(lambda: b"STOPPING=1" in kiln.notified(), "STOPPING=1")
    kiln.wait_exit(0)


def test_group_wide_terminate_is_clean(server):
    """What systemd does by default: everybody is told at once."""
    kiln = server(files=PAGE).start()
    os.killpg(kiln.pid, signal.SIGTERM)
    kiln.wait_exit(0)
    assert "a new one starts" not in kiln.log()


# ---- a worker that dies ---------------------------------------------------------------------


def test_killed_worker_is_replaced_on_the_same_port(server):
    with server(files=PAGE) as kiln:
        first = kiln.worker_pid()
        assert kiln.get("/").body == b"hello"
        os.kill(first, signal.SIGKILL)
        # No retry: while no worker accepts, the connection waits in the socket.
        assert kiln.get("/").body == b"hello"
        kiln.wait_log(rf"error \[\d+\] worker {first} was killed by signal 9 \(Killed\); a new one starts in 0\.1 s")
        second = kiln.worker_pid()
        assert second != first
        wait_for(lambda: set(children_of(kiln.pid)) == {second}, "no zombie and no second worker")


def test_no_connection_is_refused_while_workers_die(server):
    with server(files=PAGE) as kiln:
        stop = threading.Event()
        results = []

        def hammer():
            while not stop.is_set():
                try:
                    results.append(kiln.get("/").body)
                except ConnectionRefusedError:
                    results.append("refused")
                except OSError:
                    results.append("cut")
                except Exception:  # http.client: the answer was cut short
                    results.append("cut")

        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for t in threads:
            t.start()
        for _ in range(4):
            pid = kiln.worker_pid()
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not alive(pid) and kiln.worker_pid() != pid, "a new worker")
            seen = len(results)
            wait_for(lambda: len(results) > seen + 20, "answers from the new worker")
        stop.set()
        for t in threads:
            t.join()
        assert set(results) <= {b"hello", "cut"}
        # At most what was in flight when a worker died.
        assert results.count("cut") <= 4 * 4 * 2


def test_worker_told_to_end_drains_and_is_replaced(server):
    with server(files=PAGE) as kiln:
        first = kiln.worker_pid()
        os.kill(first, signal.SIGTERM)
        kiln.wait_log(rf"worker {first} ended with exit code 0; a new one starts")
        assert kiln.get("/").body == b"hello"
        assert kiln.worker_pid() != first


def test_worker_ends_when_its_supervisor_is_killed(server):
    kiln = server(files=PAGE).start()
    worker = kiln.worker_pid()
    kiln.process.kill()
    kiln.process.wait()
    wait_for(lambda: not alive(worker), "the end of the worker")
    assert "the supervisor is gone; ending" in kiln.log()
    # Nothing is in the way of the next one, not even the pid file.
    kiln.start()
    assert pid_on_file(kiln) == kiln.pid


def test_worker_that_cannot_start_ends_the_server_with_its_reason(server):
    kiln = server(files=PAGE, config={"SessionsDir": __file__, "HttpPorts": [free_port()]}).start(wait=False)
    assert kiln.process.wait(timeout=PATIENCE) == 1
    assert f"sessions: {__file__}" in kiln.log() and "Not a directory" in kiln.log()
    assert "the server cannot start: the session store could not be started" in kiln.log()
    assert not kiln.pid_file.exists()
    kiln.kill()


def test_unknown_user_is_a_mistake_in_the_settings(server):
    kiln = server(files=PAGE, config={"User": "no-such-user-here", "HttpPorts": [free_port()]}).start(wait=False)
    assert kiln.process.wait(timeout=PATIENCE) == 1
    assert 'User "no-such-user-here" does not exist; create it, or name another' in kiln.log()
    kiln.kill()


DIES_AS_WORKER = """
#include <stdlib.h>
#include <string.h>
__attribute__((constructor)) static void die(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--worker") == 0) {
        abort();
    }
}
"""


def test_worker_that_keeps_dying_before_it_is_ready_ends_the_server(server, tmp_path):
    (tmp_path / "die.c").write_text(DIES_AS_WORKER)
    library = tmp_path / "die.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "die.c"], check=True)
    env = {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0"}
    kiln = server(files=PAGE, config={"HttpPorts": [free_port()]}, env=env).start(wait=False)
    assert kiln.process.wait(timeout=PATIENCE) == 1
    assert re.search(
        r"the server cannot start: the worker was killed by signal 6 \(Aborted\)(, a core file was written)? "
        "before it was ready, 5 times in a row",
        kiln.log(),
    )
    assert kiln.log().count("; a new one starts in") == 4
    kiln.kill()


# ---- reload ----------------------------------------------------------------------------------


def test_reload_with_a_bad_config_keeps_everything_running(server):
    with server(files=PAGE) as kiln:
        worker = kiln.worker_pid()
        client = kiln.client()
        exchange(client, "GET", "/")
        kiln.config_file.write_text('{\n  "HttpPorts": [8080],\n  "Treads": 4\n}\n')
        kiln.reload(r"error \[\d+\] config not reloaded: the server goes on with the one it has")
        assert re.search(r"error \[\d+\] \S*kiln\.json:3: .*\"Treads\".*Threads", kiln.log())
        exchange(client, "GET", "/")
        assert kiln.worker_pid() == worker
        client.close()


def test_reload_changes_headers_and_drops_no_connection(server):
    with server(files=PAGE, config={"DefaultHeaders": {"Server": "Kiln", "X-Mark": "one"}}) as kiln:
        worker = kiln.worker_pid()
        clients = [kiln.client() for _ in range(8)]
        for client in clients:
            assert exchange(client, "GET", "/").headers["X-Mark"] == "one"
            client.sock_before = client.sock
        kiln.write_config(DefaultHeaders={"Server": "Kiln", "X-Mark": "two"})
        kiln.reload(r"notice \[\d+\] config reloaded")
        for client in clients:
            assert exchange(client, "GET", "/").headers["X-Mark"] == "two"
            assert client.sock is client.sock_before
            client.close()
        assert kiln.worker_pid() == worker


def test_reload_under_load_fails_no_request(server):
    with server(files=PAGE, config={"DefaultHeaders": {"X-Mark": "0"}}) as kiln:
        stop = threading.Event()
        failures = []
        counts = [0] * 4

        def hammer(number):
            client = kiln.client()
            while not stop.is_set():
                try:
                    answer = exchange(client, "GET", "/")
                    if answer.body != b"hello" or answer.headers["X-Mark"] is None:
                        failures.append(repr(answer))
                except Exception as error:
                    failures.append(repr(error))
                    return
                counts[number] += 1
            client.close()

        threads = [threading.Thread(target=hammer, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for i in range(1, 11):
            assert failures == []
            kiln.write_config(DefaultHeaders={"X-Mark": str(i)})
            kiln.reload(r"notice \[\d+\] config reloaded")
            assert kiln.get("/").headers["X-Mark"] == str(i)
        stop.set()
        for t in threads:
            t.join()
        assert failures == []
        assert min(counts) > 0


def test_reload_opens_and_closes_ports(server):
    with server(files=PAGE) as kiln:
        old = kiln.port
        client = kiln.client()
        exchange(client, "GET", "/")
        new = free_port()
        kiln.write_config(HttpPorts=[old, new])
        kiln.reload(r"notice \[\d+\] config reloaded")
        kiln.port = new
        assert kiln.get("/").body == b"hello"
        kiln.write_config(HttpPorts=[new])
        kiln.reload(r"notice \[\d+\] config reloaded")
        kiln.port = old
        wait_for(lambda: refused(kiln), "the end of listening on the old port")
        exchange(client, "GET", "/")  # accepted on the old port before
        kiln.port = new
        os.kill(kiln.worker_pid(), signal.SIGKILL)
        assert kiln.get("/").body == b"hello"
        client.close()


def test_reload_with_a_port_in_use_keeps_everything_running(server):
    with socket.socket() as holder, server(files=PAGE) as kiln:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        kiln.write_config(HttpPorts=[kiln.port, taken], DefaultHeaders={"X-Mark": "new"})
        kiln.reload(r"error \[\d+\] config not reloaded")
        assert f"cannot listen on port {taken}" in kiln.log()
        assert kiln.get("/").headers["X-Mark"] is None


def test_reload_says_what_waits_for_a_restart(server):
    with server(files=PAGE) as kiln:
        kiln.write_config(Threads=1, StackSize=524288)
        kiln.reload(r"notice \[\d+\] config reloaded")
        assert re.search(
            r"warning \[\d+\] changed, but used only after a restart of the server: Threads, StackSize", kiln.log()
        )


def test_worker_after_a_reload_has_the_new_config(server):
    with server(files=PAGE) as kiln:
        kiln.write_config(DefaultHeaders={"X-Mark": "new"})
        kiln.reload(r"notice \[\d+\] config reloaded")
        os.kill(kiln.worker_pid(), signal.SIGKILL)
        assert kiln.get("/").headers["X-Mark"] == "new"


# ---- rights ---------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_worker_becomes_the_configured_user(server, tmp_path):
    open_to_all(tmp_path)
    log = tmp_path / "access.log"
    config = {"User": "nobody", "Group": "nogroup", "Logging": True, "AccessLog": str(log)}
    with server(files=PAGE, config=config) as kiln:
        assert identity(kiln.worker_pid()) == (65534, 65534, {65534}, "1")
        assert identity(kiln.pid)[0] == 0
        kiln.get("/one")
        # Log files are the supervisor's: a reload opens them with its rights.
        log.rename(tmp_path / "access.log.1")
        kiln.reload(r"notice \[\d+\] config reloaded")
        kiln.get("/two")
        wait_for(lambda: lines_of(log), "a line in the new access log")
        assert log.stat().st_uid == 0
    assert "requests are served as root" not in kiln.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_programs_that_the_configured_user_cannot_reach(server, tmp_path):
    """As in root's home directory: it says so, not that something is missing."""
    open_to_all(tmp_path)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in ("kiln", "kiln-cc", "kiln-try"):
        shutil.copy2(build_dir() / name, home)
    hello = "#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { return kiln_puts(c, p); }\n"
    with server({"User": "nobody"}, {"index.html": "page", "hello._c": hello}, program=home / "kiln") as kiln:
        assert kiln.get("/").text == "page"
        assert kiln.get("/hello").status == 500
        wait_for(lambda: "hello._c: error: the compiler helper kiln-cc lies beside kiln in a directory that is closed to the user" in kiln.log(), "why")
        assert "warning" in kiln.log() and "C sources cannot be compiled: the compiler helper kiln-cc lies" in kiln.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_worker_becomes_the_owner_of_the_web_directory(server, files, tmp_path):
    open_to_all(tmp_path)
    os.chown(files(PAGE), 12345, 23456)
    with server() as kiln:
        assert identity(kiln.worker_pid()) == (12345, 23456, {23456}, "1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_is_warned_once_and_told_the_option(server):
    with server(files=PAGE, config={"NoNewPrivileges": False}) as kiln:
        assert kiln.log().count("requests are served as root: set the option User") == 1
        assert identity(kiln.worker_pid())[3] == "0"
        os.kill(kiln.worker_pid(), signal.SIGKILL)
        kiln.wait_log(r"worker \d+ serves")
        assert kiln.log().count("requests are served as root: set the option User") == 1


def open_to_all(path):
    """pytest's directories are for their owner alone."""
    for directory in [path, *path.parents]:
        if directory == Path("/tmp"):
            break
        directory.chmod(0o755)


def identity(pid):
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return (
        int(status["Uid"].split()[0]),
        int(status["Gid"].split()[0]),
        {int(g) for g in status["Groups"].split()},
        status["NoNewPrivs"].strip(),
    )


def test_descriptors_up_to_the_hard_limit(server):
    with server(files=PAGE) as kiln:
        line = re.search(r"Max open files\s+(\d+)\s+(\d+)", Path(f"/proc/{kiln.worker_pid()}/limits").read_text())
        assert line[1] == line[2] and int(line[2]) >= resource.getrlimit(resource.RLIMIT_NOFILE)[1]


# ---- children ----------------------------------------------------------------------------------------

STARTS_A_PROGRAM = """
#include <kiln.h>
#include <stdlib.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    kiln_printf(ctx, "%d", system("sleep 1000 >/dev/null 2>&1 &"));
    return 0;
}
"""


def sleeper(kiln):
    found = [pid for pid, what in processes_marked(kiln.mark).items() if what == "S sleep"]
    return found[0] if found else None


def test_program_of_an_endpoint_can_be_ended_and_does_not_outlive_the_server(server):
    kiln = server(files={"start._c": STARTS_A_PROGRAM}).start()
    assert kiln.get("/start").text == "0"
    first = wait_for(lambda: sleeper(kiln), "the program")
    status = Path(f"/proc/{first}/status").read_text()
    wanted = sum(1 << (number - 1) for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM))
    for mask in ("SigBlk", "SigIgn"):  # neither blocked nor ignored: timeout(1) counts on it
        assert int(re.search(rf"{mask}:\s+(\w+)", status)[1], 16) & wanted == 0, mask
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: not alive(first), "its end, and that somebody waited for it")
    # One that lives on when its worker is killed, and when the server ends: stop() looks.
    assert kiln.get("/start").text == "0"
    second = wait_for(lambda: sleeper(kiln), "the program")
    os.kill(kiln.worker_pid(), signal.SIGKILL)
    assert kiln.get("/").status == 404
    assert alive(second)
    kiln.stop()
    wait_for(lambda: not alive(second), "its end")
