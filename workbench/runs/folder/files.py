"""Opens and writes files in a run's folder, to which other users may write, too.

Links are not followed, and a file is written completely or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from workbench.values import from_json

if sys.platform != "win32":
    import fcntl

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_BY_NUMBER = {
    os.open,
    os.unlink,
    os.rename,
    os.stat,
} <= os.supports_dir_fd and os.scandir in os.supports_fd
"""Whether this system supports paths relative to an open folder; Windows does not."""
_LOCK = ".lock"
"""The file that locks a folder where the file system has no locks."""
_PATIENCE = 10.0
"""The most seconds that `locked` waits for one other writer, which needs some milliseconds."""


class Folder:
    """An open folder that is not a link. Its methods act on this folder, even if another one
    takes its path meanwhile.
    """

    def __init__(self, path: Path, number: int | None) -> None:
        self._path, self._number = path, number

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, within: Folder | None = None) -> Iterator[Folder]:
        """Context manager with the open folder at `path`. Raises OSError if it does not exist or is
        a link.

        within: the open folder that contains it.
        """
        if not _BY_NUMBER:
            check_no_link(path)
            yield cls(path, None)
            return
        outer = None if within is None else within._number
        number = os.open(
            path if outer is None else path.name,
            os.O_RDONLY | os.O_DIRECTORY | _NO_LINK | _PLAIN,
            dir_fd=outer,
        )
        try:
            yield cls(path, number)
        finally:
            os.close(number)

    def names(self, most: int | None = None) -> list[str]:
        """The names of the files and folders in it, of so many at most."""
        with os.scandir(self._path if self._number is None else self._number) as entries:
            return [entry.name for entry in itertools.islice(entries, most)]

    def read(self, name: str, largest: int) -> bytes:
        """Read a regular file of at most `largest` bytes. Raises OSError if it is a link,
        ValueError if it is no regular file or larger.
        """
        return _read(self._where(name), largest, self._number)

    @contextlib.contextmanager
    def path_of(self, name: str) -> Iterator[Path]:
        """Context manager with a path at which a library can open this regular file. Raises OSError
        if it is a link, ValueError if it is anything else.

        On Linux the path leads to the file that was checked, even if another file replaces it
        meanwhile.
        """
        with open_regular(self._where(name), self._number) as file:
            checked = Path(f"/proc/self/fd/{file.fileno()}")
            yield checked if self._number is not None and checked.exists() else self._path / name

    def read_json(self, name: str, largest: int) -> dict[str, Any]:
        """Read the JSON object in a file of this folder, as the function `read_json` does."""
        return _object(self.read(name, largest), self._path / name)

    def is_folder(self, name: str) -> bool:
        """Whether `name` is a folder, and not a link to one; False if nothing has this name."""
        with contextlib.suppress(FileNotFoundError):
            return stat.S_ISDIR(self._stat(name).st_mode)
        return False

    def changed(self, name: str) -> int:
        """When a file, or the list of a folder, was changed last, in nanoseconds, by the clock of
        the file system. Raises OSError if nothing has this name.
        """
        return self._stat(name).st_mtime_ns

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(self._where(name), dir_fd=self._number, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove the file or link `name`, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._where(name), dir_fd=self._number)

    def write(self, name: str, data: bytes) -> None:
        """Write a file so that it has all of `data`, or does not exist; it replaces a file of
        the same name.
        """
        aside = aside_of(name)
        try:
            self._write_new(aside, data)
            if self._number is None:
                os.replace(self._path / aside, self._path / name)
            else:
                os.rename(aside, name, src_dir_fd=self._number, dst_dir_fd=self._number)
                os.fsync(self._number)
        finally:
            self.remove(aside)

    def _write_new(self, name: str, data: bytes) -> None:
        number = os.open(
            self._where(name),
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _PLAIN,
            0o666,
            dir_fd=self._number,
        )
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(number)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that does not exist yet; False: another writer was first, and its file is
        unchanged. Readers find all of `data`, or nothing.

        The new name is a hard link, which exactly one of several writers makes, also on NFS.
        """
        aside = aside_of(name)
        try:
            self._write_new(aside, data)
            try:
                os.link(
                    self._where(aside),
                    self._where(name),
                    src_dir_fd=self._number,
                    dst_dir_fd=self._number,
                    follow_symlinks=False,
                )
            except FileExistsError:
                # a repeated request over NFS fails although the first one made the link
                return os.path.samestat(self._stat(aside), self._stat(name))
            if self._number is not None:
                os.fsync(self._number)
            return True
        finally:
            self.remove(aside)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager in which no other thread or process of this machine has this folder
        locked: what is read in it may be written back. Raises FileNotFoundError if the folder has
        lost its path meanwhile, TimeoutError if another writer stays.
        """
        unlock = self._lock()
        try:
            if not self._has_its_path():
                raise FileNotFoundError(
                    f"{self._path} was deleted, and another folder has its place"
                )
            yield
        finally:
            unlock()

    def _has_its_path(self) -> bool:
        if self._number is None:
            return True
        return os.path.samestat(os.fstat(self._number), os.stat(self._path))

    def _lock(self) -> Callable[[], None]:
        """Wait for the lock, and return the function that gives it back."""
        until = time.monotonic() + _PATIENCE
        while self._number is not None and sys.platform != "win32":
            try:
                fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return partial(fcntl.flock, self._number, fcntl.LOCK_UN)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"{self._path.name} has been locked by another process for {_PATIENCE:g} s:"
                        " try again."
                    ) from None
            except OSError:  # a file system without locks
                break
            _wait()
        return self._lock_by_file()

    def _lock_by_file(self) -> Callable[[], None]:
        """The same with a file. A killed writer may leave it: one that stays the same for some
        time is removed.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _PLAIN
        seen, until = (0, 0), 0.0
        while True:
            try:
                os.close(os.open(self._where(_LOCK), flags, 0o666, dir_fd=self._number))
                return partial(self.remove, _LOCK)
            except FileExistsError:
                with contextlib.suppress(FileNotFoundError):
                    held = self._stat(_LOCK)
                    if (held.st_ino, held.st_mtime_ns) != seen:
                        seen, until = (held.st_ino, held.st_mtime_ns), time.monotonic() + _PATIENCE
                    elif time.monotonic() > until:
                        self.remove(_LOCK)
            _wait()

    def _where(self, name: str) -> str | Path:
        return self._path / name if self._number is None else name


