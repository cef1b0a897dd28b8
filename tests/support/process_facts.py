"""What tests of the server's processes share."""

import os

PAGE = {"index.html": "hello"}


def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def pid_on_file(kiln):
    return int(kiln.pid_file.read_text())


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []
