"""RFC 9113 (and 7541, 9218) frame by frame: each row of the table is one connection, on which bytes are sent
and the exact outcome is asked for. Written from the RFC; the section stands in each row."""

import pytest

from http2_client import *  # noqa: F403 names of frames, flags and errors
from http2_client import Http2, frame, goaway, rst_stream, settings, window_update
from http2_outcomes import answered, block, connection_error, each, finish, goes_on, opened, raw_headers, request, stream_error, waiting
from kiln_server import ROOT, Server

CASES = []
SMALL_LIMITS = {"Http2MaxStreams": 8, "Http2ResetBurst": 50, "Http2ResetsPerSecond": 1, "Http2FrameBurst": 200, "Http2FramesPerSecond": 1}


@pytest.fixture(scope="module")
def kiln(tmp_path_factory):
    config = {"OptimizeEndpoints": False, **SMALL_LIMITS}
    files = {"s._c": ROOT / "tests" / "plugins" / "streams._c", "index.html": "hello\n", "big.bin": bytes(400000)}
    one = Server(tmp_path_factory.mktemp("frames"), config, files)
    one.start()
    try:
        with Http2(one.port) as c:
            assert c.get("/s").status == 200  # it is built
        yield one
        one.stop()
    finally:
        one.kill()


def case(name, section, send, outcome, **client):
    """`send` is bytes, or a function of the client."""
    CASES.append(pytest.param(section, send, outcome, client, id=name))


# ---- 3.4 the preface ---------------------------------------------------------------------------------

P = PROTOCOL_ERROR
case("preface-wrong-end", "3.4", PREFACE[:-6] + b"XX\r\n\r\n" + settings(), connection_error(P), greet=False)
case("preface-cut-by-settings", "3.4", PREFACE[:-2] + settings() + bytes(30), connection_error(P), greet=False)
case("preface-then-ping", "3.4", PREFACE + frame(PING, 0, 0, bytes(8)), connection_error(P), greet=False, auto=False)
case("preface-then-headers", "3.4", each(PREFACE, request()), connection_error(P), greet=False, auto=False)
case("preface-then-window-update", "3.4", PREFACE + window_update(0, 1), connection_error(P), greet=False, auto=False)
case("preface-then-unknown-frame", "3.4", PREFACE + frame(0x42, 0, 0), connection_error(P), greet=False, auto=False)
case("preface-then-settings-ack", "3.4", PREFACE + frame(SETTINGS, ACK, 0), connection_error(P), greet=False, auto=False)
case("preface-twice", "3.4", PREFACE, connection_error(FRAME_SIZE_ERROR))
case("preface-with-request-at-once", "3.4", request(), answered())


def byte_by_byte(c):
    for byte in PREFACE + settings():
        c.send(bytes([byte]))


case("preface-byte-by-byte", "3.4", each(byte_by_byte, request()), answered(), greet=False)


def first_is_settings(c):
    first = c.recv()
    assert first.kind == SETTINGS and first.flags == 0 and first.stream == 0 and len(first.payload) % 6 == 0
    goes_on(c)


case("server-begins-with-settings", "3.4", b"", first_is_settings)

# ---- 4.1, 4.2 frames -----------------------------------------------------------------------------------

case("reserved-bit-of-the-stream", "4.1", lambda c: c.send(frame(HEADERS, 5, 1 | 1 << 31, block(c))), answered())
case("reserved-bit-of-stream-0", "4.1", frame(PING, 0, 1 << 31, b"12345678"), goes_on)
case("unknown-frame", "4.1", frame(0xBE, 0xFF, 0, b"grease"), goes_on)
case("unknown-frame-on-idle-stream", "4.1", frame(0x0B, 0, 7, b"grease"), goes_on)
case("unknown-frame-on-stream", "4.1", each(opened, frame(0x2A, 0, 1, b"x"), lambda c: c.body(1, b"ab")), answered())
case("unknown-frame-empty", "4.1", frame(0x1F, 0, 0), goes_on)
case("unknown-frame-of-16384", "4.2", frame(0x1F, 0, 0, bytes(16384)), goes_on)
case("unknown-frame-too-large", "4.2", frame(0x1F, 0, 0, bytes(16385)), connection_error(FRAME_SIZE_ERROR))
case("unknown-flags-on-ping", "4.1", frame(PING, 0xFE, 0, bytes(8)), goes_on)
case("unknown-flags-on-settings", "4.1", frame(SETTINGS, 0xFE, 0), goes_on)
case("unknown-flags-on-headers", "4.1", lambda c: c.send(frame(HEADERS, 0xD7 & ~PADDED, 1, block(c))), answered())
case("unknown-flags-on-data", "4.1", each(opened, frame(DATA, 0xF6 | END_STREAM, 1, b"ab")), answered())
case("unknown-flags-on-rst-stream", "4.1", each(waiting, frame(RST_STREAM, 0xFF, 1, bytes(4))), goes_on)
case("unknown-flags-on-window-update", "4.1", frame(WINDOW_UPDATE, 0xFF, 0, b"\0\0\0\1"), goes_on)
case("data-of-16384", "4.2", each(opened, frame(DATA, END_STREAM, 1, bytes(16384))), answered())
case("data-too-large", "4.2", each(opened, frame(DATA, END_STREAM, 1, bytes(16385))), connection_error(FRAME_SIZE_ERROR))
case("headers-too-large", "4.2", frame(HEADERS, 5, 1, bytes(16385)), connection_error(FRAME_SIZE_ERROR))
case("settings-too-large", "4.2", frame(SETTINGS, 0, 0, bytes(16386)), connection_error(FRAME_SIZE_ERROR))
case("largest-length-of-all", "4.2", frame(DATA, 0, 1, b"", length=0xFFFFFF), connection_error(FRAME_SIZE_ERROR))

