"""Isolated endpoints (option Isolate): each in a process of its own, with few rights."""

import concurrent.futures
import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest
from kiln_server import ROOT, exchange, read_all, read_until, wait_for
from isolated_endpoint import HEAD, HELLO, SANITIZED, hosts_of, run


# ---- what works as in the worker (test_sdk.py runs all of it isolated, too) -----------------------------


def test_rooms_cannot_be_reached_and_say_so(isolated):
    publish = run('return kiln_printf(ctx, "%d", kiln_publish("room", KILN_WS_TEXT, "hi", 2));')
    kiln = isolated({"i/p._c": publish, "p._c": publish})
    assert kiln.get("/p").text == "0"
    assert kiln.get("/i/p").text == "-8"
    kiln.wait_log("an isolated endpoint cannot publish to rooms")


def test_kiln_socket_in_an_isolated_endpoint_is_an_error_that_says_so(isolated):
    socket_endpoint = HEAD + 'void kiln_socket(kiln_ws *ws, const char *path) { (void)path; kiln_ws_close(ws, 1000, ""); }\n'
    kiln = isolated({"i/s._c": socket_endpoint, "i/e._c": HELLO})
    assert kiln.get("/i/s").status == 500
    kiln.wait_log("i/s._c: .*kiln_socket cannot be had in an isolated endpoint")
    assert kiln.get("/i/e").status == 200


def test_it_runs_in_a_process_of_its_own(isolated):
    kiln = isolated({"i/e._c": HELLO, "e._c": HELLO, "i/deep/er/e._c": HELLO})
    inside = kiln.get("/e").text
    assert inside == f"hello /e from {kiln.worker_pid()}"
    assert hosts_of(kiln) == []
    pid = int(kiln.get("/i/e").text.split()[-1])
    assert hosts_of(kiln) == [pid]
    other = int(kiln.get("/i/deep/er/e").text.split()[-1])
    assert hosts_of(kiln) == sorted([pid, other])
    assert int(kiln.get("/i/e").text.split()[-1]) == pid
    kiln.stop()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the endpoint's process")


def test_the_same_compiled_file_runs_isolated_and_not(isolated, tmp_path):
    import subprocess

    source = tmp_path / "e.c"
    source.write_text(HELLO)
    (tmp_path / "www" / "i").mkdir(parents=True)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{ROOT}/plugin-sdk/include", "-o", tmp_path / "www" / "e.so", source], check=True)
    (tmp_path / "www" / "i" / "e.so").write_bytes((tmp_path / "www" / "e.so").read_bytes())
    kiln = isolated({})
    assert kiln.get("/e").text.endswith(str(kiln.worker_pid()))
    assert int(kiln.get("/i/e").text.split()[-1]) in hosts_of(kiln)


def test_parallel_requests_share_its_variables(isolated):
    kiln = isolated(
        {
            "i/count._c": run(
                'kiln_sleep(ctx, 50); return kiln_printf(ctx, "%lld", (long long)kiln_atomic_add(&n, 1));', "static int64_t n;"
            )
        }
    )
    kiln.get("/i/count")
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        answers = [f.result().text for f in [pool.submit(kiln.get, "/i/count") for _ in range(200)]]
    assert sorted(map(int, answers)) == list(range(2, 202))
    assert len(hosts_of(kiln)) == 1


