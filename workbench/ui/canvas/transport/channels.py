"""Keeps the tables that the canvas draws, in bounded memory: rows of float32, sent from the first
unsent row on.

A *generation* is one numbering of rows. When rows change their meaning (a new job, a merge), a new
generation starts and the browser gets all of it; until it is complete, the browser draws the old
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.events import Floats

Merge = Literal["min", "max", "mean", "last"]
Table = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]


class Channel(Protocol):
    """A table of numbers that is sent to the browser."""

    generation: int
    unsent: int | None
    """The first row that the browser lacks, or has in an older form; None: it has all rows."""

    @property
    def columns(self) -> int:
        """The number of columns."""

    @property
    def length(self) -> int:
        """The number of rows."""

    def rows(self, start: int, stop: int) -> Floats:
        """Rows `start` to `stop`."""

    def head(self) -> dict[str, Any]:
        """The data that the browser needs besides the rows."""

    def restart(self) -> None:
        """Send all rows again, under the next generation."""


class Sent:
    """The base class of channels: notes the first unsent row, and the generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.unsent: int | None = None

    def touch(self, row: int) -> None:
        """Note that rows from `row` on have changed."""
        self.unsent = row if self.unsent is None else min(self.unsent, row)

    def restart(self) -> None:
        """Send everything again, under a new numbering."""
        self.generation += 1
        self.unsent = 0


class SentTable(Sent):
    """The base class of channels with a table of their own."""

    _table: Numbers

    @property
    def columns(self) -> int:
        """The number of columns."""
        return int(self._table.shape[1])

    def rows(self, start: int, stop: int) -> Floats:
        """A copy of these rows, as float32."""
        rows: Floats = self._table[start:stop].astype("<f4")
        return rows


class Group:
    """Columns whose values merge by one rule, with a row for each bucket. NaN means no value,
    and is ignored in a merge.
    """

    def __init__(self, how: Merge, table: Numbers) -> None:
        """table: the values, of shape (buckets, columns)."""
        self._how: Merge = how
        self._table = table
        self._weight: Table = np.zeros(table.shape if how == "mean" else (0, table.shape[1]))

    def add(self, index: NDArray[np.int64], starts: NDArray[np.intp], values: Numbers) -> None:
        """Add values of the buckets `index`, which is sorted; `starts` are the rows at which
        another bucket begins.
        """
        buckets = index[starts]
        if self._how == "mean":
            self._add_mean(buckets, starts, values)
        elif self._how == "last":
            self._add_last(index, values)
        else:
            wins = np.fmin if self._how == "min" else np.fmax
            first = values if len(starts) == len(values) else wins.reduceat(values, starts, axis=0)
            self._table[buckets] = wins(self._table[buckets], first)

    def _add_mean(
        self, buckets: NDArray[np.int64], starts: NDArray[np.intp], values: Numbers
    ) -> None:
        finite = np.isfinite(values)
        before = self._weight[buckets]
        weight = before + np.add.reduceat(finite, starts, axis=0, dtype=np.float64)
        known = np.where(before > 0, self._table[buckets], 0.0) * before
        total = known + np.add.reduceat(np.where(finite, values, 0.0), starts, axis=0)
        self._weight[buckets] = weight
        self._table[buckets] = np.where(weight > 0, total / np.maximum(weight, 1.0), np.nan)

    def _add_last(self, index: NDArray[np.int64], values: Numbers) -> None:
        missing = np.isnan(values)
        if not missing.any():
            ends = _ends(index)
            self._table[index[ends]] = values[ends]
            return
        for column in range(values.shape[1]):
            present = np.flatnonzero(~missing[:, column])
            ends = present[_ends(index[present])]
            self._table[index[ends], column] = values[ends, column]

    def halve(self) -> None:
        """Merge each pair of neighbouring buckets into one."""
        left, right = self._table[0::2], self._table[1::2]
        if self._how == "min":
            merged = np.fmin(left, right)
        elif self._how == "max":
            merged = np.fmax(left, right)
        elif self._how == "last":
            merged = np.where(np.isnan(right), left, right)
        else:
            weights = self._weight[0::2] + self._weight[1::2]
            total = (
                np.nan_to_num(left) * self._weight[0::2] + np.nan_to_num(right) * self._weight[1::2]
            )
            merged = np.where(weights > 0, total / np.maximum(weights, 1.0), np.nan)
            self._weight[: len(weights)] = weights
            self._weight[len(weights) :] = 0.0
        self._table[: len(merged)] = merged
        self._table[len(merged) :] = np.nan