# ---- 4.3 field blocks (and RFC 7541) -----------------------------------------------------------------------

C = COMPRESSION_ERROR


def cut_block(*between, pieces=2):
    """HEADERS and CONTINUATIONs with something between the first and the second."""

    def run(c):
        whole = block(c)
        step = max(1, len(whole) // pieces)
        parts = [whole[i * step : (i + 1) * step if i < pieces - 1 else None] for i in range(pieces)]
        c.send(frame(HEADERS, END_STREAM, 1, parts[0]))
        for bytes_between in between:
            c.send(bytes_between)
        for i, part in enumerate(parts[1:], 1):
            c.send(frame(CONTINUATION, END_HEADERS if i == pieces - 1 else 0, 1, part))

    return run


quiet = {"auto": False}
case("block-in-two", "4.3", cut_block(), answered(), **quiet)
case("block-in-eight", "4.3", cut_block(pieces=8), answered(), **quiet)
case("block-with-empty-continuation", "4.3", cut_block(frame(CONTINUATION, 0, 1)), answered(), **quiet)
case("ping-in-block", "4.3", cut_block(frame(PING, 0, 0, bytes(8))), connection_error(P), **quiet)
case("settings-in-block", "4.3", cut_block(settings()), connection_error(P), **quiet)
case("data-in-block", "4.3", cut_block(frame(DATA, 0, 1, b"x")), connection_error(P), **quiet)
case("window-update-in-block", "4.3", cut_block(window_update(1, 1)), connection_error(P), **quiet)
case("rst-in-block", "4.3", cut_block(rst_stream(1)), connection_error(P), **quiet)
case("priority-in-block", "4.3", cut_block(frame(PRIORITY, 0, 3, bytes(5))), connection_error(P), **quiet)
case("unknown-frame-in-block", "4.3", cut_block(frame(0x42, 0, 1, b"x")), connection_error(P), **quiet)
case("headers-in-block", "4.3", cut_block(frame(HEADERS, 5, 3, b"\x82")), connection_error(P), **quiet)
case("continuation-of-another-stream", "4.3", cut_block(frame(CONTINUATION, 0, 3, b"")), connection_error(P), **quiet)
case("index-0", "7541 6.1", frame(HEADERS, 5, 1, b"\x80"), connection_error(C))
case("index-beyond-tables", "7541 2.3.3", frame(HEADERS, 5, 1, b"\xff\x7f"), connection_error(C))
case("name-index-beyond-tables", "7541 2.3.3", frame(HEADERS, 5, 1, b"\x7f\x7f\x01a"), connection_error(C))
case("integer-overflow", "7541 5.1", frame(HEADERS, 5, 1, b"\xff" + b"\xff" * 20), connection_error(C))
case("string-longer-than-block", "7541 5.2", frame(HEADERS, 5, 1, b"\x00\x7eabc"), connection_error(C))
case("block-cut-in-a-field", "7541 5.2", frame(HEADERS, 5, 1, b"\x82\x40\x03ab"), connection_error(C))
case("huffman-eos", "7541 5.2", frame(HEADERS, 5, 1, b"\x00\x84\xff\xff\xff\xff\x01a"), connection_error(C))
case("huffman-padding-of-zeros", "7541 5.2", frame(HEADERS, 5, 1, b"\x00\x81\x18\x01a"), connection_error(C))
case("huffman-padding-too-long", "7541 5.2", frame(HEADERS, 5, 1, b"\x00\x82\x1f\xff\x01a"), connection_error(C))
case("table-size-above-setting", "7541 6.3", frame(HEADERS, 5, 1, b"\x3f\xe2\x1f"), connection_error(C))
case("table-size-update-in-the-middle", "7541 4.2", frame(HEADERS, 5, 1, b"\x82\x20"), connection_error(C))
case("table-size-0-and-back", "7541 4.2", raw_headers(lambda c: b"\x20\x3f\xe1\x1f" + block(c)), answered())
case("bad-block-in-trailers", "4.3", each(opened, frame(HEADERS, 5, 1, b"\x80")), connection_error(C))


def reset_keeps_table(c):
    """The block of a stream that is reset still fills the table (4.3)."""
    c.open(c.head(extra=[("connection", "close"), ("x-later", "1")]))
    c.until(lambda f: f.kind == RST_STREAM)
    c.open(c.head(path="/s", extra=[("x-later", "1")]))
    assert b"x-later=1" in c.answer(3).body


case("table-survives-a-malformed-request", "4.3", b"", reset_keeps_table)


def refused_keeps_table(c):
    for _ in range(8):
        c.open(path="/s/sleep?n=60000")
    assert c.alive()
    refused = c.open(c.head(extra=[("x-refused", "1")]))
    c.until(lambda f: f.kind == RST_STREAM and f.stream == refused)
    assert c.answers[refused].reset == REFUSED_STREAM
    c.send(rst_stream(1))
    c.open(c.head(path="/s", extra=[("x-refused", "1")]))
    assert b"x-refused=1" in c.answer(refused + 2).body


case("table-survives-a-refused-stream", "4.3", b"", refused_keeps_table)

# ---- 5.1 states of streams ------------------------------------------------------------------------------------

S = STREAM_CLOSED
case("idle-data", "5.1", frame(DATA, END_STREAM, 1, b"x"), connection_error(P))
case("idle-rst", "5.1", rst_stream(1), connection_error(P))
case("idle-window-update", "5.1", window_update(1, 1), connection_error(P))
case("idle-continuation", "5.1", frame(CONTINUATION, END_HEADERS, 1, b"\x82"), connection_error(P))
case("idle-priority", "5.1", frame(PRIORITY, 0, 1, bytes(4) + b"\x10"), goes_on)
case("idle-data-on-even-stream", "5.1", frame(DATA, END_STREAM, 2, b"x"), connection_error(P))
case("half-closed-data", "5.1", each(waiting, frame(DATA, END_STREAM, 1, b"x")), connection_error(S))
case("half-closed-headers", "5.1", each(waiting, raw_headers(block)), connection_error(S))
case("half-closed-window-update", "5.1", each(waiting, window_update(1, 100)), goes_on)
case("half-closed-priority", "5.1", each(waiting, frame(PRIORITY, 0, 1, bytes(4) + b"\x10")), goes_on)
case("half-closed-rst", "5.1", each(waiting, rst_stream(1)), goes_on)
case("closed-data", "5.1", each(finish, frame(DATA, END_STREAM, 1, b"x")), connection_error(S))
case("closed-headers", "5.1", each(finish, raw_headers(block)), connection_error(S))
case("closed-continuation", "5.1", each(finish, frame(CONTINUATION, END_HEADERS, 1, b"\x82")), connection_error(P))
case("closed-window-update", "5.1", each(finish, window_update(1, 100)), goes_on)
case("closed-rst", "5.1", each(finish, rst_stream(1)), goes_on)
case("closed-priority", "5.1", each(finish, frame(PRIORITY, 0, 1, bytes(4) + b"\x10")), goes_on)
case("reset-data", "5.1", each(waiting, rst_stream(1), frame(DATA, END_STREAM, 1, b"x")), connection_error(S))
case("reset-headers", "5.1", each(opened, rst_stream(1), raw_headers(block)), connection_error(S))
case("reset-window-update", "5.1", each(waiting, rst_stream(1), window_update(1, 1)), goes_on)
case("reset-twice", "5.1", each(waiting, rst_stream(1), rst_stream(1)), goes_on)


def late_frames_of_a_stream_reset_by_us(c):
    """What was on its way when the server reset the stream is ignored, and counts for HPACK and windows."""
    stream = c.open(path="/", method="POST", end=False)
    c.until(lambda f: f.kind == RST_STREAM and f.stream == stream)
    for _ in range(8):
        c.body(stream, bytes(16384), end=False)
    c.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, c.encode([("x-trailer", "1")])))
    c.send(window_update(stream, 5))
    assert c.alive() and c.get("/").status == 200
    assert not [f for f in c.frames if f.kind == GOAWAY]


