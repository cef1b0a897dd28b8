"""HTTP/2: flow control, slow clients, the order of answers, and how connections end."""

import signal
import time

import pytest

from http2_client import *  # noqa: F403 names of frames, flags and errors
from http2_client import Http2, frame, rst_stream, settings, window_update
from http2_site import site  # noqa: F401
from kiln_server import wait_for

# ---- flow control --------------------------------------------------------------------------------------


def test_windows_bound_what_is_sent(site):
    kiln = site()
    with Http2(kiln.port, initial=[(INITIAL_WINDOW_SIZE, 1000)], auto=False) as c:
        c.send(frame(SETTINGS, ACK, 0))
        stream = c.open(path="/s/flood?n=50000")
        assert c.alive()
        c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 1000)
        assert c.alive() and len(c.answers[stream].body) == 1000
        c.send(window_update(stream, 500))
        c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 1500)
        assert c.alive() and len(c.answers[stream].body) == 1500
        c.send(window_update(stream, 100000))
        assert c.answer(stream).body == b"x" * 50000


def test_settings_behind_data_of_a_stream_that_was_reset(site):
    """Nobody gets that data, but the connection's window is opened for it: no sign that the settings made a window too large."""
    kiln = site(Http2ConnectionWindow=200000)
    with Http2(kiln.port) as c:
        stream = c.open(path="/", method="POST", end=False)
        c.until(lambda f: f.kind == RST_STREAM and f.stream == stream)
        for i in range(20):
            c.send(frame(DATA, 0, stream, bytes(16384)) + settings((INITIAL_WINDOW_SIZE, 65536 + i)))
            assert c.alive(), c.frames[-1]
        assert len([f for f in c.frames if f.kind == WINDOW_UPDATE and f.stream == 0]) > 2


def test_as_many_streams_as_the_client_was_told(site):
    """A reload allows fewer: on the connections that come."""
    kiln = site(Http2MaxStreams=8)
    with Http2(kiln.port) as c:
        assert c.get("/").status == 200
        kiln.write_config(Http2MaxStreams=2)
        kiln.reload()
        streams = [c.open(path="/s/echo", method="POST", end=False) for _ in range(8)]
        for stream in streams:
            c.body(stream, b"x")
        assert [c.answer(stream).body for stream in streams] == [b"x"] * 8
    with Http2(kiln.port) as c:
        told = c.until(lambda f: f.kind == SETTINGS).payload
        assert b"\0\3\0\0\0\2" in told


def test_a_body_that_nobody_reads_on_waits(site):
    """The endpoint reads a little and sleeps: the client gets no further than the window, and the other
    streams of the connection go on."""
    kiln = site(RequestTimeout=60)
    with Http2(kiln.port) as c:
        slow = c.open(path="/s/slow-reader?n=20000", method="POST", end=False)
        c.body(slow, b"s" * 65535, end=False)
        assert c.alive()
        given = sum(int.from_bytes(f.payload, "big") for f in c.frames if f.kind == 8 and f.stream == slow)
        assert given < 1 << 20
        upload = c.open(path="/s/echo", method="POST", end=False)
        c.body(upload, b"u" * 50000)
        assert c.answer(upload).body == b"u" * 50000
        c.send(rst_stream(slow))
        assert c.get("/").status == 200


def test_a_slow_body_is_not_waited_for(site):
    kiln = site(gracePeriod=0.3, bytesPerSecond=10000)
    with Http2(kiln.port) as c:
        slow = c.open(path="/s", method="POST", end=False)
        c.body(slow, b"x", end=False)
        answer = c.answer(slow)
        assert answer.status == 200 and b"body" not in answer.body
        assert c.until(lambda f: f.kind == RST_STREAM and f.stream == slow).error == NO_ERROR
        slow = c.open(path="/s/echo", method="POST", end=False)
        c.body(slow, b"x", end=False)
        answer = c.answer(slow)
        assert (answer.status, answer.body) == (400, b"x")
        assert c.get("/").status == 200


def test_a_window_that_opens_by_single_bytes(site):
    """Whoever takes less than bytesPerSecond is not waited for longer than ResponseTimeout."""
    kiln = site(ResponseTimeout=0.5, bytesPerSecond=100000)
    with Http2(kiln.port, initial=[(INITIAL_WINDOW_SIZE, 1)], auto=False) as c:
        c.send(frame(SETTINGS, ACK, 0))
        stuck = c.open(path="/big.bin")
        while (f := c.recv()).kind != RST_STREAM:
            if f.kind == DATA:
                assert len(c.answers[stuck].body) < 1000
                time.sleep(0.02)  # slower than bytesPerSecond
                c.send(window_update(stuck, 1))
        assert (f.stream, f.error) == (stuck, CANCEL)
        c.auto = True
        assert c.alive()


def test_a_window_that_stays_closed(site):
    kiln = site(ResponseTimeout=0.5, bytesPerSecond=0, gracePeriod=0.2)
    with Http2(kiln.port, initial=[(INITIAL_WINDOW_SIZE, 10)]) as c:
        c.auto = False
        stuck = c.open(path="/big.bin")
        f = c.until(lambda f: f.kind == RST_STREAM and f.stream == stuck)
        assert f.error == CANCEL
        c.auto = True
        assert c.alive()


# ---- priorities (RFC 9218) ---------------------------------------------------------------------------------


def order_of(c, streams):
    """The streams in the order in which they ended."""
    ended = []
    while len(ended) < len(streams):
        f = c.recv()
        assert f is not None
        if f.kind == DATA and f.flags & END_STREAM:
            ended.append(f.stream)
    return ended


