"""Options that no other test changes: what they say is what happens."""

import re
import struct
import subprocess
import time

import pytest
from http2_client import (
    ACK,
    CONTINUATION,
    ENABLE_CONNECT_PROTOCOL,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    MAX_CONCURRENT_STREAMS,
    MAX_HEADER_LIST_SIZE,
    NO_RFC7540_PRIORITIES,
    SETTINGS,
    Http2,
    frame,
)
from kiln_server import ROOT, wait_for

HEAD = "#include <kiln.h>\n#include <errno.h>\n#include <fcntl.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"


def endpoint(body):
    return f"{HEAD}int kiln_run(kiln_context *ctx, const char *path)\n{{\n(void)path;\n{body}\n}}\n"


HELLO = endpoint('return kiln_puts(ctx, "hello");')
CRASH = endpoint("*(volatile int *)8 = 1; return 0;")


def test_compiled_endpoints_switched_off(server, tmp_path):
    """Neither run nor shown, as for Enable_C; sources still are."""
    source = tmp_path / "e.c"
    source.write_text(HELLO)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{ROOT}/plugin-sdk/include", "-o", tmp_path / "e.so", source], check=True)
    module = (tmp_path / "e.so").read_bytes()
    with server({"Enable_SO": False}, {"e.so": module, "c._c": HELLO, "d/index.so": module, "d/index.html": "page"}) as kiln:
        assert kiln.get("/c").text == "hello"
        for path in ("/e", "/e.so", "/e/x", "/d/index.so"):
            assert kiln.get(path).status == 404, path
        assert kiln.get("/d/").text == "page"
        kiln.write_config(Enable_SO=True)
        kiln.reload()
        wait_for(lambda: kiln.get("/e").text == "hello" and kiln.get("/d/").text == "hello", "the modules run")


def test_crashes_far_apart_are_no_reason_for_quarantine(server):
    config = {"QuarantineCrashes": 2, "QuarantineWindow": 0.1, "QuarantineTime": 3600}
    with server(config, {"bad._c": CRASH}) as kiln:
        for _ in range(4):
            assert kiln.get("/bad").status == 500
            time.sleep(0.3)  # longer than the window; what passes is the subject
        assert "in quarantine" not in kiln.log()


def test_sources_are_built_ahead(server):
    def built(kiln):
        done = subprocess.run([kiln.program, "status", f"--config={kiln.config_file}"], capture_output=True, text=True)
        return int(found[1]) if (found := re.search(r"(\d+) builds", done.stdout)) else 0

    with server({"BuildAhead": True, "OptimizeEndpoints": False}, {"a._c": HELLO, "deep/er/b._c": HELLO}) as kiln:
        wait_for(lambda: built(kiln) == 2, "both builds, though nobody asked")
        assert kiln.get("/a").text == "hello" and kiln.get("/deep/er/b").text == "hello"
        assert built(kiln) == 2


@pytest.mark.parametrize("where", ["", "i/"])
def test_sessions_are_bounded(server, where):
    body = """
        char text[500]; memset(text, 'x', sizeof text);
        size_t n = (size_t)atoi(kiln_query_get(ctx, "n")); text[n] = 0;
        return kiln_printf(ctx, "%d", kiln_session_set(ctx, kiln_query_get(ctx, "key"), text));"""
    with server({"SessionMaxValue": 402, "SessionMaxSize": 1000, "Isolate": ["/i"]}, {f"{where}s._c": endpoint(body)}) as kiln:
        first = kiln.get(f"/{where}s?key=a&n=390")
        assert first.text == "0"
        cookie = {"Cookie": first.headers["Set-Cookie"].split(";")[0]}

        def put(key, n):
            return kiln.get(f"/{where}s?key={key}&n={n}", headers=cookie).text

        assert put("b", 401) == "-3"  # one value
        assert put("b", 300) == "0"
        assert put("c", 300) == "-3"  # all of them
        assert put("b", 10) == "0"
        assert put("c", 300) == "0"  # there is room now


def test_files_of_isolated_endpoints_are_bounded(server):
    body = """
        int fd = open(".data/f", O_CREAT | O_WRONLY | O_TRUNC, 0600);
        if (fd < 0) { char at[4096]; return kiln_printf(ctx, "open %s %s", strerror(errno), getcwd(at, sizeof at)); }
        static char part[4096]; long total = 0; ssize_t n;
        while (total < 4 << 20 && (n = write(fd, part, sizeof part)) > 0) total += n;
        int error = errno; close(fd);
        return kiln_printf(ctx, "%ld %s", total, total < 4 << 20 ? strerror(error) : "all");"""
    config = {"Isolate": ["/i"], "IsolateFileSize": 100000}
    with server(config, {"i/w._c": endpoint(body.replace('".data/f"', 'kiln_query_get(ctx, "file")')), "i/.data/x": ""}) as kiln:
        (kiln.www / "i" / ".data").chmod(0o777)
        answer = kiln.get(f"/i/w?file={kiln.www}/i/.data/f")
        assert answer.text == "100000 File too large"
        assert (kiln.www / "i" / ".data" / "f").stat().st_size == 100000
        assert kiln.get(f"/i/w?file={kiln.www}/i/.data/f").text == "100000 File too large"  # it costs the process nothing


# ---- HTTP/2 ------------------------------------------------------------------------------------------------


def test_http2_sizes_are_told_to_the_client(server):
    options = {"Http2HeaderTableSize": 1000, "Http2ConnectionWindow": 500000, "MaxHeaderSize": 20000, "Http2MaxStreams": 70}
    with server(options, {"index.html": "hello"}) as kiln, Http2(kiln.port) as c:
        assert c.get("/").body == b"hello"
        told = next(f for f in c.frames if f.kind == SETTINGS and not f.flags & ACK)
        pairs = dict(struct.unpack(">HL", told.payload[i : i + 6]) for i in range(0, len(told.payload), 6))
        assert pairs[HEADER_TABLE_SIZE] == 1000 and pairs[MAX_HEADER_LIST_SIZE] == 20000 and pairs[MAX_CONCURRENT_STREAMS] == 70
        assert pairs[ENABLE_CONNECT_PROTOCOL] == 1 and pairs[NO_RFC7540_PRIORITIES] == 1
        opened = [struct.unpack(">L", f.payload)[0] for f in c.frames if f.kind == 8 and f.stream == 0]
        assert 65535 + sum(opened) == 500000


@pytest.mark.parametrize("count", [2, 3])
def test_http2_continuations_are_bounded(server, count):
    with server({"Http2MaxContinuations": 2}, {"index.html": "hello"}) as kiln, Http2(kiln.port) as c:
        block = c.encode(c.head("/"))
        cut = [block[i : i + 1] if i < count else block[i:] for i in range(count + 1)]
        c.send(frame(HEADERS, END_STREAM, 1, cut[0]))
        for i, part in enumerate(cut[1:], 1):
            c.send(frame(CONTINUATION, END_HEADERS if i == count else 0, 1, part))
        if count == 2:
            assert c.answer(1).body == b"hello"
        else:
            assert c.goaway() == ENHANCE_YOUR_CALM and any(f.kind == GOAWAY for f in c.frames)
