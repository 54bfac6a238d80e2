"""Keeps the history of one value in bounded memory, to be drawn as a row of blocks: "▇▅▃▂▁"."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
_MOST = 512
"""Points that are kept; where there are more, each two become their mean."""


class Trace:
    """The finite values so far, in order, each point the mean of equally many."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._size = 1
        """How many values make a point."""
        self._sum, self._count = 0.0, 0
        self.last = math.nan

    def add(self, values: Iterable[float]) -> None:
        """Add values; those that are not finite are left out."""
        for value in values:
            if not math.isfinite(value):
                continue
            self.last = value
            self._sum, self._count = self._sum + value, self._count + 1
            if self._count == self._size:
                self._points.append(self._sum / self._size)
                self._sum, self._count = 0.0, 0
            if len(self._points) == _MOST:
                self._points = [(a + b) / 2 for a, b in zip(self._points[::2], self._points[1::2], strict=True)]
                self._size *= 2

    @property
    def points(self) -> list[float]:
        """The means, the last one of fewer values than the others."""
        return [*self._points, self._sum / self._count] if self._count else [*self._points]


def blocks(values: Sequence[float], width: int) -> str:
    """The values as at most `width` blocks from the least to the largest value; each block is the mean of its stretch.

    Positive values that spread over more than two decades are drawn by their logarithm. Values that are not finite are spaces.
    """
    drawn = _stretched(values, width)
    there = [value for value in drawn if math.isfinite(value)]
    if not there:
        return " " * len(drawn)
    if min(there) > 0 and max(there) > 100 * min(there):
        drawn = [math.log(value) if math.isfinite(value) else value for value in drawn]
        there = [value for value in drawn if math.isfinite(value)]
    low, span = min(there), max(there) - min(there)
    top = len(BLOCKS) - 1

    def mark(value: float) -> str:
        if not math.isfinite(value):
            return " "
        return BLOCKS[round(top * (value - low) / span)] if span > 0 else BLOCKS[top // 2]

    return "".join(map(mark, drawn))


def _stretched(values: Sequence[float], width: int) -> Sequence[float]:
    if len(values) <= width:
        return values
    edges = [round(number * len(values) / width) for number in range(width + 1)]
    return [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(values: Sequence[float]) -> float:
    there = [value for value in values if math.isfinite(value)]
    return sum(there) / len(there) if there else math.nan