def _starts(index: NDArray[np.int64]) -> NDArray[np.intp]:
    """The rows at which another bucket begins."""
    new = np.empty(len(index), bool)
    new[0] = True
    np.not_equal(index[1:], index[:-1], out=new[1:])
    return np.flatnonzero(new)


def _ends(index: NDArray[np.int64]) -> NDArray[np.intp]:
    """The last row of each bucket. Only these are assigned: NumPy does not define which of
    several assignments to a place wins.
    """
    return (
        np.flatnonzero(np.append(index[1:] != index[:-1], True))
        if len(index)
        else np.zeros(0, np.intp)
    )


class Buckets(SentTable):
    """Any number of updates in at most `cap` buckets of equal width, which doubles when they are
    full.

    Bucket `row` has the updates from origin + row * width on; every `every`-th of them was recorded
    (set by the first call of `add`). `kind` is the dtype of the table; rows are sent as float32.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Merge, int]],
        cap: int,
        kind: type[np.floating[Any]] = np.float64,
    ) -> None:
        super().__init__()
        assert cap % 2 == 0
        self._spec, self._cap, self._kind = tuple(groups), cap, kind
        self._clear()

    def _clear(self) -> None:
        ends = np.cumsum([width for _, width in self._spec])
        self._table = np.full((self._cap, int(ends[-1])), np.nan, self._kind)
        self._groups = [
            Group(how, self._table[:, end - width : end])
            for (how, width), end in zip(self._spec, ends.tolist(), strict=True)
        ]
        self._origin: int | None = None
        self._every = self._width = 1
        self._length = 0

    def reset(self, groups: Sequence[tuple[Merge, int]] | None = None) -> None:
        """Remove all rows for a new job. groups: new columns; None: the same ones."""
        self._spec = self._spec if groups is None else tuple(groups)
        self._clear()
        self.restart()

    def add(self, steps: NDArray[np.int64], every: int, values: Sequence[Numbers]) -> None:
        """Add rows of updates `steps`; `values` has one array of shape (rows, columns) for each
        group.
        """
        if not len(steps):
            return
        if self._origin is None:
            self._origin, self._every = int(steps[0]), max(1, every)
            self._width = self._every
        while (int(steps[-1]) - self._origin) // self._width >= self._cap:
            self._halve()
        index = np.maximum(steps - self._origin, 0) // self._width
        starts = _starts(index)
        for group, array in zip(self._groups, values, strict=True):
            group.add(index, starts, array)
        self._length = max(self._length, int(index[-1]) + 1)
        self.touch(int(index[0]))

    def _halve(self) -> None:
        for group in self._groups:
            group.halve()
        self._width *= 2
        self._length = (self._length + 1) // 2
        self.restart()

    @property
    def length(self) -> int:
        """The number of buckets in use."""
        return self._length

    def rows(self, start: int, stop: int) -> Floats:
        rows: Floats = self._table[start:stop].astype("<f4", copy=False)
        return rows

    def head(self) -> dict[str, Any]:
        """The first update, the width of a bucket in updates, and the stride of recorded
        updates.
        """
        return {"origin": self._origin or 0, "width": self._width, "every": self._every}


class Samples(SentTable):
    """Single rows, thinned evenly when there are `cap` of them. The newest row is always kept."""

    def __init__(self, columns: int, cap: int) -> None:
        super().__init__()
        self._table = np.full((cap, columns), np.nan)
        self._clear()

    def _clear(self) -> None:
        self._length, self._seen, self._stride = 0, 0, 1
        self._provisional = False

    def reset(self) -> None:
        """Remove all rows."""
        self._clear()
        self.restart()

    def add(self, row: Sequence[float]) -> None:
        """Add a row."""
        if self._provisional:
            self._length -= 1
        if self._length == len(self._table):
            self._table[: (self._length + 1) // 2] = self._table[: self._length : 2].copy()
            self._length = (self._length + 1) // 2
            self._stride *= 2
            self.restart()
        self._table[self._length] = row
        self.touch(self._length)
        self._length += 1
        self._provisional = self._seen % self._stride != 0
        self._seen += 1

    @property
    def length(self) -> int:
        """The number of rows kept."""
        return self._length

    def head(self) -> dict[str, Any]:
        """Return no further data."""
        return {}


Channels = Mapping[str, Channel]
