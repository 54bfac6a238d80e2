"""The handle of a process that was forked from the fork server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, Protocol

Deliver = Callable[[str, bytes], None]
"""Takes what a child writes: "out" or "err", and the bytes."""
Hear = Callable[[], bool]
"""Reads what has arrived; False: nothing more will come."""

_live: set[Child] = set()
Kind = Literal["call", "rank"]
"""The kind of a child: one call and its answer (child_main.py), or one job after another
(pool/worker.py).
"""


class Server(Protocol):
    """The methods of the fork server that a handle needs."""

    def submit(self, kind: Kind, files: Sequence[int]) -> None:
        """Send the ends of a child; `OSError` when the server is gone."""


class Child:
    """The parent's ends of a child's connections: a channel, the server's messages about the child,
    and its output.

    No method waits: the caller waits until one of the `sources` can be read.
    """

    def __init__(self, deliver: Deliver) -> None:
        self.pid: int | None = None
        self.code: int | None = None
        """Its exit code, as in `subprocess`: negative is a signal."""
        self.over = False
        """Whether the child, and every process that it started, is gone."""
        self.lost = ""
        """Why its end is unknown: the server died with it."""
        self.killed = False
        self._deliver = deliver
        self._end, theirs = socket.socketpair()
        self._status, status = socket.socketpair()
        out, out_in = os.pipe()
        err, err_in = os.pipe()
        self._pipes = {"out": out, "err": err}
        for fd in (out, err):
            os.set_blocking(fd, False)
        self._theirs = [theirs.detach(), status.detach(), out_in, err_in]
        _live.add(self)

    def begin(self, used: Server, kind: Kind, more: Sequence[int]) -> bool:
        """Ask the server to fork it, with further file descriptors; returns whether the server
        accepted.
        """
        try:
            used.submit(kind, [*self._theirs, *more])
        except OSError as error:
            self.lost = str(error)
            self.over = True
        finally:
            self._close_parent_files()
        return not self.lost

    def sources(self) -> Iterator[tuple[int, Hear]]:
        """File descriptors to wait for, each with the function that reads it; without the
        channel.
        """
        yield self._status.fileno(), self._hear_status
        for name, fd in self._pipes.items():
            yield fd, partial(self._hear_lines, name)

    def kill(self) -> None:
        """End the child with every process that it started; `over` is true once that is done."""
        self.killed = True
        with contextlib.suppress(OSError):
            self._status.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Read the output that has arrived, and do not wait for the pipe's end: a process that
        left the child's group may hold it open.
        """
        for name, fd in self._pipes.items():
            with contextlib.suppress(BlockingIOError):
                while data := os.read(fd, 1 << 16):
                    self._deliver(name, data)

    def mute(self) -> None:
        """Drop its output from now on."""
        self._deliver = lambda name, data: None

    def look(self) -> None:
        """Read the server's messages about the child that have arrived."""
        if not self.over:
            self._hear_status()

    def _hear_status(self) -> bool:
        try:
            data = self._status.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        for line in data.decode().splitlines():
            word, _, rest = line.partition(" ")
            if word == "pid":
                self.pid = int(rest)
            elif word == "exit":
                self.code = int(rest)
                self.over = True
            else:
                self.lost = rest
                self.over = True
        if not data:
            self._lose()
        return not self.over

    def _lose(self) -> None:
        """Kill the child without the server, which is gone and would have reported its end."""
        self.over = True
        self.lost = "its fork server is gone"
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _hear_lines(self, name: str) -> bool:
        try:
            data = os.read(self._pipes[name], 1 << 16)
        except BlockingIOError:
            return True
        if data:
            self._deliver(name, data)
        return bool(data)

    def _close_parent_files(self) -> None:
        for fd in self._theirs:
            os.close(fd)
        self._theirs.clear()

    def close(self) -> None:
        """Close its ends, which kills a child that still runs."""
        self._close_parent_files()
        for fd in self._pipes.values():
            os.close(fd)
        self._pipes.clear()
        self._end.close()
        self._status.close()
        _live.discard(self)


def _forget() -> None:
    """In a process forked from ours, close its copies of the children's ends, which would keep
    them alive.
    """
    for child in list(_live):
        with contextlib.suppress(OSError):  # another thread was just closing it
            child.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