def aside_of(name: str) -> str:
    """A name for a file that is not complete yet and will be called `name`. No other writer has
    it.
    """
    return f".{name}.{secrets.token_hex(8)}"


def _wait() -> None:
    # the user's own random state does not change
    time.sleep(random.SystemRandom().uniform(0, 0.005))


def open_regular(path: Path | str, folder: int | None = None) -> BinaryIO:
    """Open a file for reading. Raises OSError if it is a link, ValueError if it is a pipe or a
    device, from which a read may never return.

    folder: the open folder to which `path` is relative.
    """
    # Without O_NONBLOCK, opening a pipe of that name would wait until a process writes into it.
    if not _NO_LINK:
        check_no_link(Path(path))
    number = os.open(
        path, os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | _PLAIN, dir_fd=folder
    )
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ValueError(f"{path} is not a regular file")
    return os.fdopen(number, "rb")


def read_json(path: Path, largest: int) -> dict[str, Any]:
    """Read the JSON object in a regular file of at most `largest` bytes. Raises OSError if it
    cannot be read, ValueError if it has none.
    """
    return _object(_read(path, largest), path)


def _read(path: Path | str, largest: int, folder: int | None = None) -> bytes:
    with open_regular(path, folder) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"{path} has more than {largest} bytes")
    return data


def _object(data: bytes, path: Path) -> dict[str, Any]:
    try:
        parsed = from_json(data.decode())
    except ValueError as error:
        raise ValueError(f"{path} is not readable JSON ({type(error).__name__})") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return parsed


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader finds all of it, also after a crash of the machine. After an
    OSError the old file is unchanged.
    """
    with Folder.opened(path.parent) as folder:
        folder.write(path.name, data)


def make_folder(path: Path) -> Path:
    """Make a folder in a run's folder, unless it exists. Raises OSError if it is a link."""
    path.mkdir(exist_ok=True)
    check_no_link(path)
    return path


def check_no_link(path: Path) -> None:
    """Raise OSError if this is a link: its target does not belong to the run."""
    if path.is_symlink():
        raise OSError(f"{path} is a link, and links in a run's folder are not followed")


def append_to(path: Path, *, create: bool = True) -> int:
    """Open a file for appending; `create`: make it if it does not exist. Raises OSError if it is
    a link, or a pipe without a reader.
    """
    if not _NO_LINK:
        check_no_link(path)
    create_flag = os.O_CREAT if create else 0
    return os.open(
        path,
        os.O_WRONLY | os.O_APPEND | create_flag | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | _PLAIN,
        0o666,
    )


def replace_by(path: Path, write: Callable[[Path], None]) -> None:
    """Replace a file, as `write_whole` does. write: called with a temporary path, at which it
    makes the new file.
    """
    check_no_link(path.parent)
    aside = path.with_name(aside_of(path.name))
    try:
        write(aside)
        to_disk(aside)
        os.replace(aside, path)
        to_disk(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Flush a folder's entries to disk, so that a renamed file survives a crash of the machine."""
    if os.name == "nt" and path.is_dir():
        return  # directories cannot be opened there
    number = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def give_usual_mode(path: Path) -> None:
    """Give a file the mode that new files get from the umask, since some libraries set another one.

    A process can read its umask only by changing it, which other threads would notice; so the mode
    of a new file is read.
    """
    probe = path.with_name(aside_of(path.name))
    number = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _PLAIN, 0o666)
    try:
        mode = stat.S_IMODE(os.fstat(number).st_mode)
    finally:
        os.close(number)
        probe.unlink(missing_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != mode:
        os.chmod(path, mode)
