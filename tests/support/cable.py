"""A client behind a cable that can be cut: it vanishes without a FIN or a reset, as with a battery that is empty. Its sockets
live in a network namespace of their own, at the other end of a pair of interfaces. For root alone.

    with Cable() as cable:
        ws = open_socket("tls", kiln, "/echo", dial=cable.dial)      # kiln listens on cable.server
        cable.cut()
"""

import ctypes
import os
import shutil
import socket
import subprocess
import threading

from kiln_server import PATIENCE

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


class NoCable(Exception):
    """Not root, no ip(8), or a kernel without such interfaces."""


def checked(result):
    if result != 0:
        raise NoCable(os.strerror(ctypes.get_errno()))


def run(*command):
    got = subprocess.run(command, capture_output=True, text=True)
    if got.returncode != 0:
        raise NoCable(f"{' '.join(command)}: {got.stderr}")


class Cable:
    def __init__(self):
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"):
            raise NoCable("root, ip(8) and nsenter(1) are needed")
        pid = os.getpid()
        net = f"198.18.{pid >> 6 & 255}.{{}}"  # a range that is for measurements, so nobody's
        at = (pid & 63) * 4
        self.server, self.client = net.format(at + 1), net.format(at + 2)
        self.name = f"kiln{pid % 1000000}"
        self.away = None
        self._there(self._move_out)
        self.path = f"/proc/{pid}/fd/{self.away}"
        try:
            run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "far", "netns", self.path)
            run("ip", "address", "add", f"{self.server}/30", "dev", self.name)
            run("ip", "link", "set", self.name, "up")
            self._far("address", "add", f"{self.client}/30", "dev", "far")
            self._far("link", "set", "far", "up")
        except NoCable:
            self.close()
            raise

    def _move_out(self):
        checked(LIBC.unshare(CLONE_NEWNET))
        self.away = os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    def _there(self, what):
        """On a thread of its own, which may change its namespace and is gone afterwards."""
        failures = []

        def work():
            try:
                what()
            except Exception as e:  # told to who waits for it
                failures.append(e)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def _far(self, *words):
        run("nsenter", f"--net={self.path}", "ip", *words)

    def dial(self, port):
        made = []

        def work():
            checked(LIBC.setns(self.away, CLONE_NEWNET))
            made.append(socket.create_connection((self.server, port), PATIENCE))

        self._there(work)
        return made[0]

    def cut(self):
        """Nothing passes any more, and neither side is told."""
        self._far("link", "set", "far", "down")

    def close(self):
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True)
        os.close(self.away)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
