"""Thins the columns by layer of older updates, so that a long record has a bounded size on disk.

The newest quarter of the allowance holds every update. Everything older shares another three eighths, evenly over the
run: every second update's norms, every fourth's, … as the run grows, so that a picture of the whole run stays complete.
Losses, rates and total norms are never thinned. Lines keep their numbers, so that whoever follows a record finds the
place again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from workbench.events import BY_LAYER, Event, StepsDone, thinned, to_line
from workbench.runs.folder.files import open_regular
from workbench.runs.read import UNREADABLE, event_of
from workbench.runs.record.stream import whole_lines

NEWEST, LEFT = 1 / 4, 5 / 8
"""Shares of the allowance: of the newest updates, and of everything after a thinning."""
_MARKS = tuple(f'"{name}":"'.encode() for name in BY_LAYER)
_STRIDE = re.compile(rb'"layers_every":(\d{1,15})(?:,"samples":(?:\d{1,15}|null))?\}')


def layer_size(event: Event) -> int:
    """How many bytes the columns by layer of an event take in its line."""
    if not isinstance(event, StepsDone):
        return 0
    return sum(-(-len(event.columns[name]) // 3) * 4 for name in BY_LAYER if name in event.columns)


def next_stride(sizes: Mapping[int, int], allowed: int) -> int:
    """The stride at which older updates keep their columns by layer from now on; sizes: bytes by their present
    stride.
    """
    stride, newest = 2, int(allowed * NEWEST)
    while newest + _after(sizes, stride, newest) > allowed * LEFT and stride < 1 << 40:
        stride *= 2
    return stride


def _after(sizes: Mapping[int, int], stride: int, newest: int) -> float:
    """The bytes of the older updates with this stride; the newest are among those of the smallest stride."""
    older = dict(sizes)
    smallest = min(older)
    older[smallest] = max(0, older[smallest] - newest)
    return sum(size * min(1.0, every / stride) for every, size in older.items())


def thinned_lines(record: Path, stride: int, older: int, sizes: Counter[int]) -> Iterator[bytes]:
    """The lines of a record, its first `older` bytes of columns by layer thinned to this stride; `sizes` is filled anew."""
    sizes.clear()
    passed = 0
    with open_regular(record) as file:
        for line in whole_lines(file):
            size, every = _size_in(line), _stride_in(line)
            passed += size
            if not size or passed > older or every >= stride:  # most lines: they are not read
                sizes[every] += size
                yield line
                continue
            less = _thinned(line, stride)
            sizes[_stride_in(less)] += _size_in(less)
            yield less


def _thinned(line: bytes, stride: int) -> bytes:
    try:
        event = event_of(line)
    except UNREADABLE:
        return line
    return to_line(thinned(event, stride)).encode() + b"\n" if isinstance(event, StepsDone) else line


def _size_in(line: bytes) -> int:
    """How many bytes the columns by layer take in this line. Within a text a quote has a backslash, so that it begins none."""
    size = 0
    for mark in _MARKS:
        found = line.find(mark)
        if found >= 0:
            size += max(0, line.find(b'"', found + len(mark)) - found - len(mark))
    return size


def _stride_in(line: bytes) -> int:
    found = _STRIDE.search(line, max(0, len(line) - 200))
    return int(found[1]) if found else 1
