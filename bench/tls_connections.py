#!/usr/bin/env python3
"""TLS connections with one request each for some seconds, new or resumed; prints their number.
Only the server's processor time is measured, so the client need not be quick."""

import socket
import ssl
import sys
import time


def connect(context, host, port, path, session):
    with socket.create_connection((host, port), 30) as raw, context.wrap_socket(raw, server_hostname="localhost", session=session) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        while s.recv(65536):
            pass
        return s.session, s.session_reused


def main():
    host, port, path, seconds, how = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5]
    context = ssl._create_unverified_context()
    context.suppress_ragged_eofs = True
    session, _ = connect(context, host, port, path, None)
    done, until = 1, time.monotonic() + seconds
    while time.monotonic() < until:
        fresh, reused = connect(context, host, port, path, session if how == "resumed" else None)
        if reused != (how == "resumed"):
            sys.exit(f"{host}:{port}: a connection was {'not ' if not reused else ''}resumed")
        session, done = fresh, done + 1
    print(done)


if __name__ == "__main__":
    main()