case("late-frames-of-a-stream-reset-by-the-server", "5.1", b"", late_frames_of_a_stream_reset_by_us)
case("even-stream", "5.1.1", raw_headers(block, stream=2), connection_error(P))
case("headers-on-stream-0", "5.1.1", raw_headers(block, stream=0), connection_error(P))
case("stream-number-goes-back", "5.1.1", each(raw_headers(block, stream=5), raw_headers(block, stream=3)), connection_error(P))
case("stream-number-leaps", "5.1.1", each(raw_headers(block, stream=101)), answered(stream=101))


def largest_stream(c):
    c.send(frame(HEADERS, END_STREAM | END_HEADERS, (1 << 31) - 1, block(c)))
    assert c.answer((1 << 31) - 1).status == 200


case("largest-stream-number", "5.1.1", b"", largest_stream)


def ninth_stream(c):
    for _ in range(8):
        c.open(path="/s/sleep?n=60000")
    assert c.alive()
    c.open(path="/")


case("one-stream-too-many", "5.1.2", ninth_stream, lambda c: refused(c, 17))


def refused(c, stream):
    c.until(lambda f: f.kind == RST_STREAM and f.stream == stream)
    assert c.answers[stream].reset == REFUSED_STREAM
    c.send(rst_stream(1))
    assert c.get("/").status == 200


# ---- 6.1 DATA ---------------------------------------------------------------------------------------------------

