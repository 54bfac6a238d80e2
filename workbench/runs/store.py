"""Writes run folders: `<root>/runs/<id>/` with `run.json`, `metrics.jsonl` and, when needed,
subfolders.

One job writes one folder. Creating `metrics.jsonl` exclusively makes it the writer; it is then the
only one, so no lock is needed. `read.py` reads folders.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from workbench.events import BY_LAYER, Event, StepsDone, size_of, to_line
from workbench.runs.folder.alive import identity
from workbench.runs.folder.files import append_to, make_folder, open_regular, write_whole
from workbench.runs.folder.ids import check_id, runs_folder
from workbench.runs.read import HEADER, RECORD, read_header
from workbench.runs.record.event_log import RecordGone
from workbench.runs.record.stream import count_lines
from workbench.runs.record.thin import NEWEST, layer_size, next_stride, thinned_lines
from workbench.secrets import without_secrets

_TORN = b"~\n"
"""Ends a line that a failed write left incomplete, so that it never parses as an event."""
_ASIDE = RECORD + ".new"
_RESERVE, _RESERVED = ".reserve", 1 << 16
"""The name and size of a file that a running run reserves, so that the end of its record fits on
a full disk.
"""
_ROOM = 1 << 25
"""How many bytes of columns may wait while the disk is full."""
_AGAIN = 0.1
"""Seconds between two attempts to write the waiting events."""
_SURE = 1.0
"""Seconds for which a record must be gone before that counts: a network file system may lose
sight of a file for a moment.
"""


class RunFolder:
    """The folder of one job that is being written. `append` may be called from any thread.

    An event that cannot be written waits, in bounded memory, and is written before the next one. If
    the disk stays full, `catch_up` drops data that does not fit and says what the record lacks; the
    end of the record is written in any case.
    """

    def __init__(self, path: Path, header: dict[str, Any], record: FileIO) -> None:
        self.path = path
        self._header = header
        self._record = record
        self._torn = False
        self._lock = threading.Lock()
        self._waiting: deque[Event] = deque()
        """Events that could not be written yet, the oldest first."""
        self._lacks: dict[str, tuple[int, int]] = {}
        """Descriptions of dropped data, each with its first and last update."""
        self.lines = 0
        """The number of complete lines of the record, as far as this writer has counted them."""
        self._allowed = _allowance(header)
        self._sizes: Counter[int] = Counter()
        """For each stride of thinning, the bytes of the columns by layer in the record."""
        self._thin_at = math.inf if self._allowed is None else float(self._allowed)

    @classmethod
    def create(cls, root: Path, id: str, header: Mapping[str, Any]) -> Self:
        """Make `<root>/runs/<id>` and write its header; FileExistsError if a run of that id is
        there.

        To `header` are added "created" (seconds since 1970) and the keys of `alive.identity()`,
        where it does not have them. It must be plain JSON data.
        """
        path = runs_folder(root) / check_id(id)
        path.mkdir(exist_ok=True)
        try:
            record = _claim(path / RECORD)
        except FileExistsError:
            raise FileExistsError(
                f"there is a run {id!r} in {root} already; take another id"
            ) from None
        full = {"created": time.time(), **identity(), **without_secrets(header)}
        try:
            _write_header(path, full)
        except BaseException:
            record.close()
            _forget(path)
            raise
        # a disk may be full already
        with contextlib.suppress(OSError), (path / _RESERVE).open("xb") as file:
            # random bytes, since a file system could compress zeros
            file.write(os.urandom(_RESERVED))
        return cls(path, full, record)

    @classmethod
    def take_over(cls, path: Path) -> Self:
        """Become the writer of a run that another process has made and assigned to this one
        (`name_writer`).
        """
        header = {**read_header(path), **identity()}
        record = _opened(path / RECORD)
        try:
            _write_header(path, header)
        except BaseException:
            record.close()
            raise
        writer = cls(path, header, record)
        writer._count()
        return writer

    def name_writer(self, pid: int) -> None:
        """Record in the header that process `pid` of this machine, or a child of it, is the
        writer from now on.
        """
        self._header = {**self._header, **identity(pid)}
        _write_header(self.path, self._header)

    def write_again(self) -> None:
        """Become the writer again after another process has ended, which may have left an
        incomplete line or rewritten the record.
        """
        with self._lock:
            self._torn = not _ends_whole(self.path / RECORD)
            self._record.close()
            self._record = _opened(self.path / RECORD)
            self._count()

    def _count(self) -> None:
        """Count the lines of a record that another process has written, and the bytes of its
        columns by layer.
        """
        self.lines = count_lines(self.path / RECORD)
        if self._allowed is not None:
            for _ in thinned_lines(self.path / RECORD, 1, 0, self._sizes):
                pass

    @property
    def id(self) -> str:
        """The id of the run, which names the folder."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints; made on first use."""
        return make_folder(self.path / "checkpoints")

    def append(self, event: Event) -> int:
        """Write one event as one line, which the operating system has when this returns. Returns
        the number of the line, from 0 on.

        Raises OSError if it cannot be written (disk full, read-only, quota). Then earlier lines
        stay, and the event waits: a later call writes it first. Raises RecordGone if the record was
        deleted or moved, where a write may still succeed.
        """
        try:
            return self._append(event)
        finally:
            self.check_there()

    def check_there(self) -> None:
        """Raise RecordGone if the record is no longer in its folder."""
        until = time.monotonic() + _SURE
        while self._is_gone():
            if time.monotonic() > until:
                raise RecordGone(
                    f"the record of {self.id} has disappeared: {self.path} was deleted or moved"
                    " while the job wrote it. The job ends here, and what it has in memory stays."
                    " A folder that was moved can be moved back."
                )
            time.sleep(_AGAIN)

    def _is_gone(self) -> bool:
        with self._lock:
            if self._record.closed:
                return False
            ours = os.fstat(self._record.fileno())
        try:
            stat = os.stat(self.path / RECORD)
        except FileNotFoundError:
            return True
        except OSError:  # it cannot be known now
            return False
        # Some file systems have no steady inode numbers, and some no number of links.
        return ours.st_nlink == 0 and not os.path.samestat(ours, stat)

    def _append(self, event: Event) -> int:
        with self._lock:
            if self._record.closed:
                raise ValueError(f"the record in {self.path} is closed")
            self._waiting.append(event)
            try:
                self._write_waiting()
            except OSError:
                self._give_up_over(_ROOM)
                raise
            line = self.lines - 1
            if self._sizes.total() > self._thin_at:
                self._thin()
            return line

    def catch_up(self, seconds: float) -> str:
        """Try for this long to write the waiting events, then drop data that does not fit. Returns
        a phrase about what the record lacks; "": nothing.

        The end of the record always fits, since a part of the disk is reserved for it.
        """
        until = time.monotonic() + seconds
        while self._waiting and not self._written() and time.monotonic() < until:
            time.sleep(_AGAIN)
        with self._lock:
            if self._waiting:
                self._release()
                # a quarter, since text is longer, and the end needs space, too
                self._give_up_over(_RESERVED // 4)
                with contextlib.suppress(OSError):
                    self._write_waiting()
            return "; ".join(
                f"{quantity} of updates {first} to {last}"
                for quantity, (first, last) in self._lacks.items()
            )

    def close(self) -> None:
        """Add no more events. Calling it twice has no effect."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._write_waiting()
            self._record.close()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _written(self) -> bool:
        """Write the waiting events; returns whether all of them are written."""
        with self._lock, contextlib.suppress(OSError):
            self._write_waiting()
        return not self._waiting

    def _write_waiting(self) -> None:
        while self._waiting:
            event = self._waiting[0]
            line = to_line(event).encode() + b"\n"
            torn = self._torn
            self._write(_TORN + line if torn else line)
            self.lines += 1 + torn
            self._waiting.popleft()
            if isinstance(event, StepsDone) and self._allowed is not None:
                self._sizes[event.layers_every] += layer_size(event)

    def _thin(self) -> None:
        """Thin the old updates: write the record to a second file, which then replaces it."""
        assert self._allowed is not None
        aside = self.path / _ASIDE
        older, sizes = self._sizes.total() - int(self._allowed * NEWEST), Counter[int]()
        try:
            lines = thinned_lines(
                self.path / RECORD, next_stride(self._sizes, self._allowed), older, sizes
            )
            # of a killed writer, or a link that somebody has put there
            aside.unlink(missing_ok=True)
            with aside.open("xb") as file:
                written = sum(1 for line in lines if file.write(line))
                file.flush()
                os.fsync(file.fileno())
            record = FileIO(
                os.open(aside, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)), "ab"
            )
            try:
                aside.replace(self.path / RECORD)
            except BaseException:
                record.close()
                raise
            self._record.close()
            self._record, self._sizes, self.lines = record, sizes, written
        except OSError:  # a full disk, for example: the record does not change
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
        # not at every flush
        self._thin_at = max(float(self._allowed), self._sizes.total() + self._allowed / 8)

    def _give_up_over(self, room: int) -> None:
        """Drop columns by layer of the waiting flushes, then whole flushes, the oldest first,
        until the rest has at most `room` bytes.
        """
        size = sum(map(size_of, self._waiting))
        for index, event in enumerate(self._waiting):
            if size <= room:
                return
            if isinstance(event, StepsDone) and any(name in event.columns for name in BY_LAYER):
                rest = {name: data for name, data in event.columns.items() if name not in BY_LAYER}
                self._waiting[index] = replace(event, columns=rest)
                size -= size_of(event) - size_of(self._waiting[index])
                self._lack("norms by layer", event)
        kept: deque[Event] = deque()
        for event in self._waiting:
            if size > room and isinstance(event, StepsDone):
                size -= size_of(event)
                self._lack("the measurements", event)
            else:
                kept.append(event)
        self._waiting = kept

    def _lack(self, quantity: str, event: StepsDone) -> None:
        last = event.step + event.every * max(0, event.rows - 1)
        first, before = self._lacks.get(quantity, (event.step, last))
        self._lacks[quantity] = min(first, event.step), max(before, last)

    def _release(self) -> None:
        """Release the space that was reserved for the end of the record."""
        with contextlib.suppress(OSError):
            (self.path / _RESERVE).unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            # on a full disk, a write may be partial, and the next one raises an error
            while written < len(data):
                written += self._record.write(data[written:]) or 0
        finally:
            if written:
                self._torn = not data[:written].endswith(b"\n")


def _claim(path: Path) -> FileIO:
    descriptor = os.open(
        path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
    )
    return FileIO(descriptor, "ab")


def _opened(path: Path) -> FileIO:
    """Open an existing record for appending."""
    return FileIO(append_to(path, create=False), "ab")


def _allowance(header: Mapping[str, Any]) -> int | None:
    """The most bytes of the columns by layer; None: unlimited."""
    settings = header.get("settings")
    megabytes = settings.get("layer_history_mb") if isinstance(settings, Mapping) else None
    return int(megabytes * 1e6) if isinstance(megabytes, int) and megabytes > 0 else None


def _ends_whole(path: Path) -> bool:
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) in (b"", b"\n")


def _write_header(run: Path, header: Mapping[str, Any]) -> None:
    write_whole(run / HEADER, (json.dumps(header, indent=1) + "\n").encode())


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        for name in (RECORD, _ASIDE, _RESERVE):
            (path / name).unlink(missing_ok=True)
        path.rmdir()
