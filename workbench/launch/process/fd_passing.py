"""Receives file descriptors over sockets. Python 3.11's `socket.recv_fds` drops its flags, so this does it."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Iterable

MOST = 250
"""At most this many travel with one message."""
FIXED = 4
"""File descriptors of a child before those of its kind."""


def receive(end: socket.socket, size: int, how: int = 0) -> tuple[bytes, list[int], bool]:
    """Up to `size` bytes, the file descriptors that came with them, and whether some were lost.

    They are closed in programs that this process starts.
    """
    fds = array.array("i")
    how |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, extra, flags, _ = end.recvmsg(size, socket.CMSG_LEN(MOST * fds.itemsize), how)
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, fds.tolist(), bool(flags & socket.MSG_CTRUNC)


def close(fds: Iterable[int]) -> None:
    """Close file descriptors that are not needed."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
