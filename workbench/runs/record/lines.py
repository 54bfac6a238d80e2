"""Reads the lines of a record, which may come from a stranger, within a budget for what is no
event.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from workbench.events import Changed, Event, Resumed, RunStarted, StepsDone

LONGEST = 1 << 26
"""The most bytes of a line; a flush of 256 updates of 10,000 layers has 30 MB."""
LONG = 1 << 22
"""The most bytes of a line that is no flush."""
FLUSH = b'{"type":"StepsDone",'
"""How the line of a flush begins."""
OTHER_BYTES, OTHER_LINES = 1 << 24, 10_000
"""How many bytes and lines of a record may be no events: a file of 1 TB may take no room on a
disk, and a run is read many times.
"""
_FOR_AN_EVENT = 10
"""How many times as many there may be besides for each event."""
_COSTLY: dict[type, int] = {RunStarted: 200, Changed: 30, Resumed: 30}
"""Events with settings, whose check takes as long as that of so many lines. A record has few of
them.
"""
_AGAIN = 100
"""The same for a flush of updates that an earlier one has: it cannot be joined to that one, and
is judged by itself.
"""
_TYPE, _TORN = b'"type"', b"~\n"
"""The key that each event has, and what a writer leaves where a disk was full."""
_PIECE = 1 << 20
_log = logging.getLogger("workbench.runs")
_named: set[Path] = set()
"""The records of which a part was left out."""


class Budget:
    """What one reader may still spend on what is no event in a record. When it is `spent`, the rest
    of the record is left out.

    Each event adds to it, so that a long record is read whole, whatever a newer version or a full
    disk has left in it.
    """

    __slots__ = ("_bytes", "_done", "_lines", "_record")

    def __init__(self, record: Path | None = None) -> None:
        """record: its path, for a warning; None: there is none."""
        self._record = record
        self._bytes, self._lines = OTHER_BYTES, OTHER_LINES
        self._done = 0

    def event(self, size: int, event: Event) -> None:
        """Count a line of so many bytes that is this event."""
        self._bytes += _FOR_AN_EVENT * size
        self._lines += _FOR_AN_EVENT
        cost = _COSTLY.get(type(event), 0)
        if isinstance(event, StepsDone):
            cost, self._done = _AGAIN if event.rows and event.step < self._done else 0, event.done
        if cost:
            self._count(0, cost)

    def other(self, size: int) -> None:
        """Count a line, or a part of one, that is none."""
        self._count(size, 1)

    def _count(self, size: int, lines: int) -> None:
        self._bytes -= size
        self._lines -= lines
        if self.spent and self._record is not None and self._record not in _named:
            _named.add(self._record)
            _log.warning(
                "%s",
                f"{str(self._record)!r} is read in part: too many of its lines are no events, or"
                " begin anew, and the rest was left out.",
            )

    @property
    def spent(self) -> bool:
        """Whether the rest is left out."""
        return self._bytes < 0 or self._lines < 0


def whole_lines(file: BinaryIO, budget: Budget) -> Iterator[bytes]:
    """Yield the lines of a record from the file's position to the last complete one; "~" in
    place of one that cannot be an event.
    """
    while not budget.spent and (line := file.readline(_PIECE)):
        if line.endswith(b"\n"):
            if _TYPE not in line and line != _TORN:  # also for readers that only count lines
                budget.other(len(line))
            yield line
            continue
        pieces, size = [line], len(line)
        while not line.endswith(b"\n"):
            possible = size <= LONG or (size <= LONGEST and pieces[0].startswith(FLUSH))
            if not possible or b"\0" in line:  # a hole of a file that takes no room on the disk
                budget.other(size)
                yield from _after(file, budget)
                break
            line = file.readline(_PIECE)
            if not line:  # its writer has not completed it
                return
            pieces.append(line)
            size += len(line)
        else:
            yield b"".join(pieces)


def _after(file: BinaryIO, budget: Budget) -> Iterator[bytes]:
    """Pass over the rest of a line; yield "~" if it has an end, within the budget."""
    while not budget.spent and (line := file.readline(_PIECE)):
        if line.endswith(b"\n"):
            yield _TORN
            return
        budget.other(len(line))
