"""Reads a record in pieces: only a few thousand updates are in memory at a time, whatever its
length.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO, TypeVar

from workbench.events import BY_LAYER, BenchEvent, Event, StepsDone
from workbench.runs.folder.files import open_regular
from workbench.runs.read import RECORD, UNREADABLE, event_of, parse
from workbench.runs.record.lines import Budget, whole_lines

E = TypeVar("E", bound=BenchEvent)

ROWS = 5000
"""How many updates a flush has at most when short ones are joined, since each flush takes time
to draw, and ten a second are recorded.
"""
BYTES = 1 << 24
"""How many bytes are in memory at a time; with thousands of layers that is a few hundred
updates.
"""
_BLOCK = 256
"""Lines read at once when reading backwards."""
_SHORT = 1 << 17
"""Up to this size in bytes, `sampled` reads the whole record."""
_WIDEST = 1 << 20
"""How many bytes a line may have that `sampled` reads."""


def stream(folder: Path, only: Container[str] | None = None) -> Iterator[Event]:
    """Yield the events of a run folder in order, up to the last complete line; consecutive flushes
    are joined.

    only: the columns of flushes to decode; None: all. Lines that cannot be read are left out.
    """
    with contextlib.suppress(FileNotFoundError):
        yield from joined(recorded(folder / RECORD, only))


def joined(events: Iterable[E], across_epochs: bool = False) -> Iterator[E | StepsDone]:
    """Yield the events; consecutive flushes of one epoch with the same columns are joined, up to
    ROWS updates or BYTES.

    across_epochs: also join flushes of several epochs, for callers that need only the epoch of the
    last update.
    """
    held: list[StepsDone] = []
    rows = size = 0
    for event in events:
        if held and not (
            isinstance(event, StepsDone)
            and _follows(held[-1], event, across_epochs)
            and _fits(rows, size, event)
        ):
            yield _one(held, rows)
            held, rows, size = [], 0, 0
        if isinstance(event, StepsDone):
            held.append(event)
            rows, size = rows + event.rows, size + event.nbytes
        else:
            yield event
    if held:
        yield _one(held, rows)


def recorded(
    path: Path, only: Container[str] | None = None, first: int = 0, count: int | None = None
) -> Iterator[Event]:
    """Yield the events in `count` lines (None: all) of a record from line `first` on. Lines that
    cannot be read are left out.
    """
    with open_regular(path) as file:
        budget = Budget(path)
        yield from parse(
            islice(whole_lines(file, budget), first, None if count is None else first + count),
            path.parent.name,
            budget,
            only,
        )


def backwards(path: Path, first: int = 0, count: int | None = None) -> Iterator[Event]:
    """Yield the events of `recorded` in reverse order."""
    with open_regular(path) as file:
        places, budget = [0], Budget()
        whole = whole_lines(file, budget)
        for _ in islice(whole, first):
            pass
        places[0] = file.tell()
        while done := sum(
            1 for _ in islice(whole, _BLOCK if count is None else min(_BLOCK, count))
        ):
            places.append(file.tell())
            count = None if count is None else count - done
        budget = Budget(path)
        for start, end in reversed([*pairwise(places)]):
            file.seek(start)
            lines = whole_lines(file, budget)
            yield from reversed([*parse(_until(lines, file, end), path.parent.name, budget)])


def _until(lines: Iterator[bytes], file: BinaryIO, end: int) -> Iterator[bytes]:
    """Yield lines up to this place in their file."""
    while file.tell() < end and (line := next(lines, b"")):
        yield line


def sampled(folder: Path, count: int, only: Container[str] | None = None) -> Iterator[Event]:
    """Yield events of a run folder in order: all of a short record; for a long one, those at about
    `count` equally distant places.

    The time does not depend on the length of the record. Lines of more than `_WIDEST` bytes are
    left out.
    """
    with contextlib.suppress(FileNotFoundError), open_regular(folder / RECORD) as file:
        size = file.seek(0, os.SEEK_END)
        if size <= _SHORT:
            file.seek(0)
            budget = Budget()
            yield from parse(whole_lines(file, budget), folder.name, budget, only)
            return
        for at in range(count):
            file.seek(size * at // count)
            if at:
                file.readline(_WIDEST)  # the rest of a line
            line = file.readline(_WIDEST)
            with contextlib.suppress(*UNREADABLE):
                yield event_of(line, folder.name, only)


def count_lines(path: Path) -> int:
    """The number of complete lines in a record; 0 if there is no record."""
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
        return sum(1 for _ in whole_lines(file, Budget(path)))
    return 0


def _fits(rows: int, size: int, event: StepsDone) -> bool:
    return rows + event.rows <= ROWS and size + event.nbytes <= BYTES


def _follows(last: StepsDone, event: StepsDone, across_epochs: bool) -> bool:
    return (
        (across_epochs or last.epoch == event.epoch)
        and last.every == event.every
        and event.step == last.step + last.every * last.rows
        and last.rows > 0
        and last.columns.keys() == event.columns.keys()
        and last.prog_bar == event.prog_bar
        and last.double == event.double
        and last.layers_every == event.layers_every
        and _sound(last)
        and _sound(event)
    )


def _sound(event: StepsDone) -> bool:
    """Whether each column has an entry for each row; a broken column would shift the rows of
    flushes that are joined to it.
    """
    layers = 4 * int(event.layer_rows.sum()) if event.layers_every > 1 else 4 * event.rows
    parts = (
        (len(data), layers if name in BY_LAYER else 4 * event.rows)
        for name, data in event.columns.items()
    )
    return event.rows > 0 and all(
        size % divisor == 0 if divisor else not size for size, divisor in parts
    )


def _one(held: list[StepsDone], rows: int) -> StepsDone:
    """Several flushes as one, with their rows one after another."""
    if len(held) == 1:
        return held[0]
    last = held[-1]
    columns = {name: b"".join(event.columns[name] for event in held) for name in last.columns}
    memory = max((event.memory for event in held if event.memory is not None), default=None)
    counts = [event.samples for event in held if event.samples is not None]
    samples = sum(counts) if len(counts) == len(held) else None
    return replace(
        last, step=held[0].step, rows=rows, columns=columns, memory=memory, samples=samples
    )
