"""The SDK: endpoints that use kiln.h, and what a client sees of them. Every endpoint runs three times: as a
coroutine on its loop, (KILN_OFFLOAD) on the thread pool, and isolated in a process of its own."""

import json
import os
import re
import socket
import struct
import subprocess

import pytest

from kiln_server import ROOT, exchange, read_all, read_until, wait_for
from sdk_endpoint import FORM, HEADER, multipart, no_temporary_files


# ---- the header ------------------------------------------------------------------------------------------


def test_exported_names_are_exactly_the_functions_of_the_header():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    functions = set(re.findall(r"KILN_API\s+[^;(]*?\b(kiln_\w+)\s*\(", text))
    functions -= {"kiln_run", "kiln_socket", "kiln_load", "kiln_unload"}
    listed = set(re.findall(r"\b(kiln_\w+);", (ROOT / "plugin-sdk" / "exports.list").read_text()))
    assert listed == functions
    from kiln_server import build_dir

    symbols = subprocess.run(["nm", "-D", "--defined-only", build_dir() / "kiln"], capture_output=True, text=True, check=True)
    exported = set(re.findall(r" T (kiln_\w+)", symbols.stdout))
    assert exported == functions


@pytest.mark.parametrize("compiler", ["gcc -std=c11 -pedantic", "gcc -std=gnu11", "clang -std=c11 -pedantic", "g++ -std=c++11 -pedantic",
                                      "clang++ -std=c++20", "tcc -std=c11"])