case("data-on-stream-0", "6.1", frame(DATA, 0, 0, b"x"), connection_error(P))
case("data-padded", "6.1", each(opened, frame(DATA, PADDED | END_STREAM, 1, b"\x05ab" + bytes(5))), answered())
case("data-padding-all", "6.1", each(opened, frame(DATA, PADDED | END_STREAM, 1, b"\x05" + bytes(5))), answered())
case("data-padding-too-long", "6.1", each(opened, frame(DATA, PADDED | END_STREAM, 1, b"\x06abcde")), connection_error(P))
case("data-padding-way-too-long", "6.1", each(opened, frame(DATA, PADDED | END_STREAM, 1, b"\xffab")), connection_error(P))
case("data-padded-without-length", "6.1", each(opened, frame(DATA, PADDED, 1)), connection_error(FRAME_SIZE_ERROR))
case("data-empty-end", "6.1", each(opened, frame(DATA, END_STREAM, 1)), answered())
case("data-empty-in-between", "6.1", each(opened, frame(DATA, 0, 1), lambda c: c.body(1, b"ab")), answered())


def padding_counts(c):
    """Padding takes room in the windows and gives it back (6.1, 6.9.1)."""
    stream = c.open(path="/s", method="POST", end=False)
    for _ in range(30):
        c.send(frame(DATA, PADDED, stream, b"\xff" + b"x" * 16000 + bytes(255)))
        while sum(len(f.payload) for f in c.frames if f.kind == WINDOW_UPDATE) < 0:
            c.recv()
    c.body(stream, b"")
    assert b"body 480000 " in c.answer(stream).body


case("padding-counts-in-windows", "6.9.1", b"", padding_counts)

# ---- 6.2 HEADERS --------------------------------------------------------------------------------------------------

case("headers-padded", "6.2", raw_headers(lambda c: b"\x04" + block(c) + bytes(4), 5 | PADDED), answered())
case("headers-padding-too-long", "6.2", frame(HEADERS, 5 | PADDED, 1, b"\x09\x82\x86"), connection_error(P))
case("headers-padded-empty", "6.2", frame(HEADERS, 5 | PADDED, 1), connection_error(FRAME_SIZE_ERROR))
case("headers-with-priority", "6.2", raw_headers(lambda c: b"\0\0\0\0\x10" + block(c), 5 | PRIORITY_FLAG), answered())
case("headers-priority-cut", "6.2", frame(HEADERS, 5 | PRIORITY_FLAG, 1, b"\0\0"), connection_error(FRAME_SIZE_ERROR))
case("headers-priority-and-padding", "6.2", raw_headers(lambda c: b"\x02\0\0\0\0\x10" + block(c) + b"\0\0", 5 | PRIORITY_FLAG | PADDED), answered())
case("headers-empty-block", "6.2", frame(HEADERS, 5, 1), stream_error(P))

# ---- 6.3 PRIORITY, and RFC 9218 --------------------------------------------------------------------------------------

