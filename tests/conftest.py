"""Fixtures of every flow and chaos test; see tests/support/kiln_server.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[0] / "support"))

from certificates import Authority  # noqa: E402
from kiln_server import Server, write_tree  # noqa: E402

# Fixtures of several files each.
from admin_client import admin  # noqa: E402, F401
from isolated_endpoint import isolated  # noqa: E402, F401
from sdk_endpoint import endpoint  # noqa: E402, F401
from static_site import site  # noqa: E402, F401


@pytest.fixture
def files(tmp_path):
    """files({...}) writes below the web directory and returns it."""

    def write(tree=None):
        root = tmp_path / "www"
        root.mkdir(exist_ok=True)
        return write_tree(root, tree or {})

    return write


@pytest.fixture
def server(tmp_path):
    """server(config={...}, files={...}, layout=..., args=...) makes a Server over tmp_path, not yet
    started: use it in a `with` block, or call start(). What a test does not stop itself is
    stopped, and its exit checked, at the end. One more server in the same test: base="other"."""
    made = []

    def make(config=None, files=None, base=None, **more):
        one = Server(tmp_path / base if base else tmp_path, config, files, **more)
        made.append(one)
        return one

    yield make
    try:
        for one in made:
            one.stop()
    finally:
        for one in made:
            one.kill()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the server's log."""
    outcome = yield
    report = outcome.get_result()
    make = item.funcargs.get("tmp_path") if hasattr(item, "funcargs") else None
    if report.failed and make is not None:
        for log in sorted(make.rglob("stderr.log")):
            report.sections.append((f"log of kiln ({log.parent.name})", log.read_text(errors="replace")[-20000:]))


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    """An authority that tests' clients trust."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def https(server, tmp_path, ca):
    """https(config...) is a running server with HTTPS and a certificate for localhost and 127.0.0.1."""

    def make(install=True, files=None, **config):
        if install:
            ca.install(tmp_path / "certs", "localhost", "localhost", "127.0.0.1")
        return server(config, files or {"index.html": "hello"}, tls=True).start()

    return make
