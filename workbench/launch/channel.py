"""Messages between two processes of ours over a socket: any picklable object, with file descriptors beside it."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from workbench.launch.server import MOST_FDS

_HEAD = struct.Struct("<QH")
"""The length of a message and how many file descriptors come with it."""
_CHUNK = 1 << 18


class Received(NamedTuple):
    """A message, and the file descriptors that came with it: they belong to whoever took it."""

    message: Any
    fds: list[int]


class Channel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.ended = False
        """Whether the other side will say nothing more."""
        self._sending = threading.Lock()
        self._bytes = bytearray()
        self._fds: deque[int] = deque()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Hand over a message; `OSError` when the other side is gone."""
        body = pickle.dumps(message)
        data = memoryview(_HEAD.pack(len(body), len(fds)) + body)
        with self._sending:
            sent = socket.send_fds(self.socket, [data], list(fds))
            self.socket.sendall(data[sent:])

    def receive(self) -> Iterator[Received]:
        """Messages as they come, until the other side is gone."""
        while not self.ended:
            self._read(0)
            yield from self._whole()

    def take(self) -> list[Received]:
        """The messages that are there now; never waits."""
        self._read(socket.MSG_DONTWAIT)
        return list(self._whole())

    def close(self) -> None:
        self.socket.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _read(self, how: int) -> None:
        try:
            data, fds, flags, _ = socket.recv_fds(self.socket, _CHUNK, MOST_FDS, how | socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds, flags = b"", [], 0
        self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            raise OSError("no file descriptors are left to take a message of another process: raise `ulimit -n`")
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


def close_all(fds: Sequence[int]) -> None:
    """Close file descriptors that nobody wants."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
