"""Sends messages between two of our processes over a socket: any picklable object, with file
descriptors.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

_HEAD = struct.Struct("<QH")
"""The length of a message and how many file descriptors come with it."""
_CHUNK = 1 << 18
MOST_FDS = 250
"""At most this many file descriptors travel with one message."""
FIXED_FDS = 4
"""How many file descriptors every child gets before those of its kind."""


class Received(NamedTuple):
    """A message with its file descriptors, which belong to the receiver."""

    message: Any
    fds: list[int]


class Channel:
    """One end of the socket. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.ended = False
        """Whether the other side will send nothing more."""
        self._sending = threading.Lock()
        self._bytes = bytearray()
        self._fds: deque[int] = deque()

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Send a message; `OSError` when the other side is gone."""
        body = pickle.dumps(message)
        data = memoryview(_HEAD.pack(len(body), len(files)) + body)
        with self._sending:
            sent = socket.send_fds(self.socket, [data], list(files))
            self.socket.sendall(data[sent:])

    def receive(self) -> Iterator[Received]:
        """Yield messages as they come, until the other side is gone."""
        while not self.ended:
            self._read(0)
            yield from self._whole()

    def take(self) -> list[Received]:
        """The messages that have arrived, without waiting."""
        self._read(socket.MSG_DONTWAIT)
        return list(self._whole())

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
        close_fds(self._fds)
        self._fds.clear()

    def _read(self, how: int) -> None:
        try:
            data, received, lost = receive_fds(self.socket, _CHUNK, how)
        except BlockingIOError:
            return
        except OSError:
            data, received, lost = b"", [], False
        self._fds.extend(received)
        if lost:
            raise OSError(
                "no file descriptors are left to receive a message of another process: raise"
                " `ulimit -n`"
            )
        self._bytes += data
        self.ended = not data

    def _whole(self) -> Iterator[Received]:
        while len(self._bytes) >= _HEAD.size:
            length, count = _HEAD.unpack_from(self._bytes)
            end = _HEAD.size + length
            if len(self._bytes) < end:
                return
            message = pickle.loads(memoryview(self._bytes)[_HEAD.size : end].tobytes())
            del self._bytes[:end]
            yield Received(message, [self._fds.popleft() for _ in range(count)])


def receive_fds(end: socket.socket, size: int, how: int = 0) -> tuple[bytes, list[int], bool]:
    """Up to `size` bytes, the file descriptors that came with them, and whether some were lost.

    They are closed in programs that this process starts. Python 3.11's `socket.recv_fds` drops its
    flags, so this does it.
    """
    fds = array.array("i")
    how |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, extra, flags, _ = end.recvmsg(size, socket.CMSG_LEN(MOST_FDS * fds.itemsize), how)
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, fds.tolist(), bool(flags & socket.MSG_CTRUNC)


def close_fds(fds: Iterable[int]) -> None:
    """Close file descriptors that are not needed."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
