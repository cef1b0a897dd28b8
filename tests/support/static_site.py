"""A site of static files with some age, and what its tests share."""

import gzip
import os
import shutil
import subprocess
import time

import pytest

TEXT = "A line of text that compresses well, number {}.\n"
PAGE = "".join(TEXT.format(i) for i in range(400))
GZIP = {"Accept-Encoding": "gzip"}
BR = {"Accept-Encoding": "br"}
ZSTD = {"Accept-Encoding": "zstd"}


def old(path, seconds=100):
    """Sets the time of the last change back, exactly."""
    when = int(time.time()) - seconds
    os.utime(path, ns=(when * 10**9 + 5, when * 10**9 + 5))
    return when


def tag(response):
    return response.headers["ETag"]


def decode(coding, body):
    if coding == "gzip":
        return gzip.decompress(body)
    program = {"br": "brotli", "zstd": "zstd"}[coding]
    if shutil.which(program) is None:
        return None
    return subprocess.run([program, "-dc"], input=body, stdout=subprocess.PIPE, check=True).stdout


@pytest.fixture
def site(server, files):
    """A site with files of some age, and a server over it."""
    root = files(
        {
            "index.html": "<h1>index</h1>",
            "page.html": PAGE,
            "small.txt": "0123456789",
            "letters.txt": "abcdefghijklmnopqrstuvwxyz" * 40,
            "empty.txt": "",
            "noise.bin": os.urandom(20000),
            "large.txt": PAGE * 40,
            "dir/a.txt": "a",
        }
    )
    for path in root.rglob("*"):
        if path.is_file():
            old(path)
    with server() as kiln:
        yield kiln
