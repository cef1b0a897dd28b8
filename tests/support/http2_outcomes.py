"""What the cases of test_http2_frames.py do to a connection, and what is to come of it."""

from http2_client import *  # noqa: F403 names of frames, flags and errors
from http2_client import frame


def connection_error(error):
    """GOAWAY with exactly this error, and the end of the connection."""

    def check(c):
        got = c.goaway()
        assert got == error, f"GOAWAY {got}, expected {error}: {c.frames}"

    check.title = f"connection error {error}"
    return check


def stream_error(error, stream=1):
    """RST_STREAM with exactly this error; the connection and its other streams go on."""

    def check(c):
        c.next_id = max(c.next_id, stream + 2)
        c.until(lambda f: f.kind == RST_STREAM and f.stream == stream)
        assert c.answers[stream].reset == error, f"{c.frames}"
        assert c.get("/").status == 200, f"{c.frames}"

    check.title = f"stream error {error}"
    return check


def answered(status=200, stream=1):
    """The stream gets this answer and the connection goes on."""

    def check(c):
        c.next_id = max(c.next_id, stream + 2)
        answer = c.answer(stream)
        assert answer.status == status and answer.ended, f"{answer}; {c.frames}"
        assert c.get("/").status == 200, f"{c.frames}"

    check.title = f"answer {status}"
    return check


def goes_on(c):
    """Nothing happens: no error on the connection, and the next request is answered."""
    assert c.alive(), c.frames
    assert c.get("/").status == 200
    assert not [f for f in c.frames if f.kind in (GOAWAY, RST_STREAM)], c.frames


def block(c, *extra, **more):
    return c.encode(c.head(extra=extra, **more))


def request(*extra, end=True, **more):
    return lambda c: c.open(c.head(extra=extra, **more), end=end) and None


def raw_headers(build, flags=END_STREAM | END_HEADERS, stream=1):
    """HEADERS whose block build(c) makes."""
    return lambda c: c.send(frame(HEADERS, flags, stream, build(c)))


def each(*steps):
    """Steps one after the other: bytes or functions."""

    def run(c):
        for step in steps:
            step(c) if callable(step) else c.send(step)

    return run


def finish(c):
    """A whole request on the next stream, answered before anything else is sent."""
    assert c.get("/").ended


def opened(c):
    """A request whose body is to come, of an endpoint that reads it."""
    c.open(path="/s", method="POST", end=False)


def waiting(c):
    """A request that is complete and not answered for a while."""
    c.open(path="/s/sleep?n=60000")
    assert c.alive()
