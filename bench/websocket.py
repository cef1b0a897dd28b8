#!/usr/bin/env python3
"""The WebSocket figures: processor time of the server for each echoed message beside libwebsockets and node's ws, streams,
a broadcast to 10,000, and what 10,000 idle clients with compression hold.

    make && python3 bench/websocket.py [--quick] [--only 20,16k] [--build build]

The load is bench/ws_load.c, a client on the ready loop of libkilnws, whose own figures stand in the streams. Servers take turns within a round; a ratio is that of the same
round. Results: the table on the terminal, and bench/results/websocket.md of a full run."""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report
import servers as servers_module
from servers import HERE, LOAD_CORE, ROOT, Server, free_ports, make_kiln, wait_until, write_certificate

ECHO = """\
#include <kiln.h>
static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    (void)user;
    kiln_ws_send(ws, m->type, m->data, m->length);
}
static const kiln_ws_handler handler = {.message = on_message};
void kiln_socket(kiln_ws *ws, const char *path)
{
    (void)path;
    kiln_ws_handle(ws, &handler, 0);
}
"""
BLOCKING = """\
#include <kiln.h>
void kiln_socket(kiln_ws *ws, const char *path)
{
    kiln_ws_message m;
    (void)path;
    while (kiln_ws_recv(ws, &m) > 0) {
        kiln_ws_send(ws, m.type, m.data, m.length);
    }
}
"""
ROOM = """\
#include <kiln.h>
#include <stdlib.h>
static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    (void)user;
    (void)m;
    kiln_ws_subscribe(ws, "room");
    kiln_ws_send_text(ws, "joined");
}
static const kiln_ws_handler handler = {.message = on_message};
void kiln_socket(kiln_ws *ws, const char *path)
{
    (void)path;
    kiln_ws_handle(ws, &handler, 0);
}
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    for (int i = atoi(kiln_query(ctx)); i > 0; i--) {
        kiln_publish("room", KILN_WS_TEXT, "a message of thirty-two bytes...", 32);
    }
    return kiln_puts(ctx, "published");
}
"""

# key, title, bytes, connections, tls, most of libwebsockets' (None: none), most microseconds (None: none)
ECHOES = [
    ("20", "20 B x 200", 20, 200, False, 0.85, None),
    ("16k", "16 KB x 200", 16384, 200, False, 0.60, None),
    ("1m-50", "1 MB x 50", 1 << 20, 50, False, None, 600),
    ("1m-1", "1 MB x 1", 1 << 20, 1, False, None, 600),
    ("wss", "wss 20 B x 200", 20, 200, True, 0.80, None),
]


def has_io_uring():
    try:
        return Path("/proc/sys/kernel/io_uring_disabled").read_text().strip() == "0"
    except OSError:
        return False  # kernels before 6.6 do not say


class Peer(Server):
    """Without HTTP: it answers once its port takes connections."""

    def answers(self):
        import socket

        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False


def build_load(directory, build):
    cc = os.environ.get("CC", "gcc")
    subprocess.run([cc, "-O2", "-std=gnu11", "-D_GNU_SOURCE", f"-I{ROOT / 'plugin-sdk/include'}", "-o", directory / "ws_load", HERE / "ws_load.c",
                    build / "libkilnws.a", "-lssl", "-lcrypto", "-lz", "-lpthread"], check=True)
    subprocess.run([cc, "-O2", "-o", directory / "lws_echo", HERE / "peers/lws_echo.c", "-lwebsockets"], check=True)
    subprocess.run([cc, "-O2", "-D_GNU_SOURCE", "-o", directory / "ws_bare", HERE / "peers/ws_bare.c", "-lcrypto"], check=True)
    subprocess.run([cc, "-O2", "-D_GNU_SOURCE", "-o", directory / "ws_ring", HERE / "peers/ws_ring.c", "-luring", "-lcrypto"], check=True)
    for name, source in (("echo", ECHO), ("blocking", BLOCKING), ("room", ROOM)):
        file = directory / f"{name}.c"
        file.write_text(source)
        subprocess.run([cc, "-O2", "-shared", "-fPIC", f"-I{ROOT / 'plugin-sdk/include'}", "-o", directory / "site" / f"{name}.so", file],
                       check=True)