case("priority-on-stream-0", "6.3", frame(PRIORITY, 0, 0, bytes(5)), connection_error(P))
case("priority-of-4", "6.3", each(waiting, frame(PRIORITY, 0, 1, bytes(4))), connection_error(FRAME_SIZE_ERROR))
case("priority-of-6", "6.3", each(waiting, frame(PRIORITY, 0, 1, bytes(6))), connection_error(FRAME_SIZE_ERROR))
case("priority-update", "9218 7.1", each(waiting, frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\1u=1, i")), goes_on)
case("priority-update-of-idle-stream", "9218 7.1", frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\1u=1"), goes_on)
case("priority-update-unparsable", "9218 7.1", each(waiting, frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\1(((")), goes_on)
case("priority-update-on-a-stream", "9218 7.1", each(waiting, frame(PRIORITY_UPDATE, 0, 1, b"\0\0\0\1u=1")), connection_error(P))
case("priority-update-of-stream-0", "9218 7.1", frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\0u=1"), connection_error(P))
case("priority-update-too-short", "9218 7.1", frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0"), connection_error(FRAME_SIZE_ERROR))
case("priority-header-unparsable", "9218 5", request(("priority", "u=99, ((")), answered())
case("priority-header-unknown", "9218 4.3", request(("priority", "u=2, i, x=1")), answered())

# ---- 6.4 RST_STREAM ---------------------------------------------------------------------------------------------------

case("rst-on-stream-0", "6.4", rst_stream(0), connection_error(P))
case("rst-of-3", "6.4", each(waiting, frame(RST_STREAM, 0, 1, bytes(3))), connection_error(FRAME_SIZE_ERROR))
case("rst-of-5", "6.4", each(waiting, frame(RST_STREAM, 0, 1, bytes(5))), connection_error(FRAME_SIZE_ERROR))
case("rst-unknown-error", "7", each(waiting, rst_stream(1, 0xDEADBEEF)), goes_on)

# ---- 6.5 SETTINGS ----------------------------------------------------------------------------------------------------

case("settings-on-a-stream", "6.5", frame(SETTINGS, 0, 1), connection_error(P))
case("settings-of-5", "6.5", frame(SETTINGS, 0, 0, bytes(5)), connection_error(FRAME_SIZE_ERROR))
case("settings-of-7", "6.5", frame(SETTINGS, 0, 0, bytes(7)), connection_error(FRAME_SIZE_ERROR))
case("settings-ack-with-payload", "6.5", frame(SETTINGS, ACK, 0, bytes(6)), connection_error(FRAME_SIZE_ERROR))
case("settings-unknown", "6.5.2", settings((0xF0F0, 0xFFFFFFFF), (0x0A0A, 1)), goes_on)
case("settings-empty", "6.5", settings(), goes_on)
case("settings-enable-push-2", "6.5.2", settings((ENABLE_PUSH, 2)), connection_error(P))
case("settings-enable-push-1", "6.5.2", settings((ENABLE_PUSH, 1)), goes_on)
case("settings-window-2-31", "6.5.2", settings((INITIAL_WINDOW_SIZE, 1 << 31)), connection_error(FLOW_CONTROL_ERROR))
case("settings-window-largest", "6.5.2", settings((INITIAL_WINDOW_SIZE, (1 << 31) - 1)), goes_on)
case("settings-frame-size-16383", "6.5.2", settings((MAX_FRAME_SIZE, 16383)), connection_error(P))
case("settings-frame-size-2-24", "6.5.2", settings((MAX_FRAME_SIZE, 1 << 24)), connection_error(P))
case("settings-frame-size-largest", "6.5.2", settings((MAX_FRAME_SIZE, (1 << 24) - 1)), goes_on)
case("settings-connect-protocol-2", "8441 3", settings((ENABLE_CONNECT_PROTOCOL, 2)), connection_error(P))
case("settings-no-priorities-2", "9218 2.1", settings((NO_RFC7540_PRIORITIES, 2)), connection_error(P))
case("settings-last-of-two-counts", "6.5.3", settings((MAX_FRAME_SIZE, 20000), (MAX_FRAME_SIZE, 16384)), goes_on)


def each_is_acknowledged(c):
    c.send(settings((HEADER_TABLE_SIZE, 100)) + settings() + settings((MAX_CONCURRENT_STREAMS, 0)))
    assert c.alive()
    assert len([f for f in c.frames if f.kind == SETTINGS and f.flags & ACK and not f.payload]) == 4  # with the first
    goes_on(c)


case("settings-each-acknowledged", "6.5.3", b"", each_is_acknowledged)


def no_table(c):
    """The server's encoder keeps to the client's table size; hpack refuses what does not."""
    c.send(settings((HEADER_TABLE_SIZE, 0)))
    c.decoder.max_allowed_table_size = 0
    assert c.get("/").status == 200
    assert c.get("/s").status == 200
    assert c.decoder.header_table_size == 0


case("settings-table-size-0", "6.5.2", b"", no_table, initial=())

# ---- 6.6 to 6.8 ------------------------------------------------------------------------------------------------------

case("push-promise", "8.4", each(waiting, lambda c: c.send(frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + block(c)))), connection_error(P))
case("ping-on-a-stream", "6.7", frame(PING, 0, 1, bytes(8)), connection_error(P))
case("ping-of-7", "6.7", frame(PING, 0, 0, bytes(7)), connection_error(FRAME_SIZE_ERROR))
case("ping-of-9", "6.7", frame(PING, 0, 0, bytes(9)), connection_error(FRAME_SIZE_ERROR))


def ping_is_answered(c):
    c.send(frame(PING, 0, 0, b"\xffpayload") + frame(PING, ACK, 0, b"not mine"))
    assert c.alive()
    answers = [f.payload for f in c.frames if f.kind == PING and f.flags == ACK]
    assert answers == [b"\xffpayload", b"are you?"]


case("ping-is-answered-once", "6.7", b"", ping_is_answered)
case("goaway-on-a-stream", "6.8", each(waiting, goaway(stream=1)), connection_error(P))
case("goaway-of-7", "6.8", frame(GOAWAY, 0, 0, bytes(7)), connection_error(FRAME_SIZE_ERROR))


def goaway_lets_streams_end(c):
    stream = c.open(path="/s/flood?n=100000")
    c.send(goaway(0, 0, b"thank you"))
    assert c.answer(stream).body == b"x" * 100000
    assert c.goaway() is None, "who goes is not told to go"


case("goaway-lets-streams-end", "6.8", b"", goaway_lets_streams_end)
case("goaway-with-unknown-error", "7", each(goaway(0, 0xABCDEF)), connection_error(None))

# ---- 6.9 windows --------------------------------------------------------------------------------------------------------

F = FLOW_CONTROL_ERROR
case("window-update-of-3", "6.9", frame(WINDOW_UPDATE, 0, 0, bytes(3)), connection_error(FRAME_SIZE_ERROR))
case("window-update-of-5", "6.9", frame(WINDOW_UPDATE, 0, 0, bytes(5)), connection_error(FRAME_SIZE_ERROR))
case("window-update-by-0-connection", "6.9", window_update(0, 0), connection_error(P))
# A stream error by 6.9, taken for one of the connection, as 5.4.1 allows.
case("window-update-by-0-stream", "6.9, 5.4.1", each(waiting, window_update(1, 0)), connection_error(P))
case("window-update-reserved-bit", "6.9", window_update(0, 1 << 31 | 1), goes_on)
case("window-too-large-connection", "6.9.1", each(window_update(0, (1 << 31) - 1)), connection_error(F))
case("window-too-large-stream", "6.9.1", each(waiting, window_update(1, (1 << 31) - 1)), stream_error(F))
case("window-too-large-by-settings", "6.9.2", each(waiting, window_update(1, 1 << 30), settings((INITIAL_WINDOW_SIZE, (1 << 31) - 1))), lambda c: window_broken(c))


def window_broken(c):
    """6.9.2: a connection error in RFC 9113; nothing else may come."""
    assert c.goaway() == F, c.frames


def overfull(c):
    """More than the stream's window: an endpoint that does not read opens none."""
    stream = c.open(path="/s/slow-reader?n=60000", method="POST", end=False)
    for _ in range(80):
        c.body(stream, bytes(16384), end=False)
    f = c.until(lambda f: f.kind in (RST_STREAM, GOAWAY))
    assert (f.kind, f.stream, f.error) == (RST_STREAM, stream, F), "of the stream alone: the connection's is larger"
    assert c.get("/").status == 200


case("client-exceeds-the-window", "6.9.1", b"", overfull)


def small_window(c):
    stream = c.open(path="/big.bin")
    c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 1)
    assert c.alive() and len(c.answers[stream].body) == 1
    c.send(settings((INITIAL_WINDOW_SIZE, 3)))
    c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 3)
    assert c.alive() and len(c.answers[stream].body) == 3


case("window-of-1-and-settings-open-it", "6.9.2", b"", small_window, initial=[(INITIAL_WINDOW_SIZE, 1)], auto=False)


def negative_window(c):
    stream = c.open(path="/big.bin")
    c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 1000)
    c.send(settings((INITIAL_WINDOW_SIZE, 0)))  # 1,000 less than none
    c.send(window_update(stream, 999))
    assert c.alive() and len(c.answers[stream].body) == 1000
    c.send(window_update(stream, 11))
    c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 1010)
    assert c.alive() and len(c.answers[stream].body) == 1010


case("window-below-zero", "6.9.2", b"", negative_window, initial=[(INITIAL_WINDOW_SIZE, 1000)], auto=False)


def connection_window(c):
    stream = c.open(path="/big.bin")
    c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 65535)
    assert c.alive() and len(c.answers[stream].body) == 65535  # settings do not touch the connection's
    c.send(window_update(0, 10))
    c.until(lambda f: f.stream == stream and len(c.answers[stream].body) >= 65545)
    assert c.alive() and len(c.answers[stream].body) == 65545


case("connection-window-holds", "6.9.2", b"", connection_window, initial=[(INITIAL_WINDOW_SIZE, 1 << 20)], auto=False)


def sizes(c):
    assert len(c.get("/big.bin").body) == 400000
    assert max(len(f.payload) for f in c.frames) <= 16384
    assert not [f for f in c.frames if f.kind == PUSH_PROMISE]


case("server-keeps-to-the-frame-size", "4.2", b"", sizes, initial=[(INITIAL_WINDOW_SIZE, 1 << 20)])

# ---- 6.10 CONTINUATION ---------------------------------------------------------------------------------------------------

case("continuation-on-stream-0", "6.10", frame(CONTINUATION, END_HEADERS, 0, b"\x82"), connection_error(P))
case("continuation-after-end-headers", "6.10", each(waiting, frame(CONTINUATION, END_HEADERS, 1, b"\x82")), connection_error(P))
case("continuation-after-data", "6.10", each(opened, frame(DATA, 0, 1, b"x"), frame(CONTINUATION, END_HEADERS, 1, b"\x82")), connection_error(P))

# ---- 8.1 messages ----------------------------------------------------------------------------------------------------------


def trailers(c, *fields, end=True, body=b"ab", head=()):
    stream = c.open(path="/s", method="POST", end=False, extra=list(head))
    if body:
        c.body(stream, body, end=False)
    c.send(frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, c.encode(list(fields))))


case("trailers", "8.1", lambda c: trailers(c, ("x-sum", "1")), answered())
case("trailers-without-data", "8.1", lambda c: trailers(c, ("x-sum", "1"), body=b""), answered())
case("trailers-that-do-not-end", "8.1", lambda c: trailers(c, ("x-sum", "1"), end=False), stream_error(P))
case("trailers-with-pseudo-header", "8.1", lambda c: trailers(c, (":method", "GET")), stream_error(P))
case("trailers-with-status", "8.1", lambda c: trailers(c, (":status", "200")), stream_error(P))
case("trailers-in-upper-case", "8.2", lambda c: trailers(c, ("X-Sum", "1")), stream_error(P))
case("trailers-with-connection", "8.2.2", lambda c: trailers(c, ("connection", "close")), stream_error(P))
L = "content-length"
case("length-right", "8.1.1", each(request((L, "2"), method="POST", path="/s", end=False), lambda c: c.body(1, b"ab")), answered())
case("length-and-padding", "8.1.1", each(request((L, "2"), method="POST", path="/s", end=False), frame(DATA, PADDED | END_STREAM, 1, b"\x03ab\0\0\0")), answered())
case("length-too-large-before-trailers", "8.1.1", lambda c: trailers(c, ("x-sum", "1"), head=[(L, "3")]), stream_error(P))
case("length-before-trailers", "8.1.1", lambda c: trailers(c, ("x-sum", "1"), head=[(L, "2")]), answered())
case("length-too-large", "8.1.1", each(request((L, "3"), method="POST", path="/s", end=False), lambda c: c.body(1, b"ab")), stream_error(P))
case("length-too-small", "8.1.1", each(request((L, "1"), method="POST", path="/s", end=False), lambda c: c.body(1, b"ab")), stream_error(P))
case("length-without-body", "8.1.1", request((L, "5"), method="POST", path="/s"), stream_error(P))
case("length-0-without-body", "8.1.1", request((L, "0"), method="POST", path="/s"), answered())
case("length-twice", "8.1.1", request((L, "2"), (L, "2"), method="POST", path="/s", end=False), stream_error(P))
case("length-negative", "8.1.1", request((L, "-1"), method="POST", path="/s", end=False), stream_error(P))
case("length-with-sign", "8.1.1", request((L, "+2"), method="POST", path="/s", end=False), stream_error(P))
case("length-no-number", "8.1.1", request((L, "2a"), method="POST", path="/s", end=False), stream_error(P))
case("length-list", "8.1.1", request((L, "2, 2"), method="POST", path="/s", end=False), stream_error(P))
case("length-empty", "8.1.1", request((L, ""), method="POST", path="/s", end=False), stream_error(P))
case("length-beyond-64-bits", "8.1.1", request((L, "99999999999999999999"), method="POST", path="/s", end=False), stream_error(P))

# ---- 8.2 fields ------------------------------------------------------------------------------------------------------------


def literal(c, name: bytes, value: bytes):
    """A request with a field of exactly these bytes, never indexed."""
    return block(c) + b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value


def field(name, value=b"x"):
    return raw_headers(lambda c: literal(c, name, value))


for label, name in {
    "upper-case": b"X-Upper", "one-upper": b"accepT", "space": b"x y", "leading-space": b" x", "nul": b"x\0y", "cr": b"x\ry",
    "lf": b"x\ny", "tab": b"x\ty", "colon": b"x:y", "del": b"x\x7f", "high": b"x\xe4", "empty": b"", "parenthesis": b"x(", "quote": b'x"',
}.items():
    case(f"name-{label}", "8.2.1", field(name), stream_error(P))
for label, value in {"nul": b"a\0b", "cr": b"a\rb", "lf": b"a\nb", "crlf": b"a\r\nb: c", "leading-space": b" a", "trailing-space": b"a ",
                     "leading-tab": b"\ta", "trailing-tab": b"a\t", "del": b"a\x7fb", "escape": b"a\x1bb"}.items():
    case(f"value-{label}", "8.2.1", field(b"x-value", value), stream_error(P))
case("value-high-bytes", "8.2.1", field(b"x-value", b"\xc3\xa4\xff"), answered())
case("value-tab-inside", "8.2.1", field(b"x-value", b"a\tb"), answered())
case("value-empty", "8.2.1", field(b"x-value", b""), answered())
for name, value in [("connection", "keep-alive"), ("keep-alive", "timeout=5"), ("proxy-connection", "close"),
                    ("transfer-encoding", "chunked"), ("upgrade", "websocket"), ("te", "gzip"), ("te", "trailers, gzip"), ("te", "")]:
    case(f"{name}-{value or 'empty'}".replace(" ", ""), "8.2.2", request((name, value)), stream_error(P))
case("te-trailers", "8.2.2", request(("te", "trailers")), answered())
case("never-indexed-and-huffman", "7541 6.2.3", raw_headers(lambda c: block(c) + b"\x10\x81\xf3\x81\x1f"), answered())

# ---- 8.3 pseudo headers -------------------------------------------------------------------------------------------------------

case("without-method", "8.3.1", request(method=None), stream_error(P))
case("without-scheme", "8.3.1", request(scheme=None), stream_error(P))
case("without-path", "8.3.1", request(path=None), stream_error(P))
case("without-authority-and-host", "8.3.1", request(authority=None), stream_error(P))
case("host-instead-of-authority", "8.3.1", request(("host", "localhost"), authority=None), answered())
case("host-beside-authority", "8.3.1", request(("host", "LOCALHOST")), answered())
case("host-contradicts-authority", "8.3.1", request(("host", "other")), answered(400))
case("host-twice", "8.3.1", request(("host", "localhost"), ("host", "localhost")), stream_error(P))
for name in (":method", ":scheme", ":path", ":authority"):
    case(f"{name[1:]}-twice", "8.3", lambda c, name=name: c.open([*c.head(), (name, dict(c.head())[name])]) and None, stream_error(P))
case("unknown-pseudo-header", "8.3", request((":unknown", "1")), stream_error(P))
case("status-in-a-request", "8.3", request((":status", "200")), stream_error(P))
case("pseudo-header-behind-field", "8.3", lambda c: c.open(c.head()[:3] + [("x", "1")] + c.head()[3:]) and None, stream_error(P))
case("pseudo-header-in-upper-case", "8.3", lambda c: c.open(c.head()[1:] + [(":Method", "GET")]) and None, stream_error(P))
case("path-empty", "8.3.1", request(path=""), stream_error(P))
case("path-without-slash", "8.3.1", request(path="index.html"), stream_error(P))
case("path-star-for-get", "8.3.1", request(path="*"), stream_error(P))
case("path-star-for-options", "8.3.1", request(path="*", method="OPTIONS"), answered(204))
case("path-with-space", "8.3.1", request(path="/a b"), stream_error(P))
case("path-with-nul", "8.3.1", request(path="/a\0b"), stream_error(P))
case("path-with-fragment", "8.3.1", request(path="/#a"), answered(400))
case("path-absolute-url", "8.3.1", request(path="http://localhost/"), stream_error(P))
case("method-with-space", "8.3.1", request(method="GET /"), stream_error(P))
case("method-empty", "8.3.1", request(method=""), stream_error(P))
case("method-unknown", "8.3.1", request(method="BREW", path="/s"), answered())
case("scheme-no-scheme", "8.3.1", request(scheme="ht tp"), stream_error(P))
case("scheme-ftp", "8.3.1", request(scheme="ftp"), answered(400))
case("scheme-https-without-tls", "8.3.1", request(scheme="https"), answered())
case("authority-with-user", "8.3.1", request(authority="me@localhost"), answered(400))
case("authority-with-slash", "8.3.1", request(authority="localhost/x"), stream_error(P))
case("connect", "8.5", request(method="CONNECT", path=None, scheme=None, authority="localhost:80"), answered(405))
case("connect-with-path", "8.5", request(method="CONNECT", scheme=None), stream_error(P))
case("connect-with-scheme", "8.5", request(method="CONNECT", path=None), stream_error(P))
case("connect-without-authority", "8.5", request(method="CONNECT", path=None, scheme=None, authority=None), stream_error(P))
case("connect-protocol-twice", "8441 4", request((":protocol", "websocket"), (":protocol", "websocket"), method="CONNECT"), stream_error(P))
case("connect-protocol-with-get", "8441 4", request((":protocol", "websocket")), stream_error(P))
case("connect-protocol-without-path", "8441 4", request((":protocol", "websocket"), method="CONNECT", path=None), stream_error(P))

# ---- 10.5 too much -------------------------------------------------------------------------------------------------------------

CALM = connection_error(ENHANCE_YOUR_CALM)


def rapid_reset(c):
    for _ in range(200):
        stream = c.open(path="/s/sleep?n=60000")
        c.send(rst_stream(stream))


def made_you_reset(c):
    """The client provokes resets by the server."""
    for _ in range(200):
        c.open([*c.head(path="/s/sleep?n=60000"), ("x", "1")])
        c.send(window_update(c.next_id - 2, (1 << 31) - 1))


case("flood-rapid-reset", "10.5", rapid_reset, CALM)
case("flood-resets-by-the-server", "10.5", made_you_reset, CALM)
def refused_at_once(c):
    """All in one piece, by a client that has not seen the limit of streams."""
    streams = range(1, 601, 2)
    c.send(b"".join(frame(HEADERS, END_STREAM | END_HEADERS, s, block(c, path="/s/sleep?n=60000")) for s in streams))


case("flood-requests-that-are-refused", "10.5", refused_at_once, CALM, **quiet)
case("flood-malformed-requests", "10.5", lambda c: [c.open([*c.head(), ("connection", "x")]) for _ in range(200)], CALM)
case("flood-ping", "10.5", frame(PING, 0, 0, bytes(8)) * 1000, CALM)
case("flood-ping-ack", "10.5", frame(PING, ACK, 0, bytes(8)) * 1000, CALM)
case("flood-settings", "10.5", settings() * 1000, CALM)
case("flood-settings-ack", "10.5", frame(SETTINGS, ACK, 0) * 1000, connection_error(P))
case("flood-priority", "10.5", frame(PRIORITY, 0, 1, bytes(4) + b"\x10") * 1000, CALM)
case("flood-priority-update", "10.5", frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\1u=1") * 1000, CALM)
case("flood-window-update", "10.5", window_update(0, 1) * 1000, CALM)
case("flood-unknown", "10.5", frame(0x99, 0, 0) * 1000, CALM)
case("flood-empty-data", "10.5", each(opened, frame(DATA, 0, 1) * 1000), CALM)
case("flood-empty-padded-data", "10.5", each(opened, frame(DATA, PADDED, 1, b"\0") * 1000), CALM)
case("flood-continuation", "10.5.1", lambda c: c.send(frame(HEADERS, END_STREAM, 1, block(c)) + frame(CONTINUATION, 0, 1, b"") * 1000), CALM, **quiet)
case("header-list-too-large", "10.5.1", request(*[(f"x-{i}", "y" * 1000) for i in range(12)], *[("x-0", "y" * 1000)] * 30), answered(431))
case("header-bomb", "10.5.1", raw_headers(lambda c: block(c) + b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000 + b"\xbe" * 5000), lambda c: bombed(c))


def bombed(c):
    """Our encoder knows nothing of the field that was put into the table by hand."""
    assert c.answer(1).status == 431 and c.alive()


@pytest.mark.parametrize("section,send,outcome,client", CASES)
def test_frames(kiln, section, send, outcome, client):
    with Http2(kiln.port, **client) as c:
        send(c) if callable(send) else c.send(send)
        outcome(c)
    # Whatever it was, others are served.
    with Http2(kiln.port) as other:
        assert other.get("/").status == 200, section


def test_there_are_enough():
    assert len(CASES) >= 120
