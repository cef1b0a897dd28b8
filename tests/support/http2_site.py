"""What tests of HTTP/2 ask for: a page, large bytes, and the endpoint of tests/plugins/streams._c at /s."""

import pytest

from kiln_server import ROOT

STREAMS = ROOT / "tests" / "plugins" / "streams._c"
BIG = bytes(range(256)) * 8192  # 2 MB
PAGE = b"<p>a page</p>\n" * 800


@pytest.fixture
def site(server):
    def make(**config):
        files = {"s._c": STREAMS, "index.html": PAGE, "big.bin": BIG, "empty.txt": b""}
        return server({"OptimizeEndpoints": False, **config}, files).start()

    return make
