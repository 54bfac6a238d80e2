"""A piece of anonymous shared memory that holds many buffers.

The writer places all buffers once, each on a 64-byte boundary, and seals the segment: nobody can
change it. Every reader maps it copy-on-write, so any number of processes share one copy of the
data, and what one of them writes stays
its own. The segment is a memfd: it has no name, so nothing is left however its processes end. Where
memory is short it is a file whose name is removed at once. Where the system has no memfd it is
`multiprocessing.shared_memory`, whose name is gone once the writer closes it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, overload

import numpy as np

if sys.platform != "win32":
    import fcntl

ALIGN = 64
MEMFD = hasattr(os, "memfd_create")
NAME = "workbench"
"""The name of the mapping in /proc/PID/maps; two segments may have the same."""

_SMALL = 1 << 20
_CHUNK = 1 << 30
_WORD = 8

Span = tuple[int, int]
"""Offset and length in bytes."""

Handle = int | str
"""What another process needs to attach: a file descriptor to be sent over a socket, or a name."""


class Segment:
    """A sealed segment, in the process that placed it or in one that attached to it."""

    def __init__(
        self, fd: int | None, shared: shared_memory.SharedMemory | None, owner: bool
    ) -> None:
        self._fd = fd
        self._shared = shared
        self._owner = owner

    @classmethod
    def place(cls, buffers: Sequence[Any], folder: Path | None = None) -> Segment:
        """A new segment that holds `buffers` (anything contiguous with the buffer protocol), each
        memory once.

        folder: where a file without a name holds them, instead of memory. Only where the system has
        memfd.
        """
        raws = [np.frombuffer(buffer, dtype=np.uint8) for buffer in map(_flat, buffers)]
        spans, size = _lay_out(raws)
        table = array("q", [len(raws), *(number for span in spans for number in span)]).tobytes()
        pieces = {0: memoryview(table)} | {
            at: raw.data for raw, (at, n) in zip(raws, spans, strict=True) if n
        }
        if MEMFD:
            fill = (
                _fill_memfd(pieces.items(), size)
                if folder is None
                else _fill_file(pieces.items(), size, folder)
            )
            return cls(fill, None, owner=True)
        shared = shared_memory.SharedMemory(create=True, size=size)
        for at, piece in pieces.items():
            _bytes(shared)[at : at + piece.nbytes] = piece
        return cls(None, shared, owner=True)

    @classmethod
    def attach(cls, handle: Handle) -> Segment:
        """The segment of a file descriptor (which then belongs to it) or of a name, from
        `handle`.
        """
        if isinstance(handle, int):
            return cls(handle, None, owner=False)
        return cls(None, shared_memory.SharedMemory(name=handle), owner=False)

    @property
    def handle(self) -> Handle:
        """What another process needs to attach to this segment, while it is open here."""
        if self._fd is not None:
            return self._fd
        if self._shared is not None:
            return self._shared.name
        raise ValueError("this segment is closed")

    def again(self) -> Segment:
        """Return a second handle on the segment, to be closed independently."""
        return Segment.attach(os.dup(self._fd) if self._fd is not None else self._memory.name)

    @property
    def nbytes(self) -> int:
        """The size of the whole segment, its table included."""
        return os.fstat(self._fd).st_size if self._fd is not None else self._memory.size

    @property
    def _memory(self) -> shared_memory.SharedMemory:
        if self._shared is None:
            raise ValueError("this segment is closed")
        return self._shared

    def views(self) -> Views:
        """The buffers in the order they were placed, mapped copy-on-write. The mapping lives as
        long as they do.
        """
        return Views(memoryview(self._map()))

    def _map(self) -> mmap.mmap:
        size = self.nbytes
        if size <= _SMALL:
            # Read into private memory: a Python mapping keeps a file descriptor open as long as it
            # lives.
            private = mmap.mmap(-1, size)
            private[:] = (
                os.pread(self._fd, size, 0)
                if self._fd is not None
                else bytes(_bytes(self._memory)[:size])
            )
            return private
        if self._fd is not None:
            return mmap.mmap(self._fd, size, access=mmap.ACCESS_COPY)
        return _map_named(self._memory, size)

    def close(self) -> None:
        """Close this handle; views stay valid. The memory is freed when no process has a handle
        or a mapping any more.
        """
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._shared is not None:
            self._shared.close()
            if self._owner:
                with contextlib.suppress(FileNotFoundError):
                    self._shared.unlink()
            self._shared = None

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Views(Sequence[memoryview]):
    """The buffers of a mapped segment. Each is looked up when it is read, because there may be
    very many.
    """

    def __init__(self, memory: memoryview) -> None:
        count = int.from_bytes(memory[:_WORD], sys.byteorder)
        self._memory = memory
        self._table = memory[_WORD : _WORD * (1 + 2 * count)].cast("q")

    def __len__(self) -> int:
        return len(self._table) // 2

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        entry = range(len(self))[index] * 2
        at, size = self._table[entry], self._table[entry + 1]
        return self._memory[at : at + size]


def size_of(buffers: Sequence[Any]) -> int:
    """The size in bytes of the segment that `place` would make of these buffers."""
    return _lay_out([np.frombuffer(buffer, dtype=np.uint8) for buffer in map(_flat, buffers)])[1]


def address_of(raw: np.ndarray[Any, Any]) -> int:
    """The address of an array's first byte."""
    return int(raw.__array_interface__["data"][0])


def _bytes(shared: shared_memory.SharedMemory) -> memoryview:
    assert shared.buf is not None, "closed"
    return shared.buf


def _flat(buffer: Any) -> Any:
    """The bytes of a buffer without a copy. `PickleBuffer.raw` takes Fortran order too."""
    return buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer).cast("B")


def _lay_out(raws: list[np.ndarray[Any, np.dtype[np.uint8]]]) -> tuple[list[Span], int]:
    """The place of each buffer, and the total size. The same memory given twice gets one place:
    it stays shared.
    """
    end = _WORD * (1 + 2 * len(raws))
    places: dict[Span, Span] = {}
    spans = []
    for raw in raws:
        source = (address_of(raw), raw.nbytes)
        if source not in places:
            start = -(-end // ALIGN) * ALIGN
            places[source] = (start, raw.nbytes)
            end = start + raw.nbytes
        spans.append(places[source])
    return spans, end


def _fill_memfd(pieces: Iterable[tuple[int, memoryview]], size: int) -> int:
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        for at, piece in pieces:
            # Written, not mapped: the pages never count as this process's own memory.
            _write(fd, piece, at)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _fill_file(pieces: Iterable[tuple[int, memoryview]], size: int, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{NAME}-", dir=folder)
    try:
        os.unlink(name)  # the file lives on until no process has it open or mapped
        os.posix_fallocate(fd, 0, size)  # a disk that is full says so now, and not as a bus error
        for at, piece in pieces:
            _write(fd, piece, at)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, piece: memoryview, at: int) -> None:
    while piece:
        done = os.pwrite(fd, piece[:_CHUNK], at)
        piece, at = piece[done:], at + done


def _map_named(shared: shared_memory.SharedMemory, size: int) -> mmap.mmap:
    """A copy-on-write mapping of named shared memory; a private copy where the system has no
    such mapping.
    """
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, size, tagname=shared.name, access=mmap.ACCESS_COPY)
        return mmap.mmap(shared._fd, size, access=mmap.ACCESS_COPY)  # type: ignore[attr-defined]
    except OSError:
        private = mmap.mmap(-1, size)
        private[:] = bytes(_bytes(shared)[:size])
        return private
