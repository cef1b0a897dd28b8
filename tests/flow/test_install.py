"""make install and uninstall, the manual pages and the pkg-config file."""

import os
import re
import shutil
import subprocess

import pytest
from kiln_server import ROOT, build_dir
from ws_peers import start_server

pytestmark = pytest.mark.skipif(build_dir() != ROOT / "build", reason="the ordinary build is what gets installed")


def make(*arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    return subprocess.run(
        ["make", "-C", ROOT, *arguments], env=environment, check=True, capture_output=True, text=True, timeout=300
    )


def test_install_and_uninstall(tmp_path):
    where = [f"DESTDIR={tmp_path}", "PREFIX=/opt/kiln"]
    make("install", *where)
    prefix = tmp_path / "opt/kiln"
    for name in (
        "bin/kiln",
        "include/kiln.h",
        "include/kiln_ws.h",
        "lib/libkilnws.a",
        "lib/libkilnws.so",
        "lib/libkilnws.so.1",
        "share/man/man1/kiln-ws.1",
        "share/man/man3/kiln_ws.h.3",
        "share/man/man1/kiln.1",
        "share/man/man5/kiln.json.5",
        "share/man/man3/kiln.h.3",
        "share/doc/kiln/kiln.json.example",
        "share/doc/kiln/examples/hello/index._c",
    ):
        assert (prefix / name).stat().st_size > 0, name
    helpers = {path.name for path in (ROOT / "build").glob("kiln-*") if os.access(path, os.X_OK)}
    assert {path.name for path in (prefix / "libexec/kiln").iterdir()} == helpers
    assert subprocess.run([prefix / "bin/kiln", "--version"], capture_output=True).returncode == 0
    if shutil.which("pkg-config"):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        flags = subprocess.run(["pkg-config", "--cflags", "kiln"], env=environment, capture_output=True, text=True)
        assert flags.stdout.strip() == "-I/opt/kiln/include"
    use_the_library(prefix, tmp_path)
    make("uninstall", *where)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def use_the_library(prefix, tmp_path):
    """README's program, built as it says there, against what was installed."""
    readme = (ROOT / "README.md").read_text()
    program = re.search(r"```c\n(#include <kiln_ws.h>.*?)```", readme, re.S).group(1)
    server, line = start_server(prefix / "bin/kiln", "ws", "--echo-server=0")
    try:
        url = line.split()[-1]
        where = tmp_path.parent / "program"
        where.mkdir()
        (where / "program.c").write_text(program.replace("ws://localhost:9000/", url))
        environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"), "LD_LIBRARY_PATH": str(prefix / "lib")}
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "kilnws"], env=environment, capture_output=True, text=True, check=True).stdout
        flags = flags.replace("/opt/kiln", str(prefix)).split()
        subprocess.run(["gcc", "program.c", *flags, "-o", "program"], cwd=where, check=True)
        run = subprocess.run([where / "program"], env=environment, capture_output=True, text=True, timeout=60)
        assert run.stdout == "hello\n", run.stderr
        symbols = subprocess.run(["nm", "-D", "--defined-only", prefix / "lib/libkilnws.so"], capture_output=True, text=True, check=True).stdout
        names = [line.split()[-1] for line in symbols.splitlines()]
        assert len(names) > 60 and all(name.startswith("kiln_ws_") for name in names)
        header = (prefix / "include/kiln_ws.h").read_text()
        assert all(re.search(rf"\b{name}\(", header) for name in names)
        assert all(name in names for name in re.findall(r"^KILN_API .*?\b(kiln_ws_\w+)\(", header, re.M))
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def test_manual_pages_name_everything():
    make("man")
    options = (ROOT / "build/man/kiln.json.5").read_text().replace("\\-", "-")
    assert "@OPTIONS@" not in options
    defaults = subprocess.run([build_dir() / "kiln", "config", "--defaults"], capture_output=True, text=True).stdout
    for line in defaults.splitlines():
        if line.startswith('    "'):
            assert f".B {line.split(chr(34))[1]}\n" in options
    functions = (ROOT / "build/man/kiln.h.3").read_text()
    for name in ("kiln_run", "kiln_printf", "kiln_body_read", "kiln_session_get", "kiln_cookie_options"):
        assert name in functions
    assert "__attribute__" not in functions and "KILN_API" not in functions
    if shutil.which("man"):
        for page in ("kiln.1", "kiln-ws.1", "kiln.json.5", "kiln.h.3", "kiln_ws.h.3"):
            shown = subprocess.run(
                ["man", "--warnings", "-l", ROOT / "build/man" / page], capture_output=True, text=True, env={**os.environ, "MANWIDTH": "120"}
            )
            assert shown.returncode == 0 and shown.stderr == ""