def test_the_header_compiles_everywhere_and_its_stamp_is_right(compiler, tmp_path):
    command = compiler.split()
    if subprocess.run(["which", command[0]], capture_output=True).returncode != 0:
        pytest.skip(f"{command[0]} is not installed")
    suffix = ".cpp" if "++" in command[0] else ".c"
    main = tmp_path / f"main{suffix}"
    other = tmp_path / f"other{suffix}"
    main.write_text("#define KILN_OFFLOAD\n#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { return kiln_puts(c, p); }\n")
    other.write_text("#include <kiln.h>\n")
    strict = [] if command[0] == "tcc" else ["-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    for sources in ([main, other], [other, main]):
        out = tmp_path / "m.so"
        subprocess.run([*command, *strict, "-fPIC", "-shared", f"-I{HEADER.parent}", "-o", out, *sources], check=True)
        program = "import ctypes,sys; m=ctypes.CDLL(sys.argv[1], mode=1); print(list((ctypes.c_uint*4).in_dll(m,'kiln_module_abi')))"
        # Lazy binding: the functions that only the server has are not needed for this. What tcc links does not say that it
        # needs no executable stack, and the C library since 2.41 refuses to load that.
        read = subprocess.run(["/usr/bin/python3", "-c", program, out], capture_output=True, text=True)
        if "undefined symbol" in read.stderr or "executable stack" in read.stderr:
            read = subprocess.run(["objdump", "-s", "-j", ".data", "-j", ".rodata", out], capture_output=True, text=True)
            assert "4e4c494b 01000000 00000000 01000000" in read.stdout
            continue
        assert read.stdout.strip() == "[1263094862, 1, 0, 1]", read.stderr


# ---- request ---------------------------------------------------------------------------------------------


def test_request_values(endpoint):
    kiln = endpoint(
        r"""
        kiln_content_type(ctx, "text/plain");
        kiln_printf(ctx, "%s|%s|%s|%s|%s|%s|%s|%s|%u|%d|%s\n", kiln_method(ctx), kiln_path(ctx), kiln_script_name(ctx),
            kiln_path_info(ctx), kiln_target(ctx), kiln_query(ctx), kiln_host(ctx), kiln_remote_address(ctx),
            kiln_remote_port(ctx) > 0, kiln_is_secure(ctx), kiln_protocol(ctx));
        const char *q = kiln_query_get(ctx, "a b");
        kiln_printf(ctx, "%s|%d|%s\n", q ? q : "-", kiln_query_get(ctx, "none") == NULL, kiln_directory(ctx));
        const char *n, *v;
        size_t len;
        for (size_t i = 0; kiln_query_at(ctx, i, &n, &v, &len); i++)
            kiln_printf(ctx, "[%s=%s:%d]", n, v, (int)len);
        kiln_puts(ctx, "\n");
        for (size_t i = 0; kiln_header_at(ctx, i, &n, &v); i++)
            kiln_printf(ctx, "[%s=%s]", n, v);
        kiln_puts(ctx, "\n");
        kiln_printf(ctx, "%s|%s|%s|%d\n", kiln_header(ctx, "x-one"), kiln_cookie(ctx, "c"), kiln_cookie(ctx, "d"), kiln_cookie(ctx, "C") == NULL);
        kiln_printf(ctx, "%s", kiln_method_is(ctx, "GET") ? "get" : "other");
        return 0;"""
    )
    answer = kiln.raw(
        b"GET /e/x%20y/z?a+b=1&a+b=2&n=%00& HTTP/1.1\r\nHost: Example.COM:80\r\nX-One:  1 \r\nCookie: c=1; d=\"2\"\r\n"
        b"Cookie: c=3\r\nConnection: close\r\n\r\n"
    )
    lines = answer.split(b"\r\n\r\n", 1)[1].decode().split("\n")
    assert lines[0] == "GET|/e/x y/z|/e|/x y/z|/e/x%20y/z?a+b=1&a+b=2&n=%00&|a+b=1&a+b=2&n=%00&|example.com:80|127.0.0.1|1|0|HTTP/1.1"
    assert lines[1] == f"1|1|{kiln.www}"
    assert lines[2] == "[a b=1:1][a b=2:1][n=:1]"
    assert lines[3].startswith('[Host=Example.COM:80][X-One=1][Cookie=c=1; d="2"][Cookie=c=3]')
    assert lines[4] == "1|1|2|1"
    assert lines[5] == "get"


# ---- body --------------------------------------------------------------------------------------------------

WHOLE = r"""
    size_t length;
    const char *body = kiln_body(ctx, &length);
    if (body == NULL) return kiln_last_result(ctx);
    unsigned sum = 0;
    for (size_t i = 0; i < length; i++) sum = sum * 31 + (unsigned char)body[i];
    kiln_printf(ctx, "%d %u %d %d", (int)length, sum, body[length], (int)kiln_body_length(ctx));
    return kiln_body(ctx, NULL) == body ? 0 : 500;"""


def checksum(data):
    total = 0
    for byte in data:
        total = (total * 31 + byte) & 0xFFFFFFFF
    return total


def test_whole_body_in_memory_and_in_a_file(endpoint):
    kiln = endpoint(WHOLE, config={"BodyMemoryLimit": 65536, "MaxRequestBodySize": 1000000})
    assert kiln.get("/e").text == "0 0 0 0"
    for size in (1, 65536, 65537, 200000):
        data = os.urandom(size)
        assert kiln.post("/e", data).text == f"{size} {checksum(data)} 0 {size}"
    chunks = [os.urandom(50000), b"x", os.urandom(40000)]
    whole = b"".join(chunks)
    client = kiln.client()
    assert exchange(client, "POST", "/e", iter(chunks)).text == f"{len(whole)} {checksum(whole)} 0 -1"
    assert exchange(client, "GET", "/e").text == "0 0 0 0"
    client.close()
    assert kiln.post("/e", b"x" * 1000001).status == 413
    wait_for(lambda: no_temporary_files(kiln), "the temporary files' end")


def test_a_body_that_grows_too_large_or_is_malformed_is_told_to_the_endpoint(endpoint):
    kiln = endpoint(WHOLE, config={"MaxRequestBodySize": 1000})
    head = b"POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert kiln.raw(head + b"800\r\n" + b"x" * 2048 + b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    assert kiln.raw(head + b"zz\r\n").startswith(b"HTTP/1.1 400 ")


def test_trailers_are_there_after_the_body(endpoint):
    kiln = endpoint('if (kiln_body(ctx, NULL) == NULL) return 500; return kiln_puts(ctx, kiln_trailer(ctx, "x-sum"));')
    answer = kiln.raw(
        b"POST /e HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 7\r\n\r\n"
    )
    assert answer.endswith(b"\r\n\r\n7")


TRAILERS = r"""
    const char *how = kiln_query(ctx);
    int early = kiln_trailer_add(ctx, "X-Sum", " abc ");
    if (strcmp(how, "length") == 0) {
        return kiln_printf(ctx, "%d %d", early, kiln_content_length(ctx, 3));
    }
    if (strcmp(how, "error") == 0) {
        return 404;
    }
    kiln_puts(ctx, "body");
    if (strcmp(how, "stream") == 0) {
        kiln_flush(ctx);
        return kiln_trailer_add(ctx, "X-Late", "7");
    }
    if (strcmp(how, "wrong") == 0) {
        const char *names[] = {"Content-Type", "content-length", "Set-Cookie", "Transfer-Encoding", "Trailer", "X Y", ""};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            kiln_printf(ctx, " %d", kiln_trailer_add(ctx, names[i], "x"));
        }
        kiln_printf(ctx, " %d", kiln_trailer_add(ctx, "X-Break", "a\nb"));
    }
    return 0;
"""


def test_trailers_follow_the_body(endpoint):
    kiln = endpoint(TRAILERS)

    def ask(how, version="1.1", method="GET"):
        head, _, body = kiln.raw(f"{method} /e?{how} HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode()).partition(b"\r\n\r\n")
        return head.lower(), body

    head, body = ask("whole")
    assert b"\r\ntransfer-encoding: chunked" in head and b"\r\ntrailer: x-sum" in head and b"content-length" not in head
    assert body == b"4\r\nbody\r\n0\r\nX-Sum: abc\r\n\r\n"
    head, body = ask("stream")
    assert b"\r\ntrailer: x-sum" in head
    assert body == b"4\r\nbody\r\n0\r\nX-Sum: abc\r\nX-Late: 7\r\n\r\n"
    head, body = ask("whole", version="1.0")
    assert body == b"body" and b"trailer" not in head and b"content-length: 4" in head
    head, body = ask("stream", version="1.0")
    assert body == b"body" and b"trailer" not in head
    head, body = ask("whole", method="HEAD")
    assert body == b"" and b"x-sum" not in head
    head, body = ask("error")
    assert head.startswith(b"http/1.1 404 ") and b"x-sum" not in head + body.lower()


def test_trailers_that_may_not_be(endpoint):
    kiln = endpoint(TRAILERS)
    invalid = re.search(r"KILN_INVALID = (-\d+)", HEADER.read_text())[1]
    assert kiln.get("/e?wrong").text == "body" + f" {invalid}" * 8
    assert kiln.get("/e?length").text == f"0 {invalid}"


def test_expect_100_is_answered_when_the_endpoint_reads(endpoint):
    kiln = endpoint(WHOLE)
    with kiln.connect() as s:
        s.sendall(b"POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"a")
        assert read_all(s).startswith(b"HTTP/1.1 200 OK\r\n")


def test_streamed_body_in_pieces_of_any_size(endpoint):
    kiln = endpoint(
        r"""
        static char buffer[100000];
        size_t size = (size_t)atoi(kiln_query_get(ctx, "size"));
        unsigned long total = 0;
        unsigned sum = 0;
        ssize_t n;
        char *mine = kiln_alloc(ctx, size);
        while ((n = kiln_body_read(ctx, mine, size)) > 0) {
            total += (unsigned long)n;
            for (ssize_t i = 0; i < n; i++) sum = sum * 31 + (unsigned char)mine[i];
        }
        (void)buffer;
        if (n < 0) return (int)n;
        kiln_printf(ctx, "%lu %u %d %d", total, sum, (int)kiln_body_read(ctx, mine, size), kiln_body(ctx, NULL) == NULL && kiln_last_result(ctx) == KILN_LATE);
        return 0;"""
    )
    data = os.urandom(150000)
    for size in (1000, 4096, 90000):
        assert kiln.post(f"/e?size={size}", data).text == f"150000 {checksum(data)} 0 1"
    assert kiln.get("/e?size=10").text == "0 0 0 1"


def test_a_slow_reader_slows_the_client_down(endpoint):
    """The client cannot get rid of 64 MB while the endpoint has read only a little."""
    kiln = endpoint(
        r"""
        char buffer[1000];
        if (kiln_body_read(ctx, buffer, sizeof buffer) <= 0) return 500;
        kiln_flush(ctx);
        while (!kiln_is_gone(ctx) && kiln_sleep(ctx, 20) == KILN_OK) {}
        return 0;"""
    )
    with kiln.connect() as s:
        s.sendall(b"POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 64000000\r\n\r\n" + b"x" * 1000)
        read_until(s, b"\r\n\r\n")
        s.setblocking(False)
        sent = 0
        try:
            while sent < 64000000:
                sent += s.send(b"x" * 65536)
        except BlockingIOError:
            pass
        assert sent < 32000000
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, so that it is noticed


def test_urlencoded_and_multipart_fields(endpoint):
    kiln = endpoint(
        r"""
        const char *a = kiln_form_get(ctx, "a"), *n, *v;
        if (a == NULL && kiln_last_result(ctx) != KILN_NOT_FOUND) return kiln_last_result(ctx);
        size_t length;
        kiln_printf(ctx, "%s;", a ? a : "-");
        for (size_t i = 0; kiln_form_at(ctx, i, &n, &v, &length); i++) kiln_printf(ctx, "[%s=%s:%d]", n, v, (int)length);
        return 0;"""
    )
    assert kiln.post("/e", "a=1+2&b=%C3%A4&a=3", FORM).text == "1 2;[a=1 2:3][b=ä:2][a=3:1]"
    body, headers = multipart(("a", None, None, b"x\r\ny"), ("f", "n", None, b"file"), ("b", None, None, b""))
    assert kiln.post("/e", body, headers).text == "x\r\ny;[a=x\r\ny:4][b=:0]"
    assert kiln.post("/e", "a=1", {"Content-Type": "text/plain"}).text == "-;"
    assert kiln.get("/e").text == "-;"
    assert kiln.post("/e", b"--xyz\r\nbroken", headers).status == 400
    assert kiln.post("/e", b"a=" + b"x" * 1100000, FORM).status == 413


def test_parts_in_memory_and_in_a_file(endpoint):
    kiln = endpoint(
        r"""
        for (size_t i = 0;; i++) {
            kiln_part *part = kiln_part_at(ctx, i);
            if (part == NULL && kiln_last_result(ctx) != KILN_NOT_FOUND) return kiln_last_result(ctx);
            if (part == NULL) break;
            size_t length;
            const char *data = kiln_part_data(ctx, part, &length), *file = kiln_part_filename(part);
            kiln_printf(ctx, "%s|%s|%s|%d|%d|%.5s|%d\n", kiln_part_name(part), file ? file : "-", kiln_part_content_type(part),
                (int)length, length == kiln_part_size(part) && data[length] == 0, data, kiln_part_header(part, "content-disposition") != NULL);
        }
        kiln_part *f = kiln_part_get(ctx, "f");
        if (f == NULL) return 0;
        int saved = kiln_part_save(ctx, f, ".saved"), lost = kiln_part_save(ctx, f, "/nonexistent/x");
        kiln_printf(ctx, "%d %d", saved, lost);
        return 0;""",
        config={"BodyMemoryLimit": 65536},
    )
    for size in (10, 300000):
        content = os.urandom(size // 2).hex().encode()
        body, headers = multipart(("a", None, None, b"text"), ("f", "x.bin", "image/png", content), ("", "", None, b""))
        lines = kiln.post("/e", body, headers).text.split("\n")
        assert lines[0] == "a|-|text/plain|4|1|text|1"
        assert lines[1] == f"f|x.bin|image/png|{size}|1|{content[:5].decode()}|1"
        assert lines[2] == "||text/plain|0|1||1"
        assert lines[3] == "0 -8"
        assert (kiln.www / ".saved").read_bytes() == content
    assert kiln.get("/e").status == 400  # no multipart body
    wait_for(lambda: no_temporary_files(kiln), "the temporary files' end")


UPLOAD = r"""
    kiln_part *part;
    int more;
    char buffer[777];
    char *out = kiln_strdup(ctx, "");
    while ((more = kiln_upload_next(ctx, &part)) > 0) {
        ssize_t n = 0;
        unsigned sum = 0;
        while (strcmp(kiln_part_name(part), "skip") != 0 && (n = kiln_upload_read(ctx, buffer, sizeof buffer)) > 0)
            for (ssize_t i = 0; i < n; i++) sum = sum * 31 + (unsigned char)buffer[i];
        if (n < 0) return (int)n;
        out = kiln_sprintf(ctx, "%s%s %lu %u\n", out, kiln_part_name(part), (unsigned long)kiln_part_size(part), sum);
    }
    if (more < 0) return more;
    return kiln_puts(ctx, out);"""


def test_streamed_upload(endpoint):
    kiln = endpoint(UPLOAD)
    big = os.urandom(200000)
    body, headers = multipart(("a", None, None, b"1"), ("skip", "s", None, big), ("f", "x", None, big), ("e", "y", None, b""))
    client = kiln.client()
    expected = f"a 1 49\nskip 0 0\nf 200000 {checksum(big)}\ne 0 0\n"
    assert exchange(client, "POST", "/e", body, headers).text == expected
    assert exchange(client, "POST", "/e", iter([body[:7], body[7:100000], body[100000:]]), headers).text == expected
    client.close()
    assert kiln.post("/e", body[:-10], headers).status == 400
    assert kiln.post("/e", b"", headers).status == 400
    assert kiln.post("/e", b"x", {"Content-Type": "text/plain"}).status == 400


def test_json_body(endpoint):
    kiln = endpoint(
        r"""
        cJSON *json = kiln_json(ctx);
        if (json == NULL) return kiln_last_result(ctx);
        if (kiln_json(ctx) != json) return 500;
        cJSON_AddNumberToObject(json, "more", 1);
        return kiln_json_send(ctx, json);""",
        before='#include <cjson/cJSON.h>\n#pragma comment(lib, "cjson")',
    )
    answer = kiln.post("/e", json.dumps({"a": "ä", "b": [1, None]}))
    assert answer.json() == {"a": "ä", "b": [1, None], "more": 1}
    assert answer.headers["Content-Type"] == "application/json"
    deep = "[" * 300 + "]" * 300
    for bad in ("", "{", "{} x", deep, '{"a":1}\0garbage', '{"a":1}\0', b'"\xe4"', "[01]"):
        assert kiln.post("/e", bad).status == 400, bad


# ---- response ------------------------------------------------------------------------------------------------


def test_status_headers_cookies(endpoint):
    kiln = endpoint(
        r"""
        int bad = 0;
        bad += kiln_status(ctx, 99) != KILN_INVALID;
        bad += kiln_status(ctx, 600) != KILN_INVALID;
        bad += kiln_header_set(ctx, "X-A", "1\r\nX-Evil: 2") != KILN_INVALID;
        bad += kiln_header_set(ctx, "X A", "1") != KILN_INVALID;
        bad += kiln_header_set(ctx, "Content-Length", "1") != KILN_INVALID;
        bad += kiln_header_set(ctx, "transfer-encoding", "chunked") != KILN_INVALID;
        bad += kiln_cookie_set(ctx, "a", "b;c", NULL) != KILN_INVALID;
        bad += kiln_redirect(ctx, 200, "/") != KILN_INVALID;
        bad += kiln_status(ctx, 201) | kiln_header_set(ctx, "X-A", "0") | kiln_header_set(ctx, "x-a", "1") | kiln_header_add(ctx, "X-B", "1") | kiln_header_add(ctx, "X-B", "2");
        bad += kiln_header_set(ctx, "X-C", "1") | kiln_header_remove(ctx, "x-c");
        bad += strcmp(kiln_header_sent(ctx, "X-A"), "1") != 0;
        bad += kiln_header_sent(ctx, "X-C") != NULL;
        kiln_cookie_options o = {0};
        o.max_age = 60; o.same_site = KILN_SAME_SITE_NONE; o.visible_to_script = 1; o.path = "/e"; o.domain = "example.com";
        bad += kiln_cookie_set(ctx, "one", "old", NULL) | kiln_cookie_set(ctx, "one", "1", NULL) | kiln_cookie_set(ctx, "two", "2", &o);
        o.max_age = -1;
        bad += kiln_cookie_set(ctx, "three", "", &o);
        bad += kiln_puts_html(ctx, "<&>\"'");
        bad += kiln_written(ctx) == 0;
        kiln_printf(ctx, "%d", bad);
        return 0;"""
    )
    answer = kiln.get("/e")
    assert (answer.status, answer.headers["X-A"], answer.headers.get_all("X-B")) == (201, "1", ["1", "2"])
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["X-C"] is None and answer.headers["X-Evil"] is None
    assert answer.headers.get_all("Set-Cookie") == [
        "one=1; Path=/; HttpOnly; SameSite=Lax",
        "two=2; Path=/e; Domain=example.com; Max-Age=60; Secure; SameSite=None",
        "three=; Path=/e; Domain=example.com; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Secure; SameSite=None",
    ]
    assert answer.text == "&lt;&amp;&gt;&quot;&#39;0"
    head = kiln.head("/e")
    assert (head.status, head.headers["Content-Length"], head.body) == (201, str(len(answer.body)), b"")


def test_what_kiln_run_may_return(endpoint):
    kiln = endpoint(
        r"""
        if (kiln_query_get(ctx, "text")) kiln_puts(ctx, "text");
        if (kiln_query_get(ctx, "flush")) kiln_flush(ctx);
        if (kiln_query_get(ctx, "error")) { kiln_error(ctx, 418, "<short> and stout"); return kiln_puts(ctx, "x") == KILN_LATE ? 0 : 1; }
        return atoi(kiln_query_get(ctx, "r"));"""
    )
    for returned, status in ((0, 200), (204, 204), (404, 404), (-5, 400), (-6, 404), (-2, 408), (-3, 413), (-4, 503), (-8, 500), (1, 500), (-77, 500)):
        assert kiln.get(f"/e?r={returned}").status == status, returned
    answer = kiln.get("/e?r=404&text=1")
    assert (answer.status, answer.text) == (404, "text")
    assert kiln.get("/e?r=-5&text=1").status == 400
    answer = kiln.get("/e?error=1")
    assert answer.status == 418 and "&lt;short&gt; and stout" in answer.text
    cut = kiln.raw(b"GET /e?text=1&flush=1&r=500 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in cut and not cut.endswith(b"0\r\n\r\n")
    assert kiln.raw(b"GET /e?r=-1 HTTP/1.1\r\nHost: x\r\n\r\n") == b""


def test_streaming_large_answers(endpoint):
    kiln = endpoint(
        r"""
        long total = atol(kiln_query_get(ctx, "n"));
        if (kiln_query_get(ctx, "length")) kiln_content_length(ctx, (uint64_t)total);
        for (long i = 0; i < total; i += 10) {
            int result = kiln_printf(ctx, "%09ld\n", i);
            if (result != KILN_OK) return result;
        }
        if (total > 100000 && kiln_status(ctx, 201) != KILN_LATE) return 500;
        return 0;"""
    )
    expected = lambda n: b"".join(b"%09d\n" % i for i in range(0, n, 10))
    for n in (1000, 60000, 70000, 3000000):
        answer = kiln.get(f"/e?n={n}")
        assert answer.body == expected(n)
        assert (answer.headers["Content-Length"] == str(n)) == (n < 65536)
        answer = kiln.get(f"/e?n={n}&length=1")
        assert answer.body == expected(n) and answer.headers["Content-Length"] == str(n)
    old = kiln.raw(b"GET /e?n=100000 HTTP/1.0\r\n\r\n").split(b"\r\n\r\n", 1)
    assert old[1] == expected(100000) and b"chunked" not in old[0]
    head = kiln.head("/e?n=100000&length=1")
    assert head.body == b"" and head.headers["Content-Length"] == "100000"


def test_a_promised_length_is_kept(endpoint):
    kiln = endpoint(
        r"""
        kiln_content_length(ctx, 10);
        int over = kiln_write(ctx, "12345678901", 11) != KILN_TOO_LARGE;
        kiln_puts(ctx, "12345");
        if (kiln_query_get(ctx, "flush")) kiln_flush(ctx);
        if (kiln_query_get(ctx, "whole")) kiln_printf(ctx, "%05d", over);
        return 0;"""
    )
    assert kiln.get("/e?whole=1").text == "1234500000"
    assert kiln.get("/e").status == 500
    cut = kiln.raw(b"GET /e?flush=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"Content-Length: 10\r\n" in cut and cut.endswith(b"\r\n\r\n12345")


def test_a_slow_client_makes_the_endpoint_wait(endpoint):
    kiln = endpoint(
        r"""
        char *block = kiln_zalloc(ctx, 65536);
        for (int i = 0; i < 1000; i++) {
            int result = kiln_write(ctx, block, 65536);
            kiln_log(ctx, KILN_LOG_NOTICE, "block %d", i);
            if (result != KILN_OK) return result;
        }
        return 0;"""
    )
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.connect(("127.0.0.1", kiln.port))
        s.sendall(b"GET /e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_until(s, b"\r\n\r\n")
        assert kiln.get("/e", headers={"Connection": "close"}).status == 200  # others are served meanwhile
        assert kiln.log().count("block ") < 2000
        total = 0
        while part := s.recv(1 << 20):
            total += len(part)
    assert total > 65000000
    kiln.wait_log(r"block 999(?s:.)*block 999")


def test_send_file(endpoint):
    content = bytes(range(256)) * 5000
    kiln = endpoint(
        r"""
        kiln_file_options o = {0};
        o.download_as = kiln_query_get(ctx, "as");
        o.content_type = kiln_query_get(ctx, "type");
        int result = kiln_send_file(ctx, kiln_query_get(ctx, "f"), &o);
        if (result == KILN_NOT_FOUND) { kiln_puts(ctx, "no such file"); return 404; }
        if (result == KILN_OK && kiln_puts(ctx, "x") != KILN_LATE) return 500;
        return result;""",
        files={".private.png": content, ".empty": b"", ".dir/": None},
    )
    answer = kiln.get("/e?f=.private.png")
    assert answer.body == content and answer.headers["Content-Type"] == "image/png"
    etag = answer.headers["ETag"]
    assert kiln.get("/e?f=.private.png", {"If-None-Match": etag}).status == 304
    assert kiln.get("/e?f=.private.png", {"If-Match": '"other"'}).status == 412
    part = kiln.get("/e?f=.private.png", {"Range": "bytes=-10"})
    assert (part.status, part.body) == (206, content[-10:])
    assert part.headers["Content-Range"] == f"bytes {len(content) - 10}-{len(content) - 1}/{len(content)}"
    assert kiln.get("/e?f=.private.png", {"Range": "bytes=5-9", "If-Range": '"x"'}).status == 200
    assert kiln.get("/e?f=.private.png", {"Range": f"bytes={len(content)}-"}).status == 416
    answer = kiln.get("/e?f=.private.png&as=%C3%A4%22.png&type=a/b")
    assert answer.headers["Content-Type"] == "a/b" and "filename*=UTF-8''%C3%A4%22.png" in answer.headers["Content-Disposition"]
    assert kiln.head("/e?f=.private.png").headers["Content-Length"] == str(len(content))
    assert (kiln.get("/e?f=.empty").status, kiln.get("/e?f=.empty").body) == (200, b"")
    for missing in (".nothing", ".dir", "/nonexistent/x"):
        assert kiln.get(f"/e?f={missing}").text == "no such file"


def test_server_sent_events(endpoint):
    kiln = endpoint(
        r"""
        const char *last = kiln_sse_last_id(ctx);
        int bad = kiln_sse_begin(ctx) | kiln_sse_retry(ctx, 500) | kiln_sse_ping(ctx);
        bad |= kiln_sse_send(ctx, "a\nb", NULL, "x") != KILN_INVALID;
        bad |= kiln_sse_send(ctx, "tick", "7", "one\ntwo") | kiln_sse_send(ctx, NULL, NULL, last ? last : "-");
        return bad ? 500 : 0;"""
    )
    answer = kiln.get("/e", {"Last-Event-ID": "6"})
    assert answer.headers["Content-Type"] == "text/event-stream" and answer.headers["Cache-Control"] == "no-store"
    assert answer.text == "retry: 500\n\n:\n\nid: 7\nevent: tick\ndata: one\ndata: two\n\ndata: 6\n\n"
