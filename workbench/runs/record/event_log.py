"""Provides the events of a job or a run as a sequence in bounded memory: older events are read
from the record when needed.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from workbench.events import Event, StepsDone, size_of, thinned
from workbench.runs.read import RECORD, read_header
from workbench.runs.record.sequence import Events
from workbench.runs.record.stream import backwards, count_lines, recorded
from workbench.runs.record.thin import layer_size

HELD = 1 << 22
"""Bytes of the newest events that stay in memory."""
FEWEST = 16
"""The least number of events that stay in memory, whatever their size."""
UNRECORDED = 1 << 26
"""Bytes of columns by layer of events that are not recorded; when there are more, they are
thinned as in a record (`runs/record/thin.py`).
"""


class RecordGone(FileNotFoundError):
    """Raised for events that were in the record of a deleted run."""


class Recorded(Events):
    """The events that a record had when this object was made; another process may add more to
    the record.
    """

    def __init__(self, folder: Path, over: bool) -> None:
        """over: whether no process will add to the record."""
        self._record = _Record(folder)
        self._lines = None if over else count_lines(self._record.path)
        self._kept: tuple[Event, ...] | None = None
        self._length: int | None = None

    def stream(self, only: Container[str] | None = None) -> Iterator[Event]:
        if self._kept is None and only is None and self._is_small():
            self._kept = tuple(self._record.read(0, self._lines))
        return (
            iter(self._kept) if self._kept is not None else self._record.read(0, self._lines, only)
        )

    def _is_small(self) -> bool:
        try:
            return self._record.path.stat().st_size <= HELD
        except FileNotFoundError:
            return False

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self.stream(()))
        return self._length

    def __reversed__(self) -> Iterator[Event]:
        if self._kept is not None:
            return reversed(self._kept)
        return self._record.back(0, self._lines)


class EventLog(Events):
    """The events of a job, added one by one (`add`). The first and the newest ones stay in memory;
    for the others the log keeps their place in the record.

    Events without a record stay in memory; their columns by layer are thinned when they get too
    large.
    """

    def __init__(self, events: Iterable[Event] = (), record: Path | None = None) -> None:
        """record: the folder of the run."""
        self._record = None if record is None else _Record(record)
        self._old: list[_Lines | list[Event]] = []
        self._old_count = self._unrecorded = 0
        self._stride = 1
        self._new: deque[tuple[Event, int | None]] = deque()
        self._size = 0
        self._lock = threading.Lock()
        for event in events:
            self.add(event)

    def add(self, event: Event, line: int | None = None) -> None:
        """Add an event. line: its number in the record, from 0 on; None: it is not recorded."""
        with self._lock:
            self._new.append((event, line))
            self._size += size_of(event)
            while self._size > HELD and len(self._new) > FEWEST:
                self._put_away(*self._new.popleft())

    append = add

    def _put_away(self, event: Event, line: int | None) -> None:
        self._size -= size_of(event)
        self._old_count += 1
        last = self._old[-1] if self._old else None
        beginning = (
            self._old_count <= FEWEST
            and not isinstance(last, _Lines)
            and not isinstance(event, StepsDone)
        )
        if line is not None and self._record is not None and not beginning:
            if isinstance(last, _Lines) and last.first + last.count == line:
                last.count += 1
            else:
                self._old.append(_Lines(line, 1))
            return
        if not isinstance(last, list):
            last = []
            self._old.append(last)
        kept = thinned(event, self._stride) if isinstance(event, StepsDone) else event
        last.append(kept)
        self._unrecorded += layer_size(kept)
        if self._unrecorded > UNRECORDED:
            self._thin()

    def _thin(self) -> None:
        self._stride *= 2
        self._unrecorded = 0
        for segment in self._old:
            if isinstance(segment, list):
                segment[:] = [
                    thinned(event, self._stride) if isinstance(event, StepsDone) else event
                    for event in segment
                ]
                self._unrecorded += sum(map(layer_size, segment))

    def now(self) -> Sequence[Event]:
        """The events so far: a tuple if all are in memory, else a log that no longer grows."""
        state = self.__getstate__()
        if not state["_old"]:
            return tuple(event for event, _ in state["_new"])
        other = EventLog()
        other.__setstate__(state)
        return other

    @property
    def recent(self) -> list[Event]:
        """The newest events, which are in memory: the objects that were added."""
        with self._lock:
            return [event for event, _ in self._new]

    def since(self, seen: int) -> Iterator[Event]:
        """The events after the first `seen`."""
        old, new = self._parts(seen)
        for segment in old:
            yield from self._of(segment, None)
        yield from new

    def stream(self, only: Container[str] | None = None) -> Iterator[Event]:
        old, new = self._parts()
        for segment in old:
            yield from self._of(segment, only)
        yield from new

    def __len__(self) -> int:
        with self._lock:
            return self._old_count + len(self._new)

    def __reversed__(self) -> Iterator[Event]:
        old, new = self._parts()
        yield from reversed(new)
        for segment in reversed(old):
            yield from (
                reversed(segment)
                if isinstance(segment, list)
                else self._recorded.back(segment.first, segment.count)
            )

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the log; a copy in another process reads the same record."""
        with self._lock:
            old, new = (
                [
                    segment.rest(0) if isinstance(segment, _Lines) else [*segment]
                    for segment in self._old
                ],
                deque(self._new),
            )
            return {**self.__dict__, "_old": old, "_new": new, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _parts(self, skip: int = 0) -> tuple[list[_Lines | list[Event]], list[Event]]:
        """The events after the first `skip`, as older parts and the newest events. If only the
        newest are needed, no others are copied.
        """
        with self._lock:
            old: list[_Lines | list[Event]] = []
            for segment in self._old if skip < self._old_count else ():
                if skip < len(segment):
                    old.append(
                        segment.rest(skip) if isinstance(segment, _Lines) else segment[skip:]
                    )
                skip = max(0, skip - len(segment))
            skip = 0 if old else max(0, skip - self._old_count)
            return old, [event for event, _ in islice(self._new, skip, None)]

    def _of(self, segment: _Lines | list[Event], only: Container[str] | None) -> Iterator[Event]:
        return (
            iter(segment)
            if isinstance(segment, list)
            else self._recorded.read(segment.first, segment.count, only)
        )

    @property
    def _recorded(self) -> _Record:
        assert self._record is not None
        return self._record


class _Lines:
    """A number of lines of a record, each of which is an event."""

    __slots__ = ("count", "first")

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def rest(self, skip: int) -> _Lines:
        """All lines but the first `skip`."""
        return _Lines(self.first + skip, self.count - skip)


class _Record:
    """The record of one run. If the run was deleted, another one may have its id and its folder;
    its record is never read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / RECORD
        self._created = self._now_created()

    def read(
        self, first: int, count: int | None, only: Container[str] | None = None
    ) -> Iterator[Event]:
        """Yield the events in `count` lines (None: all) from line `first` on. Raises RecordGone
        if the run was deleted.
        """
        self._check()
        try:
            yield from recorded(self.path, only, first, count)
        except FileNotFoundError:
            self._check()

    def back(self, first: int, count: int | None) -> Iterator[Event]:
        """Yield the events of `read` in reverse order."""
        self._check()
        try:
            yield from backwards(self.path, first, count)
        except FileNotFoundError:
            self._check()

    def _check(self) -> None:
        now = self._now_created()
        another = None not in (now, self._created) and now != self._created
        if another or not self._folder.is_dir():
            raise RecordGone(
                f"run {self._folder.name} was deleted, and these events were in its record"
                f" ({self.path})."
            )

    def _now_created(self) -> Any:
        with contextlib.suppress(OSError, ValueError):
            return read_header(self._folder).get("created")
        return None


def newest(events: Sequence[Event]) -> list[Event]:
    """The newest events of a sequence of any kind: the objects that were added, not copies read
    from a record.
    """
    return events.recent if isinstance(events, EventLog) else [*events]


def since(events: Sequence[Event], seen: int) -> Iterator[Event]:
    """The events after the first `seen` of any sequence."""
    return events.since(seen) if isinstance(events, Events) else iter(events[seen:])


def now(events: Iterable[Event]) -> Sequence[Event]:
    """The events so far of a sequence of any kind."""
    if isinstance(events, EventLog):
        return events.now()
    return events if isinstance(events, Events) else tuple(events)
