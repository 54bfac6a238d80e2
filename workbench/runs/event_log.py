"""The events of a job or a run as a sequence, in bounded memory: what is old is read from the record when it is asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

from workbench.events import BY_LAYER, Event, StepsDone, thinned
from workbench.runs.files import open_regular
from workbench.runs.read import RECORD, UNREADABLE, event_of
from workbench.runs.sequence import Events
from workbench.runs.stream import whole_lines

HELD = 1 << 22
"""Bytes of the newest events that are held as they are."""
FEWEST = 16
"""And so many events, whatever their size."""
UNRECORDED = 1 << 26
"""Bytes of columns by layer of events that are in no record: beyond it they are thinned out as in a record (`runs.thin`)."""
_BLOCK = 256
"""Lines read at once on the way back."""


class RecordGone(FileNotFoundError):
    """What is asked for was in the record of a run that has been deleted since."""


class Recorded(Events):
    """Those of a record that another process may write on, or none: as many as were there when this was made."""

    def __init__(self, folder: Path, over: bool) -> None:
        """over: whether nothing will be added to it."""
        self._path = folder / RECORD
        self._lines = None if over else _count(self._path)
        self._kept: tuple[Event, ...] | None = None
        self._length: int | None = None

    def stream(self, only: Container[str] | None = None) -> Iterator[Event]:
        if self._kept is None and only is None and self._is_small():
            self._kept = tuple(_read(self._path, 0, self._lines, None))
        return iter(self._kept) if self._kept is not None else _read(self._path, 0, self._lines, only)

    def _is_small(self) -> bool:
        try:
            return self._path.stat().st_size <= HELD
        except FileNotFoundError:
            return False

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self.stream(()))
        return self._length

    def __reversed__(self) -> Iterator[Event]:
        if self._kept is not None:
            return reversed(self._kept)
        return _back(self._path, 0, self._lines)


class EventLog(Events):
    """Those of a job, which come one by one (`add`). The newest are held as they are; of older ones it is known where the record
    has them. What is in no record is held, its columns by layer thinned out when they are too many."""

    def __init__(self, events: Iterable[Event] = (), record: Path | None = None) -> None:
        """record: the folder of the run."""
        self._path = None if record is None else record / RECORD
        self._old: list[_Lines | list[Event]] = []
        self._old_count = self._unrecorded = 0
        self._stride = 1
        self._new: deque[tuple[Event, int | None]] = deque()
        self._size = 0
        self._lock = threading.Lock()
        for event in events:
            self.add(event)

    def add(self, event: Event, line: int | None = None) -> None:
        """One more. line: its number in the record, from 0 on; None: it is not there."""
        with self._lock:
            self._new.append((event, line))
            self._size += _size(event)
            while self._size > HELD and len(self._new) > FEWEST:
                self._put_away(*self._new.popleft())

    append = add

    def _put_away(self, event: Event, line: int | None) -> None:
        self._size -= _size(event)
        self._old_count += 1
        last = self._old[-1] if self._old else None
        if line is not None and self._path is not None:
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
        self._unrecorded += _layers(kept)
        if self._unrecorded > UNRECORDED:
            self._thin()

    def _thin(self) -> None:
        self._stride *= 2
        for part in self._old:
            if isinstance(part, list):
                part[:] = [thinned(event, self._stride) if isinstance(event, StepsDone) else event for event in part]
        self._unrecorded = sum(_layers(event) for part in self._old if isinstance(part, list) for event in part)

    def now(self) -> Sequence[Event]:
        """Those until now: as they are where all of them are held, else another log that none are added to."""
        with self._lock:
            if not self._old:
                return tuple(event for event, _ in self._new)
            other = EventLog()
            other._path, other._old_count, other._size = self._path, self._old_count, self._size
            other._old = [_Lines(part.first, part.count) if isinstance(part, _Lines) else [*part] for part in self._old]
            other._new = deque(self._new)
            return other

    @property
    def recent(self) -> list[Event]:
        """The newest, which are held: the same objects as were added."""
        with self._lock:
            return [event for event, _ in self._new]

    def since(self, seen: int) -> Iterator[Event]:
        """Those behind the first `seen`."""
        place, old, new = 0, *self._parts()
        for part in old:
            count = part.count if isinstance(part, _Lines) else len(part)
            skip = min(max(0, seen - place), count)
            place += count
            if skip < count:
                yield from self._of(part, skip, None)
        yield from new[max(0, seen - place) :]

    def stream(self, only: Container[str] | None = None) -> Iterator[Event]:
        old, new = self._parts()
        for part in old:
            yield from self._of(part, 0, only)
        yield from new

    def __len__(self) -> int:
        with self._lock:
            return self._old_count + len(self._new)

    def __reversed__(self) -> Iterator[Event]:
        old, new = self._parts()
        yield from reversed(new)
        for part in reversed(old):
            yield from reversed(part) if isinstance(part, list) else _back(self._record, part.first, part.count)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                found = [event for _, event in zip(range(start, stop), self.since(start), strict=False)]
                return found
        return super().__getitem__(index)

    def _parts(self) -> tuple[list[_Lines | list[Event]], list[Event]]:
        with self._lock:
            old = [_Lines(part.first, part.count) if isinstance(part, _Lines) else [*part] for part in self._old]
            return old, [event for event, _ in self._new]

    def _of(self, part: _Lines | list[Event], skip: int, only: Container[str] | None) -> Iterator[Event]:
        if isinstance(part, list):
            return iter(part[skip:])
        return _read(self._record, part.first + skip, part.count - skip, only)

    @property
    def _record(self) -> Path:
        assert self._path is not None
        return self._path


class _Lines:
    """So many lines of a record, each of which is an event."""

    __slots__ = ("count", "first")

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count


def _read(path: Path, first: int, count: int | None, only: Container[str] | None) -> Iterator[Event]:
    """The events in lines of a record; None: in all from the first one on."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise RecordGone(f"run {path.parent.name} was deleted, and what is asked for was in its record ({path}).") from None
        return
    with file:
        for line in islice(whole_lines(file), first, None if count is None else first + count):
            try:
                yield event_of(line, only)
            except UNREADABLE:
                continue


def _back(path: Path, first: int, count: int | None) -> Iterator[Event]:
    """The same from the last one on."""
    whole = _count(path) - first if count is None else count
    for start in range((whole - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
        yield from reversed([*_read(path, first + start, min(_BLOCK, whole - start), None)])


def _count(path: Path) -> int:
    """The whole lines of a record."""
    try:
        with open_regular(path) as file:
            return sum(1 for _ in whole_lines(file))
    except FileNotFoundError:
        return 0


def newest(events: Sequence[Event]) -> list[Event]:
    """The newest events of a sequence of any kind: the same objects as were added, and not those that a record has."""
    return events.recent if isinstance(events, EventLog) else [*events]


def since(events: Sequence[Event], seen: int) -> Iterator[Event]:
    """Those behind the first `seen` of a sequence of any kind."""
    return events.since(seen) if isinstance(events, EventLog) else iter(events[seen:])


def now(events: Iterable[Event]) -> Sequence[Event]:
    """Those until now of a sequence of any kind."""
    if isinstance(events, EventLog):
        return events.now()
    return events if isinstance(events, Events) else tuple(events)


def _layers(event: Any) -> int:
    return sum(len(event.columns.get(name, b"")) for name in BY_LAYER) if isinstance(event, StepsDone) else 0


def _size(event: Event) -> int:
    """About how many bytes an event takes in memory."""
    return 500 + sum(map(len, event.columns.values())) if isinstance(event, StepsDone) else 500
