"""Static files, as a client sees them: conditions, ranges, codings, the cache behind them."""

import email.utils
import gzip
import http.client
import os
import re
import socket

import pytest

from kiln_server import exchange, read_all, wait_for
from static_site import BR, GZIP, PAGE, TEXT, ZSTD, decode, old, tag


# ---- plain -------------------------------------------------------------------------------


def test_head_of_a_file(site):
    got = site.get("/page.html")
    assert got.status == 200 and got.text == PAGE
    assert got.headers["Content-Type"] == "text/html; charset=utf-8"
    assert got.headers["Content-Length"] == str(len(PAGE))
    assert got.headers["Accept-Ranges"] == "bytes"
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers["Server"] == "Kiln"
    assert got.headers["Vary"] == "Accept-Encoding"
    assert re.fullmatch(r'"[0-9a-f]{16}"', tag(got))
    modified = email.utils.parsedate_to_datetime(got.headers["Last-Modified"]).timestamp()
    assert modified == int((site.www / "page.html").stat().st_mtime)
    assert got.headers.get_all("Date") and len(got.headers.get_all("Date")) == 1


def test_head_request_has_the_same_head_and_no_body(site):
    for path in ("/page.html", "/large.txt", "/empty.txt", "/noise.bin"):
        for headers in ({}, GZIP):
            for _ in range(2):
                get, head = site.get(path, headers), site.head(path, headers)
                assert head.body == b"" and head.status == 200
                a, b = dict(get.headers), dict(head.headers)
                a.pop("Date"), b.pop("Date")
                if path == "/large.txt" and headers:
                    continue  # the variant may be made between the two
                assert a == b
    answer = site.raw(b"HEAD /small.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")


def test_empty_file(site):
    for _ in range(2):
        got = site.get("/empty.txt", GZIP)
        assert got.status == 200 and got.body == b"" and got.headers["Content-Length"] == "0"


def test_options_and_methods_not_allowed(site):
    got = site.request("OPTIONS", "/page.html")
    assert got.status == 204 and got.headers["Allow"] == "GET, HEAD, OPTIONS" and got.body == b""
    for method in ("POST", "PUT", "DELETE", "PATCH", "PROPFIND"):
        got = site.request(method, "/page.html", body=b"x=1")
        assert got.status == 405 and got.headers["Allow"] == "GET, HEAD, OPTIONS", method


def test_types_and_headers_by_extension(server, files):
    files(
        {
            "a.json": "{}",
            "a.unknownext": "x",
            "noext": "x",
            "a.WOFF2": "x",
            "a.b.css": "x",
            "x.special": "x",
            "k.html": "x",
            "setup.exe": "MZ",
            'na"me ü.zip': "PK",
        }
    )
    config = {
        "ExtTypes": {
            "special,other": ["Content-Type: application/x-special", "Cache-Control: max-age=60", "X-Two: 1"],
            "html": ["Cache-Control: no-cache", "X-Content-Type-Options: "],
        },
        "DefaultHeaders": {"Server": "Test", "Cache-Control": "public", "Vary": "Origin"},
    }
    with server(config=config) as kiln:
        assert kiln.get("/a.json").headers["Content-Type"] == "application/json"
        assert kiln.get("/a.unknownext").headers["Content-Type"] == "application/octet-stream"
        assert kiln.get("/noext").headers["Content-Type"] == "application/octet-stream"
        assert kiln.get("/a.WOFF2").headers["Content-Type"] == "font/woff2"
        assert kiln.get("/a.b.css").headers["Content-Type"] == "text/css; charset=utf-8"
        special = kiln.get("/x.special").headers
        assert special["Content-Type"] == "application/x-special"
        assert special.get_all("Cache-Control") == ["max-age=60"] and special["X-Two"] == "1"
        assert special["Server"] == "Test"
        html = kiln.get("/k.html").headers
        assert html.get_all("Cache-Control") == ["no-cache"]
        assert kiln.get("/setup.exe").headers["Content-Disposition"] == 'attachment; filename="setup.exe"'
        named = kiln.get("/na%22me%20%C3%BC.zip").headers["Content-Disposition"]
        assert named == "attachment; filename=\"na_me _.zip\"; filename*=UTF-8''na%22me%20%C3%BC.zip"
        assert "Content-Disposition" not in kiln.get("/k.html").headers


def test_vary_of_the_config_is_kept(server, files):
    files({"a.html": PAGE})
    with server(config={"DefaultHeaders": {"Vary": "Origin"}}) as kiln:
        assert kiln.get("/a.html").headers.get_all("Vary") == ["Origin, Accept-Encoding"]


