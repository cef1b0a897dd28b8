"""The process of an isolated endpoint that speaks to the worker itself, over the socket that it shares with it: what it asks
for costs the worker neither memory nor descriptors without end."""

import os
import re
import threading
from pathlib import Path

import pytest
from isolated_endpoint import HEAD, HELLO, SANITIZED

# Frames as server/isolate/frame.h has them. The first request on a channel has the id 1 << 32, the next one 2 << 32.
SPEAK = (
    HEAD
    + r"""
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
enum { HEAD_FRAME = 64, FILE_FRAME = 66, SESSION_FRAME = 72 };
struct frame { uint32_t length; uint16_t kind, zero; uint64_t id; } __attribute__((packed));
struct session { struct frame frame; uint32_t op; uint64_t number; uint32_t key_length; char key[2]; uint32_t value_length; } __attribute__((packed));
struct head { struct frame frame; uint16_t status; uint64_t length; uint32_t detail, type; uint16_t count; } __attribute__((packed));
struct file { struct frame frame; uint64_t offset, length; } __attribute__((packed));
static int channel(void)
{
    for (int fd = 3; fd < 100; fd++) {
        int type = 0;
        socklen_t n = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_STREAM) return fd;
    }
    return -1;
}
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec; }
/* All of it, while the time is not over; the socket does not block. */
static int say(const void *data, size_t len, int file, long until)
{
    const char *at = data;
    while (len > 0) {
        union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } with;
        struct iovec part = {(void *)at, len};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (file >= 0) {
            message.msg_control = &with;
            message.msg_controllen = sizeof with;
            struct cmsghdr *first = CMSG_FIRSTHDR(&message);
            first->cmsg_level = SOL_SOCKET, first->cmsg_type = SCM_RIGHTS, first->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(first), &file, sizeof file);
        }
        ssize_t n = sendmsg(channel(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return 0;
        if (now() >= until) return 0;
        if (n > 0) at += n, len -= (size_t)n, file = -1;
    }
    return 1;
}
"""
)

ASKS = SPEAK + r"""
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    if (!strcmp(kiln_query(ctx), "set")) {
        char *value = kiln_alloc(ctx, 60000);
        memset(value, 'x', 59999);
        value[59999] = 0;
        return kiln_printf(ctx, "%d", kiln_session_set(ctx, "k", value));
    }
    struct session one = {{sizeof one - sizeof one.frame, SESSION_FRAME, 0, UINT64_C(2) << 32}, 0, 0, 1, "k", UINT32_MAX};
    long until = now() + 4;
    while (say(&one, sizeof one, -1, until)) {} /* and reads nothing */
    return kiln_puts(ctx, "asked");
}
"""

FILES = SPEAK + r"""
int kiln_run(kiln_context *ctx, const char *path)
{
    (void)path;
    int file = open(kiln_sprintf(ctx, "%s/large.bin", kiln_directory(ctx)), O_RDONLY);
    struct head head = {{sizeof head - sizeof head.frame, HEAD_FRAME, 0, UINT64_C(1) << 32}, 200, UINT64_MAX, UINT32_MAX, UINT32_MAX, 0};
    struct file one = {{sizeof one - sizeof one.frame, FILE_FRAME, 0, UINT64_C(1) << 32}, 0, 1 << 20};
    long until = now() + 4;
    say(&head, sizeof head, -1, until);
    while (say(&one, sizeof one, file, until)) {}
    return kiln_puts(ctx, "sent");
}
"""


def resident_mb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def highest_while(work, figure):
    thread = threading.Thread(target=work)
    thread.start()
    highest = figure()
    while thread.is_alive():
        highest = max(highest, figure())
        thread.join(0.02)
    return highest


@pytest.mark.skipif(SANITIZED, reason="a sanitizer keeps what was freed")
def test_who_asks_and_does_not_listen_fills_no_memory(isolated):
    kiln = isolated({"i/e._c": ASKS, "e._c": HELLO}, Threads=1)
    worker = kiln.worker_pid()
    first = kiln.get("/i/e?set")
    assert first.body == b"0"
    cookie = {"Cookie": first.headers["Set-Cookie"].split(";")[0]}
    before = resident_mb(worker)
    statuses = []
    highest = highest_while(lambda: statuses.append(kiln.get("/i/e?ask", headers=cookie).status), lambda: resident_mb(worker))
    assert highest - before < 64, f"from {before} MB to {highest} MB"
    assert statuses
    assert kiln.get("/e").status == 200
    assert kiln.worker_pids() == [worker]


def test_files_without_end_take_no_descriptors(isolated):
    kiln = isolated({"i/e._c": FILES, "i/large.bin": b"x" * (1 << 20), "e._c": HELLO}, Threads=1)
    worker = kiln.worker_pid()
    kiln.get("/e")
    before = descriptors(worker)
    with kiln.connect() as client:  # which does not read
        client.sendall(b"GET /i/e HTTP/1.1\r\nHost: x\r\n\r\n")
        highest = highest_while(lambda: kiln.wait_log(r"sent a frame that may not stand there; it is killed|process \d+ ended|wrote: sent", timeout=8),
                                lambda: descriptors(worker))
    assert highest - before < 40, f"from {before} to {highest}"
    assert kiln.get("/e").status == 200
    assert kiln.worker_pids() == [worker]
