"""Run a command that the kernel kills, or refuses, when it asks for the network.

``python tests/without_network.py socket|connect kill|refuse COMMAND ...``: no process of the command may call
``socket`` (or, for those that must listen, ``connect``). A seccomp filter holds for native threads and children as well
as for Python, and needs neither privileges nor a package.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

# Numbers of the system calls and the architecture's audit token (linux/audit.h).
_CALLS = {
    "x86_64": (0xC000003E, {"socket": 41, "connect": 42}),
    "aarch64": (0xC00000B7, {"socket": 198, "connect": 203}),
}
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def supported() -> bool:
    """Whether this machine has the filter."""
    return sys.platform == "linux" and platform.machine() in _CALLS


def forbid(call: str, then: str) -> None:
    """From here on this process and its children may not call ``call``."""
    token, numbers = _CALLS[platform.machine()]
    action = _KILL_PROCESS if then == "kill" else _ERRNO | errno.EACCES
    steps = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 0, 2, token),
        (_LOAD, 0, 0, 0),  # the number of the call
        (_EQUAL, 1, 0, numbers[call]),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, action),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(steps), ctypes.cast(buffer, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid(sys.argv[1], sys.argv[2])
    os.execv(sys.argv[3], sys.argv[3:])