def load(directory, *words):
    command = ["taskset", "-c", LOAD_CORE, str(directory / "ws_load"), *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measured(server, directory, *words):
    """The words that it printed, and the processor seconds that the server used once all was open."""
    process = load(directory, *words)
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{server.name}: the load did not start: {words}")
    before = server.cpu_seconds()
    out = process.stdout.readline()
    used = server.cpu_seconds() - before
    if process.wait(60) != 0:
        raise RuntimeError(f"{server.name}: the load failed: {words}")
    return out.split(), used


def run_echo(directory, who, bytes_, connections, seconds, tls):
    """{name: microseconds a message}"""
    found = {}
    for name, (server, port, path) in who.items():
        out, used = measured(server, directory, "echo", port, path, connections, bytes_, seconds, *(["tls"] if tls else []))
        found[name] = used * 1e6 / int(out[0])
    return found


def echoes(directory, servers, options, rows):
    kiln, lws, lws_tls, bare, ring, node = servers
    for key, title, bytes_, connections, tls, ratio, most in ECHOES:
        if options.only and key not in options.only.split(","):
            continue
        port = kiln.tls_port if tls else kiln.port
        who = {"kiln": (kiln, port, "/echo"), "blocking": (kiln, port, "/blocking"), "lws": (lws_tls if tls else lws, (lws_tls if tls else lws).port, "/")}
        if bytes_ < 126 and not tls:
            who["bare epoll"] = (bare, bare.port, "/")
            if ring is not None:
                who["bare io_uring"] = (ring, ring.port, "/")
        if not tls and node is not None:
            who["node"] = (node, node.port, "/")
        rounds = [run_echo(directory, who, bytes_, connections, options.seconds * (4 if bytes_ > 100000 else 1), tls) for _ in range(options.rounds)]
        ratios = [r["kiln"] / r["lws"] for r in rounds]
        best = min(ratios)
        least = {name: min(r[name] for r in rounds) for name in who}
        limit = f"{ratio} x lws" if ratio else f"{most} us"
        met = best <= ratio if ratio else least["kiln"] <= most
        value = f"{best:.2f} x lws, median {statistics.median(ratios):.2f}, best seconds {least['kiln'] / least['lws']:.2f}"
        rows.append((title, value, limit, met, ", ".join(f"{n} {v:.2f} us" for n, v in least.items())))
        print(*rows[-1], sep=" | ", flush=True)


def streams(directory, kiln, options, rows):
    total = (500 << 20) if options.quick else (5 << 30)
    for packet in (8, 64, 128, 256):
        (mb, took, own), used = measured(kiln, directory, "stream", kiln.port, "/echo", packet * 1024, total)
        each, other = used / float(mb) * 1e3 / 2, float(own) / float(mb) * 1e3 / 2
        limit = 0.35 if packet >= 64 else None
        rows.append((f"stream, packets of {packet} KB", f"{each:.3f} s/GB", f"{limit} s/GB" if limit else "", limit is None or max(each, other) <= limit,
                     f"{float(mb) / float(took):.0f} MB/s each way, client {other:.3f} s/GB"))
        print(*rows[-1], sep=" | ", flush=True)


def broadcast(directory, kiln, options, rows):
    """Messages by themselves are a system call for each delivery; those of one event leave together."""
    subscribers = 1000 if options.quick else 10000
    for messages, burst, least in ((30, 1, None), (300, 30, None), (2000, 100, 1.5)):
        broadcast_bursts(directory, kiln, rows, subscribers, messages, burst, least)


def broadcast_bursts(directory, kiln, rows, subscribers, messages, burst, least):
    process = load(directory, "listen", kiln.port, "/room", subscribers, messages, "join")
    process.stdout.readline()
    before = kiln.cpu_seconds()
    for _ in range(messages // burst):
        if kiln.get(f"/room?{burst}")[0] != 200:
            raise RuntimeError("nothing was published")
    delivered = int(process.stdout.readline())
    each = delivered / (kiln.cpu_seconds() - before) / 1e6
    process.wait(60)
    whole = delivered == subscribers * messages
    title = f"broadcast to {subscribers:,}, {burst} at a time" if burst > 1 else f"broadcast to {subscribers:,}, one by one"
    met = whole and (least is None or each >= least)
    rows.append((title, f"{each:.2f} M/s", f"{least} M/s" if least else "", met, f"{delivered} deliveries"))
    print(*rows[-1], sep=" | ", flush=True)


def idle(directory, kiln, options, rows):
    count = 1000 if options.quick else 10000
    kiln.stop()  # a fresh one: what earlier cases have freed would hide what these clients hold
    kiln.start()
    wait_until(lambda: kiln.get("/echo")[0] in (200, 426), "the endpoint")
    warm = load(directory, "idle", kiln.port, "/echo", 200, 2000)
    warm.stdout.readline()
    before = kiln.memory()
    process = load(directory, "idle", kiln.port, "/echo", count, 2000)
    process.stdout.readline()
    each = (kiln.memory() - before) / count
    for p in (process, warm):
        p.stdin.close()
        p.wait(60)
    rows.append((f"deflate, {count:,} idle clients", f"{each:.0f} bytes", "4096 bytes", each <= 4096, ""))
    print(*rows[-1], sep=" | ", flush=True)


def table(rows):
    lines = ["| case | Kiln | budget | met | all |", "|---|---|---|---|---|"]
    return "\n".join(lines + [f"| {t} | {v} | {limit} | {'yes' if met else 'NO'} | {more} |" for t, v, limit, met, more in rows]) + "\n"


def document(options, rows):
    about = report.about(options.build.resolve(), libwebsockets=["pkg-config", "--modversion", "libwebsockets"], node=["node", "--version"])
    how = (
        "servers with one worker pinned to one core, the load on another. Echoes: microseconds of processor time for each message (user and system, "
        f"whole process tree), the best of {options.rounds} interleaved rounds of {options.seconds:g} s (4 times that for 1 MB), and the "
        "ratio to libwebsockets in the same round: the best, the median, and that of the best seconds of each. Streams: processor seconds for each GB that came or went, of the server and of the client."
    )
    return "\n".join(report.heading("WebSocket figures", about, how)) + "\n" + table(rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="20, 16k, 1m-50, 1m-1, wss, stream, broadcast, idle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--ports", default="21200-21300")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 1
    return options


def main():
    options = arguments()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    directory = Path(tempfile.mkdtemp(prefix="kiln-bench-"))
    directory.chmod(0o755)
    site = directory / "site"
    servers_module.write_site(site)
    write_certificate(directory)
    build_load(directory, options.build)
    ports = free_ports(*map(int, options.ports.split("-")))
    pair = [str(directory / "certs" / "localhost" / name) for name in ("fullchain.pem", "privkey.pem")]
    kiln = make_kiln(options.build.resolve(), "kiln", directory, site, ports,
                     {"MaxConcurrentUpgradedConnections": 0, "MaxConcurrentConnections": 0, "WebSocketEndpointTimeout": 0, "Backlog": 4096,
                      "HandshakesPerAddress": 0})
    lws, lws_tls, bare, ring = next(ports), next(ports), next(ports), next(ports)
    servers = [
        kiln,
        Peer("lws", lws, [str(directory / "lws_echo"), str(lws)], directory, {}),
        Peer("lws-tls", lws_tls, [str(directory / "lws_echo"), str(lws_tls), *pair], directory, {}),
        Peer("bare", bare, [str(directory / "ws_bare"), str(bare)], directory, {}),
        Peer("ring", ring, [str(directory / "ws_ring"), str(ring)], directory, {}) if has_io_uring() else None,
    ]
    port = next(ports)
    has_node = shutil.which("node") and os.path.isdir("/usr/share/nodejs/ws")
    servers.append(Peer("node", port, ["node", str(HERE / "peers/ws_echo.js"), str(port)], directory, {}) if has_node else None)
    rows = []
    try:
        for server in servers:
            if server is not None:
                server.start()
        wait_until(lambda: all(kiln.get(f"/{name}")[0] in (200, 426) for name in ("echo", "blocking", "room")), "the endpoints")
        echoes(directory, servers, options, rows)
        for key, case in (("stream", streams), ("broadcast", broadcast), ("idle", idle)):
            if not options.only or key in options.only.split(","):
                case(directory, kiln, options, rows)
    finally:
        for server in servers:
            if server is not None:
                server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    print(table(rows))
    if not options.quick and not options.only:
        (HERE / "results" / "websocket.md").write_text(document(options, rows))
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