ECHO = run(
    """
    char buffer[10000];
    ssize_t n;
    kiln_content_type(ctx, "application/octet-stream");
    while ((n = kiln_body_read(ctx, buffer, sizeof buffer)) > 0)
        if (kiln_write(ctx, buffer, (size_t)n) != KILN_OK) return KILN_GONE;
    return (int)n;"""
)


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_stream_both_ways(isolated, chunked):
    kiln = isolated({"i/echo._c": ECHO})
    block = bytes(range(256)) * 256
    count = 300  # 20 MB
    with kiln.connect() as s:
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(block) * count}"
        s.sendall(f"POST /i/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{length}\r\n\r\n".encode())

        def feed():
            for _ in range(count):
                s.sendall(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
            if chunked:
                s.sendall(b"0\r\n\r\n")

        feeder = threading.Thread(target=feed)
        feeder.start()
        answer = read_all(s)
        feeder.join()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    plain = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        plain += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    assert bytes(plain) == block * count


def test_a_client_that_does_not_read_holds_up_the_endpoint_and_nobody_else(isolated):
    kiln = isolated(
        {
            "i/much._c": run(
                """
                static char block[65536];
                for (int i = 0; i < 2000; i++) {
                    if (kiln_write(ctx, block, sizeof block) != KILN_OK) return KILN_GONE;
                    kiln_atomic_store(&written, i);
                }
                return 0;""",
                "static int64_t written;",
            ).replace("(void)path;", 'if (kiln_query_get(ctx, "ask")) return kiln_printf(ctx, "%lld", (long long)kiln_atomic_load(&written));')
        }
    )
    assert kiln.get("/i/much?ask=1").text == "0"
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.connect(("127.0.0.1", kiln.port))
        s.sendall(b"GET /i/much HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(s, b"\r\n\r\n")
        seen = [-1]

        def holds():
            now = int(kiln.get("/i/much?ask=1").text)
            same, seen[0] = now == seen[0] and now > 0, now
            return same

        wait_for(holds, "the endpoint to wait for its client")
        assert seen[0] < 500  # blocks of 64 KB; most of it would be many more
        total = 0
        while part := s.recv(1 << 20):
            total += len(part)
    assert total > 1990 * 65536


def test_a_file_goes_out_whole(isolated):
    content = os.urandom(5_000_000)
    kiln = isolated({"i/f._c": run('return kiln_send_file(ctx, ".data.bin", NULL);'), "i/.data.bin": content})
    answer = kiln.get("/i/f")
    assert answer.status == 200 and answer.body == content
    part = kiln.get("/i/f", headers={"Range": "bytes=1000000-1999999"})
    assert part.status == 206 and part.body == content[1000000:2000000]


def test_a_site_has_its_own_error_page_and_default_headers(isolated):
    kiln = isolated(
        {"i/e._c": run('kiln_header_set(ctx, "X-Own", "1"); return 404;'), "error404.html": "<p>our own page</p>"},
        DefaultHeaders={"Server": "Kiln", "X-Default": "yes"},
    )
    answer = kiln.get("/i/e")
    assert answer.status == 404 and "our own page" in answer.text


def test_an_edited_source_gets_a_new_process_and_the_old_one_finishes(isolated, files):
    slow = HEAD + """
    int kiln_run(kiln_context *c, const char *p) { (void)p; kiln_puts(c, "old "); if (!kiln_query_get(c, "wait")) return 0;
        kiln_flush(c);
        while (access(kiln_sprintf(c, "%s/../go", kiln_directory(c)), F_OK) != 0) if (kiln_sleep(c, 5) != KILN_OK) return KILN_GONE;
        return kiln_puts(c, "ended"); }
    void kiln_unload(kiln_module *m) { (void)m; fprintf(stderr, "unloaded\\n"); }
    """
    kiln = isolated({"i/e._c": slow}, IsolateConnect=[])
    with kiln.connect() as s:
        s.sendall(b"GET /i/e?wait=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(s, b"old ")
        files({"i/e._c": HELLO})
        wait_for(lambda: kiln.get("/i/e").text.startswith("hello"), "the new version")
        assert len(hosts_of(kiln)) == 2
        files({"go": "x"})
        assert read_all(s).endswith(b"ended\r\n0\r\n\r\n")
    kiln.wait_log("unloaded")
    wait_for(lambda: len(hosts_of(kiln)) == 1, "the end of the old process")


def test_an_idle_process_ends_and_comes_back(isolated):
    kiln = isolated({"i/e._c": HELLO}, IsolateIdle=0.5)
    first = kiln.get("/i/e").text
    wait_for(lambda: not hosts_of(kiln), "the end of the idle process")
    second = kiln.get("/i/e").text
    assert second.startswith("hello") and second != first


def test_what_cannot_be_loaded_says_why(isolated, files):
    kiln = isolated({"i/e._c": HEAD + "int kiln_load(kiln_module *m) { (void)m; return 7; }\n" + HELLO}, DebugPages=True)
    answer = kiln.get("/i/e")
    assert answer.status == 500 and "kiln_load returned 7" in answer.text
    files({"i/e._c": HEAD + "int kiln_load(kiln_module *m) { (void)m; *(volatile int *)0 = 1; return 0; }\n" + HELLO})
    wait_for(lambda: "in its kiln_load" in kiln.get("/i/e").text, "the crash of kiln_load on the page")
    files({"i/e._c": HELLO})
    wait_for(lambda: kiln.get("/i/e").status == 200, "the version that works")


def test_isolation_by_reload(isolated):
    kiln = isolated({"e._c": HELLO})
    assert int(kiln.get("/e").text.split()[-1]) == kiln.worker_pid()
    kiln.write_config(Isolate=["/e"])
    kiln.reload()
    wait_for(lambda: int(kiln.get("/e").text.split()[-1]) in hosts_of(kiln), "the endpoint in its own process")
    kiln.write_config(Isolate=[])
    kiln.reload()
    wait_for(lambda: int(kiln.get("/e").text.split()[-1]) == kiln.worker_pid(), "the endpoint in the worker")
    wait_for(lambda: not hosts_of(kiln), "the end of its process")


# ---- crashes ---------------------------------------------------------------------------------------------

CRASHES = sorted(p.stem for p in (ROOT / "tests/plugins/crash").glob("*._c") if "/* expect:" in p.read_text())


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_costs_one_request(isolated, name):
    source = (ROOT / "tests/plugins/crash" / f"{name}._c").read_text()
    import platform

    if f"skip on: {platform.machine()}" in source:
        pytest.skip("not on this processor")
    if SANITIZED and "skip on: sanitizers" in source:
        pytest.skip("not under sanitizers")
    # /tmp, where tmpfile() goes, is not its own.
    source = source.replace("tmpfile()", 'fdopen(open(getenv("TMPDIR"), O_TMPFILE | O_RDWR, 0600), "r+")')
    source = source.replace("#include <kiln.h>\n", "#include <kiln.h>\n#include <fcntl.h>\n#include <stdlib.h>\n", 1)
    kiln = isolated({"i/crash._c": source, "i/e._c": HELLO}, DebugPages=True)
    worker = kiln.worker_pid()
    steady = kiln.get("/i/e").text
    answer = kiln.get("/i/crash")
    assert answer.status in (500, 502), answer
    if answer.status == 500:
        assert re.search("crashed", answer.text)
    assert kiln.get("/i/crash").status in (500, 502)
    assert kiln.get("/i/e").text == steady
    assert kiln.worker_pid() == worker
    kiln.wait_log("crashed|was killed by signal")


def test_the_page_of_a_crash_is_that_of_the_worker(isolated):
    source = run("int *p = NULL;\n*p = 1; /* HERE */\nreturn 0;")
    line = source.splitlines().index("*p = 1; /* HERE */") + 1
    kiln = isolated({"i/c._c": source}, DebugPages=True)
    answer = kiln.get("/i/c")
    assert answer.status == 500
    assert "SIGSEGV" in answer.text and f"i/c._c:{line}" in answer.text and "/* HERE */" in answer.text
    kiln.wait_log(rf"error .*c\._c crashed answering GET /i/c: .*c\._c:{line} in kiln_run")


def test_others_in_a_process_that_crashes_finish(isolated, files):
    kiln = isolated(
        {
            "i/e._c": run(
                """
                if (kiln_query_get(ctx, "crash")) *(volatile int *)0 = 1;
                kiln_puts(ctx, "begun "); kiln_flush(ctx);
                while (access(kiln_sprintf(ctx, "%s/../go", kiln_directory(ctx)), F_OK) != 0)
                    if (kiln_sleep(ctx, 5) != KILN_OK) return KILN_GONE;
                return kiln_puts(ctx, "ended");"""
            )
        }
    )
    clients = [kiln.connect() for _ in range(10)]
    for s in clients:
        s.sendall(b"GET /i/e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(s, b"begun ")
    assert kiln.get("/i/e?crash=1").status == 500
    wait_for(lambda: len(hosts_of(kiln)) == 2, "the next process")
    files({"go": "x"})
    for s in clients:
        assert read_all(s).endswith(b"ended\r\n0\r\n\r\n")
        s.close()
    wait_for(lambda: len(hosts_of(kiln)) == 1, "the end of the process that crashed")


def test_a_crash_again_and_again_is_quarantined(isolated):
    kiln = isolated({"i/c._c": run("*(volatile int *)0 = 1; return 0;")}, QuarantineCrashes=3)
    statuses = [kiln.get("/i/c").status for _ in range(3)]
    assert statuses == [500, 500, 500]
    quarantined = wait_for(lambda: (a := kiln.get("/i/c")).status == 503 and a, "quarantine")
    assert int(quarantined.headers["Retry-After"]) > 0
    kiln.wait_log(r"c\._c crashed .* is in quarantine")


def test_killing_the_process_under_load_loses_only_what_had_begun(isolated):
    """kill -9 of the process, again and again: each answer is whole and right or a 502, and those are few."""
    kiln = isolated({"i/e._c": run('kiln_sleep(ctx, 2); return kiln_puts(ctx, "whole");')})
    assert kiln.get("/i/e").text == "whole"
    stop = threading.Event()
    outcomes = []
    clients = 16

    def client():
        connection = kiln.client()
        while not stop.is_set():
            answer = exchange(connection, "GET", "/i/e")
            outcomes.append((answer.status, answer.text if answer.status == 200 else ""))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    kills = 0
    for _ in range(5):
        before = len(outcomes)
        pids = wait_for(lambda: hosts_of(kiln), "a process")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        kills += 1
        wait_for(lambda: len(outcomes) > before + 100, "answers after the kill", 30)
    stop.set()
    for thread in threads:
        thread.join()
    assert {text for status, text in outcomes if status == 200} == {"whole"}
    lost = [status for status, _ in outcomes if status != 200]
    assert set(lost) <= {502} and len(lost) <= kills * clients
    assert kiln.get("/i/e").text == "whole"


# ---- loops -----------------------------------------------------------------------------------------------


def test_a_loop_is_stopped_in_its_process(isolated):
    kiln = isolated({"i/loop._c": run("volatile int i = 1; while (i) i = 1; return 0;")}, RequestTimeout=0.5)
    assert kiln.get("/i/loop").status == 504


def test_a_process_that_does_not_answer_is_killed(isolated):
    """It blocks every signal that could unwind it, in a call that never returns."""
    kiln = isolated(
        {
            "i/hang._c": run(
                """
                sigset_t all; sigfillset(&all); pthread_sigmask(SIG_BLOCK, &all, NULL);
                if (kiln_query_get(ctx, "hang")) for (;;) pause();
                return kiln_printf(ctx, "%d", (int)getpid());""",
                "#include <signal.h>\n#include <pthread.h>",
            )
        },
        RequestTimeout=0.5,
    )
    pid = int(kiln.get("/i/hang").text)
    assert kiln.get("/i/hang?hang=1").status == 504
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process that hangs")
    assert int(kiln.get("/i/hang").text) != pid


# ---- sessions ------------------------------------------------------------------------------------------------


def test_sessions_are_the_servers(isolated):
    count = run(
        """
        int64_t n = 0;
        int result = kiln_session_increment(ctx, "n", 1, &n);
        if (result != KILN_OK) return kiln_printf(ctx, "%d", result);
        return kiln_printf(ctx, "%lld", (long long)n);"""
    )
    kiln = isolated({"i/count._c": count, "count._c": count})
    first = kiln.get("/i/count")
    assert first.text == "1" and first.headers["Cache-Control"] == "no-store"
    cookie = {"Cookie": first.headers["Set-Cookie"].split(";")[0]}
    assert kiln.get("/count", headers=cookie).text == "2"
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        numbers = [int(f.result().text) for f in [pool.submit(kiln.get, "/i/count", cookie) for _ in range(200)]]
    assert sorted(numbers) == list(range(3, 203))


# ---- beside the rest of the server ------------------------------------------------------------------------------


def test_over_http2(isolated, tmp_path):
    import subprocess

    kiln = isolated({"i/echo._c": ECHO, "i/c._c": run("*(volatile int *)0 = 1; return 0;")})
    body = os.urandom(3_000_000)
    (tmp_path / "body").write_bytes(body)
    curl = ["curl", "-sS", "--max-time", "60", "--http2-prior-knowledge"]
    kiln.get("/i/echo")
    answer = subprocess.run([*curl, "--data-binary", f"@{tmp_path / 'body'}", kiln.url("/i/echo")], capture_output=True)
    assert answer.stderr == b"" and answer.stdout == body
    crash = subprocess.run([*curl, "-o", "/dev/null", "-w", "%{http_code} %{http_version}", kiln.url("/i/c")], capture_output=True, text=True)
    assert crash.stdout == "500 2"


def test_an_upgrade_of_the_program_takes_them_along(isolated):
    kiln = isolated({"i/e._c": HELLO})
    before = int(kiln.get("/i/e").text.split()[-1])
    kiln.upgrade()
    after = int(wait_for(lambda: (a := kiln.get("/i/e")).status == 200 and a, "an answer").text.split()[-1])
    assert after != before and hosts_of(kiln) == [after]
    wait_for(lambda: not Path(f"/proc/{before}").exists(), "the end of the old process")
