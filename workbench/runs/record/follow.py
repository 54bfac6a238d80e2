"""Follows a record while another process writes it."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Container
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from workbench.events import Event
from workbench.runs.folder.files import open_regular
from workbench.runs.read import RECORD, UNREADABLE, event_of
from workbench.runs.record.lines import Budget, whole_lines

_BLOCK = 1 << 18
"""Bytes that one call reads, which takes some 0.15 s, so that the caller can do other work while
it reads a long record.
"""


class Tail:
    """Reads the events of a run folder as they come: each call reads the new ones, up to the last
    complete line.

    The record may be rewritten meanwhile, with the same number of lines (`runs/record/thin.py`);
    lines are not read twice.
    only: the columns of flushes to decode; None: all.
    """

    def __init__(self, folder: Path, only: Container[str] | None = None) -> None:
        self._path, self._only = Path(folder) / RECORD, only
        self._file: BinaryIO | None = None
        """The open record. It stays open because the inode number of a removed file may be
        reused.
        """
        self._close: Callable[[], object] = lambda: None
        self._place = self._lines = 0
        self._budget = Budget(self._path)
        self.skipped = 0
        """Lines that could not be read."""

    def new(self) -> list[Event]:
        """The new events; if there are many, the first ones. An empty list: there are none."""
        return [event for _, event in self.numbered()]

    def numbered(self) -> list[tuple[int, Event]]:
        """The new events as `new` returns them, each with the number of its line, from 0 on."""
        events: list[tuple[int, Event]] = []
        while not events:  # after lines that cannot be read, there may be more events
            lines = self._read()
            if not lines:
                break
            for line in lines:
                number, self._lines = self._lines, self._lines + 1
                if not line.strip():
                    self._budget.other(1)
                    continue
                try:
                    event = event_of(line, self._path.parent.name, self._only)
                except UNREADABLE:
                    self.skipped += 1
                    self._budget.other(len(line))
                else:
                    events.append((number, event))
                    self._budget.event(len(line), event)
                if self._budget.spent:
                    return events
        return events

    def _read(self) -> list[bytes]:
        """The next whole lines."""
        file = None if self._budget.spent else self._current()
        if file is None:
            return []
        file.seek(self._place)
        data = file.read(_BLOCK)
        whole = data[: data.rfind(b"\n") + 1]
        if whole or len(data) < _BLOCK:
            self._place += len(whole)
            return whole.split(b"\n")[:-1]
        file.seek(self._place)  # a line that is longer than a block
        line = next(whole_lines(file, self._budget), b"")
        self._place = file.tell() if line else self._place
        return [line] if line else []

    def _current(self) -> BinaryIO | None:
        """The present record, and the position in it after the lines that were read; None: the
        folder has no record.
        """
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return None
        if self._file is not None and os.path.samestat(stat, os.fstat(self._file.fileno())):
            return self._file
        try:
            file = open_regular(self._path)
        except FileNotFoundError:
            return None
        self._close()
        closing = weakref.finalize(self, _closed, file)
        closing.atexit = False  # a thread that follows a job may still read when the process ends
        self._file, self._close = file, closing
        self._place = 0
        for _ in islice(whole_lines(file, self._budget), self._lines):
            pass
        self._place = file.tell()
        return self._file


def _closed(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):
        file.close()