# ---- codings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_variant_on_the_first_request(site, coding):
    for _ in range(2):
        got = site.get("/page.html", {"Accept-Encoding": coding})
        assert got.headers["Content-Encoding"] == coding and got.headers["Vary"] == "Accept-Encoding"
        assert len(got.body) < len(PAGE) / 4
        assert decode(coding, got.body) in (PAGE.encode(), None)
        assert tag(got) != tag(site.get("/page.html"))


@pytest.mark.parametrize(
    "value, coding",
    [
        ("gzip, deflate, br, zstd", "br"),
        ("gzip;q=1.0, br;q=0.5", "gzip"),
        ("br;q=0, gzip", "gzip"),
        ("*", "br"),
        ("*;q=0.5, zstd", "zstd"),
        ("identity, gzip;q=0.5", None),
        ("deflate", None),
        ("gzip;q=0", None),
        ("identity;q=0, gzip", "gzip"),
        ("", None),
    ],
)
def test_negotiation(site, value, coding):
    got = site.get("/page.html", {"Accept-Encoding": value})
    assert got.status == 200 and got.headers["Content-Encoding"] == coding


def test_nothing_acceptable(site):
    for path in ("/page.html", "/noise.bin"):
        got = site.get(path, {"Accept-Encoding": "identity;q=0"})
        assert got.status == 406, path
    assert site.get("/noise.bin", {"Accept-Encoding": "identity;q=0, gzip"}).status == 406


def test_only_what_is_worth_it_is_compressed(server, files):
    files({"a.html": "x" * 100, "b.html": "x" * 600, "c.png": "x" * 5000, "d.txt": os.urandom(5000), "e.css": PAGE})
    config = {"ExtTypes": {"css": ["Cache-Control: no-transform"]}, "CompressMaxSize": 100000}
    with server(config=config, files={"f.txt": "y" * 100001}) as kiln:
        coding = lambda path: kiln.get(path, {"Accept-Encoding": "gzip, br, zstd"}).headers["Content-Encoding"]
        assert coding("/a.html") is None  # below CompressMinSize
        assert coding("/b.html") == "br"
        assert coding("/c.png") is None  # no CompressType
        assert coding("/d.txt") is None and coding("/d.txt") is None  # does not shrink
        assert coding("/e.css") is None
        assert coding("/f.txt") is None
        assert "Vary" not in kiln.get("/c.png").headers


def test_no_compression(server, files):
    files({"a.html": PAGE, "b.html": PAGE, "b.html.gz": gzip.compress(PAGE.encode())})
    with server(config={"CompressionLevel": "NoCompression"}) as kiln:
        assert kiln.get("/a.html", GZIP).headers["Content-Encoding"] is None
        assert kiln.get("/b.html", GZIP).headers["Content-Encoding"] == "gzip"


def test_variants_of_a_large_file_are_made_behind_its_back(site):
    plain = site.get("/large.txt", GZIP)
    assert plain.status == 200 and len(plain.body) == len(PAGE) * 40
    coded = wait_for(
        lambda: (got := site.get("/large.txt", GZIP)).headers["Content-Encoding"] == "gzip" and got,
        "the variant",
    )
    assert gzip.decompress(coded.body).decode() == PAGE * 40
    waited = site.get("/large.txt", {"Accept-Encoding": "identity;q=0, zstd"})
    assert waited.headers["Content-Encoding"] == "zstd"


def test_many_clients_want_the_first_variant(site):
    clients = [site.connect() for _ in range(40)]
    request = b"GET /page.html HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\nConnection: close\r\n\r\n"
    for client in clients:
        client.sendall(request)
    bodies = {read_all(client).split(b"\r\n\r\n", 1)[1] for client in clients}
    assert len(bodies) == 1 and len(bodies.pop()) < len(PAGE)


def test_client_leaves_while_its_variant_is_made(server, files):
    files({f"p{i}.html": PAGE * 12 + str(i) for i in range(20)})
    with server(config={"CompressionLevel": "SmallestSize"}) as kiln:
        for i in range(20):
            client = kiln.connect()
            client.sendall(f"GET /p{i}.html HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\n\r\n".encode())
            client.close()
        assert kiln.get("/p3.html", BR).headers["Content-Encoding"] == "br"


