"""Static files, as a client sees them: conditional requests and ranges."""

import email.utils
import os
import time

import pytest

from kiln_server import wait_for
from static_site import GZIP, PAGE, tag


# ---- conditions ---------------------------------------------------------------------------------


def http_date(seconds):
    return email.utils.formatdate(seconds, usegmt=True)


def test_not_modified(site):
    first = site.get("/page.html")
    for value in (tag(first), "W/" + tag(first), '"x", ' + tag(first), "*"):
        got = site.get("/page.html", {"If-None-Match": value})
        assert got.status == 304 and got.body == b"", value
        assert tag(got) == tag(first) and got.headers["Vary"] == "Accept-Encoding" and got.headers["Date"]
        for name in ("Content-Length", "Content-Type", "Last-Modified", "Content-Encoding"):
            assert name not in got.headers, name
    assert site.head("/page.html", {"If-None-Match": tag(first)}).status == 304
    assert site.get("/page.html", {"If-None-Match": '"x"'}).status == 200
    assert site.get("/large.txt", {"If-None-Match": tag(site.get("/large.txt"))}).status == 304


def test_if_none_match_in_two_lines(site):
    etag = tag(site.get("/page.html")).encode()
    answer = site.raw(
        b'GET /page.html HTTP/1.1\r\nHost: x\r\nIf-None-Match: "x"\r\nIf-None-Match: ' + etag
        + b"\r\nConnection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 304 ")


def test_dates(site):
    modified = int((site.www / "page.html").stat().st_mtime)
    since = lambda seconds: site.get("/page.html", {"If-Modified-Since": http_date(seconds)}).status
    assert since(modified) == 304 and since(modified + 5) == 304 and since(modified - 1) == 200
    for form in ("%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"):
        text = time.strftime(form, time.gmtime(modified))
        assert site.get("/page.html", {"If-Modified-Since": text}).status == 304, text
    assert site.get("/page.html", {"If-Modified-Since": "last week"}).status == 200
    unmodified = lambda seconds: site.get("/page.html", {"If-Unmodified-Since": http_date(seconds)}).status
    assert unmodified(modified) == 200 and unmodified(modified - 1) == 412


def test_precedence(site):
    etag = tag(site.get("/page.html"))
    modified = int((site.www / "page.html").stat().st_mtime)
    status = lambda **headers: site.get("/page.html", {k.replace("_", "-"): v for k, v in headers.items()}).status
    assert status(If_None_Match='"x"', If_Modified_Since=http_date(modified)) == 200
    assert status(If_None_Match=etag, If_Modified_Since=http_date(0)) == 304
    assert status(If_Match=etag, If_Unmodified_Since=http_date(0)) == 200
    assert status(If_Match='"x"') == 412
    assert status(If_Match="W/" + etag) == 412
    assert status(If_Match="*") == 200
    assert status(If_Match=etag, If_None_Match=etag) == 304
    assert status(If_Match='"x"', If_None_Match=etag) == 412
    assert status(If_Match='"x"', Range="bytes=0-1") == 412
    assert status(If_None_Match=etag, Range="bytes=0-1") == 304


def test_a_file_changed_just_now_has_a_weak_tag_and_then_a_strong_one(server, files):
    """A time in whole seconds may be all that the file system keeps: two seconds must pass."""
    root = files({"a.txt": "0123456789"})
    with server() as kiln:
        when = (int(time.time()) + 1) * 10**9  # in a moment: weak for some seconds from now on
        os.utime(root / "a.txt", ns=(when, when))
        weak = wait_for(lambda: (seen := tag(kiln.get("/a.txt"))).startswith("W/") and seen, "a weak tag")
        ranged = {"Range": "bytes=0-1", "If-Range": weak}
        assert kiln.get("/a.txt", ranged).status == 200
        assert kiln.get("/a.txt", {"If-None-Match": weak}).status == 304
        wait_for(lambda: tag(kiln.get("/a.txt")) == weak[2:], "the strong tag")
        assert kiln.get("/a.txt", dict(ranged, **{"If-Range": weak[2:]})).status == 206


# ---- ranges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, content_range, body",
    [
        ("bytes=0-0", "bytes 0-0/10", b"0"),
        ("bytes=2-4", "bytes 2-4/10", b"234"),
        ("bytes=7-", "bytes 7-9/10", b"789"),
        ("bytes=-3", "bytes 7-9/10", b"789"),
        ("bytes=-30", "bytes 0-9/10", b"0123456789"),
        ("bytes=5-500", "bytes 5-9/10", b"56789"),
        ("bytes=0-3,2-6", "bytes 0-6/10", b"0123456"),
        ("bytes=20-30,1-1", "bytes 1-1/10", b"1"),
    ],
)
def test_single_range(site, spec, content_range, body):
    got = site.get("/small.txt", {"Range": spec})
    assert (got.status, got.headers["Content-Range"], got.body) == (206, content_range, body)
    assert got.headers["Content-Length"] == str(len(body))
    assert tag(got) == tag(site.get("/small.txt"))


