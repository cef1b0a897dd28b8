"""What stands between a server and its libraries in a test: tests/support/NAME.c."""

import os
import subprocess

from kiln_server import ROOT


def preloaded(directory, name, *libraries):
    """The environment of such a server."""
    library = directory / f"{name}.so"
    source = ROOT / "tests/support" / f"{name}.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, *libraries, "-ldl"], check=True)
    options = os.environ.get("ASAN_OPTIONS", "")
    return {"LD_PRELOAD": str(library), "ASAN_OPTIONS": ":".join(filter(None, [options, "verify_asan_link_order=0"]))}