def test_urgency(site):
    kiln = site()
    with Http2(kiln.port, initial=[(INITIAL_WINDOW_SIZE, 1 << 24)]) as c:
        # The connection's window holds all of them back until they are all there.
        streams = [c.open(path="/big.bin", extra=[("priority", f"u={u}")]) for u in (7, 5, 0, 3)]
        c.auto = False
        c.until(lambda f: sum(len(a.body) for a in c.answers.values()) >= 65535)
        c.send(window_update(0, 1 << 28))
        low, middle, high, usual = streams
        ended = order_of(c, streams)
        ended.remove(low)  # it has had a head start
        assert ended == [high, usual, middle]


def test_priority_update_and_incremental(site):
    kiln = site()
    with Http2(kiln.port, initial=[(INITIAL_WINDOW_SIZE, 1 << 24)]) as c:
        c.auto = False
        blocker = c.open(path="/big.bin", extra=[("priority", "u=0")])
        c.until(lambda f: sum(len(a.body) for a in c.answers.values()) >= 65535)
        first = c.open(path="/big.bin", extra=[("priority", "u=6")])
        second = c.open(path="/big.bin", extra=[("priority", "u=6")])
        c.send(frame(PRIORITY_UPDATE, 0, 0, second.to_bytes(4, "big") + b"u=1"))
        pair = [c.open(path="/big.bin", extra=[("priority", "u=7, i")]) for _ in range(2)]
        assert c.alive()
        c.send(window_update(0, 1 << 28))
        ended, turns, last = [], 0, None
        while len(ended) < 5:
            f = c.recv()
            if f.kind == DATA and f.stream in pair and f.stream != last:
                turns, last = turns + 1, f.stream
            if f.kind == DATA and f.flags & END_STREAM:
                ended.append(f.stream)
        assert ended[:3] == [blocker, second, first]
        assert turns > 50  # they took turns


@pytest.mark.parametrize("own", [None, "u=7"])
def test_priority_update_before_its_request(site, own):
    """It is kept, and holds instead of the request's own field (RFC 9218, 7.1)."""
    kiln = site()
    with Http2(kiln.port, initial=[(INITIAL_WINDOW_SIZE, 1 << 24)]) as c:
        c.auto = False
        blocker = c.open(path="/big.bin", extra=[("priority", "u=0")])
        c.until(lambda f: sum(len(a.body) for a in c.answers.values()) >= 65535)
        updated = c.next_id + 2
        c.send(frame(PRIORITY_UPDATE, 0, 0, updated.to_bytes(4, "big") + b"u=1"))
        first = c.open(path="/big.bin", extra=[("priority", "u=2")])
        assert c.open(path="/big.bin", extra=[("priority", own)] if own else ()) == updated
        assert c.alive()
        c.send(window_update(0, 1 << 28))
        assert order_of(c, [blocker, first, updated]) == [blocker, updated, first]


# ---- the end of a connection -----------------------------------------------------------------------------------


def test_graceful_goaway(site):
    kiln = site()
    with Http2(kiln.port, auto=False) as c:
        c.send(frame(SETTINGS, ACK, 0))
        running = c.open(path="/s/sleep?n=3000")
        assert c.alive()
        kiln.signal(signal.SIGTERM)
        first = c.until(lambda f: f.kind == GOAWAY)
        assert int.from_bytes(first.payload[:4], "big") == (1 << 31) - 1 and first.error == NO_ERROR
        late = c.open(path="/")  # it was on its way
        ping = c.until(lambda f: f.kind == PING and not f.flags & ACK)
        c.send(frame(PING, ACK, 0, ping.payload))
        second = c.until(lambda f: f.kind == GOAWAY)
        assert int.from_bytes(second.payload[:4], "big") == late and second.error == NO_ERROR
        assert c.answer(late).status == 200
        assert c.answer(running).status == 204
        assert c.goaway() == NO_ERROR
    kiln.wait_exit()


def test_a_worker_that_is_replaced_ends_its_streams(site):
    kiln = site(MaxRequestsPerWorker=20)
    worker = kiln.worker_pid()
    with Http2(kiln.port) as c:
        running = c.open(path="/s/sleep?n=3000")
        assert c.alive()
        for _ in range(30):
            assert kiln.get("/").status == 200
        wait_for(lambda: kiln.worker_pid() != worker, "a new worker")
        assert c.answer(running).status == 204
        assert c.goaway() == NO_ERROR
        assert int.from_bytes([f for f in c.frames if f.kind == GOAWAY][-1].payload[:4], "big") == running


def test_a_new_config_ends_nothing(site):
    kiln = site()
    with Http2(kiln.port) as c:
        running = c.open(path="/s/sleep?n=1000")
        assert c.alive()
        kiln.write_config(MaxUriLength=100)
        kiln.reload("config reloaded")
        wait_for(lambda: c.get("/?" + "x" * 200).status == 414, "the new limit")
        assert c.answer(running).status == 204
        assert not [f for f in c.frames if f.kind == GOAWAY]


def test_idle_connection_is_told_to_go(site):
    kiln = site(KeepAliveTimeout=0.3)
    with Http2(kiln.port) as c:
        assert c.get("/").status == 200
        assert c.goaway() == NO_ERROR


def test_silent_client(site):
    kiln = site(RequestHeadersTimeout=0.3)
    with Http2(kiln.port, greet=False, auto=False) as c:
        c.send(PREFACE)
        assert c.goaway() is None, "it has said nothing, and is told nothing"


def test_head_that_never_ends(site):
    kiln = site(RequestHeadersTimeout=0.5)
    with Http2(kiln.port, auto=False) as c:
        c.send(frame(HEADERS, END_STREAM, 1, c.encode(c.head())))
        assert c.goaway() == 11
