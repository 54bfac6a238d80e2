"""Writes packages to files that only this user can read, and reads only such files.

Unpacking a package runs code. So its file is created with mode 600, and `read` refuses it unless it
is a regular file, no link, of this user and closed to everybody else. Large data is in a second
file, which all processes of a machine map instead of reading it into memory once each.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from workbench.instruments.memory import available_memory
from workbench.runs.folder.files import aside_of, check_no_link
from workbench.share.capacity import Capacity
from workbench.share.package import Package, pack, unpack
from workbench.share.segment import Segment

_DATA = ".data"
_CHUNK = 1 << 24


@dataclass
class PrivateFile:
    """A package that was read and not unpacked yet. `head` is plain data, which can be used
    before that.
    """

    head: Any
    package: Package

    def open(self) -> Any:
        """Unpack it; its large data stays in the file, mapped copy-on-write, also after the file
        is deleted.
        """
        with self.package:
            return unpack(self.package)


def write(path: Path, value: Any, head: Any = None, names: Mapping[str, Any] | None = None) -> None:
    """Pack `value` into a file. `names`: see `share.package.pack`. OSError where it cannot be
    written.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    check_no_link(path.parent)
    with pack(
        value, names, lists=True, capacity=Capacity(path.parent, available_memory)
    ) as package:
        for segment in package.segments:  # one, or none where nothing is large
            _write_data(_beside(path), segment)
        _write(path, pickle.dumps((head, package.code, bool(package.segments), package.devices)))


def read(path: Path) -> PrivateFile:
    """Read a package of `write`. Raises PermissionError where somebody else may have written it."""
    with os.fdopen(open_private(path), "rb") as file:
        head, code, has_data, devices = pickle.load(file)
    segments = (Segment.attach(open_private(_beside(path))),) if has_data else ()
    return PrivateFile(head, Package(code, segments, devices))


def remove(path: Path) -> None:
    """Delete the files of a package; a process that has read it keeps its contents."""
    for file in (path, _beside(path)):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # there is another one
        path.parent.rmdir()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + _DATA)


def _write_data(path: Path, segment: Segment) -> None:
    number = create_private(path)
    try:
        for piece in _pieces(segment):
            while piece:
                piece = piece[os.write(number, piece) :]
    finally:
        os.close(number)


def _pieces(segment: Segment) -> Iterator[bytes]:
    """The contents of a segment, a part at a time, so that they are not in memory once more."""
    handle, size = segment.handle, segment.nbytes
    if isinstance(handle, int):
        yield from (os.pread(handle, _CHUNK, at) for at in range(0, size, _CHUNK))
    else:
        with contextlib.closing(SharedMemory(name=handle)) as shared:
            assert shared.buf is not None
            yield from (
                bytes(shared.buf[at : min(at + _CHUNK, size)]) for at in range(0, size, _CHUNK)
            )


def _write(path: Path, data: bytes) -> None:
    """Write to a temporary file, then rename it, so that a reader always finds the whole file."""
    aside = path.with_name(aside_of(path.name))
    try:
        with os.fdopen(create_private(aside), "wb") as file:
            file.write(data)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def create_private(path: Path) -> int:
    """Create a file that only this user can read; returns its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)


def open_private(path: Path) -> int:
    """Open a file that only this user can have written; returns its descriptor."""
    number = os.open(
        path,
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_BINARY", 0),
    )
    try:
        _check(path, os.fstat(number))
    except BaseException:
        os.close(number)
        raise
    return number


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PermissionError(f"{path} is not a regular file, and is not read.")
    if os.name != "posix":
        return
    if status.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}: it could hold any "
            "code, and is not run."
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o}, not 600): it "
            "could hold any code, and "
            "is not run."
        )