def test_client_that_has_a_variant_gets_304_without_it_being_made(server, files):
    root = files({"a.html": PAGE})
    old(root / "a.html")
    with server() as kiln:
        etag = tag(kiln.get("/a.html", BR))
    with server(base="other", layout=None, config={"SiteDir": str(root)}) as kiln:
        got = kiln.get("/a.html", {"Accept-Encoding": "br, gzip", "If-None-Match": etag})
        assert got.status == 304 and tag(got) == etag
        assert kiln.get("/a.html", {"Accept-Encoding": "gzip", "If-None-Match": etag}).status == 200


# ---- siblings -------------------------------------------------------------------------------------------------


def test_siblings_are_used_unless_older(server, files):
    marked = gzip.compress(b"from the sibling " * 100)
    root = files({"a.js": PAGE, "a.js.gz": marked, "b.js": PAGE, "b.js.gz": marked, "c.bin": PAGE, "c.bin.gz": marked})
    when = old(root / "a.js")
    old(root / "a.js.gz")
    os.utime(root / "a.js.gz", ns=(when * 10**9 + 5,) * 2)
    os.utime(root / "b.js.gz", ns=((when - 50) * 10**9,) * 2)
    with server() as kiln:
        got = kiln.get("/a.js", GZIP)
        assert got.body == marked and got.headers["Content-Encoding"] == "gzip"
        assert got.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert got.headers["Vary"] == "Accept-Encoding"
        assert kiln.get("/a.js").text == PAGE
        older = kiln.get("/b.js", GZIP)
        assert gzip.decompress(older.body).decode() == PAGE
        assert kiln.get("/c.bin", GZIP).body == marked  # whatever the type
        assert kiln.get("/a.js.gz").headers["Content-Type"] == "application/gzip"
        # All three codings, and the disk decides again when a sibling comes or goes.
        (root / "a.js.br").write_bytes(b"brotli, said to be")
        wait_for(lambda: kiln.get("/a.js", BR).body == b"brotli, said to be", "the new sibling")
        before = tag(kiln.get("/a.js", BR))
        (root / "a.js.br").write_bytes(b"another brotli")
        wait_for(lambda: kiln.get("/a.js", BR).body == b"another brotli", "the changed sibling")
        assert tag(kiln.get("/a.js", BR)) != before
        (root / "a.js.br").unlink()
        wait_for(lambda: kiln.get("/a.js", BR).body != b"another brotli", "the end of the sibling")
        assert decode("br", kiln.get("/a.js", BR).body) in (PAGE.encode(), None)
        (root / "a.js").write_text(PAGE + "changed")
        wait_for(lambda: kiln.get("/a.js").text == PAGE + "changed", "the changed original")
        assert gzip.decompress(kiln.get("/a.js", GZIP).body).decode() == PAGE + "changed"


def test_large_siblings_are_sent_from_the_disk(server, files):
    blob = os.urandom(600000)
    files({"a.txt": "x" * 2000000, "a.txt.zst": blob})
    with server() as kiln:
        got = kiln.get("/a.txt", ZSTD)
        assert got.body == blob and got.headers["Content-Encoding"] == "zstd"


def test_siblings_off(server, files):
    files({"a.bin": PAGE, "a.bin.gz": b"x"})
    with server(config={"Precompressed": False}) as kiln:
        assert kiln.get("/a.bin", GZIP).headers["Content-Encoding"] is None


# ---- change and cache -----------------------------------------------------------------------------------------------


def test_change_is_seen(site):
    first = site.get("/page.html")
    (site.www / "page.html").write_text("new")
    wait_for(lambda: site.get("/page.html").text == "new", "the new text")
    assert tag(site.get("/page.html")) != tag(first)
    os.replace(site.www / "small.txt", site.www / "page.html")
    wait_for(lambda: site.get("/page.html").text == "0123456789", "the file that was moved here")
    (site.www / "page.html").unlink()
    wait_for(lambda: site.get("/page.html").status == 404, "its end")


def test_change_through_a_mapping_is_seen(site):
    """A mapped write tells inotify nothing."""
    import mmap

    assert site.get("/letters.txt").body[:4] == b"abcd"
    with open(site.www / "letters.txt", "r+b") as f:
        with mmap.mmap(f.fileno(), 0) as view:
            view[:4] = b"WXYZ"
            view.flush()
            wait_for(lambda: site.get("/letters.txt").body[:4] == b"WXYZ", "the mapped write")


