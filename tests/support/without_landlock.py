"""python3 without_landlock.py PROGRAM ...: runs it as on a kernel without Landlock. A filter of seccomp, which all that it
starts inherits, answers landlock_create_ruleset with ENOSYS."""

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
LANDLOCK_CREATE_RULESET = 444  # on all architectures


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def forbid():
    rows = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, LANDLOCK_CREATE_RULESET), (RETURN, 0, 0, RET_ERRNO | errno.ENOSYS),
            (RETURN, 0, 0, RET_ALLOW)]
    program = Program(len(rows), b"".join(struct.pack("=HBBI", *row) for row in rows))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*words) != 0:
            sys.exit(f"without_landlock.py: prctl: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    forbid()
    os.execv(sys.argv[1], sys.argv[1:])
