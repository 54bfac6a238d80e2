"""Thins the columns by layer of older updates, so that a long record has a bounded size on disk.

A quarter of the allowed bytes is for the newest updates, of which all are kept. Another three
eighths are for all older ones,
evenly over the run: the norms of every second update, of every fourth, … as the run grows, so that
a picture of the whole run stays complete. Losses, rates and total norms are never thinned. Lines
keep their numbers, so that a process that follows the record finds its place again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from workbench.events import BY_LAYER, Event, StepsDone, from_line, thinned, to_line
from workbench.runs.folder.files import open_regular
from workbench.runs.read import UNREADABLE
from workbench.runs.record.lines import Budget, whole_lines

NEWEST, LEFT = 1 / 4, 5 / 8
"""Shares of the allowed bytes: for the newest updates, and for all updates after a thinning."""
_MARKS = tuple(f'"{name}":"'.encode() for name in BY_LAYER)
_STRIDE = re.compile(rb'"layers_every":(\d{1,15})(?:,"[a-z]{1,20}":[-+.e\w]{1,30})*\}')
"""The stride, and the numbers that follow it in a line."""


def layer_size(event: Event) -> int:
    """The number of bytes of the columns by layer in the line of an event."""
    if not isinstance(event, StepsDone):
        return 0
    return sum(-(-len(event.columns[name]) // 3) * 4 for name in BY_LAYER if name in event.columns)


def next_stride(sizes: Mapping[int, int], allowed: int) -> int:
    """The stride at which older updates keep their columns by layer from now on. sizes: for each
    present stride, the bytes.
    """
    stride, newest = 2, int(allowed * NEWEST)
    while newest + _after(sizes, stride, newest) > allowed * LEFT and stride < 1 << 40:
        stride *= 2
    return stride


def _after(sizes: Mapping[int, int], stride: int, newest: int) -> float:
    """The bytes of the older updates after thinning to this stride; the newest updates are among
    those with the smallest stride.
    """
    older = dict(sizes)
    smallest = min(older)
    older[smallest] = max(0, older[smallest] - newest)
    return sum(size * min(1.0, every / stride) for every, size in older.items())


def thinned_lines(record: Path, stride: int, older: int, sizes: Counter[int]) -> Iterator[bytes]:
    """Yield the lines of a record, with the first `older` bytes of columns by layer thinned to
    this stride; `sizes` is recomputed.
    """
    sizes.clear()
    passed = 0
    with open_regular(record) as file:
        for line in whole_lines(file, Budget(record)):
            size, every = _size_in(line), _stride_in(line)
            passed += size
            if not size or passed > older or every >= stride:  # most lines, which are not parsed
                sizes[every] += size
                yield line
                continue
            less = _thinned(line, stride)
            sizes[_stride_in(less)] += _size_in(less)
            yield less


def _thinned(line: bytes, stride: int) -> bytes:
    try:
        event = from_line(line)
    except UNREADABLE:
        return line
    return (
        to_line(thinned(event, stride)).encode() + b"\n" if isinstance(event, StepsDone) else line
    )


def _size_in(line: bytes) -> int:
    """The number of bytes of the columns by layer in this line. It searches for their keys;
    quotes within texts are escaped, so no text matches.
    """
    size = 0
    for mark in _MARKS:
        start = line.find(mark)
        if start >= 0:
            size += max(0, line.find(b'"', start + len(mark)) - start - len(mark))
    return size


def _stride_in(line: bytes) -> int:
    match = _STRIDE.search(line, max(0, len(line) - 200))
    return int(match[1]) if match else 1