@pytest.mark.parametrize("spec", ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999-"])
def test_range_behind_the_end(site, spec):
    got = site.get("/small.txt", {"Range": spec})
    assert got.status == 416 and got.headers["Content-Range"] == "bytes */10"


@pytest.mark.parametrize("spec", ["bytes=", "bytes=x", "bytes=3-1", "bytes", "lines=0-1", "bytes=0-1;2", "bytes=-"])
def test_malformed_range_is_ignored(site, spec):
    got = site.get("/small.txt", {"Range": spec})
    assert got.status == 200 and got.body == b"0123456789"


def parts_of(response):
    kind, boundary = response.headers["Content-Type"].split("; boundary=")
    assert kind == "multipart/byteranges"
    pieces = response.body.split(b"--" + boundary.encode())
    assert pieces[0] == b"" and pieces[-1] == b"--\r\n"
    found = []
    for piece in pieces[1:-1]:
        head, body = piece.split(b"\r\n\r\n", 1)
        fields = dict(line.split(": ", 1) for line in head.decode().strip().split("\r\n"))
        found.append((fields["Content-Type"], fields["Content-Range"], body[:-2]))
        assert body.endswith(b"\r\n")
    return found


def test_several_ranges(site):
    got = site.get("/small.txt", {"Range": "bytes=8-9, 0-1, 4-5"})
    assert got.status == 206 and "Content-Range" not in got.headers
    text = "text/plain; charset=utf-8"
    assert parts_of(got) == [
        (text, "bytes 8-9/10", b"89"),
        (text, "bytes 0-1/10", b"01"),
        (text, "bytes 4-5/10", b"45"),
    ]
    assert got.headers["Content-Length"] == str(len(got.body))
    large = (site.www / "large.txt").read_bytes()
    got = site.get("/large.txt", {"Range": "bytes=100-199,-50"})
    assert [part[2] for part in parts_of(got)] == [large[100:200], large[-50:]]


def test_abusive_ranges_never_send_more_than_the_file(site):
    size = 26 * 40
    overlapping = "bytes=" + ",".join(f"{i}-" for i in range(30))
    got = site.get("/letters.txt", {"Range": overlapping})
    assert got.status == 206 and got.headers["Content-Range"] == f"bytes 0-{size - 1}/{size}"
    many = "bytes=" + ",".join(f"{2 * i}-{2 * i}" for i in range(400))
    got = site.get("/letters.txt", {"Range": many})
    assert got.status == 200 and len(got.body) == size


def test_if_range(site):
    first = site.get("/small.txt")
    ranged = lambda value: site.get("/small.txt", {"Range": "bytes=0-1", "If-Range": value}).status
    assert ranged(tag(first)) == 206
    assert ranged(first.headers["Last-Modified"]) == 206
    assert ranged('"x"') == 200
    assert ranged("W/" + tag(first)) == 200
    assert ranged(http_date(0)) == 200
    assert ranged("nonsense") == 200
    got = site.get("/small.txt", {"Range": "bytes=100-", "If-Range": '"x"'})
    assert got.status == 200 and got.body == b"0123456789"


def test_range_is_of_identity_unless_if_range_names_a_variant(site):
    got = site.get("/page.html", {"Range": "bytes=0-9", "Accept-Encoding": "gzip"})
    assert got.status == 206 and "Content-Encoding" not in got.headers and got.text == PAGE[:10]
    whole = site.get("/page.html", GZIP)
    got = site.get("/page.html", {"Range": "bytes=5-24", "Accept-Encoding": "gzip", "If-Range": tag(whole)})
    assert got.status == 206 and got.headers["Content-Encoding"] == "gzip" and got.body == whole.body[5:25]


def test_range_only_for_get(site):
    got = site.head("/small.txt", {"Range": "bytes=0-1"})
    assert got.status == 200 and got.headers["Content-Length"] == "10"


def test_ranges_of_an_empty_file(site):
    got = site.get("/empty.txt", {"Range": "bytes=0-"})
    assert got.status == 416 and got.headers["Content-Range"] == "bytes */0"
    assert site.get("/empty.txt", {"Range": "bytes=-5"}).status == 200


def test_file_above_four_gigabytes(server, files):
    root = files({})
    size = 5 * 10**9
    with open(root / "sparse.bin", "wb") as f:
        f.truncate(size)
        f.seek(2**32 + 5)
        f.write(b"past four")
        f.seek(size - 4)
        f.write(b"last")
    with server() as kiln:
        assert kiln.head("/sparse.bin").headers["Content-Length"] == str(size)
        got = kiln.get("/sparse.bin", {"Range": f"bytes={2**32 + 5}-{2**32 + 13}"})
        assert got.status == 206 and got.body == b"past four"
        assert kiln.get("/sparse.bin", {"Range": "bytes=-4"}).body == b"last"
        got = kiln.get("/sparse.bin", {"Range": f"bytes=-4,{2**32 + 5}-{2**32 + 8}"})
        assert [part[2] for part in parts_of(got)] == [b"last", b"past"]
        assert kiln.get("/sparse.bin", {"Range": f"bytes={size}-"}).status == 416
