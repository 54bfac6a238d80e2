"""Keeps the history of one value in bounded memory, to be drawn as a row of blocks: "▇▅▃▂▁"."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from workbench.runs.tables.render import BLOCKS

_MOST = 512
"""How many points are kept at most; when there are more, each pair becomes its mean."""


class Trace:
    """The finite values so far, in order, each point the mean of equally many, and the last
    value of all.
    """

    def __init__(self) -> None:
        self._points = np.empty(0)
        self._size = 1
        """How many values make a point."""
        self._sum, self._count = 0.0, 0
        """The sum and the number of the values that are not yet part of a point."""
        self.last = math.nan

    def add(self, values: ArrayLike) -> None:
        """Add values, shape (n,). Values that are not finite become no points."""
        new = np.asarray(values, np.float64)
        if not len(new):
            return
        self.last = float(new[-1])
        new = new[np.isfinite(new)]
        first, new = np.split(new, [self._size - self._count])
        self._sum, self._count = self._sum + float(first.sum()), self._count + len(first)
        if self._count < self._size:
            return
        whole = len(new) - len(new) % self._size
        self._points = np.concatenate(
            [
                self._points,
                [self._sum / self._size],
                new[:whole].reshape(-1, self._size).mean(axis=1),
            ]
        )
        self._sum, self._count = float(new[whole:].sum()), len(new) - whole
        while len(self._points) >= _MOST:
            if len(self._points) % 2:
                self._sum, self._count = (
                    self._sum + float(self._points[-1]) * self._size,
                    self._count + self._size,
                )
            self._points = self._points[: len(self._points) // 2 * 2].reshape(-1, 2).mean(axis=1)
            self._size *= 2

    @property
    def points(self) -> list[float]:
        """The means; the last one may be the mean of fewer values than the others."""
        points: list[float] = self._points.tolist()
        return [*points, self._sum / self._count] if self._count else points


def blocks(values: Sequence[float], width: int) -> str:
    """Draw the values as 1 to `width` blocks, "▁" for the least value and "█" for the largest; each
    block is the mean of neighbouring values.

    Positive values that spread over more than two decades are drawn by their logarithm. Values that
    are not finite are spaces.
    """
    drawn = _stretched(values, max(1, width))
    finite = [value for value in drawn if math.isfinite(value)]
    if not finite:
        return " " * len(drawn)
    if min(finite) > 0 and max(finite) > 100 * min(finite):
        drawn = [math.log(value) if math.isfinite(value) else value for value in drawn]
        finite = [value for value in drawn if math.isfinite(value)]
    low, span = min(finite), max(finite) - min(finite)
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
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