def slow_reader(kiln, path):
    """A connection with a small window whose answer has begun."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", kiln.port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    start = b""
    while b"\r\n\r\n" not in start:
        start += client.recv(1000)
    head, body = start.split(b"\r\n\r\n", 1)
    return client, head.decode(), body


def test_truncated_while_it_is_sent(server, files):
    root = files({"huge.bin": b"x" * 30_000_000})
    with server() as kiln:
        client, head, body = slow_reader(kiln, "/huge.bin")
        assert "Content-Length: 30000000" in head
        os.truncate(root / "huge.bin", 1_000_000)
        received = len(body) + len(read_all(client))
        assert received < 30_000_000  # cut, neither padded nor hung

        def whole():
            try:
                return kiln.get("/huge.bin").body == b"x" * 1_000_000
            except http.client.IncompleteRead:
                return False  # asked before the server heard of the change: promised and cut

        assert wait_for(whole, "the file as it is now")


def test_replaced_or_deleted_while_it_is_sent(server, files):
    root = files({"huge.bin": b"x" * 20_000_000})
    with server() as kiln:
        client, _, body = slow_reader(kiln, "/huge.bin")
        (root / "new").write_bytes(b"y" * 20_000_000)
        os.replace(root / "new", root / "huge.bin")
        wait_for(lambda: kiln.get("/huge.bin", {"Range": "bytes=0-0"}).body == b"y", "the new file")
        data = body
        while len(data) < 20_000_000:
            data += client.recv(1 << 20)
        assert data == b"x" * 20_000_000
        client.close()
        client, _, body = slow_reader(kiln, "/huge.bin")
        (root / "huge.bin").unlink()
        data = body
        while len(data) < 20_000_000:
            data += client.recv(1 << 20)
        assert data == b"y" * 20_000_000
        client.close()
        wait_for(lambda: kiln.get("/huge.bin").status == 404, "its end")


def test_small_cache_serves_everything(server, files):
    tree = {f"f{i}.txt": TEXT.format(i) * 200 for i in range(60)}
    files(tree)
    with server(config={"FileCacheSize": 65536}) as kiln:
        client = kiln.client()
        for _ in range(3):
            for name, text in tree.items():
                assert exchange(client, "GET", "/" + name).text == text
                assert gzip.decompress(exchange(client, "GET", "/" + name, headers=GZIP).body).decode() == text
        client.close()


def test_without_a_cache(server, files):
    files({"a.html": PAGE, "b.bin": os.urandom(100000), "a.html.gz": gzip.compress(PAGE.encode())})
    with server(config={"FileCacheSize": 0, "FileCacheMaxFile": 0}) as kiln:
        for _ in range(2):
            assert kiln.get("/a.html").text == PAGE
            assert kiln.get("/a.html", GZIP).headers["Content-Encoding"] == "gzip"
            assert kiln.get("/a.html", BR).headers["Content-Encoding"] is None
            assert len(kiln.get("/b.bin").body) == 100000
            assert kiln.get("/b.bin", {"Range": "bytes=1-2"}).status == 206


def test_reload_changes_the_headers(server, files):
    files({"a.html": PAGE})
    with server() as kiln:
        assert "X-New" not in kiln.get("/a.html", GZIP).headers
        kiln.write_config(ExtTypes={"html": ["X-New: 1"]})
        kiln.reload()
        wait_for(lambda: kiln.get("/a.html", GZIP).headers["X-New"] == "1", "the new header")
        assert kiln.get("/a.html").headers["X-New"] == "1"


def test_files_that_are_read_on_the_pool(server, files):
    """What is not in the page cache, or too large to be read on a loop."""
    names = [f"f{i}.bin" for i in range(12)]
    root = files({name: os.urandom(700_000 if i % 2 else 50_000) for i, name in enumerate(names)})
    for name in names:
        with open(root / name, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with server(config={"FileCacheMaxFile": 1_000_000}) as kiln:
        for name in names[:6]:
            leaver = kiln.connect()
            leaver.sendall(f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            leaver.close()
        clients = [(name, kiln.connect()) for name in names for _ in range(3)]
        for name, client in clients:
            client.sendall(f"GET /{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        for name, client in clients:
            assert read_all(client).split(b"\r\n\r\n", 1)[1] == (root / name).read_bytes()
        etag = tag(kiln.get("/f1.bin"))
        assert kiln.get("/f1.bin", {"If-None-Match": etag}).status == 304
        assert kiln.get("/f1.bin", {"Range": "bytes=1-1"}).status == 206


def test_unreadable_file(server, files):
    root = files({"a.txt": "x"})
    with server() as kiln:
        (root / "a.txt").chmod(0)
        wait_for(lambda: kiln.get("/a.txt").status == (200 if os.geteuid() == 0 else 403), "the answer")


def test_pipelined_requests_are_answered_in_order(site):
    paths = ["/small.txt", "/page.html", "/large.txt", "/empty.txt", "/nope", "/small.txt"]
    requests = b"".join(f"GET {p} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n".encode() for p in paths[:-1])
    requests += b"GET /small.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = site.raw(requests)
    seen = []
    while answer:
        head, answer = answer.split(b"\r\n\r\n", 1)
        length = int(re.search(rb"Content-Length: (\d+)", head)[1])
        seen.append((int(head[9:12]), length))
        answer = answer[length:]
    assert [status for status, _ in seen] == [200, 200, 200, 200, 404, 200]
    assert seen[0][1] == 10 and seen[2][1] == len(PAGE) * 40 and seen[3][1] == 0 and seen[5][1] == 10


# ---- errors and listings -----------------------------------------------------------------------------------------------


def test_error_page_in_the_form_the_client_prefers(site):
    html = site.get("/nope", {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert html.status == 404 and html.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<!DOCTYPE html>" in html.text and "404" in html.text
    assert "default-src 'none'" in html.headers["Content-Security-Policy"]
    assert site.get("/nope").headers["Content-Type"].startswith("text/html")
    json = site.get("/nope", {"Accept": "application/json"})
    assert json.json()["status"] == 404 and json.headers["Content-Type"] == "application/json"
    assert "Accept" in json.headers["Vary"]
    text = site.get("/nope", {"Accept": "text/plain"})
    assert text.text.startswith("404 Not Found\n")
    assert site.head("/nope").body == b""
    assert "<script" not in site.get("/%3Cscript%3E", {"Referer": "<script>"}).text


def test_error_page_of_the_site(server, files):
    root = files({"error404.html": "<h1>own page</h1>" * 50})
    with server() as kiln:
        for _ in range(2):
            got = kiln.get("/nope", {"If-None-Match": "*", "Range": "bytes=0-1"})
            assert got.status == 404 and got.text.startswith("<h1>own page") and len(got.body) == 17 * 50
            assert got.headers["Content-Type"] == "text/html; charset=utf-8"
            assert "ETag" not in got.headers and "Last-Modified" not in got.headers
        assert gzip.decompress(kiln.get("/nope", GZIP).body).startswith(b"<h1>own")
        assert kiln.head("/nope").body == b""
        assert kiln.request("POST", "/nope", body=b"x").status == 404
        assert kiln.get("/nope", {"Accept": "application/json"}).json()["status"] == 404
        (root / "error404.html").unlink()
        wait_for(lambda: "own page" not in kiln.get("/nope").text, "the built-in page")


def test_directories_are_not_listed_by_default(site):
    assert site.get("/dir/").status in (403, 404)
    assert "a.txt" not in site.get("/dir/").text


def test_listing(server, files):
    files(
        {
            "pub/b10.txt": "x" * 1500,
            "pub/b9.txt": "x",
            "pub/.secret": "x",
            "pub/sub/inner.txt": "x",
            'pub/<i>"&\'ü .txt': "x",
            "pub/a:b%2f.txt": "strange",
            "pub/empty/": None,
            "pub/app._c": "int x;",
            "pub/app.h": "int y;",
        }
    )
    with server(config={"DirectoryListing": True}) as kiln:
        page = kiln.get("/pub/")
        assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8"
        text = page.text
        assert ".secret" not in text and "app.h" not in text and "<i>" not in text
        assert text.index('href="sub/"') < text.index('href="b9.txt"') < text.index('href="b10.txt"')
        assert "1.5 kB" in text and 'href="../"' in text
        links = re.findall(r'<a href="([^"?]+)">', text)
        for link in links:
            if link not in ("../", "sub/", "empty/", "app._c"):
                assert kiln.get("/pub/" + link).status == 200, link
        assert "This folder is empty" in kiln.get("/pub/empty/").text
        assert kiln.head("/pub/").body == b""
        assert kiln.request("POST", "/pub/", body=b"").status == 405
        found = kiln.get("/pub/", {"Accept": "application/json"}).json()
        assert found["path"] == "/pub/"
        assert [e["name"] for e in found["entries"]][:2] == ["empty", "sub"]
        assert any({"name": "b9.txt", "type": "file", "size": 1}.items() <= e.items() for e in found["entries"])
        by_size = kiln.get("/pub/?sort=size&order=desc", {"Accept": "application/json"}).json()["entries"]
        assert [e["name"] for e in by_size if e["type"] == "file"][0] == "b10.txt"
